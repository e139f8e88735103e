"""Class gradients of any model; the only room that touches autograd.

``ClassGradients`` is the public object. Engines: ``joint`` (one backward per class), ``split`` (one forward and
backward per class) and ``fused`` (one backward for all), which reads each layer's class gradients off its input and
output gradient by the rules in ``layers/``; ``register_layer`` adds one.
"""

from classgrad.gradients._captured import CapturedStep
from classgrad.gradients._class_gradients import ClassGradients
from classgrad.gradients._registry import register_layer
from classgrad.gradients._step import Step
from classgrad.gradients._table import GradientTable, Verification

__all__ = ["CapturedStep", "ClassGradients", "GradientTable", "Step", "Verification", "register_layer"]
