"""Two processes that share a batch step exactly as one process with the whole batch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgrad import Bisect, ClassGradients, InputError, Normalize, Rescale

RULES = {"normalize": Normalize, "bisect": Bisect, "rescale": Rescale}


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    return model, torch.randn(20, 4).double(), torch.tensor([0] * 13 + [1] * 5 + [2] * 2)


def direction(name: str, part: slice, group: object = None) -> torch.Tensor:
    model, x, y = problem()
    grads = ClassGradients(model, RULES[name](), classes=4, group=group)

    def losses(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(a), b, reduction="none")

    if name == "rescale":
        grads.refresh(losses, [(x[part], y[part])])
    step = grads.backward(losses(x[part], y[part]), y[part])
    assert step.counts.tolist() == [13, 5, 2, 0]
    assert step.skipped == {3: "missing"}
    return torch.cat([p.grad.flatten() for p in model.parameters()])


WORKER = """
import importlib.util, sys, torch, torch.distributed as dist
spec = importlib.util.spec_from_file_location("shared", sys.argv[1])
shared = importlib.util.module_from_spec(spec); spec.loader.exec_module(shared)
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=2)
parts = [slice(0, 9), slice(9, 20)] if sys.argv[5] == "mixed" else [slice(0, 20), slice(0, 0)]
out = {name: shared.direction(name, parts[rank], dist.group.WORLD) for name in shared.RULES}
torch.save(out, sys.argv[4] + str(rank))
dist.barrier()  # gloo aborts a process whose partner is gone while it still winds up
dist.destroy_process_group()
"""


@pytest.mark.parametrize("shares", ["mixed", "one process has nothing"])
def test_two_processes_equal_one(tmp_path: Path, shares: str) -> None:
    arguments = [str(tmp_path / "meeting"), str(tmp_path / "out"), shares.split()[0]]
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, __file__, str(rank), *arguments], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors.decode()
    results = [torch.load(tmp_path / f"out{rank}", weights_only=True) for rank in range(2)]
    for name in RULES:
        assert torch.equal(results[0][name], results[1][name])
        torch.testing.assert_close(results[0][name], direction(name, slice(0, 20)), rtol=1e-10, atol=1e-14)


def test_what_would_drift_apart_is_refused() -> None:
    model, _, _ = problem()
    with pytest.raises(InputError, match="`classes` should be given with `group`"):
        ClassGradients(model, group=object())


def test_the_parallel_wrapper_is_refused(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'alone'}", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(problem()[0])
        with pytest.raises(InputError, match=r"give ddp\.module"):
            ClassGradients(wrapped)
        grads = ClassGradients(wrapped.module, classes=4, group=torch.distributed.group.WORLD)
        _, x, y = problem()
        with pytest.raises(InputError, match="`total` should not be given with `group`"):
            grads.accumulate(F.cross_entropy(wrapped.module(x), y, reduction="none"), y, total=20)
    finally:
        torch.distributed.destroy_process_group()
