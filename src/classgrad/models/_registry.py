"""The networks by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

from torch import nn

from classgrad._errors import InputError
from classgrad.models._checks import one_of
from classgrad.models._mlp import mlp
from classgrad.models._resnet import resnet18
from classgrad.models._simple_cnn import simple_cnn
from classgrad.models._vgg import vgg16

MODELS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {"simple_cnn": simple_cnn, "resnet18": resnet18, "vgg16": vgg16, "mlp": mlp}
)


def build(name: str, num_classes: int, input_shape: Sequence[int], **options: Any) -> nn.Module:
    """Build a network of :data:`MODELS` for examples of `input_shape`: (channels, height, width), any for `mlp`.

    `options` are the network's own keyword arguments, such as `variant`, `generator` or `channels_per_group`.

    >>> build("mlp", 10, (1, 8, 8), hidden=(20,))[1]
    Linear(in_features=64, out_features=20, bias=True)
    """
    model = MODELS[one_of("model", name, MODELS)]
    shape = _shape_arguments(name, input_shape)
    known = set(inspect.signature(model).parameters) - {"num_classes"} - set(shape)
    for option in options:
        one_of(f"options of {name}", option, known)
    return model(num_classes, **shape, **options)


def _shape_arguments(name: str, input_shape: Sequence[int]) -> dict[str, Any]:
    if name == "mlp":
        return {"in_features": prod(input_shape)}
    if len(input_shape) != 3:
        raise InputError(
            f"input_shape must be (channels, height, width) for {name}, found {tuple(input_shape)};"
            " for other data use mlp"
        )
    channels, height, width = input_shape
    return {"in_channels": channels, "image_size": (height, width)}
