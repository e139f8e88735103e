"""Micro-batches: raw class sums are added up and normalized once."""

import gc

import pytest
import torch
from torch import nn

from classgrad import Bisect, ClassGradients, InputError, Normalize, Prefer, Rescale, Sum

from ._reference import batch, cross_entropy, flat_grad, flat_gradients, loss_of, small_net, unit_sum

RULES = [Sum(), Normalize(), Normalize(per="layer"), Normalize(eps=0.1), Bisect(), Prefer(Normalize(), {2: 3.0})]
SPLITS = {
    "in halves": [range(4), range(4, 8)],
    "one by one": [[i] for i in range(8)],
    "unequal and out of order": [[7, 2, 5], [0], [6, 1, 3, 4]],
    "at once": [range(8)],
}


def parts_of(split, y):
    if split == "class by class":
        return [(y == c).nonzero()[:, 0] for c in y.unique()]
    return [torch.tensor(list(part)) for part in SPLITS[split]]


def whole(model, rule, x, y, **options):
    """The step of the whole batch at once."""
    model.zero_grad()
    with ClassGradients(model, rule, **options) as grads:
        step = grads.backward(cross_entropy(model(x), y), y)
    direction = flat_grad(model)
    model.zero_grad()
    return step, direction


@pytest.mark.parametrize("engine", ["fused", "joint", "split"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("split", [*SPLITS, "class by class"])
def test_the_result_is_that_of_the_whole_batch(rule, split, engine):
    model, (x, y) = small_net(), batch()
    expected, direction = whole(model, rule, x, y, norms=True)
    grads = ClassGradients(model, rule, engine=engine)
    for part in parts_of(split, y):
        grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part])
        assert all(p.grad is None for p in model.parameters())
    step = grads.finalize()
    torch.testing.assert_close(flat_grad(model), direction, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(step.norms, expected.norms)
    torch.testing.assert_close(step.losses, expected.losses)
    torch.testing.assert_close(step.weights, expected.weights)
    assert step.counts.tolist() == expected.counts.tolist()
    assert step.classes.tolist() == expected.classes.tolist()


def test_backward_twice_is_something_else():
    model, (x, y) = small_net(), batch()
    _, direction = whole(model, Normalize(), x, y)
    grads = ClassGradients(model)
    for part in (slice(4), slice(4, 8)):
        grads.backward(cross_entropy(model(x[part]), y[part]), y[part])
    assert not torch.allclose(flat_grad(model), direction, rtol=1e-3)


@pytest.mark.parametrize("rule", [r for r in RULES if r.separable], ids=repr)
@pytest.mark.parametrize("engine", ["fused", "joint"])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_class_by_class_with_the_total(rule, engine, size):
    model, (x, y) = small_net(), batch()
    expected, direction = whole(model, rule, x, y, norms=True)
    grads = ClassGradients(model, rule, engine=engine)
    for label in (2, 0, 1):  # in any order of the classes
        for part in (y == label).nonzero()[:, 0].split(size):
            grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part], total=len(y))
    step = grads.finalize()
    torch.testing.assert_close(flat_grad(model), direction, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(step.norms, expected.norms)
    torch.testing.assert_close(step.losses, expected.losses)
    torch.testing.assert_close(step.weights, expected.weights)
    assert step.classes.tolist() == [0, 1, 2]


def gradient_buffers(shape):
    """How many tensors of a shape, other than the parameter, are there."""
    gc.collect()  # what other tests left
    tensors = [o for o in gc.get_objects() if type(o) is torch.Tensor and not o.is_nested and o.shape == shape]
    return len({t.untyped_storage().data_ptr() for t in tensors})


@pytest.mark.parametrize("classes", [3, 8])
def test_two_buffers_whatever_the_number_of_classes(classes):
    model = nn.Linear(4, 11).double()
    x, y = batch(examples=16, classes=classes)
    grads = ClassGradients(model)
    before = gradient_buffers((11, 4))
    for label in range(classes):
        for part in (y == label).nonzero()[:, 0].split(1):
            grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part], total=len(y))
        assert gradient_buffers((11, 4)) - before == (1 if label == 0 else 2)
    grads.finalize()
    assert gradient_buffers((11, 4)) - before == 1  # p.grad


