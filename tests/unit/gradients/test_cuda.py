"""The same results on a GPU."""

from unittest import mock

import pytest
import torch
from torch import nn

from classgrad import Bisect, ClassGradients, Normalize, Rescale, Sum
from classgrad.gradients import CapturedStep
from classgrad.gradients._layout import class_layout

from ._reference import batch, cross_entropy, flat_grad, flat_gradients, loss_of, small_net, unit_sum
from .engines._uses import KNOWN, spread
from .layers.test_layers import EQUAL, FALLS_BACK, LAYERS, WAYS, Y, losses_of, prepared
from .layers.test_layers import pytestmark as warnings_of_layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    *warnings_of_layers,
]
ON_THE_CPU = {"bag by offsets", "bag by offsets with the last, weighted"}
"""Models that hold tensors of their own."""


@pytest.mark.parametrize("labels", [Y, EQUAL], ids=["unequal", "equal"])
@pytest.mark.parametrize("name", sorted({**LAYERS, **FALLS_BACK}.keys() - ON_THE_CPU))
def test_layers(name, labels):
    model, x = {**LAYERS, **FALLS_BACK}[name]
    model = prepared(model)
    gradients = flat_gradients(losses_of(model, x), labels, model.parameters())
    model.zero_grad()
    model, x, y = model.cuda(), x.cuda(), labels.cuda()
    for ghost, rows, memory in WAYS:
        layers = "classgrad.gradients.layers"
        with (
            mock.patch(f"{layers}._linear.ghost_is_cheaper", return_value=ghost),
            mock.patch(f"{layers}._conv.ghost_is_cheaper", return_value=ghost),
            mock.patch(f"{layers}._conv.rows_are_cheaper", return_value=rows),
            ClassGradients(model, max_memory=memory, classes=[0, 1, 2, 3, 5]) as grads,
            ClassGradients(model, gram=True) as with_gram,
        ):
            step = grads.backward(losses_of(model, x), y)
            found = flat_grad(model)
            model.zero_grad()
            gram = with_gram.backward(losses_of(model, x), y).gram
            model.zero_grad()
        torch.testing.assert_close(step.norms[step.counts > 0].cpu(), gradients.norm(dim=1), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(found.cpu(), unit_sum(gradients), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(gram.cpu(), gradients @ gradients.T, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("labels", [torch.arange(8) % 3, torch.arange(8) // 4], ids=["unequal", "equal"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])  # cuDNN's TF32
@pytest.mark.parametrize("name", KNOWN)
def test_parameters_outside_of_layers(name, dtype, tolerance, labels):
    model, x, y = spread(KNOWN[name]).to("cuda", dtype), batch()[0].to("cuda", dtype), labels.cuda()
    grads = ClassGradients(model)
    for _ in range(3):
        gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
        model.zero_grad()
        step = grads.backward(cross_entropy(model(x), y), y)
        torch.testing.assert_close(step.norms, gradients.norm(dim=1), rtol=tolerance, atol=0)
        expected = unit_sum(gradients)
        assert (flat_grad(model) - expected).norm() < tolerance * expected.norm()


RULES = [Sum(), Normalize(), Normalize(per="layer"), Bisect(), Rescale()]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("engine", ["fused", "joint", "split"])
def test_steps_and_accumulation(engine, rule):
    x, y = batch()
    model, twin = small_net(), small_net().cuda()

    def directions(model, x, y):
        grads = ClassGradients(model, rule, engine=engine, classes=4)
        if "projections" in rule.needs:
            grads.refresh(loss_of(model), [(x, y)])
        for way in ("through", "chunks", "accumulate"):
            model.zero_grad()
            if way == "accumulate":
                grads.accumulate(cross_entropy(model(x[:5]), y[:5]), y[:5])
                grads.accumulate(cross_entropy(model(x[5:]), y[5:]), y[5:])
                step = grads.finalize()
            else:
                step = grads.backward_through(loss_of(model), x, y, chunk=2 if way == "chunks" else None)
            assert step.skipped == {3: "missing"}
            yield flat_grad(model).cpu()

    for ours, theirs in zip(directions(model, x, y), directions(twin, x.cuda(), y.cuda()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rule", RULES[:4], ids=repr)
def test_nothing_that_is_not_finite_reaches_the_parameters(rule):
    """One bad class may take all others with it here: the device is not waited for to find out."""
    model, (x, y) = small_net().cuda(), batch()
    x[0] = torch.nan
    step = ClassGradients(model, rule).backward(cross_entropy(model(x.cuda()), y.cuda()), y.cuda())
    assert step.skipped[int(y[0])] == "nonfinite"
    assert flat_grad(model).isfinite().all()


@pytest.mark.parametrize("rule", RULES[:4], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision(rule, dtype):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
        )
    model, (x, y) = model.cuda(), batch(dtype=torch.float32)
    x, y = x.cuda(), y.cuda()
    ClassGradients(model, rule).backward(cross_entropy(model(x), y), y)
    expected = flat_grad(model)
    model.zero_grad()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12, enabled=dtype == torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    grads = ClassGradients(model, rule)
    with torch.autocast("cuda", dtype=dtype):
        losses = cross_entropy(model(x), y)
    grads.backward(losses, y, scaler=scaler)
    if dtype == torch.float16:
        scaler.unscale_(optimizer)
    assert float((flat_grad(model) - expected).norm() / expected.norm()) < 0.05


def test_an_inf_makes_the_scaler_skip():
    model, (x, y) = small_net().cuda(), batch()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model[0].weight.detach().clone()
    losses = cross_entropy(model(x.cuda()), y.cuda()) * torch.where(y.cuda() == 1, torch.inf, 1.0)
    ClassGradients(model).backward(losses, y.cuda(), scaler=scaler)
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(model[0].weight.detach(), before, rtol=0, atol=0)
    assert scaler.get_scale() == 2.0**15


def test_steps_repeat_to_the_bit():
    model, (x, y) = small_net(dtype=torch.float32).cuda(), batch(dtype=torch.float32)
    grads = ClassGradients(model)
    found = []
    for _ in range(3):
        model.zero_grad()
        grads.backward(cross_entropy(model(x.cuda()), y.cuda()), y.cuda())
        found.append(flat_grad(model))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


def test_labels_on_another_device_are_refused():
    model, (x, y) = small_net().cuda(), batch()
    with pytest.raises(
        ValueError, match=r"on the device of the losses, cuda:0. Found cpu; move it with y.to\('cuda:0'\)"
    ):
        ClassGradients(model).backward(cross_entropy(model(x.cuda()), y.cuda()), y)


def test_remembered_norms_are_those_of_the_cpu_and_nothing_is_waited_for(nothing_waits):
    """A step is decided from the facts of the one before, which travel behind the scenes."""
    kinds = []
    for device in ("cpu", "cuda"):
        model, (x, y) = small_net().to(device), batch()
        x, y = x.to(device), y.to(device)
        grads = ClassGradients(model, Normalize(refresh=4, drift=1.05), classes=3)
        layout = class_layout(y, grads.classes)
        layout.prepare()
        grads.backward_laid_out(cross_entropy(model(x), y), layout)  # the first graph of its form is audited
        steps = []
        with nothing_waits():
            for _ in range(12):
                model.zero_grad()
                steps.append(grads.backward_laid_out(cross_entropy(model(x), y), layout))
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * p.grad
        kinds.append([step.norms is None for step in steps])
        directions = flat_grad(model).cpu()
        if device == "cpu":
            expected = directions
    assert kinds[0] == kinds[1]
    assert len(set(kinds[0])) == 2
    torch.testing.assert_close(directions, expected, rtol=1e-8, atol=1e-10)


def test_norms_that_were_taken_on_another_device_are_not_gone_by():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, Normalize(refresh=9, drift=1e9))
    kinds = []
    for device in ("cpu", "cuda", "cpu"):
        model.to(device)
        for _ in range(2):
            model.zero_grad()
            kinds.append(grads.backward(cross_entropy(model(x.to(device)), y.to(device)), y.to(device)).norms is None)
    assert kinds == [False, True] * 3


def test_exact_and_lazy_steps_can_be_recorded_and_replayed_in_turns():
    (x, y), labels = batch(), torch.arange(3)
    x, y = x.cuda(), y.cuda()
    model, twin = small_net().cuda(), small_net().cuda()
    ours, theirs = (ClassGradients(m, Normalize(refresh=3, drift=1.2), classes=3) for m in (model, twin))
    layout = class_layout(y, labels)
    layout.prepare()
    recordings = {}
    told = []
    for _ in range(12):
        lazy = ours.lazy(layout)
        told.append(lazy)
        if lazy not in recordings:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    model.zero_grad()
                    ours.backward_laid_out(cross_entropy(model(x), y), layout, lazy=lazy)
            torch.cuda.current_stream().wait_stream(side)
            model.zero_grad()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step = ours.backward_laid_out(cross_entropy(model(x), y), layout, lazy=lazy)
            recordings[lazy] = graph, step, [p.grad for p in model.parameters()]
        graph, step, gradients = recordings[lazy]
        graph.replay()
        ours.made(step, layout)
        twin.zero_grad()
        expected = theirs.backward(cross_entropy(twin(x), y), y)
        assert (expected.norms is None) == lazy
        for p, q, gradient in zip(model.parameters(), twin.parameters(), gradients, strict=True):
            torch.testing.assert_close(gradient, q.grad, rtol=1e-9, atol=1e-12)
            with torch.no_grad():
                p -= 0.2 * gradient
                q -= 0.2 * q.grad
    assert len(set(told)) == 2


def test_a_recording_that_does_not_say_which_kind_is_exact():
    model, (x, y) = small_net().cuda(), batch()
    x, y = x.cuda(), y.cuda()
    grads = ClassGradients(model, Normalize(refresh=9), classes=3)
    layout = class_layout(y, grads.classes)
    layout.prepare()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            model.zero_grad()
            grads.backward_laid_out(cross_entropy(model(x), y), layout)
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step = grads.backward_laid_out(cross_entropy(model(x), y), layout)
    graph.replay()
    assert step.norms is not None
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=1e-9, atol=1e-12)


def test_the_first_step_is_that_of_the_replays_to_the_last_bit():
    """It is made operation by operation, where other ways would be worth their while: a run that goes on must not."""
    model = nn.Sequential(nn.Linear(4608, 512), nn.LayerNorm(512), nn.Linear(512, 2)).cuda()
    x, y = torch.randn(128, 4608, device="cuda"), torch.arange(2, device="cuda").repeat_interleave(64)
    step = CapturedStep(ClassGradients(model, classes=2), lambda x, y: cross_entropy(model(x), y))
    found = []
    for _ in range(3):
        step(x, y, like="all")
        found.append(flat_grad(model).clone())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])
