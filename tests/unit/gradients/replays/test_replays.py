"""Pieces of a step that are replayed: the same bits as launched one by one, whatever moves between steps."""

import copy
import gc
import weakref
from contextlib import ExitStack, nullcontext
from functools import partial
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from classgrad import Bisect, ClassGradients, Normalize, Sum
from classgrad.gradients.replays._recorder import Recorder, Tally
from classgrad.gradients.replays._replayed_calls import Replaying
from classgrad.gradients.replays._replays import Replays
from classgrad.rules import Prefer

from ._replayed import (
    GROUPED,
    LABELS,
    MODELS,
    acted,
    check,
    convolutional,
    images,
    moves,
    steps,
)


@pytest.fixture(params=[0, 700, 2**20], ids=["all large", "some small", "all small"])
def sizes(request):
    """Bytes up to which tensors are copied to where recordings read them."""
    with mock.patch("classgrad.gradients.terms._scratch._SMALL", request.param):
        yield request.param


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("labels", [LABELS, GROUPED], ids=["shuffled", "grouped"])
@pytest.mark.parametrize("name", MODELS)
def test_replays_are_what_is_launched_one_by_one(name, labels):
    recorder = check(name, labels=(lambda step: LABELS.roll(step)) if labels is LABELS else (lambda step: GROUPED))
    assert recorder.replayed > 3 * recorder.made > 0


WAYS = {
    "kept": {},
    "little memory": {"max_memory": 2000},
    "no memory": {"max_memory": 0},
    "ghosts": {"ghosts": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_tensors_that_lie_elsewhere_are_not_looked_for_where_they_lay(name, way):
    settings = dict(WAYS[way])
    layers = "classgrad.gradients.layers"
    with mock.patch("classgrad.gradients.terms._scratch._SMALL", 0), ExitStack() as stack:
        if settings.pop("ghosts", False):
            for layer in ("_linear", "_conv"):
                stack.enter_context(mock.patch(f"{layers}.{layer}.ghost_is_cheaper", return_value=True))
        recorder = check(name, moves, count=30, **settings)
    class_by_class = (name, way) == ("outside", "no memory")
    assert recorder.made == 0 if class_by_class else recorder.replayed > recorder.made > 0


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("columns", [86, 87, 92, 93])
def test_class_gradients_of_a_layer_on_two_matrices(columns):
    """The first has room for those before, and for none, one or both of those of the layer normalization."""
    with mock.patch("classgrad.gradients.terms._sheet._BLOCK", columns):
        recorder = check("tokens", moves, count=20)
    assert recorder.replayed > recorder.made > 0


@pytest.mark.parametrize("at", [0, 2, 3, 5, 7])
def test_what_cannot_be_recorded_is_launched_one_by_one(at):
    def before(recorder):
        def fail(step):
            recorder.fails = step >= at

        return fail

    with mock.patch("classgrad.gradients.terms._scratch._SMALL", 700):
        recorder = check("convolutional", before)
    assert recorder._active == (at > 6)  # by then all is recorded


@pytest.mark.parametrize("ghosts", [False, True], ids=["kept", "ghosts"])
def test_what_libraries_do_is_launched_one_by_one(ghosts):
    """Their operations take memory that a recording would hold; the other pieces are recorded all the same.

    On a CPU even the weighted sums at the end are a library's.
    """
    with (
        mock.patch("classgrad.gradients.replays._recorder._has_libraries", return_value=True),
        mock.patch("classgrad.gradients.layers._linear.ghost_is_cheaper", return_value=ghosts),
        mock.patch("classgrad.gradients.layers._conv.ghost_is_cheaper", return_value=ghosts),
    ):
        recorder = check("convolutional")
    assert recorder._active
    assert recorder.replayed > recorder.made == (4 if ghosts else 1)  # sums for biases


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("ghosts", [False, True], ids=["kept", "ghosts"])
@pytest.mark.parametrize("name", MODELS)
def test_the_end_is_recorded_where_calls_are_always_launched(name, ghosts):
    with (
        mock.patch.object(Replaying, "_record", return_value=None),
        mock.patch("classgrad.gradients.layers._linear.ghost_is_cheaper", return_value=ghosts),
        mock.patch("classgrad.gradients.layers._conv.ghost_is_cheaper", return_value=ghosts),
    ):
        recorder = check(name, moves, count=20)
    assert recorder.replayed > recorder.made > 0


RULES = {
    "preferences": (Prefer(Normalize(eps=1e-3), {1: 2.0}), {}),
    "sum with norms": (Sum(), {"norms": True}),
    "declared classes": (Normalize(), {"classes": 5}),
}


@pytest.mark.parametrize("case", RULES)
def test_rules(case):
    rule, settings = RULES[case]
    recorder = check("tokens", rule=rule, **settings)
    assert recorder.replayed > 3 * recorder.made > 0


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (Bisect(), {}),
        (Normalize(per="layer"), {}),
        (Normalize(), {"gram": True}),
        (Normalize(), {"on_nonfinite": "error"}),
        (Normalize(), {"engine": "joint"}),
    ],
    ids=repr,
)
def test_steps_of_other_kinds_are_not_recorded(rule, settings):
    model = convolutional().double()
    grads, recorder = acted(model, rule, **settings)
    list(steps(model, grads, images))
    assert recorder.made == 0


