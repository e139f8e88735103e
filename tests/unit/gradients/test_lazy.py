"""Norms remembered between exact steps: what the steps in between do."""

import copy
import math

import pytest
import torch
from torch import nn

from classgrad import ClassGradients, InputError, Normalize, Prefer, Rule, Sum
from classgrad.gradients import CapturedStep
from classgrad.gradients._layout import class_layout

from ._lazily import NEVER, kinds, setup, take
from ._reference import batch, cross_entropy, flat_grad, flat_gradients, loss_of, small_net, unit_sum


@pytest.mark.parametrize("engine", ["fused", "joint"])
@pytest.mark.parametrize("refresh", [1, 2, 5])
def test_between_exact_steps_the_norms_are_the_old_ones(engine, refresh):
    model, grads = setup(refresh, engine=engine)
    x, y = batch()
    seen = []
    for number in range(7):
        step, direction, gradients = take(grads, x, y)
        seen.append(step)
        if number % refresh == 0:
            norms = gradients.norm(dim=1)
            torch.testing.assert_close(step.norms, norms)
        torch.testing.assert_close(direction, (gradients / norms[:, None]).sum(0), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(step.weights, 1 / norms)
        assert step.finite.all()
        assert step.skipped == {}
    assert kinds(seen) == "".join("e" if number % refresh == 0 else "l" for number in range(7))
    assert model[0].weight.grad is None


def missing(losses, y):
    """The probability that is missing from each class's examples, over the number of all."""
    return torch.stack([(1 - torch.exp(-losses[y == c])).sum() / len(y) for c in y.unique()]).detach()


@pytest.mark.parametrize("engine", ["fused", "joint"])
def test_norms_follow_the_losses_of_other_batches(engine):
    _, grads = setup(4, follow=True, engine=engine)
    for number in range(9):
        x, y = batch(12 + number % 3, seed=number)
        now = missing(cross_entropy(grads.model(x), y), y)
        step, direction, gradients = take(grads, x, y)
        if number % 4 == 0:
            torch.testing.assert_close(step.norms, gradients.norm(dim=1))
            ratios = step.norms / now
        else:
            assert step.norms is None
        torch.testing.assert_close(step.weights, 1 / (ratios * now))
        torch.testing.assert_close(direction, (1 / (ratios * now)) @ gradients, rtol=1e-10, atol=1e-12)


def test_one_layer_and_one_input_follow_exactly():
    """The gradients of examples with the same input are (p − e_y)aᵀ, as long as their probability is missing."""
    model = nn.Linear(4, 2).double()
    grads = ClassGradients(model, Normalize(refresh=9, drift=NEVER))
    x, y = torch.randn(1, 4, generator=torch.Generator().manual_seed(0)).double(), torch.tensor([0, 0, 1])
    for number in range(5):
        step, _, gradients = take(grads, x.expand(3, 4), y, move=0.5)
        assert (step.norms is None) == (number > 0)
        torch.testing.assert_close(step.weights, 1 / gradients.norm(dim=1))


@pytest.mark.parametrize("shift", [-9.0, -0.01])
def test_losses_below_zero_do_not_follow_and_keep_the_steps_exact(shift):
    model, grads = setup(follow=True)
    x, y = batch()
    steps = [grads.backward(0.001 * cross_entropy(model(x), y) + shift, y) for _ in range(3)]
    assert kinds(steps) == "eee"


def test_a_class_whose_losses_vanish_is_left_out_and_the_next_step_is_exact():
    model, grads = setup(follow=True, drift=math.inf)
    x, y = batch()

    def step(scale):
        model.zero_grad()
        made = grads.backward(cross_entropy(model(x), y) * torch.where(y == 1, scale, 1.0), y)
        assert flat_grad(model).isfinite().all()
        return made

    steps = [step(1.0), step(0.0), step(1.0), step(1.0)]
    assert kinds(steps) == "elel"
    assert steps[1].weights[1] == 0
    assert steps[1].finite.all()


def test_refresh_one_is_the_same_to_the_bit():
    x, y = batch()
    found = []
    for rule in (Normalize(), Normalize(refresh=1), Normalize(refresh=4)):
        model = small_net()
        grads = ClassGradients(model, rule)
        assert grads.state_dict() == {}
        found.append([take(grads, x, y)[1] for _ in range(3)])
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[1], strict=True))
    assert torch.equal(found[0][0], found[2][0])
    assert not torch.equal(found[0][1], found[2][1])


def test_the_norm_follows_the_number_of_examples():
    """The same examples twice over in one class, not in the others: its mean gradient is the same."""
    grads = setup()[1]
    x, y = batch(9)
    norms = take(grads, x, y, move=0.0)[0].norms
    twice = torch.cat([torch.arange(9), (y == 1).nonzero().flatten()])
    step, direction, gradients = take(grads, x[twice], y[twice], move=0.0)
    assert step.norms is None
    torch.testing.assert_close(gradients.norm(dim=1), norms * torch.tensor([3, 6, 3]) / 12 * 3)
    torch.testing.assert_close(direction, unit_sum(gradients))
    torch.testing.assert_close(1 / step.weights, gradients.norm(dim=1))


