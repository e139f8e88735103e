"""Values on their way from the device to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Deliver = Callable[[dict[str, Any]], None]


class Mailbox:
    """Brings measured values to the host without waiting for the device, and hands them over in the order sent.

    What is done with them, such as ending a run whose loss is not finite, happens some steps later but depends on the
    values alone, so records do not depend on how fast the device is. Unless ``late``, everything is handed over at
    once.
    """

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._sent: deque[tuple[torch.cuda.Event | None, dict[str, Any], Deliver]] = deque()

    def __len__(self) -> int:
        """Give the number of letters on their way."""
        return len(self._sent)

    def send(self, values: Mapping[str, Any], deliver: Deliver) -> None:
        """Let ``deliver`` have the values, tensors among them on the host; functions are called then for theirs."""
        if not self._late:
            deliver(_called(values))
            return
        copies = {name: _copied(value) if isinstance(value, Tensor) else value for name, value in values.items()}
        event = None
        if any(isinstance(value, Tensor) and value.is_cuda for value in values.values()):
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._sent.append((event, copies, deliver))

    def deliver(self, keep: int = 0) -> None:
        """Hand over all but the last ``keep``; what a failure leaves behind is thrown away."""
        try:
            while len(self._sent) > keep:
                event, values, deliver = self._sent.popleft()
                if event is not None:
                    event.synchronize()
                deliver(_called(values))
        except BaseException:
            self._sent.clear()
            raise


def _copied(value: Tensor) -> Tensor:
    if not value.is_cuda:
        return value.detach().clone()
    return torch.empty_like(value, device="cpu", pin_memory=True).copy_(value.detach(), non_blocking=True)


def _called(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value() if callable(value) else value for name, value in values.items()}
