"""The paper's three networks and a small MLP, built from plain torch layers, and `to_group_norm` for any other model.

``simple_cnn`` is the paper's Mod1, ``resnet18`` its Mod2, ``vgg16`` its Mod3. Where the paper's text and the authors'
code differ, ``variant="paper"`` follows the text and ``variant="authors"`` the code. No layer mixes examples, each is
called once in a forward pass, and initial parameters come from the given ``torch.Generator`` alone.
``build(name, num_classes, input_shape)`` builds any of :data:`MODELS`; ``python -m classgrad.models`` prints their
numbers of parameters.
"""

from classgrad.models._group_norm import to_group_norm
from classgrad.models._mlp import mlp
from classgrad.models._registry import MODELS, build
from classgrad.models._resnet import resnet18
from classgrad.models._simple_cnn import simple_cnn
from classgrad.models._vgg import vgg16

__all__ = ["MODELS", "build", "mlp", "resnet18", "simple_cnn", "to_group_norm", "vgg16"]