def test_a_preference_on_top():
    model, (x, y) = small_net(), batch()
    rule = Prefer(Normalize(refresh=3, drift=7.0, follow=False), {1: 2.5})
    assert (rule.refresh, rule.drift, rule.follow) == (3, 7.0, False)
    grads = ClassGradients(model, rule)
    norms = take(grads, x, y)[2].norm(dim=1)
    step, direction, gradients = take(grads, x, y)
    assert step.norms is None
    weights = torch.tensor([1.0, 2.5, 1.0]).double() / norms
    torch.testing.assert_close(step.weights, weights)
    torch.testing.assert_close(direction, weights @ gradients)


def test_a_rule_of_ones_own():
    class Root(Rule):
        refresh = 3
        follow = False

        def __call__(self, statistics):
            return statistics.norms.where(statistics.active, 1).rsqrt()

    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, Root())
    norms = take(grads, x, y)[0].norms
    step, direction, gradients = take(grads, x, y)
    assert step.norms is None
    torch.testing.assert_close(direction, norms.rsqrt() @ gradients)


def test_an_empty_batch_is_no_step():
    model, grads = setup(refresh=2)
    x, y = batch()
    steps = [take(grads, x, y)[0]]
    grads.backward(cross_entropy(model(x[:0]), y[:0]), y[:0])
    assert kinds([*steps, take(grads, x, y)[0], take(grads, x, y)[0]]) == "ele"


@pytest.mark.parametrize("options", [{"gram": True}, {"norms": True}])
def test_what_is_asked_for_is_worked_out_at_every_step(options):
    grads = setup(**options)[1]
    x, y = batch()
    assert kinds([take(grads, x, y)[0] for _ in range(3)]) == "eee"
    assert grads.state_dict() == {}


def test_micro_batches_chunks_and_split_are_exact_and_remember_nothing():
    x, y = batch()
    model, grads = setup()
    for _ in range(2):
        for part in (slice(0, 4), slice(4, 8)):
            grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part])
        assert grads.finalize().norms is not None
        assert grads.backward_through(loss_of(model), x, y, chunk=2).norms is not None
    assert grads.state_dict() == {}
    assert kinds([take(grads, x, y)[0], take(grads, x, y)[0]]) == "el"
    split = ClassGradients(model, Normalize(refresh=5), engine="split")
    assert kinds([split.backward_through(loss_of(model), x, y) for _ in range(2)]) == "ee"


def test_batch_norm_takes_one_pass_in_between():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    grads = ClassGradients(model, Normalize(refresh=3, drift=NEVER, follow=False))
    x, y = batch()
    with pytest.warns(UserWarning, match="mixes the examples"):
        norms = take(grads, x, y)[0].norms
    step, direction, gradients = take(grads, x, y)
    assert step.norms is None
    torch.testing.assert_close(direction, (gradients / norms[:, None]).sum(0))


def test_a_forward_inside_the_step_is_not_watched_when_nobody_will_ask():
    model, grads = setup(refresh=3)
    x, y = batch()
    seen = []

    def losses(x, y):
        out = model(x)
        seen.append(grads._engines.holding)
        return cross_entropy(out, y)

    twin, others = setup(refresh=3)
    for _ in range(4):
        model.zero_grad()
        grads.backward_through(losses, x, y)
        twin.zero_grad()
        others.backward(cross_entropy(twin(x), y), y)
        torch.testing.assert_close(flat_grad(model), flat_grad(twin))
        assert not grads._engines.holding
        assert not others._engines.holding
    assert seen == [True, False, False, True]


def test_a_forward_that_fails_is_watched_again():
    model, grads = setup()
    x, y = batch()
    take(grads, x, y)

    def fail(x, y):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        grads.backward_through(fail, x, y)
    kept = model(x)
    assert grads._engines.holding
    del kept


def test_mixed_precision_and_the_scaler():
    model, grads = setup()
    x, y = batch()
    norms = take(grads, x, y, move=0.0)[0].norms
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    step = grads.backward(cross_entropy(model(x), y), y, scaler=scaler)
    assert step.norms is None
    torch.testing.assert_close(step.weights, 1 / norms)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), 1024 * unit_sum(gradients))


def test_a_short_gradient_in_half_precision_does_not_overflow():
    model, (x, y) = small_net(dtype=torch.bfloat16), batch(dtype=torch.bfloat16)
    grads = ClassGradients(model, Normalize(refresh=4, drift=NEVER))
    for _ in range(2):
        model.zero_grad()
        step = grads.backward(cross_entropy(model(x), y) * 1e-6, y)
    assert step.norms is None
    assert step.weights.dtype == torch.float32
    assert flat_grad(model).float().norm() < 4


