"""Hooks that let a layer's input and output gradient be had from an ordinary forward and backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.modules.module import _global_forward_hooks as _GLOBAL_HOOKS
from torch.utils.hooks import RemovableHandle

from classgrad._errors import InputError
from classgrad.gradients.engines._graph import Graph
from classgrad.gradients.layers._taps import Call, call_of, let_go, own_node, tap

_ROOM = 256
"""Calls that are noted before those of graphs that are gone are looked for."""


class Capture:
    """The calls of a model's layers that are part of a live graph."""

    def __init__(self, modules: Iterable[nn.Module] = (), wanted: Callable[[nn.Module], bool] = bool) -> None:
        self.closed = False
        self.resting = False
        self.recorded = False
        self.again: dict[nn.Module, None] = {}
        """Layers that a backward pass ran once more."""
        self._references: list[weakref.ref[Call]] = []
        self._room = _ROOM
        # First in line: what other hooks make of the layer's output comes after it.
        self._handles: list[RemovableHandle] = [
            module.register_forward_hook(self._hook, prepend=True, with_kwargs=True)
            for module in modules
            if wanted(module)
        ]

    def __reduce__(self) -> tuple[Callable[[], Capture], tuple[()]]:
        """Make the hooks that copies and pickles of a model carry along do nothing."""
        return _closed, ()

    def _hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
        if torch.compiler.is_dynamo_compiling():
            return self._untraced(module, args, kwargs, output)
        if self.closed:
            self.close()
        if self.closed or self.resting or not isinstance(output, Tensor) or not output.requires_grad:
            return None
        if output.is_nested:  # examples of different shapes
            return None
        if torch._C._current_graph_task_id() != -1:  # gradient checkpointing runs the layer again
            self.again[module] = None
            return None
        call = Call(module, args, kwargs, output)
        if self._preceded(module) and own_node(call, output) is None:  # another hook may have changed the output
            return None
        self._references.append(weakref.ref(call))
        if len(self._references) > self._room:  # forwards that nobody made a step of
            self._room = max(_ROOM, 2 * len(self._nodes))
        return tap(self, call, output, self.recorded)

    def _preceded(self, module: nn.Module) -> bool:
        """Whether other hooks than ours came first, though ours was put in front of those that were there."""
        if _GLOBAL_HOOKS:
            return True
        for hook in module._forward_hooks.values():
            if hook == self._hook:
                break
            if not isinstance(getattr(hook, "__self__", None), Capture):
                return True
        return False

    @_disable_dynamo  # torch.compiler.disable, but it loads the compiler at the first call rather than here
    def _untraced(self, *called: Any) -> Tensor | None:
        """Do the hook's work between the parts of a compiled model; elsewhere the wrapper would cost more than it."""
        return self._hook(*called)

    @property
    def _nodes(self) -> list[Call]:
        """The calls that nodes of live graphs hold, in the order of the forward passes."""
        live = [(reference, call) for reference in self._references if (call := reference()) is not None]
        self._references = [reference for reference, _ in live]
        return [call for _, call in live]

    @property
    def holding(self) -> bool:
        """Whether there are calls of any live graph."""
        return any(reference() is not None for reference in self._references)

    def calls(self, marked: Iterable[Any]) -> list[tuple[Any, Call]]:
        """Return the nodes of a graph that hold calls, of its marked ones, with these, in the forward pass's order."""
        nodes = {call: node for node in marked if (call := call_of(self, node)) is not None}
        return [(nodes[call], call) for call in self._nodes if call in nodes]

    def release(self, marked: Iterable[Any]) -> None:
        """Let go of the calls of a graph, as autograd lets go of what it saved: the losses may live on for long."""
        own = set(self._nodes)
        for node in marked:
            if call_of(self, node) in own:
                let_go(self, node)

    def abandon(self) -> None:
        """Do nothing from now on; safe at any moment, where removing a hook could disturb the loop that calls it."""
        self.closed = True

    def close(self) -> None:
        """Remove the hooks."""
        self.closed = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._references.clear()


def _closed() -> Capture:
    capture = Capture()
    capture.close()
    return capture


def check_in_sight(again: Iterable[nn.Module], graph: Graph, names: dict[nn.Module, str]) -> None:
    """Raise if a layer that a backward pass ran once more has parameters that its graph does not know of."""
    for module in again:
        if any(p is not None and p.requires_grad and not graph.uses[id(p)] for p in module._parameters.values()):
            raise InputError(
                f"Layer `{names[module]}` runs again in the backward pass, as in reversible networks, which hides it "
                "from autograd; its class gradients are lost and what is in `p.grad` is of no use. Have it keep its "
                "activations, or use torch.utils.checkpoint with use_reentrant=False."
            )


def check_unmodified(calls: Iterable[Call], names: dict[nn.Module, str]) -> None:
    """Raise if the input of a layer was changed in place after the layer had used it."""
    for call in calls:
        if call.modified():
            raise InputError(
                f"The input of layer `{names[call.module]}` was changed in place after the layer had used it, so its "
                "gradient is lost; use the out-of-place operation there."
            )
