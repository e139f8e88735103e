"""classgrad: learning under class imbalance with the gradients of the classes.

The four lines to adopt it::

    grads = ClassGradients(model, rule=Normalize())
    losses = F.cross_entropy(model(x), y, reduction="none")   # one loss per example
    step = grads.backward(losses, y)                          # in place of losses.mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""

from classgrad._errors import InputError
from classgrad._version import __version__
from classgrad.gradients import ClassGradients, Step, register_layer
from classgrad.rules import Bisect, Normalize, Prefer, Rescale, Rule, Sum, from_torchjd

__all__ = [
    "Bisect",
    "ClassGradients",
    "InputError",
    "Normalize",
    "Prefer",
    "Rescale",
    "Rule",
    "Step",
    "Sum",
    "__version__",
    "from_torchjd",
    "register_layer",
]
