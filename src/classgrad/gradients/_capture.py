"""Hooks that let a layer's input and output gradient be had from an ordinary forward and backward."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.utils.hooks import RemovableHandle

from classgrad._errors import InputError


class Call:
    """One call of a layer in a forward pass: its module and what went in."""

    __slots__ = ("__weakref__", "inputs", "kwargs", "module", "saved", "shape", "versions")

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        self.module = module
        self.inputs = tuple(v.detach() if isinstance(v, Tensor) else v for v in args)
        self.kwargs = {k: v.detach() if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        self.versions = [v._version for v in self._tensors()]
        self.shape = output.shape
        self.saved = _saved_statistics(output)

    def _tensors(self) -> Iterable[Tensor]:
        return (v for v in (*self.inputs, *self.kwargs.values()) if isinstance(v, Tensor))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument of the layer's forward, however it was passed."""
        return self.inputs[position] if position < len(self.inputs) else self.kwargs.get(name, default)

    @property
    def input(self) -> Tensor:
        """The layer's first input."""
        value: Tensor = self.argument(0, "input")
        return value

    def modified(self) -> bool:
        """Whether an input was changed in place since, so that the layer's gradient can no longer be had from it."""
        return self.versions != [v._version for v in self._tensors()]


def _saved_statistics(output: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the mean and inverse deviation a normalization layer saved for its own backward, if there are any."""
    node = output.grad_fn
    if node is None or node.name() not in ("NativeGroupNormBackward0", "NativeLayerNormBackward0"):
        return None
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None  # under gradient checkpointing or offloading they are packed away; they are made again when needed
    return node._saved_result1, node._saved_result2  # type: ignore[attr-defined]  # made by torch's code generator


class _Tap(torch.autograd.Function):
    """The identity; its node stands for the layer's output in the graph and keeps the call alive as long as that."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, call: Call, in_place: bool) -> Tensor:
        """Return the output under a new name."""
        ctx.call = call
        # `.data` is no view for autograd, so an in-place activation may follow; none of the layers this is used for
        # needs its own output in its backward. For others a view makes autograd refuse what it could not check.
        return output.data if in_place else output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient."""
        return gradient, None, None


class Capture:
    """The calls of a model's layers that are part of a live graph."""

    def __init__(self, model: nn.Module, wanted: Callable[[nn.Module], bool], in_place: Callable[[nn.Module], bool]):
        self.closed = False
        self._nodes: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._count = itertools.count()
        self._in_place = in_place
        self._handles: list[RemovableHandle] = [
            module.register_forward_hook(self._hook, with_kwargs=True) for module in model.modules() if wanted(module)
        ]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
        if not isinstance(output, Tensor) or not output.requires_grad:
            return None
        if torch._C._current_graph_task_id() != -1:  # gradient checkpointing runs the layer again
            return None
        tapped: Tensor = _Tap.apply(output, Call(module, args, kwargs, output), self._in_place(module))  # type: ignore[no-untyped-call]
        self._nodes[next(self._count)] = tapped.grad_fn
        return tapped

    def take(self) -> list[tuple[GradientEdge, Call]]:
        """Return the calls whose graph is still alive, in the order of the forward pass, and forget them."""
        nodes = [node for _, node in sorted(self._nodes.items())]
        self._nodes.clear()
        return [(GradientEdge(node, 0), node.call) for node in nodes]

    def close(self) -> None:
        """Remove the hooks."""
        self.closed = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()


def check_unmodified(calls: Iterable[Call], names: dict[nn.Module, str]) -> None:
    """Raise if the input of a layer was changed in place after the layer had used it."""
    for call in calls:
        if call.modified():
            raise InputError(
                f"The input of layer `{names[call.module]}` was changed in place after the layer had used it, so its "
                "gradient is lost; use the out-of-place operation there."
            )
