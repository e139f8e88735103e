"""A run while it is being measured."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.dynamics._json import dump_json
from classgrad.dynamics._run import EVERY, Array, Run

Value = Tensor | Array | float | int

_SETTLE_EVERY = 1024


class Recorder:
    """Collects measurements point by point and gives the :class:`Run` at any time.

    What is not given at a point is nan there. The state is plain tensors and strings, so a checkpoint that holds it
    loads with ``torch.load(..., weights_only=True)``, and a restored recorder goes on to the same bits.

    >>> recorder = Recorder({"classes": ["cat", "dog"], "counts": [9, 1]})
    >>> recorder.point(0, {"train/loss": torch.tensor([0.6, 0.8])})
    >>> recorder.amend({"measured_change": torch.tensor([-0.25, 0.5])})
    >>> recorder.point(1, {"train/loss": torch.tensor([0.5, 1.0])})
    >>> recorder.run()["measured_change"].tolist()
    [[-0.25, 0.5], [nan, nan]]
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._meta = json.loads(dump_json(dict(meta)))
        self._points = _Table("step")
        self._every = _Table(f"{EVERY}step")

    def __len__(self) -> int:
        """Give the number of measuring points so far."""
        return len(self._points)

    def point(self, step: int, values: Mapping[str, Value]) -> None:
        """Append a measuring point: the number of updates made, and series values there."""
        reserved = [name for name in values if name.startswith(EVERY)]
        if reserved:
            raise InputError(f"Series {reserved[0]!r} should be given to `every`, which has an axis of its own.")
        self._points.append(step, values)

    def amend(self, values: Mapping[str, Value]) -> None:
        """Add to the last point what is known only later, such as the change in the step after it."""
        self._points.amend(values)

    def every(self, step: int, values: Mapping[str, Value]) -> None:
        """Append cheap quantities of one step, stored as ``every/...``; tensors stay on their device until read."""
        self._every.append(step, {EVERY + name: value for name, value in values.items()})

    def run(self, status: str = "finished", message: str = "", **more: Any) -> Run:
        """Give the record of what was measured so far; ``more`` adds to its ``meta``."""
        meta = {**self._meta, **more, "status": status, "message": message}
        return Run(json.loads(dump_json(meta)), self._arrays())

    def state_dict(self) -> dict[str, Any]:
        """Give everything recorded as plain tensors and strings."""
        series = {name: torch.from_numpy(values) for name, values in self._arrays().items()}
        return {"meta": dump_json(self._meta), "series": series}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Recorder:
        """Take up where :meth:`state_dict` was called."""
        recorder = cls(json.loads(state["meta"]))
        for name, values in state["series"].items():
            table = recorder._every if name.startswith(EVERY) else recorder._points
            table.restore(name, values.numpy())
        return recorder

    def _arrays(self) -> dict[str, Array]:
        return {**self._points.arrays(), **self._every.arrays()}


class _Table:
    """Rows under increasing steps; a column may have holes, which read as nan."""

    def __init__(self, axis: str) -> None:
        self._axis = axis
        self._rows = 0
        self._last = -1
        self._columns: defaultdict[str, dict[int, Array]] = defaultdict(dict)
        self._late: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        self._shapes: dict[str, torch.Size] = {}

    def __len__(self) -> int:
        return self._rows

    def append(self, step: int, values: Mapping[str, Value]) -> None:
        if self._axis in values or not self._last < step:
            raise InputError(f"Parameter `step` should come once and rise from 0 on. Found {step} after {self._last}.")
        rows = self._checked({self._axis: step, **values})
        self._rows += 1
        self._last = step
        self._keep(rows)

    def amend(self, values: Mapping[str, Value]) -> None:
        if self._rows == 0:
            raise InputError("Parameter `values` should belong to a point; call `point` first.")
        self._keep(self._checked(values))

    def arrays(self) -> dict[str, Array]:
        self._settle()
        return {name: _stacked(column, self._rows) for name, column in self._columns.items()}

    def restore(self, name: str, values: Array) -> None:
        self._rows = len(values)
        self._columns[name] = dict(enumerate(values))
        self._shapes[name] = torch.Size(values.shape[1:])
        if name == self._axis:
            self._last = int(values[-1])

    def _checked(self, values: Mapping[str, Value]) -> dict[str, Tensor]:
        rows = {name: _as_tensor(name, value) for name, value in values.items()}
        for name, row in rows.items():
            shape = self._shapes.get(name, row.shape)
            if row.shape != shape:
                raise InputError(f"Series {name!r} should keep its shape {tuple(shape)}. Found {tuple(row.shape)}.")
        return rows

    def _keep(self, rows: Mapping[str, Tensor]) -> None:
        for name, row in rows.items():
            self._shapes[name] = row.shape
            self._late[name][self._rows - 1] = row
        if self._rows % _SETTLE_EVERY == 0:
            self._settle()

    def _settle(self) -> None:
        """Bring tensors over from their device, one transfer for each series rather than for each row."""
        for name, rows in self._late.items():
            device = next(iter(rows.values())).device
            together = torch.stack([row.to(device) for row in rows.values()]).cpu().numpy()
            self._columns[name].update(zip(rows, together, strict=True))
        self._late.clear()


def _as_tensor(name: str, value: Value) -> Tensor:
    try:
        tensor = value.detach().clone() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except TypeError:
        raise InputError(f"Series {name!r} should hold numbers. Found {value!r}.") from None
    if tensor.is_complex():
        raise InputError(f"Series {name!r} should hold real numbers. Found {tensor.dtype}.")
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64)


def _stacked(column: Mapping[int, Array], rows: int) -> Array:
    values = np.stack(list(column.values()))
    if len(column) == rows:
        return values
    filled = np.full((rows, *values.shape[1:]), np.nan)
    filled[list(column)] = values
    return filled
