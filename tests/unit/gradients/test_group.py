"""Processes that share a batch: threads stand in for them, and a meeting point for their messages."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from torch import nn

from classgrad import Bisect, ClassGradients, InputError, Normalize, Rescale, Sum

from ._reference import batch, cross_entropy, flat_grad, flat_gradients, loss_of, small_net, unit_sum


class Meeting:
    """All-reduce among threads: everyone brings a tensor, everyone leaves with the sum."""

    def __init__(self, members):
        self.barrier = threading.Barrier(members, timeout=20)
        self.brought = {}

    def all_reduce(self, tensor, group=None):
        self.brought[threading.get_ident()] = tensor.clone()
        self.barrier.wait()
        assert len({(part.dtype, part.shape) for part in self.brought.values()}) == 1
        total = torch.stack(list(self.brought.values())).sum(0)
        self.barrier.wait()
        tensor.copy_(total)


def together(parts, work):
    """Run ``work(model, part)`` for every part at the same time, each on a copy of one model."""
    meeting = Meeting(len(parts))
    models = [copy.deepcopy(small_net()) for _ in parts]
    with (
        mock.patch("classgrad.gradients._accumulate.distributed.all_reduce", meeting.all_reduce),
        ThreadPoolExecutor(len(parts)) as pool,
    ):
        futures = [pool.submit(work, model, part) for model, part in zip(models, parts, strict=True)]
        steps = [future.result(timeout=30) for future in futures]
    return steps, [flat_grad(model) for model in models]


GROUP = object()
RULES = [Sum(), Normalize(), Normalize(per="layer"), Bisect()]
CUTS = {
    "even": [range(4), range(4, 8)],
    "uneven": [range(1), range(1, 8)],
    "one has nothing": [range(8), range(0)],
    "three": [range(3), range(3, 4), range(4, 8)],
}


def parts_of(cut):
    x, y = batch()
    return [(x[list(part)], y[list(part)]) for part in CUTS[cut]]


def whole(rule, **options):
    model, (x, y) = small_net(), batch()
    step = ClassGradients(model, rule, classes=4, **options).backward(cross_entropy(model(x), y), y)
    return step, flat_grad(model)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("cut", CUTS)
def test_every_process_makes_the_step_of_the_whole_batch(cut, rule):
    def work(model, part):
        x, y = part
        return ClassGradients(model, rule, classes=4, group=GROUP).backward(cross_entropy(model(x), y), y)

    expected, direction = whole(rule, norms=True)
    steps, directions = together(parts_of(cut), work)
    for step, found in zip(steps, directions, strict=True):
        torch.testing.assert_close(found, direction)
        torch.testing.assert_close(step.norms, expected.norms)
        torch.testing.assert_close(step.losses, expected.losses)
        assert step.counts.tolist() == expected.counts.tolist()
        assert step.skipped == {3: "missing"}


@pytest.mark.parametrize("engine", ["fused", "split"])
@pytest.mark.parametrize("cut", ["even", "one has nothing"])
def test_forwards_in_chunks(cut, engine):
    def work(model, part):
        grads = ClassGradients(model, classes=4, engine=engine, group=GROUP)
        return grads.backward_through(loss_of(model), *part, chunk=2)

    _, direction = whole(Normalize())
    _, directions = together(parts_of(cut), work)
    for found in directions:
        torch.testing.assert_close(found, direction)


def test_micro_batches_of_each_process():
    def work(model, part):
        grads = ClassGradients(model, classes=4, group=GROUP)
        for x, y in zip(*(t.split(3) for t in part), strict=True):
            grads.accumulate(cross_entropy(model(x), y), y)
        return grads.finalize()

    _, direction = whole(Normalize())
    _, directions = together(parts_of("uneven"), work)
    for found in directions:
        torch.testing.assert_close(found, direction)


def test_full_batch_references_are_shared():
    def work(model, part):
        grads = ClassGradients(model, Rescale(floor=0.0, on_negative="keep"), classes=4, group=GROUP)
        grads.refresh(loss_of(model), [part])
        return grads.backward(cross_entropy(model(part[0]), part[1]), part[1])

    steps, _ = together(parts_of("even"), work)
    for step in steps:
        torch.testing.assert_close(step.projections[:3], torch.ones(3).double())


def test_a_parameter_that_only_one_process_reaches():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]).double()

        def forward(self, x):
            out = [self.heads[int(v[0] > 0)](v) for v in x]
            return torch.stack(out)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Heads()
    x, y = batch()
    x = x.clone()
    x[:, 0] = torch.where(torch.arange(8) < 4, -1.0, 1.0)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    found = []

    def work(_, part):
        mine = copy.deepcopy(model)
        ClassGradients(mine, classes=3, group=GROUP).backward(cross_entropy(mine(part[0]), part[1]), part[1])
        found.append(flat_grad(mine))

    together([(x[:4], y[:4]), (x[4:], y[4:])], work)
    for direction in found:
        torch.testing.assert_close(direction, unit_sum(gradients))


def test_nobody_has_an_example():
    def work(model, part):
        return ClassGradients(model, classes=2, group=GROUP).backward(torch.zeros(0).double(), torch.zeros(0).long())

    steps, directions = together([None, None], work)
    assert steps[0].skipped == {0: "missing", 1: "missing"}
    assert directions[0].eq(0).all()


def test_losses_that_reach_nothing():
    def work(model, part):
        leaf = torch.ones(4, requires_grad=True, dtype=torch.float64)
        return ClassGradients(model, classes=2, group=GROUP).backward(leaf * 2, torch.tensor([0, 0, 1, 1]))

    steps, _ = together([None, None], work)
    assert steps[1].skipped == {0: "zero", 1: "zero"}
    assert steps[1].losses.tolist() == [1.0, 1.0]


def test_parameters_of_two_types_and_a_class_that_one_process_has_not():
    """Its zeros must be of the type that the other's sums are, or the messages differ in length."""

    def loss(model, x, y):
        model[0].float()
        return cross_entropy(model[2](model[1](model[0](x.float())).double()), y)

    def work(model, part):
        return ClassGradients(model, classes=3, group=GROUP).backward(loss(model, *part), part[1])

    model, (x, y) = small_net(), batch()
    expected = ClassGradients(model, classes=3).backward(loss(model, x, y), y)
    steps, _ = together([(x[y == 0], y[y == 0]), (x[y > 0], y[y > 0])], work)
    for step in steps:
        torch.testing.assert_close(step.norms, expected.norms, check_dtype=False, rtol=1e-5, atol=1e-7)