def test_state_goes_on_where_it_was_taken():
    x, y = batch()
    model, grads = setup(refresh=4, drift=1.02, follow=True)
    straight = [take(grads, x, y, move=0.3) for _ in range(12)]
    assert len(set(kinds([s for s, _, _ in straight])[1:])) == 2
    for stop in range(12):
        model, grads = setup(refresh=4, drift=1.02, follow=True)
        for _ in range(stop):
            take(grads, x, y, move=0.3)
        fresh = ClassGradients(copy.deepcopy(model), Normalize(refresh=4, drift=1.02))
        fresh.load_state_dict(grads.state_dict())
        for number in range(stop, 12):
            step, direction, _ = take(fresh, x, y, move=0.3)
            assert (step.norms is None) == (straight[number][0].norms is None)
            assert torch.equal(direction, straight[number][1])


def test_state_is_plain(tmp_path):
    grads = setup()[1]
    x, y = batch()
    take(grads, x, y)
    torch.save(grads.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["labels"] == [0, 1, 2]
    assert state["age"] == 1
    grads.load_state_dict({})
    assert take(grads, x, y)[0].norms is not None


def test_what_a_recording_needs():
    """The kind of the next step is told before its forward; what is replayed is counted when told."""
    model, grads = setup(refresh=3, classes=3)
    x, y = batch()
    layout = class_layout(y, torch.arange(3))
    told = []
    for _ in range(5):
        lazy = grads.lazy(layout)
        told.append("l" if lazy else "e")
        for _ in range(2):  # runs that count for nothing
            step = grads.backward_laid_out(cross_entropy(model(x), y), layout, lazy=lazy)
            assert (step.norms is None) == lazy
        grads.made(step, layout)
    assert "".join(told) == "ellel"
    undeclared = ClassGradients(model, Normalize(refresh=3))
    for _ in range(2):
        assert not undeclared.lazy(layout)
        undeclared.made(undeclared.backward_laid_out(cross_entropy(model(x), y), layout, lazy=False), layout)
    plain = ClassGradients(model, Sum())
    assert not plain.lazy(layout)
    plain.made(step, layout)
    plain.load_state_dict({})


def test_a_captured_step_on_the_cpu_is_lazy_too():
    model, grads = setup(refresh=2)
    x, y = batch()
    captured = CapturedStep(grads, loss_of(model))
    assert kinds([captured(x, y) for _ in range(4)]) == "elel"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refresh": 0}, "`refresh` should be a whole number of at least 1. Found 0"),
        ({"refresh": 2.5}, "`refresh` should be a whole number"),
        ({"refresh": True}, "`refresh` should be a whole number"),
        ({"refresh": 2, "per": "layer"}, "`refresh` should be 1 with per='layer'"),
        ({"refresh": 2, "drift": 1.0}, "`drift` should be a factor above 1. Found 1.0"),
        ({"drift": math.nan}, "`drift` should be a factor above 1"),
        ({"drift": "inf"}, "`drift` should be a factor above 1. Found 'inf'"),
        ({"follow": 1}, "`follow` should be true or false. Found 1"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        Normalize(**options)


def test_the_name_tells():
    assert repr(Normalize()) == "Normalize(per='model', eps=0.0)"
    lazy = "Normalize(per='model', eps=0.0, refresh=5, drift=3.0, follow=True)"
    assert repr(Normalize(refresh=5, drift=3)) == lazy


def test_a_class_of_negative_losses_is_left_out_of_a_lazy_step():
    model, grads = setup(drift=math.inf, follow=True)
    x, y = batch()
    grads.backward(cross_entropy(model(x), y), y)
    losses = cross_entropy(model(x), y)
    weights = grads.backward(torch.where(y == 1, losses - 5, losses), y).weights
    assert weights[1] == 0
    assert (weights[[0, 2]] > 0).all()


def test_another_rule_remembers_by_itself():
    _, grads = setup()
    x, y = batch()
    assert kinds([take(grads, x, y)[0] for _ in range(2)]) == "el"
    grads.rule = grads.rule  # the same: goes on
    assert kinds([take(grads, x, y)[0]]) == "l"
    grads.rule = Normalize(per="layer")
    assert take(grads, x, y)[0].weights.shape == (2, 3)
    grads.rule = Normalize()
    assert kinds([take(grads, x, y)[0] for _ in range(2)]) == "ee"
    grads.rule = Normalize(refresh=3, drift=NEVER)
    assert kinds([take(grads, x, y)[0] for _ in range(5)]) == "ellel"
    with pytest.raises(InputError, match="Parameter `rule` should be a rule"):
        grads.rule = "pcn"
    assert grads.rule.refresh == 3
