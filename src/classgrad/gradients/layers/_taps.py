"""Nodes in the autograd graph that stand for the outputs of layers, each with the call that made it.

Where the node that a layer's own operation left is known, it is the one; elsewhere a new one is put behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from classgrad.gradients import kernels

Sink = Callable[["Call", Tensor, bool], Tensor | None]
"""Where the gradient of a call's output goes in a step; returns the input's gradient if asked for and able to."""

_NO_KEYWORDS: dict[str, Any] = {}
"""Of nearly all calls. Where a step makes some 700 objects that may hold others, Python looks through all of them."""


class Call:
    """One call of a layer in a forward pass: its module as it was then, and what went in.

    ``sink`` is set while a step is made; ``saved`` are the mean and inverse deviation of a normalization, ``weight`` is
    what it then multiplied by, which need not be the module's own or still be there in the backward pass.
    """

    __slots__ = (
        "__weakref__",
        "inputs",
        "kwargs",
        "module",
        "parameters",
        "saved",
        "shape",
        "sink",
        "training",
        "version",
        "weight",
    )

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        self.module = module
        self.training = module.training
        # Those that were in use: torch.func.functional_call and the like put others in their place for a while.
        self.parameters = {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}
        self.inputs = args
        self.kwargs = kwargs or _NO_KEYWORDS
        self.version = self._version()
        self.shape = output.shape
        self.saved = _saved_statistics(output) if isinstance(module, (nn.GroupNorm, nn.LayerNorm)) else None
        weight: Any = None if self.saved is None else module.weight
        self.weight: Tensor | None = weight
        self.sink: Sink | None = None

    def _version(self) -> int:
        values = (*self.inputs, *self.kwargs.values()) if self.kwargs else self.inputs
        return sum([v._version for v in values if isinstance(v, Tensor)])  # each only ever grows

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument of the layer's forward, however it was passed."""
        return self.inputs[position] if position < len(self.inputs) else self.kwargs.get(name, default)

    @property
    def input(self) -> Tensor:
        """The layer's first input, whatever its forward calls it; None if it takes none."""
        inputs: tuple[Tensor, ...] = self.inputs
        if inputs:
            return inputs[0]
        named: Any = self.kwargs.get("input", next(iter(self.kwargs.values()), None))
        value: Tensor = named
        return value

    def release(self) -> None:
        """Let go of what went in: the step has made use of it."""
        self.inputs, self.kwargs, self.saved, self.weight = (), _NO_KEYWORDS, None, None

    def modified(self) -> bool:
        """Whether an input was changed in place since, so that the layer's gradient can no longer be had from it."""
        return self.version != self._version()