def test_batches_of_several_make_ups():
    """Each has recordings of its own; the labels of a make-up come in any order."""
    drawn = [torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(n)) for n in range(2)]
    recorder = check("convolutional", labels=lambda step: drawn[step % 2].roll(step), count=30)
    assert recorder.replayed > 3 * recorder.made > 0


def check_changes(change, name="convolutional", count=12):
    """Compare with steps that are never recorded while ``change(grads, step)`` changes things before each."""
    make, inputs = MODELS[name]
    model = make().double()
    grads, recorder = acted(model)
    plain, never = acted(copy.deepcopy(model))
    never.rests = True
    runs = [steps(each.model, each, inputs, before=partial(change, each), count=count) for each in (grads, plain)]
    for number, ((mine, gradients), (other, wanted)) in enumerate(zip(*runs, strict=True)):
        assert mine.weights.equal(other.weights), number
        for gradient, right in zip(gradients, wanted, strict=True):
            assert (gradient is None and right is None) or gradient.equal(right), number
    assert recorder.replayed > recorder.made > 0


def test_a_rule_that_is_changed():
    def change(grads, step):
        grads.rule = Prefer(Normalize(), {0: 3.0}) if step % 4 == 3 else Normalize()

    check_changes(change)


def test_parameters_that_are_frozen_for_a_while_or_replaced_and_layers_that_are_changed():
    def change(grads, step):
        model = grads.model
        model[0].weight.requires_grad_(step not in (6, 7))
        model[1].requires_grad_(step not in (7, 8))
        model[0].padding_mode = "circular" if step == 9 else "zeros"
        if step == 10:
            model[3].weight.data = model[3].weight.detach().clone()
            model[1] = copy.deepcopy(model[1])

    check_changes(change)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("launched", [False, True], ids=["recorded", "launched"])
def test_class_gradients_beside_fewer_others_in_the_same_place(launched):
    """What is frozen leaves them a narrower matrix, though all that came before them is as it was."""

    def change(grads, step):
        grads.model.named.bias.requires_grad_(step % 8 < 4)

    with mock.patch.object(Replaying, "_record", return_value=None) if launched else nullcontext():
        check_changes(change, "named", count=40)


@pytest.mark.usefixtures("sizes")
def test_a_layer_that_sees_other_positions_of_inputs_and_outputs_of_the_same_shape():
    """Also where nothing is launched for it before the end of the step, so that nothing of it is recorded before."""

    def change(grads, step):
        layer = grads.model[0]
        layer.padding = layer.dilation = (1, 1) if step < 8 else (2, 2)
        layer._reversed_padding_repeated_twice = [layer.padding[0]] * 4
        layer.bias.requires_grad_(False)

    with mock.patch("classgrad.gradients.layers._conv.ghost_is_cheaper", return_value=True):
        check_changes(change, count=20)


def test_a_class_that_is_not_finite():
    """Its examples take no part, in a replay as elsewhere, and leave nothing behind."""

    def spoiled(step):
        x = images(step)
        if step in (8, 9):
            x[LABELS.roll(step) == 1] = torch.inf
        return x

    with mock.patch.dict(MODELS, {"spoiled": (convolutional, spoiled)}):
        recorder = check("spoiled")
    assert recorder.replayed > 3 * recorder.made > 0


