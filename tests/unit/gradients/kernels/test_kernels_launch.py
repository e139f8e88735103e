"""Launching kernels: a launch that is like an earlier one goes straight to what was compiled for it."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton, which comes with torch's builds for CUDA", allow_module_level=True)

from ._kernels import DEVICE

from classgrad.gradients import kernels  # isort: skip
from classgrad.gradients.kernels._launch import Kernel  # isort: skip


class Function:
    """Stands for a function of Triton: notes who launched what."""

    arg_names = ("x", "n", "BLOCK")

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        def run(*values, **options):
            self.launches.append(("first", grid, values, options))
            return Compiled(self.launches)

        return run


class Compiled:
    def __init__(self, launches):
        self.launches = launches

    def __getitem__(self, grid):
        return lambda *values: self.launches.append(("again", grid, values))

    @property
    def run(self):
        return self

    function, packed_metadata = 17, (4, 1, 0)
    global_scratch_size, profile_scratch_size, launch_cooperative_grid, launch_pdl = 0, 0, False, True

    def launch(self, x, y, z, stream, *rest):
        told, values = rest[:9], rest[9:]
        assert told == (17, False, True, None, None, (4, 1, 0), None, None, None)
        self.launches.append(("again", (x, y, z), values))


def test_the_second_launch_of_its_kind_is_spared_the_search():
    function, x = Function(), torch.empty(64, device=DEVICE)
    kernel = Kernel(function)
    kernel[(3,)](x, n=5, BLOCK=8, num_warps=2)
    kernel[(4, 2)](x, BLOCK=8, n=5, num_warps=2)
    assert function.launches == [
        ("first", (3,), (x, 5, 8), {"num_warps": 2, "num_stages": 3}),
        ("again", (4, 2, 1), (x, 5, 8)),
    ]


@pytest.mark.parametrize(
    ("x", "n", "options"),
    [
        (torch.empty(64, device=DEVICE)[1:], 5, {"num_warps": 2}),
        (torch.empty(64, dtype=torch.float64, device=DEVICE), 5, {"num_warps": 2}),
        (None, 5, {"num_warps": 2}),
        (torch.empty(64, device=DEVICE), 6, {"num_warps": 2}),
        (torch.empty(64, device=DEVICE), 5, {"num_warps": 4}),
        (torch.empty(64, device=DEVICE), 5, {"num_warps": 2, "num_stages": 1}),
    ],
)
def test_what_triton_compiles_anew_for_is_another_kind(x, n, options):
    function, like = Function(), torch.empty(64, device=DEVICE)
    kernel = Kernel(function)
    kernel[(1,)](like, like, 5, num_warps=2)
    kernel[(1,)](like, x, n, **options)
    assert [launch[0] for launch in function.launches] == ["first", "first"]


def test_a_settled_launch_looks_at_its_tensors_alone():
    function, x, other = Function(), torch.empty(64, device=DEVICE), torch.empty(64, device=DEVICE)
    launch = Kernel(function).settle((3, 2), n=5, BLOCK=8, num_warps=2)
    launch(x)
    launch(other)
    assert function.launches == [
        ("first", (3, 2), (x, 5, 8), {"num_warps": 2, "num_stages": 3}),
        ("again", (3, 2, 1), (other.data_ptr(), 5, 8)),
    ]


@pytest.mark.parametrize(
    "x", [torch.empty(64, device=DEVICE)[1:], torch.empty(64, dtype=torch.float64, device=DEVICE), None]
)
def test_a_settled_launch_tells_tensors_apart_as_triton_does(x):
    function, like = Function(), torch.empty(64, device=DEVICE)
    launch = Kernel(function).settle((1,), BLOCK=5, num_warps=2)
    launch(like, like)
    launch(like, x)
    launch(like, like)
    assert [launch[0] for launch in function.launches] == ["first", "first", "again"]


def test_what_one_settled_launch_found_serves_others_with_the_same_numbers():
    function, x = Function(), torch.empty(64, device=DEVICE)
    kernel = Kernel(function)
    for grid in (3, 4):
        kernel.settle((grid,), n=5, BLOCK=8, num_warps=2)(x)
    assert [launch[:2] for launch in function.launches] == [("first", (3,)), ("again", (4, 1, 1))]


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_who_asked_to_hear_of_launches_does():
    import triton

    heard, x = [], torch.ones(4, 40, device=DEVICE)
    for _ in range(2):
        kernels.row_square_norms(x)
    triton.knobs.runtime.launch_enter_hook.add(heard.append)
    try:
        torch.testing.assert_close(kernels.row_square_norms(x), torch.full((4,), 40.0, device=DEVICE))
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(heard.append)
    assert len(heard) == 2
