"""Steps of weights known beforehand, by remembered norms or of no rule at all, whose own operations are replayed."""

import copy
import math
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgrad import Normalize, Prefer, Sum
from classgrad.gradients.replays._recorder import Tally

from .._lazily import kinds
from ._replayed import GROUPED, LABELS, MODELS, acted, check, convolutional, images, same, steps

RULES = {
    "norms": Normalize(refresh=4, drift=1e9),
    "norms that do not follow": Normalize(refresh=3, drift=1e9, follow=False),
    "norms that drift": Normalize(refresh=50, drift=1.05),
    "preferences": Prefer(Normalize(refresh=4, drift=1e9), {1: 2.0}),
    "sum": Sum(),
}


@pytest.mark.parametrize("labels", [LABELS, GROUPED], ids=["shuffled", "grouped"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_replays_are_what_is_launched_one_by_one(name, rule, labels):
    recorder = check(name, rule=RULES[rule], labels=lambda step: labels.roll(step) if labels is LABELS else labels)
    assert recorder.replayed > recorder.made > 0


@pytest.mark.parametrize("rule", RULES)
def test_directions_are_those_of_one_backward_pass_per_class(rule):
    """By independent means: the class gradients from autograd, weighed by what the step says."""
    model = convolutional().double()
    grads, recorder = acted(model, RULES[rule])
    twin = copy.deepcopy(model)
    for number, (step, found) in enumerate(steps(model, grads, images)):
        losses = F.cross_entropy(twin(images(number)), LABELS.roll(number), reduction="none") / len(LABELS)
        for p in twin.parameters():
            p.grad = None
        torch.dot(step.weights[LABELS.roll(number)], losses).backward()
        for gradient, p in zip(found, twin.parameters(), strict=True):
            torch.testing.assert_close(gradient, p.grad)
        with torch.no_grad():
            for p, gradient in zip(twin.parameters(), found, strict=True):
                p -= 0.05 * gradient
    assert recorder.replayed > recorder.made > 0


def test_what_was_replayed_is_told():
    """What comes before the backward pass and what comes after it are a piece each; the first finishes alone."""
    model = nn.Linear(4, 3).double()
    grads, _ = acted(model, Sum())
    told = []
    for _ in steps(model, grads, lambda step: images(step)[:, 0, 0, :4], count=6):
        told.append(grads.recordings)
    assert told[0] == Tally(launched=2)
    assert [later.replayed + later.launched for later in told] == [2, 4, 6, 8, 10, 12]
    assert told[-1].recorded == 2
    assert told[-1].replayed - told[-2].replayed == 2


def test_a_step_is_the_users():
    """Neither its record nor its direction changes later on, nor what a hook saw of the backward pass."""
    model = convolutional().double()
    grads, recorder = acted(model, Normalize(refresh=4, drift=1e9))
    seen, kept = [], []

    def see(gradient):
        seen.append((gradient, gradient.clone()))

    for step in range(12):
        x, y = images(step), LABELS.roll(step)
        losses = F.cross_entropy(model(x), y, reduction="none")
        losses.register_hook(see)
        recorder.begin()
        made = grads.backward(losses, y)
        values = [
            made.classes,
            made.counts,
            made.losses,
            made.weights,
            made.finite,
            *[p.grad for p in model.parameters()],
        ]
        kept += [(value, value.clone()) for value in values]
        model.zero_grad()
    assert recorder.replayed > recorder.made > 0
    assert all(same(value, then) for value, then in [*seen, *kept])


def test_a_gradient_that_is_not_finite_loses_a_step_and_the_next_is_exact():
    model = convolutional().double()
    grads, recorder = acted(model, Normalize(refresh=5, drift=math.inf))
    bad, made = 13, []

    def before(step):
        """Have the gradient of the first layer's weights, and of nothing else, be inf."""
        if step == bad:
            handle.append(model[0].weight.register_hook(lambda gradient: gradient * math.inf))
        elif step == bad + 1:
            handle.pop().remove()

    handle = []
    for step, gradients in steps(model, grads, images, before=before, count=20):
        made.append(step)
        assert all(g.isfinite().all() for g in gradients)
        if len(made) - 1 == bad:
            assert all((g == 0).all() for g in gradients)
    assert kinds(made) == "ellllellllelllelllle"
    assert not made[bad].finite.any()
    assert (made[bad].weights == 0).all()
    assert recorder.replayed > recorder.made > 0


@pytest.mark.parametrize("at", [0, 2, 3, 4])
def test_what_cannot_be_recorded_is_launched_one_by_one(at):
    def before(recorder):
        def fail(step):
            recorder.fails = step >= at

        return fail

    recorder = check("convolutional", before, rule=Sum())
    assert recorder._active == (at > 3)  # by then all is recorded


def test_losses_too_large_to_copy_are_not():
    with mock.patch("classgrad.gradients.terms._scratch._SMALL", 0):
        recorder = check("convolutional", rule=Sum())
    assert recorder.made == 0


def test_other_places_for_what_is_remembered_are_found(tmp_path):
    """A state that is loaded comes to lie elsewhere, and so does what is remembered of more classes."""
    model = convolutional().double()
    grads, recorder = acted(model, Normalize(refresh=40, drift=1e9))
    twin = copy.deepcopy(model)
    plain, never = acted(twin, Normalize(refresh=40, drift=1e9))
    never.rests = True

    def before(step):
        if step == 5:
            for each in (grads, plain):
                norms = each._single.norms
                state = each.state_dict()
                norms._memory.clear()
                each.load_state_dict(state)

    ours = steps(model, grads, images, before=before, count=12)
    theirs = steps(twin, plain, images, count=12)
    for (mine, gradients), (other, wanted) in zip(ours, theirs, strict=True):
        assert same(mine.weights, other.weights)
        assert all(same(g, right) for g, right in zip(gradients, wanted, strict=True))
    assert recorder.replayed > recorder.made > 3


def test_a_state_of_other_classes_is_taken_up():
    """What a replay writes is read although the latest exact step was of other classes."""
    made = []
    for rests in (False, True):
        torch.manual_seed(0)
        model = convolutional().double()
        grads, recorder = acted(model, Normalize(refresh=40, drift=1.5))
        recorder.rests = rests
        states = []

        def before(step, grads=grads, states=states):
            if step == 10:
                states.append(grads.state_dict())
            elif step == 11:
                grads.load_state_dict(states.pop())

        found = steps(model, grads, images, lambda step: LABELS.roll(step) % (2 if step == 10 else 3), before, count=16)
        made.append([[step.weights, *gradients] for step, gradients in found])
        assert (recorder.replayed > recorder.made > 0) != rests
    for ours, theirs in zip(*made, strict=True):
        assert all(same(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_a_rule_that_is_changed_back_and_forth():
    """What comes after the backward pass is told apart by what came before it."""
    rules = [Sum(), Prefer(Sum(), {1: 3.0})]
    made = []
    for rests in (False, True):
        torch.manual_seed(0)
        model = convolutional().double()
        grads, recorder = acted(model, rules[0])
        recorder.rests = rests

        def before(step, grads=grads):
            grads.rule = rules[step // 5 % 2]

        found = steps(model, grads, images, before=before, count=25)
        made.append([[step.weights, *gradients] for step, gradients in found])
        assert (recorder.replayed > recorder.made > 3) != rests
    for ours, theirs in zip(*made, strict=True):
        assert all(same(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("settings", [{"on_nonfinite": "error"}, {"record": False}], ids=repr)
def test_steps_of_other_kinds_are_not_recorded(settings):
    model = convolutional().double()
    grads, recorder = acted(model, Sum(), **{k: v for k, v in settings.items() if k != "record"})
    recorder._active = settings.get("record", True)
    list(steps(model, grads, images))
    assert recorder.made == recorder.replayed == 0
