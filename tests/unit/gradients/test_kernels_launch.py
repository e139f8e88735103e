"""Launching kernels: a launch that is like an earlier one goes straight to what was compiled for it."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton, which comes with torch's builds for CUDA", allow_module_level=True)

from ._kernels import DEVICE

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
