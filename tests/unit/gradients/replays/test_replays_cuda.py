"""Pieces of a step that are replayed on a GPU: the same bits as launched one by one."""

import copy
import gc

import pytest
import torch
from torch.nn import functional as F

from classgrad import ClassGradients, Normalize, Sum
from classgrad.gradients._step import values_of
from classgrad.gradients.replays._recorder import Recorder
from classgrad.models import resnet18, simple_cnn

from ._replayed import Mixed, Named, Tokens, convolutional

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def images(size):
    return lambda n, draw: torch.randn(n, 3, size, size, generator=draw, device="cuda")


def tokens(n, draw):
    return torch.randint(0, 7, (n, 5), generator=draw, device="cuda")


def pairs(n, draw):
    return torch.randn(n, 2, 8, 8, generator=draw, device="cuda")


CASES = {
    "convolutional": (lambda classes: convolutional(classes), pairs, [(3, 9), (20, 2)]),
    "tokens": (lambda classes: Tokens(classes), tokens, [(3, 9), (20, 2)]),
    "simple_cnn": (simple_cnn, images(32), [(2, 32), (100, 1)]),
    "resnet18": (
        resnet18,
        images(32),
        [(2, 16), (2, 64), (10, 4), (100, 1)],
    ),
}
# of ResNet-18 with 128 examples some tensors are large
ALL = [(name, layout) for name, (_, _, layouts) in CASES.items() for layout in layouts]


def training(grads, inputs, y, count, between):
    model = grads.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator("cuda").manual_seed(3)
    for step in range(count):
        x = inputs(len(y), draw)
        labels = y.roll(step)
        made = grads.backward(F.cross_entropy(model(x), labels, reduction="none"), labels)
        values = [*values_of(made).values(), *[p.grad for p in model.parameters()]]
        yield [value.cpu() for value in values]  # copies on the device would lie where other things lay
        optimizer.step()
        optimizer.zero_grad()
        between(step)


RULES = {
    "exact": (Normalize(), [False, True]),
    "by remembered norms": (Normalize(refresh=4, drift=1e9), [False]),
    "sum": (Sum(), [False]),
}


@pytest.mark.parametrize(
    ("rule", "tf32"), [(rule, tf32) for rule, (_, both) in RULES.items() for tf32 in both], ids=str
)
@pytest.mark.parametrize(("name", "layout"), ALL, ids=[f"{n}-{c}x{k}" for n, (c, k) in ALL])
def test_replays_are_what_is_launched_one_by_one(name, layout, rule, tf32):
    make, inputs, _ = CASES[name]
    rule = RULES[rule][0]
    classes, each = layout
    torch.manual_seed(0)
    y = torch.arange(classes).repeat_interleave(each)[torch.randperm(classes * each)].cuda()
    model = make(classes).cuda()
    twin = copy.deepcopy(model)
    kept = []

    def between(step):
        """Move things: something stays, all free memory is given back, a forward pass nobody makes a step of."""
        if step == 7:
            kept.append(torch.empty(3_000_000, device="cuda"))
        if step == 13:
            torch.cuda.empty_cache()
        if step == 17:
            with torch.no_grad():
                model(inputs(5, None))

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.deterministic = True
    try:
        grads = ClassGradients(model, rule)
        found = list(training(grads, inputs, y, 40, between))
        gc.collect()
        wanted = list(training(ClassGradients(twin, rule, record=False), inputs, y, 40, lambda step: None))
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.deterministic = False
    made = grads.recordings
    print(name, layout, made)
    for step, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.equal(other), step
    assert made.replayed > made.recorded > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", [convolutional, Tokens, Mixed, Named])
def test_replays_are_what_a_pass_per_class_makes(make, dtype):
    torch.manual_seed(0)
    model = make().to("cuda", dtype)
    inputs = pairs if make is convolutional else tokens
    draw = torch.Generator("cuda").manual_seed(1)
    y = torch.arange(12, device="cuda") % 3
    with ClassGradients(model, norms=True) as grads, ClassGradients(model, engine="joint", norms=True) as reference:
        for _ in range(8):
            x = inputs(12, draw)
            x = x if x.dtype == torch.int64 else x.to(dtype)
            found = []
            for each in (grads, reference):
                model.zero_grad()
                made = each.backward(F.cross_entropy(model(x), y, reduction="none"), y)
                found.append([made.norms, *[p.grad for p in model.parameters()]])
            for ours, theirs in zip(*found, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_random_numbers_are_drawn_on_after_a_recording_that_failed():
    recorder = Recorder()
    values = torch.ones(3, device="cuda")
    torch.manual_seed(0)
    wanted = [torch.rand(4, device="cuda") for _ in range(2)][1]
    torch.manual_seed(0)
    torch.rand(4, device="cuda")
    assert recorder.ready(values)
    assert recorder.record(lambda: values.sum().item()) is None
    assert not recorder.ready(values)
    assert torch.equal(torch.rand(4, device="cuda"), wanted)


def test_recordings_that_were_all_let_go_are_followed_by_others():
    recorder = Recorder()
    values, out = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    assert recorder.ready(values)
    for step in range(3):
        recorded = recorder.record(lambda: torch.add(values, 1, out=out))
        assert recorded is not None
        recorded[0]()
        assert out.tolist() == [2 + step] * 3
        values.add_(1)
        del recorded
        gc.collect()


def test_what_libraries_do_is_not_recorded():
    recorder = Recorder()
    values = torch.ones(3, 3, device="cuda")
    assert recorder.ready(values)
    assert recorder.record(lambda: values @ values) is None
    assert recorder.ready(values)
    assert recorder.tally.recorded == 0
    assert recorder.record(lambda: values + values) is not None