@pytest.mark.parametrize("chunk", [None, 1, 2, 100])
@pytest.mark.parametrize("engine", ["fused", "joint", "split"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_backward_through_is_the_step_of_the_whole_batch(rule, engine, chunk):
    model, (x, y) = small_net(), batch()
    _, direction = whole(model, rule, x, y)
    with ClassGradients(model, rule, engine=engine) as grads:
        grads.backward_through(loss_of(model), x, y, chunk=chunk)
    torch.testing.assert_close(flat_grad(model), direction, rtol=1e-11, atol=1e-13)


def test_gram_class_by_class():
    model, (x, y) = small_net(), batch()
    step = ClassGradients(model, gram=True, engine="split").backward_through(loss_of(model), x, y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(step.gram, gradients @ gradients.T)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = small_net()

    def forward(self, batch):
        a, (b, flag) = batch["a"], batch["rest"]
        return self.net(torch.cat([a, b], 1) * (2 if flag else 1))


def test_inputs_may_be_nested():
    model, (x, y) = Nested(), batch()
    nested = {"a": x[:, :1], "rest": (x[:, 1:], True)}
    loss = loss_of(model)
    ClassGradients(model).backward_through(loss, nested, y)
    expected = flat_grad(model)
    for options in ({"engine": "split"}, {"engine": "fused"}):
        model.zero_grad()
        ClassGradients(model, **options).backward_through(loss, nested, y, chunk=2)
        torch.testing.assert_close(flat_grad(model), expected)


def test_inputs_may_be_lists():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, engine="split")
    grads.backward_through(lambda x, y: cross_entropy(model(torch.cat(x, 1)), y), [x[:, :2], x[:, 2:]], y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


@pytest.mark.parametrize("total", [None, 8])
def test_classes_that_never_come(total):
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, classes=[0, 1, 2, 3, -1])
    for part in parts_of("class by class", y):
        grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part], total=total)
    step = grads.finalize()
    assert step.classes.tolist() == [-1, 0, 1, 2, 3]
    assert step.skipped == {-1: "missing", 3: "missing"}
    assert step.norms.shape == step.losses.shape == (5,)


@pytest.mark.parametrize("total", [None, 8])
@pytest.mark.parametrize("options", [{"on_missing": "error"}, {"on_nonfinite": "error"}])
def test_refusals_come_at_the_end_and_write_nothing(total, options):
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, classes=[0, 1, 2] + [3] * ("on_missing" in options), **options)
    bad = torch.nan if "on_nonfinite" in options else 1.0
    for part in parts_of("class by class", y):
        factor = bad if int(y[part[0]]) == 1 else 1.0
        grads.accumulate(cross_entropy(model(x[part]), y[part]) * factor, y[part], total=total)
    with pytest.raises(InputError, match=r"Class 3 has no example|gradient of class 1 is inf or NaN"):
        grads.finalize()
    assert all(p.grad is None for p in model.parameters())
    grads.accumulate(cross_entropy(model(x), y), y)  # a new step may begin


@pytest.mark.parametrize("total", [None, 8])
def test_a_class_that_is_not_finite_is_left_out(total):
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    for part in parts_of("class by class", y):
        factor = torch.inf if int(y[part[0]]) == 1 else 1.0
        grads.accumulate(cross_entropy(model(x[part]), y[part]) * factor, y[part], total=total)
    step = grads.finalize()
    assert step.skipped == {1: "nonfinite"}
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients[[0, 2]]))


def test_empty_micro_batches_do_not_count():
    model, (x, y) = small_net(), batch()
    _, direction = whole(model, Normalize(), x, y)
    grads = ClassGradients(model)
    for part in (slice(0), slice(3), slice(3, 3), slice(3, 8)):
        grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part])
    grads.finalize()
    torch.testing.assert_close(flat_grad(model), direction)


def test_the_next_step_starts_afresh():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    for _ in range(2):
        model.zero_grad()
        grads.accumulate(cross_entropy(model(x), y), y)
        first = grads.finalize()
    torch.testing.assert_close(flat_grad(model), whole(model, Normalize(), x, y)[1])
    assert first.counts.sum() == len(y)