def test_gradients_are_the_users():
    """Those of one step are not overwritten by the next, and what was there before is added to."""
    model = convolutional().double()
    grads, recorder = acted(model)
    kept = []
    for step in range(12):
        losses = F.cross_entropy(model(images(step)), LABELS, reduction="none")
        recorder.begin()
        grads.backward(losses, LABELS)
        kept.append([p.grad for p in model.parameters()])
        if step != 10:
            model.zero_grad()
    twin, plain = convolutional().double(), []
    twin.load_state_dict(model.state_dict())
    for step in range(12):
        ClassGradients(twin).backward(F.cross_entropy(twin(images(step)), LABELS, reduction="none"), LABELS)
        plain.append([p.grad for p in twin.parameters()])
        if step != 10:
            twin.zero_grad()
    for ours, theirs in zip(kept, plain, strict=True):
        for gradient, right in zip(ours, theirs, strict=True):
            torch.testing.assert_close(gradient, right)
    assert recorder.replayed > 3 * recorder.made > 0


def test_nothing_of_a_step_is_held():
    """Neither what went into the layers nor their output gradients."""
    model = convolutional().double()
    grads, recorder = acted(model)
    held = []
    model[3].register_forward_hook(lambda module, args, output: held.append(weakref.ref(args[0])))
    for _ in steps(model, grads, images):
        pass
    recorder.begin()
    gc.collect()
    assert recorder.replayed > 3 * recorder.made > 0
    assert not any(reference() is not None for reference in held)


def test_copies_record_their_own():
    model = convolutional().double()
    grads, recorder = acted(model)
    for _ in steps(model, grads, images):
        pass
    assert recorder.made
    replays = copy.deepcopy(grads._single._replays)
    assert type(replays._recorder) is Recorder
    assert replays._make_ups.get(()) is None


class Peak(TorchDispatchMode):
    """Notes the most bytes that were alive at a time of what was made under it."""

    def __init__(self):
        super().__init__()
        self.alive = self.most = 0
        self._seen = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {v.untyped_storage().data_ptr() for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)}
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage not in self._seen and storage.data_ptr() not in given:
                self._seen.add(storage)
                self._count(storage.nbytes())
                weakref.finalize(storage, self._count, -storage.nbytes())
        return out

    def _count(self, size):
        self.alive += size
        self.most = max(self.most, self.alive)


@pytest.mark.parametrize("ghosts", [False, True], ids=["kept", "ghosts"])
def test_class_gradients_are_let_go_as_the_direction_comes(ghosts):
    """As they are where nothing is ever replayed: a step takes no more memory at a time."""

    def peak(make):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(60, 60) for _ in range(12)))
        x, y = torch.randn(8, 60), torch.arange(8) % 2
        grads = make(model)
        for _ in range(8):
            losses = model(x).square().sum(1)
            with Peak() as found:
                grads.backward(losses, y)
            model.zero_grad()
        return found.most

    with (
        mock.patch("classgrad.gradients.terms._sheet._BLOCK", 1),
        mock.patch("classgrad.gradients.layers._linear.ghost_is_cheaper", return_value=ghosts),
        mock.patch.object(Replays, "_replayed", return_value=None),  # as where the direction is large
    ):
        plain, ours = peak(ClassGradients), peak(lambda model: acted(model)[0])
    assert ours <= 1.05 * plain


def test_what_was_replayed_is_told():
    """Two layers with parameters and the end of the step are a piece each; what is told does not change later on."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    grads, _ = acted(model)
    told = [grads.recordings]
    for _ in steps(model, grads, lambda step: images(step)[:, 0, 0, :4]):
        told.append(grads.recordings)
    assert told[0] == Tally()
    assert told[1] == Tally(launched=3)
    assert [later.replayed + later.launched for later in told] == [3 * number for number in range(13)]
    assert told[-1].replayed - told[-2].replayed == 3
    assert told[-1].recorded == told[-4].recorded == 3


def test_recording_can_be_switched_off():
    grads = ClassGradients(convolutional(), record=False)
    assert not grads._single._replays._recorder.ready(torch.ones(1))
    assert not copy.deepcopy(grads._single._replays)._recorder.ready(torch.ones(1))