def test_complex_parameters_among_real_ones():
    """Real sums come back from a message of complex ones without a word of torch's."""

    class Waves(nn.Module):
        def __init__(self):
            super().__init__()
            self.real = small_net()[0]
            self.waves = nn.Parameter(torch.ones(5, 2, dtype=torch.cdouble) * (1 + 2j))

        def forward(self, x):
            return torch.view_as_real(self.real(x).to(torch.cdouble) @ self.waves).flatten(1)

    def work(_, part):
        model = Waves()
        ClassGradients(model, classes=3, group=GROUP).backward(cross_entropy(model(part[0]), part[1]), part[1])
        found.append([p.grad for p in model.parameters()])

    found, model, (x, y) = [], Waves(), batch()
    ClassGradients(model, classes=3).backward(cross_entropy(model(x), y), y)
    together([(x[:4], y[:4]), (x[4:], y[4:])], work)
    for gradients in found:
        torch.testing.assert_close(gradients, [p.grad for p in model.parameters()])


def test_what_would_let_processes_drift_apart_is_refused():
    model, (x, y) = small_net(), batch(classes=1)
    with pytest.raises(InputError, match=r"^Parameter `classes` should be given with `group`"):
        ClassGradients(model, group=GROUP)
    with pytest.raises(InputError, match=r"^Parameter `total` should not be given with `group`"):
        ClassGradients(model, classes=1, group=GROUP).accumulate(cross_entropy(model(x), y), y, total=8)
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    with pytest.raises(
        InputError, match=r"^Parameter `model` should be the model itself. Found DistributedDataParallel"
    ):
        ClassGradients(wrapped)
