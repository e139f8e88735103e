"""What CUDA graphs do, acted out on the CPU: the same operations in the same places, whatever lies there by then.

A CPU's allocator hardly ever gives out the same places again, so the large tensors of a step are given places here: the
how-manieth they are. ``Acted.moved`` says which of them lie elsewhere than in other steps.

All graphs of a recorder work in the same memory: what one of them allocates may be overwritten by any other.
"""

import ctypes

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from classgrad.gradients.replays._recorder import Recorder
from classgrad.gradients.terms._scratch import is_small

LAUNCH = None
"""How kernels are launched by themselves."""


def log_launches(monkeypatch):
    """Have launches of kernels be part of the work that is recorded."""
    from classgrad.gradients.kernels._launch import Kernel

    global LAUNCH
    LAUNCH = Kernel.launch

    def launch(kernel, *given):
        return LAUNCH(kernel, *given) if _Log.active is None else _Log.active.launch(kernel, *given)

    monkeypatch.setattr(Kernel, "launch", launch)


class Acted(Recorder):
    """Records by writing down every operation with the places of its tensors."""

    def __init__(self):
        super().__init__()
        self.fails = self.rests = False
        self.moved = set()
        self.latest = None
        self._places = []

    @property
    def made(self):
        return self.tally.recorded

    @property
    def replayed(self):
        return self.tally.replayed

    def begin(self):
        """Give out places anew."""
        self._places.clear()

    def knows(self, values):
        return True

    def ready(self, values):
        return self._active

    def place(self, values):
        if is_small(values) or isinstance(values, torch.nn.Parameter):
            return super().place(values)
        self._places.append(values)
        return len(self._places), len(self._places) in self.moved

    def record(self, work):
        return None if self.rests else super().record(work)

    def _capture(self, work):
        if self.fails:
            work()  # as far as it may come
            raise RuntimeError("not permitted while a stream is capturing")
        with _Log(self) as log:
            made = work()
        return log.replay, made

    def find(self, tensor):
        """Return the place of a tensor's memory and how far behind its beginning it starts, None if it has none."""
        pointer = tensor.data_ptr()
        for place, whole in enumerate(self._places):
            storage = whole.untyped_storage()
            if 0 <= pointer - storage.data_ptr() < storage.nbytes():
                return place, pointer - storage.data_ptr()
        return None

    def pointer(self, place):
        return self._places[place].untyped_storage().data_ptr()


class _Address:
    """Where a tensor lies: in a place that a tensor of the step has, or in memory that stays."""

    def __init__(self, tensor, acted):
        self._acted = acted
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self._found = acted.find(tensor)
        self._held = tensor if self._found is None else None

    @property
    def pointer(self):
        return self._held.data_ptr() if self._found is None else self._acted.pointer(self._found[0]) + self._found[1]

    def __call__(self):
        if not self.shape.numel():
            return torch.empty(self.shape, dtype=self.dtype)
        elements = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        memory = (ctypes.c_char * (elements * self.dtype.itemsize)).from_address(self.pointer)
        return torch.frombuffer(memory, dtype=self.dtype, count=elements).as_strided(self.shape, self.stride)


class _Log(TorchDispatchMode):
    """What was done in a piece of work, operation by operation."""

    active = None

    def __init__(self, acted):
        super().__init__()
        self._acted = acted
        self._operations = []
        self._allocated = []

    def __enter__(self):
        _Log.active = self
        return super().__enter__()

    def __exit__(self, *error):
        _Log.active = None
        return super().__exit__(*error)

    def launch(self, kernel, grid, values, *options):
        """Launch a kernel of Triton, now and at every replay; its interpreter's own operations are none of the work."""

        def launched(kernel, grid, values, *options):
            with _disable_current_modes():
                LAUNCH(kernel, grid, values, *options)

        launched(kernel, grid, values, *options)
        self._operations.append((launched, ((kernel, grid, self._addresses(list(values)), *options), {}), None))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = self._addresses((args, kwargs or {}))
        made = function(*args, **(kwargs or {}))
        if function.is_view:
            return made  # nothing is done
        known = [v.untyped_storage().data_ptr() for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self._allocated.append(tensor)
        self._operations.append((function, given, self._addresses(made)))
        return made

    def _addresses(self, tree):
        return tree_map_only(torch.Tensor, lambda tensor: _Address(tensor, self._acted), tree)

    def spoil(self):
        """Have others work in the memory of this one."""
        for tensor in self._allocated:
            tensor.view(torch.uint8).fill_(255) if tensor.is_contiguous() and tensor.dim() else tensor.fill_(-1)

    def replay(self):
        if self._acted.latest is not self:
            if self._acted.latest is not None:
                self._acted.latest.spoil()
            self._acted.latest = self
        for function, given, made in self._operations:
            args, kwargs = tree_map_only(_Address, _Address.__call__, given)
            found = function(*args, **kwargs)
            places, values = [], []
            tree_map_only(_Address, places.append, made)
            tree_map_only(torch.Tensor, values.append, found)
            for place, value in zip(places, values, strict=True):
                if place.pointer != value.data_ptr():  # else it was written in place
                    place().copy_(value)
