"""Functions that are replayed, with an optimizer's step among them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgrad import ClassGradients, InputError, Normalize
from classgrad.gradients import CapturedStep, RecordedUpdate, Recordings, Unrecordable, why_not

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]


def test_on_the_cpu_functions_simply_run():
    recordings, calls = Recordings(), []
    for number in range(3):
        assert recordings("key", lambda x: calls.append(x) or x + 1, torch.tensor(number)) == number + 1
    assert len(calls) == 3
    assert len(recordings) == 0
    assert "key" not in recordings
    assert recordings.busy_seconds() == 0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rates_may_change_at_will_and_stay_numbers(momentum):
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(3))
    twin = nn.Parameter(p.detach().clone())
    ours = torch.optim.SGD([p], lr=0.5, momentum=momentum, fused=True)
    theirs = torch.optim.SGD([twin], lr=0.5, momentum=momentum)
    update = RecordedUpdate(ours)
    key = update.key
    for rate in (0.5, 0.25, 0.125):
        for q, optimizer in ((p, ours), (twin, theirs)):
            optimizer.param_groups[0]["lr"] = rate
            q.grad = torch.tensor([1.0, -2.0, 3.0])
        update.fill()
        update()
        theirs.step()
        assert ours.param_groups[0]["lr"] == rate
        assert p.grad is None
        torch.testing.assert_close(p, twin)
    assert update.key == key
    ours.param_groups[0]["momentum"] = 0.1
    assert update.key != key


def test_gradients_are_laid_out_as_their_parameters():
    p = nn.Parameter(torch.zeros(2, 3))
    update = RecordedUpdate(torch.optim.SGD([p], lr=1.0, fused=True))
    p.grad = torch.arange(6.0).view(3, 2).T
    update()
    assert p.tolist() == [[0, -2, -4], [-1, -3, -5]]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.SGD([p], lr=0.1), "make SGD with fused=True"),
        (lambda p: torch.optim.SGD([p], lr=torch.tensor(0.1), fused=True), "give `lr` as a number"),
        (lambda p: torch.optim.SGD([p], lr=0.1, differentiable=True), "leave out `differentiable`"),
        (lambda p: torch.optim.Adam([p], lr=0.1), "make Adam with capturable=True"),
        (lambda p: torch.optim.Adagrad([p], lr=0.1), "Adagrad cannot"),
    ],
)
def test_optimizers_that_cannot_be_recorded_say_why(make, reason):
    optimizer = make(nn.Parameter(torch.zeros(2)))
    assert why_not(optimizer) == reason
    with pytest.raises(InputError, match="`optimizer` should be one that can be recorded"):
        RecordedUpdate(optimizer)


def test_a_rate_in_single_precision_is_not_enough_for_double():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2).double())], lr=0.1, fused=True)
    assert "too coarse" in why_not(optimizer)
    assert why_not(torch.optim.Adam([nn.Parameter(torch.zeros(2).double())], lr=0.1, capturable=True)) is None


def net(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", ["sgd", "adam"])
def test_a_captured_step_with_its_update_is_the_step_and_the_update(make, device):
    if make == "adam" and device == "cpu":
        pytest.skip("capturable optimizers are for GPUs")
    model, twin = net(device), net(device)
    generator = torch.Generator().manual_seed(1)

    def optimizer_of(net):
        if make == "adam":
            return torch.optim.Adam(net.parameters(), lr=0.01, capturable=True)
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)

    def losses_of(net):
        return lambda x, y: F.cross_entropy(net(x), y, reduction="none")

    y = torch.tensor([0, 0, 0, 1, 1, 2])
    batches = [torch.randn(6, 4, generator=generator).to(device) for _ in range(6)]
    optimizer, rates = optimizer_of(model), [0.1, 0.1, 0.05, 0.01, 0.1, 0.2]
    step = CapturedStep(ClassGradients(model, Normalize()), losses_of(model), optimizer)
    torch.manual_seed(5)
    norms = []
    for x, rate in zip(batches, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        norms.append(step(x, y, like="alike").norms.clone())
    torch.manual_seed(5)
    optimizer = optimizer_of(twin)
    if make == "adam":
        optimizer._warned_capturable_if_run_uncaptured = True
    update, grads = RecordedUpdate(optimizer), ClassGradients(twin, Normalize())
    for x, rate, norm in zip(batches, rates, norms, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        update.fill()
        torch.testing.assert_close(grads.backward(losses_of(twin)(x, y.to(device)), y.to(device)).norms, norm)
        update()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert p.grad is None
        torch.testing.assert_close(p, q)


def test_batches_called_alike_must_be_grouped():
    model = net("cpu")
    step = CapturedStep(ClassGradients(model), lambda x, y: F.cross_entropy(model(x), y, reduction="none"))
    with pytest.raises(InputError, match="`like` should be given for batches grouped by class"):
        step(torch.randn(3, 4), torch.tensor([0, 1, 0]), like=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    def test_the_first_call_runs_the_second_records_and_all_do_the_work_once(self):
        recordings, total, calls = Recordings(), torch.zeros(3, device="cuda"), []

        def add(x):
            calls.append(x)
            total.add_(x)
            return total * 2

        for number in range(1, 6):
            found = recordings("add", add, torch.full((3,), float(number), device="cuda"))
            assert found.tolist() == [number * (number + 1.0)] * 3
        assert len(calls) == 2
        assert len(recordings) == 1
        assert "add" in recordings

    def test_beyond_the_limit_functions_simply_run(self):
        recordings, calls = Recordings(limit=1), []
        for _ in range(3):
            for key in ("a", "b"):
                recordings(key, lambda x, key=key: calls.append(key) or x + 1, torch.zeros(2, device="cuda"))
        assert calls.count("a") == 2
        assert calls.count("b") == 3

    def test_generators_run_on_as_if_nothing_were_recorded(self):
        generator = torch.Generator("cuda").manual_seed(7)
        twin = torch.Generator("cuda").manual_seed(7)
        recordings = Recordings([generator])
        x = torch.zeros(4, device="cuda")
        for _ in range(4):
            found = recordings("draw", lambda x: x + torch.rand(4, generator=generator, device="cuda"), x)
            assert torch.equal(found, torch.rand(4, generator=twin, device="cuda"))
        assert torch.equal(generator.get_state(), twin.get_state())

    def test_replays_are_timed(self):
        recordings = Recordings()
        x = torch.randn(512, 512, device="cuda")
        for _ in range(70):
            recordings("product", lambda x: x @ x, x)
        assert 0 < recordings.busy_seconds() < 10

    def test_what_waits_for_the_device_is_refused(self):
        recordings = Recordings()
        x = torch.ones(2, device="cuda")
        assert recordings("wait", lambda x: float(x.sum()), x) == 2
        with pytest.raises(Unrecordable, match="cannot be recorded as a CUDA graph"):
            recordings("wait", lambda x: float(x.sum()), x)
        assert float((x + 1).sum()) == 4
