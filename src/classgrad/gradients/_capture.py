"""Hooks that let a layer's input and output gradient be had from an ordinary forward and backward."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.graph import GradientEdge
from torch.utils.hooks import RemovableHandle

from classgrad._errors import InputError


class Call:
    """One call of a layer in a forward pass: its module as it was then, and what went in."""

    __slots__ = ("__weakref__", "inputs", "kwargs", "module", "parameters", "saved", "shape", "training", "versions")

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        self.module = module
        self.training = module.training
        # Those that were in use: torch.func.functional_call and the like put others in their place for a while.
        self.parameters = {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}
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
        """The layer's first input, whatever its forward calls it."""
        value: Tensor = self.argument(0, "input", next(iter(self.kwargs.values()), None))
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
    """The identity; its node stands for the layer's output in the graph and holds the call until the step is made."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, call: Call) -> Tensor:
        """Return the output under a new name."""
        ctx.call = call
        # Unlike a view this may be changed in place by what follows, and unlike `.data` it shares the version counter,
        # so autograd still notices if the layer needs its unchanged output.
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient."""
        return gradient, None


class Capture:
    """The calls of a model's layers that are part of a live graph."""

    def __init__(self, modules: Iterable[nn.Module] = (), wanted: Callable[[nn.Module], bool] = bool) -> None:
        self.closed = False
        self.resting = False
        self._nodes: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._count = itertools.count()
        # First in line: what other hooks make of the layer's output comes after it.
        self._handles: list[RemovableHandle] = [
            module.register_forward_hook(self._hook, prepend=True, with_kwargs=True)
            for module in modules
            if wanted(module)
        ]

    def __reduce__(self) -> tuple[Callable[[], Capture], tuple[()]]:
        """Make the hooks that copies and pickles of a model carry along do nothing."""
        return _closed, ()

    @_disable_dynamo  # torch.compiler.disable, but it loads the compiler at the first call rather than here
    def _hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
        if self.closed:
            self.close()
        if self.closed or self.resting or not isinstance(output, Tensor) or not output.requires_grad:
            return None
        if torch._C._current_graph_task_id() != -1:  # gradient checkpointing runs the layer again
            return None
        tapped: Tensor = _Tap.apply(output, Call(module, args, kwargs, output))  # type: ignore[no-untyped-call]
        self._nodes[next(self._count)] = tapped.grad_fn
        return tapped

    @property
    def holding(self) -> bool:
        """Whether there are calls of any live graph."""
        return len(self._nodes) > 0

    def calls(self, graph: Container[Any]) -> list[tuple[GradientEdge, Call]]:
        """Return the calls that are part of a graph, in the order of the forward pass."""
        nodes = [node for _, node in sorted(self._nodes.items()) if node in graph and node.call is not None]
        return [(GradientEdge(node, 0), node.call) for node in nodes]

    def release(self, graph: Container[Any]) -> None:
        """Let go of the calls of a graph, as autograd lets go of what it saved: the losses may live on for long."""
        for key, node in list(self._nodes.items()):
            if node in graph:
                node.call = None
                del self._nodes[key]

    def abandon(self) -> None:
        """Do nothing from now on; safe at any moment, where removing a hook could disturb the loop that calls it."""
        self.closed = True

    def close(self) -> None:
        """Remove the hooks."""
        self.closed = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()


def _closed() -> Capture:
    capture = Capture()
    capture.close()
    return capture


def check_unmodified(calls: Iterable[Call], names: dict[nn.Module, str]) -> None:
    """Raise if the input of a layer was changed in place after the layer had used it."""
    for call in calls:
        if call.modified():
            raise InputError(
                f"The input of layer `{names[call.module]}` was changed in place after the layer had used it, so its "
                "gradient is lost; use the out-of-place operation there."
            )
