"""Which layer types have a rule for their class gradients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from classgrad._errors import InputError
from classgrad.gradients._layout import ClassLayout
from classgrad.gradients.layers._taps import Call
from classgrad.gradients.terms._terms import Memory, Sums, Term

PerExample = Callable[[nn.Module, Tensor, Tensor], Mapping[str, Tensor]]
Through = Callable[[Call, Tensor, ClassLayout, Memory, Tensor | None], tuple[Tensor | None, dict[str, Term]]]


@dataclass(frozen=True)
class LayerRule:
    """How the class gradients of a layer's parameters follow from its input and its output gradient.

    ``terms(call, b, layout, memory, wanted)`` returns a term for each wanted parameter name;
    ``applies(call, examples)`` says whether this call is one the rule covers (examples in the first dimension, options
    it knows). ``through``, where there is one, does what ``terms`` does and returns the input's gradient as well, which
    it comes by on the way, in the tensor it is given for that if any. ``blind`` are the parameters whose gradient does
    not depend on what went in. ``options(call)``, where there is one, tells what decides about the operations that
    ``terms`` and ``through`` launch beside the tensors of the call, None if anything else does: where they all are what
    they were, these operations can be replayed.
    """

    parameters: tuple[str, ...]
    terms: Callable[[Call, Tensor, ClassLayout, Memory, frozenset[str]], dict[str, Term]]
    applies: Callable[[Call, int], bool]
    through: Through | None = None
    blind: frozenset[str] = frozenset()
    options: Callable[[Call], Hashable | None] | None = None


_RULES: dict[type[nn.Module], LayerRule] = {}


def rule_of(module: nn.Module) -> LayerRule | None:
    """Return the rule for this module's own type; a subclass or a replaced forward may compute anything: none."""
    return None if "forward" in vars(module) else _RULES.get(type(module))


def will_have_rule(module: nn.Module) -> bool:
    """Whether there is a rule for this module, or for what it becomes when it first sees an input."""
    becomes = module.cls_to_become if isinstance(module, LazyModuleMixin) else None
    return rule_of(module) is not None or (becomes in _RULES and "forward" not in vars(module))


def add_rule(layer: type[nn.Module], rule: LayerRule) -> None:
    """Enter a rule; a later one for the same type replaces it."""
    _RULES[layer] = rule


def leading(call: Call, examples: int) -> bool:
    """Whether the first dimension of the layer's input and output counts the examples, in memory for all of them."""
    given, made = call.input, call.shape
    shape = given.shape if isinstance(given, Tensor) and given.layout is torch.strided else ()
    return len(shape) >= 2 and len(made) >= 2 and shape[0] == made[0] == examples


def register_layer(layer: type[nn.Module], per_example: PerExample, parameters: tuple[str, ...]) -> None:
    """Teach the fused engine a layer of one's own.

    ``per_example(module, input, grad_output)`` returns, for each name in ``parameters``, the gradient of every example
    by itself, shape ``(N, *parameter.shape)``. The layer must treat the examples (first dimension) independently and
    use these parameters only in its forward, which takes one tensor. Objects made before the registration do not see
    it.

    >>> import torch
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = nn.Parameter(torch.ones(3))
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> register_layer(Scale, lambda module, x, b: {"factor": x * b}, ("factor",))
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise InputError(f"Parameter `layer` should be a subclass of torch.nn.Module. Found {layer!r}.")
    if isinstance(parameters, str) or not parameters:
        raise InputError(f"Parameter `parameters` should be a tuple of parameter names. Found {parameters!r}.")

    def terms(call: Call, b: Tensor, layout: ClassLayout, memory: Memory, wanted: frozenset[str]) -> dict[str, Term]:
        gradients = per_example(call.module, call.input, b)
        for name in wanted:
            expected = (layout.examples, *getattr(call.module, name).shape)
            found = gradients.get(name)
            if found is None or found.shape != expected:
                raise InputError(
                    f"The layer rule of {layer.__name__} should return per-example gradients of `{name}` with shape "
                    f"{expected}. Found {None if found is None else tuple(found.shape)}."
                )
        return {name: Sums(gradients[name], layout, memory) for name in wanted}

    add_rule(layer, LayerRule(tuple(parameters), terms, leading))
