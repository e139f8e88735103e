"""The parameters of a model, found at every step: they may be frozen, added or replaced in between."""

from __future__ import annotations

from torch import nn


def own_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return what ``model.parameters()`` yields, without the names it works out on the way, which take longer."""
    found: dict[int, nn.Parameter] = {}
    seen: set[nn.Module] = set()
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if module._parameters:
            for p in module._parameters.values():
                if p is not None:
                    found.setdefault(id(p), p)
        children = module._modules
        if children:  # most have none
            waiting += [child for child in reversed(children.values()) if child is not None]
    return list(found.values())