def _saved_statistics(output: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the mean and inverse deviation a normalization layer saved for its own backward, if there are any."""
    node = output.grad_fn
    if type(node).__name__ not in ("NativeGroupNormBackward0", "NativeLayerNormBackward0"):
        return None
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None  # under gradient checkpointing or offloading they are packed away; they are made again when needed
    made: Any = node  # by torch's code generator
    # Detached: the node that made them may be the one that holds the call, which would then keep itself alive.
    return made._saved_result1.detach(), made._saved_result2.detach()


_OWN = {
    nn.Linear: ("AddmmBackward0", "MmBackward0"),
    nn.Conv1d: ("ConvolutionBackward0",),
    nn.Conv2d: ("ConvolutionBackward0",),
    nn.Conv3d: ("ConvolutionBackward0",),
    nn.GroupNorm: ("NativeGroupNormBackward0",),
    nn.LayerNorm: ("NativeLayerNormBackward0",),
    nn.Embedding: ("EmbeddingBackward0",),
}
"""The operations that make a layer's output if nobody interferes, and whose output is no view of anything."""

_VIEWS = ("ViewBackward0", "UnsafeViewBackward0")
"""How a linear layer gives the rows that its product made the dimensions of its input."""

_FEW = 2**21
"""Elements that a GPU reads again in less time than a node of our own takes the host.

Layer normalization's own node is one launch; that of group normalization is several, so it is never kept.
"""

MARKED: set[type] = set()
"""Types of nodes that hold calls."""

_Holder: Any = torch.autograd.function.BackwardCFunction
"""What nodes are that were made to hold one."""


def tap(owner: Hashable, call: Call, output: Tensor, recorded: bool) -> Tensor | None:
    """Have a node hold the call until the step is made; return the layer's output under a new name if it is a new node.

    A new node costs several times as much, forward and backward, unless its launches are ``recorded``.
    """
    tapped: Tensor
    if _has_kernel(call, output, recorded):
        module: Any = call.module
        tapped = _Normalization.apply((call, output), call.input, module.weight, module.bias)  # type: ignore[no-untyped-call]
    elif (node := own_node(call, output)) is not None:
        MARKED.add(type(node))
        node.metadata[owner] = call
        return None
    else:
        tapped = _Tap.apply(output, call)  # type: ignore[no-untyped-call]
    MARKED.add(type(tapped.grad_fn))
    return tapped


def own_node(call: Call, output: Tensor) -> Any:
    """Return the node of the operation that made the output, None if it is not the layer's usual one."""
    usual = _OWN.get(type(call.module), ())
    node: Any = output.grad_fn
    if type(call.module) is nn.Linear and type(node).__name__ in _VIEWS:
        node = node.next_functions[0][0]  # that of the view is lost if the output is changed in place
    return node if type(node).__name__ in usual else None


def call_of(owner: Hashable, node: Any) -> Call | None:
    """Return the call that a node of a marked type holds for an owner, if there is one."""
    call: Call | None = node.call if isinstance(node, _Holder) else node.metadata.get(owner)
    return call


def let_go(owner: Hashable, node: Any) -> None:
    """Have a node hold its call no longer."""
    if isinstance(node, _Holder):
        node.call = None
    else:
        del node.metadata[owner]


def listen(node: Any, call: Call) -> RemovableHandle | None:
    """See to it that the call's sink is given what comes to its node; nodes made for that do so by themselves."""
    return None if isinstance(node, _Holder) else node.register_prehook(partial(_arrived, call))


def _arrived(call: Call, gradients: tuple[Tensor | None, ...]) -> None:
    if call.sink is not None:
        b = gradients[0]
        if b is None:
            b = call.input.new_zeros(call.shape)
        if b.shape != call.shape:
            b = b.view(call.shape) if b.is_contiguous() else b.reshape(call.shape)
        call.sink(call, b, False)


def _has_kernel(call: Call, output: Tensor, recorded: bool) -> bool:
    """Whether a kernel makes the input's gradient along with the parameters', in a node that is worth its while."""
    if call.saved is None or not kernels.available(output) or call.input.dtype != output.dtype:
        return False
    if call.weight is not None and not call.weight.is_contiguous():
        return False
    module: Any = call.module
    if isinstance(module, nn.GroupNorm):
        return True
    return (recorded or output.numel() > _FEW) and math.prod(module.normalized_shape) <= kernels.WIDEST


class _Tap(torch.autograd.Function):
    """The identity."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, call: Call) -> Tensor:
        """Return the output under a new name."""
        ctx.call = call
        # Unlike a view this may be changed in place by what follows, and unlike `.data` it shares the version counter,
        # so autograd still notices if the layer needs its unchanged output.
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient, after it went where the step wants it."""
        call = ctx.call
        if call is not None and call.sink is not None:
            call.sink(call, gradient, False)
        return gradient, None


class _Normalization(torch.autograd.Function):
    """Group or layer normalization in place of torch's own node: its backward pass knows every example's share."""

    @staticmethod
    def forward(ctx: Any, made: tuple[Call, Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return the output that torch's forward made; in a tuple autograd does not take it for an input."""
        call, output = made
        ctx.call = call
        ctx.module = call.module
        ctx.bias = bias
        watched = None if isinstance(call.module, nn.GroupNorm) else bias  # as torch's own node does
        ctx.save_for_backward(x, weight, watched, *call.saved)  # type: ignore[misc]
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the input's gradient as the step made it on its way, or as torch does outside of a step."""
        call = ctx.call
        x, weight, _, mean, rstd = ctx.saved_tensors  # raises, as torch's own node does, if any was changed in place
        if call is not None and call.sink is not None:
            return None, call.sink(call, gradient, True), None, None
        saved = (x, weight, ctx.bias, mean, rstd)
        return None, *_plain_backward(ctx.module, gradient, saved, ctx.needs_input_grad[1:])


def _plain_backward(
    module: nn.GroupNorm | nn.LayerNorm, gradient: Tensor, saved: tuple[Tensor, ...], needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, rstd = saved
    if torch.is_grad_enabled():  # a gradient that is to be differentiated again
        inputs = [v for v, need in zip((x, weight, bias), needed, strict=True) if need]
        y = (
            F.group_norm(x, module.num_groups, weight, bias, module.eps)
            if isinstance(module, nn.GroupNorm)
            else F.layer_norm(x, module.normalized_shape, weight, bias, module.eps)
        )
        found = iter(torch.autograd.grad(y, inputs, gradient, create_graph=True))
        return tuple(next(found) if need else None for need in needed)
    gradient, x = gradient.contiguous(), x.contiguous()
    if isinstance(module, nn.LayerNorm):
        made = torch.ops.aten.native_layer_norm_backward(
            gradient, x, module.normalized_shape, mean, rstd, weight, bias, needed
        )
    else:
        size = (x.shape[0], x.shape[1], x.shape[2:].numel(), module.num_groups)
        made = torch.ops.aten.native_group_norm_backward(gradient, x, mean, rstd, weight, *size, needed)
    return tuple(made)
