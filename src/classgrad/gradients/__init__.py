"""Class gradients of any model; the only room that touches autograd.

``ClassGradients`` is the public object. Engines: ``joint`` (one backward per class), ``split`` (one forward and
backward per class) and ``fused`` (one backward for all), which reads each layer's class gradients off its input and
output gradient by the rules in ``layers/``; ``register_layer`` adds one.

``CapturedStep`` replays whole steps as CUDA graphs. What it is made of serves loops of one's own: ``Recordings`` of any
function of device tensors, ``RecordedUpdate`` of an optimizer, and ``step_laid_out``, ``step_by_class`` and
``refresh_by_class``, which take batches of known make-up without waiting for the device.
"""

from classgrad.gradients._by_class import refresh_by_class, step_by_class, step_laid_out
from classgrad.gradients._class_gradients import ClassGradients
from classgrad.gradients._layout import ClassLayout, class_layout
from classgrad.gradients._step import Step
from classgrad.gradients._table import GradientTable, Verification
from classgrad.gradients.captured._captured import CapturedStep
from classgrad.gradients.captured._recorded_update import RecordedUpdate, why_not
from classgrad.gradients.captured._recordings import Recordings, Unrecordable
from classgrad.gradients.layers._registry import register_layer

__all__ = [
    "CapturedStep",
    "ClassGradients",
    "ClassLayout",
    "GradientTable",
    "RecordedUpdate",
    "Recordings",
    "Step",
    "Unrecordable",
    "Verification",
    "class_layout",
    "refresh_by_class",
    "register_layer",
    "step_by_class",
    "step_laid_out",
    "why_not",
]