def test_a_backward_in_between_changes_nothing():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    loss = loss_of(model)
    grads.accumulate(loss(x[:4], y[:4]), y[:4])
    grads.backward(loss(x, y), y)
    grads.backward_through(loss, x, y, chunk=2)
    grads.gradients(loss(x, y), y)
    model.zero_grad()
    grads.accumulate(loss(x[4:], y[4:]), y[4:])
    grads.finalize()
    torch.testing.assert_close(flat_grad(model), whole(model, Normalize(), x, y)[1])


@pytest.mark.parametrize("engine", ["fused", "split"])
def test_a_loss_function_that_fails_leaves_nothing_behind(engine):
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, engine=engine)
    calls = []

    def loss(x, y):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return cross_entropy(model(x), y)

    with pytest.raises(MemoryError):
        grads.backward_through(loss, x, y, chunk=1)
    grads.backward_through(loss, x, y, chunk=1)
    torch.testing.assert_close(flat_grad(model), whole(model, Normalize(), x, y)[1])


def test_a_micro_batch_that_fails_ends_the_step():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, max_memory=300)
    with pytest.raises(InputError, match="exceed `max_memory` = 300 bytes"):
        grads.accumulate(cross_entropy(model(x), y), y)
    with pytest.raises(InputError, match="Found none"):
        grads.finalize()


class Shared(nn.Module):
    """Autograd gives one and the same tensor for both of the first two, and an expanded number for the third."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 3))
        self.c = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return x @ (self.a + self.b) * self.c.sum()


@pytest.mark.parametrize("total", [None, 8])
def test_gradients_that_share_memory_are_told_apart(total):
    model, (x, y) = Shared().double(), batch()
    grads = ClassGradients(model, Sum())
    for label in range(3):
        for part in (y == label).nonzero()[:, 0].split(1):
            grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part], total=total)
    grads.finalize()
    found = flat_grad(model)
    model.zero_grad()
    cross_entropy(model(x), y).mean().backward()
    torch.testing.assert_close(found, flat_grad(model))


def test_plain_gradients_that_share_memory_are_told_apart():
    model, (x, y) = Shared().double(), batch()
    grads = ClassGradients(model, Sum())
    for _ in range(2):
        grads.backward(100 * cross_entropy(model(x), y), y)  # longer than what it is cut to, whatever was drawn
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert flat_grad(model).norm() == pytest.approx(0.5)
    pointers = {p.grad.data_ptr() for p in model.parameters()}
    assert len(pointers) == 3


def test_half_precision_is_summed_in_single():
    """64 gradients of 1/64 each plus one of 1: in bfloat16 the small ones would vanish."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    for total in (None, 65):
        grads = ClassGradients(model, Sum(), norms=True)
        for value in [1.0] + [1 / 256] * 64:
            x = torch.full((1, 1), value, dtype=torch.bfloat16)
            grads.accumulate(model(x)[:, 0].float(), torch.zeros(1, dtype=torch.int64), total=total)
        norm = grads.finalize().norms
        assert float(norm) == pytest.approx(1.25 / 65, rel=5e-3)


def test_rescale_over_micro_batches():
    model, (x, y) = small_net(), batch()
    loss = loss_of(model)
    full, labels = batch(examples=30, seed=1)

    def fresh():
        grads = ClassGradients(model, Rescale(floor=0.0, on_negative="keep"))
        grads.refresh(loss, [(full[:10], labels[:10]), (full[10:], labels[10:])])
        model.zero_grad()
        return grads

    fresh().backward(loss(x, y), y)
    expected = flat_grad(model)
    grads = fresh()
    grads.accumulate(loss(x[:3], y[:3]), y[:3])
    grads.accumulate(loss(x[3:], y[3:]), y[3:])
    step = grads.finalize()
    torch.testing.assert_close(flat_grad(model), expected)
    reference = flat_gradients(loss(full, labels), labels, model.parameters())
    own = flat_gradients(loss(x, y), y, model.parameters())
    torch.testing.assert_close(step.projections, nn.functional.cosine_similarity(own, reference))
    fresh().backward_through(loss, x, y, chunk=2)
    torch.testing.assert_close(flat_grad(model), expected)
