"""L × P numbers are never there unless `max_memory` allows for them."""

import weakref
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from classgrad import Bisect, ClassGradients, InputError, Normalize, Sum
from classgrad.gradients.layers._linear import RowsTerm

from .._reference import batch, cross_entropy, flat_grad, flat_gradients, loss_of, small_net, unit_sum

CLASSES = 40


class Largest(TorchDispatchMode):
    """Notes the size of the largest storage any operation returns."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [t.untyped_storage().nbytes() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.bytes = max([self.bytes, *sizes])
        return out


def values(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


MODELS = {
    "linear": (nn.Linear(48, 48), values(CLASSES, 48)),
    "linear over positions": (nn.Linear(40, 60), values(CLASSES, 3, 40)),
    "called twice": (nn.Sequential(layer := nn.Linear(48, 48), nn.Tanh(), layer), values(CLASSES, 48)),
    "conv": (nn.Conv2d(12, 24, 3), values(CLASSES, 12, 3, 3)),
    "transposed conv": (nn.ConvTranspose1d(24, 24, 4), values(CLASSES, 24, 1)),
    "embedding": (nn.Embedding(600, 4), torch.arange(CLASSES * 2).view(CLASSES, 2)),
    "an embedding and a layer with one table": (
        nn.Sequential(table := nn.Embedding(50, 48), head := nn.Linear(48, 50, bias=False)),
        torch.arange(CLASSES) % 7,
    ),
}
head.weight = table.weight


def losses_of(model, x):
    return model(x).sin().reshape(len(x), -1).sum(1)


@contextmanager
def chosen(ghost, rows):
    layers = "classgrad.gradients.layers"
    with (
        mock.patch(f"{layers}._linear.ghost_is_cheaper", return_value=ghost),
        mock.patch(f"{layers}._conv.ghost_is_cheaper", return_value=ghost),
        mock.patch(f"{layers}._conv.rows_are_cheaper", return_value=rows),
    ):
        yield


def step_bytes(model, x, y, ghost, rows, **options):
    """Make a step and return it with the size of the largest tensor on the way, beyond the first step's audit."""
    with chosen(ghost, rows), ClassGradients(model, **options) as grads:
        grads.backward(losses_of(model, x), y)
        model.zero_grad()
        losses = losses_of(model, x)
        with Largest() as largest:
            step = grads.backward(losses, y)
    return step, largest.bytes


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("ghost", [False, True])
@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_limit_holds(name, gram, ghost, rows):
    model, x = MODELS[name]
    model = model.double()
    y = torch.arange(CLASSES)
    everything = CLASSES * sum(p.numel() for p in model.parameters()) * 8
    limit = everything // 4
    step, largest = step_bytes(model, x, y, ghost, rows, gram=gram, max_memory=limit)
    assert largest <= limit
    gradients = flat_gradients(losses_of(model, x), y, model.parameters())
    torch.testing.assert_close(step.norms, gradients.norm(dim=1))
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_the_measure_sees_kept_gradients():
    model, x = MODELS["linear"]
    everything = CLASSES * 48 * 48 * 8
    _, largest = step_bytes(model.double(), x, torch.arange(CLASSES), ghost=False, rows=False)
    assert largest >= everything


def test_ghost_norms_of_large_classes_are_made_class_by_class():
    """The products of all pairs of rows of all classes are more than the limit; those of a class are not."""
    model = nn.Linear(30, 30).double()
    x, y = values(60, 10, 30), torch.arange(60) % 6
    pairs = 100**2 * 8
    _, largest = step_bytes(model, x, y, ghost=True, rows=False, max_memory=2 * pairs)
    assert largest <= 2 * pairs


def test_rows_that_are_many_are_not_paired_for_want_of_memory():
    """Where class gradients are the cheaper way but do not fit, they are made class by class."""
    model = nn.Linear(4, 4).double()
    x, y = values(6, 400, 4), torch.arange(6) % 2
    _, largest = step_bytes(model, x, y, ghost=False, rows=False, max_memory=0)
    assert largest <= x.nbytes


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.pairs, self.head = nn.Bilinear(4, 4, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.pairs(x, x))


def test_parameters_without_a_rule_are_streamed_where_they_do_not_fit():
    model, (x, y) = Unknown().double(), batch()
    step = ClassGradients(model, max_memory=1000).backward(cross_entropy(model(x), y), y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))
    torch.testing.assert_close(step.norms, gradients.norm(dim=1))


@pytest.mark.parametrize("engine", ["fused", "joint"])
@pytest.mark.parametrize(("rule", "options"), [(Bisect(), {}), (Normalize(), {"gram": True})])
def test_what_cannot_be_streamed_is_refused(engine, rule, options):
    model, (x, y) = Unknown().double(), batch()
    grads = ClassGradients(model, rule, engine=engine, max_memory=1000, **options)
    with pytest.raises(InputError) as caught:
        grads.backward(cross_entropy(model(x), y), y)
    assert "`max_memory`; raise it, or use a rule that needs norms only." in str(caught.value)
    assert "\n" not in str(caught.value)


def test_joint_streams_within_any_limit():
    model, (x, y) = small_net(), batch()
    ClassGradients(model, engine="joint", max_memory=0).backward(cross_entropy(model(x), y), y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


@pytest.mark.parametrize("engine", ["fused", "joint"])
def test_a_table_beyond_the_limit_is_refused(engine):
    model, (x, y) = small_net(), batch()
    needed = 3 * sum(p.numel() for p in model.parameters()) * 8
    grads = ClassGradients(model, engine=engine, max_memory=needed - 1)
    with pytest.raises(InputError) as caught:
        grads.gradients(cross_entropy(model(x), y), y)
    assert str(caught.value) == (
        f"Parameter `max_memory` should allow for the {needed} bytes of 3 class gradients. Found {needed - 1}."
    )
    ClassGradients(model, engine=engine, max_memory=needed).gradients(cross_entropy(model(x), y), y)


def test_accumulation_beyond_the_limit_says_what_to_do():
    model, (x, y) = small_net(), batch()
    one = sum(p.numel() for p in model.parameters()) * 8
    grads = ClassGradients(model, max_memory=2 * one)
    with pytest.raises(InputError) as caught:
        grads.accumulate(cross_entropy(model(x), y), y)
    assert str(caught.value) == (
        f"The class gradients of 3 classes exceed `max_memory` = {2 * one} bytes; "
        "raise it, or send micro-batches class by class and give `total`."
    )
    for label in range(3):
        part = y == label
        grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part], total=8)
    grads.finalize()


def test_full_batches_stream_within_the_limit():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, max_memory=0)
    grads.backward_through(loss_of(model), x, y, chunk=2)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_sum_needs_no_memory():
    model, (x, y) = small_net(), batch()
    ClassGradients(model, Sum(), max_memory=0).backward(cross_entropy(model(x), y), y)
    assert flat_grad(model).any()


def test_what_a_layer_saw_is_let_go_as_the_direction_comes():
    alive = []
    weighted = RowsTerm.weighted

    def counted(self, *rest):
        made.append(weakref.ref(self))
        alive.append(sum(ref() is not None for ref in made))
        return weighted(self, *rest)

    made = []
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))).double()
    with (
        mock.patch("classgrad.gradients.layers._linear.ghost_is_cheaper", return_value=True),
        mock.patch.object(RowsTerm, "weighted", counted),
        ClassGradients(model) as grads,
    ):
        grads.backward(model(values(CLASSES, 6)).square().sum(1), torch.arange(CLASSES))
    assert alive == [1, 1, 1, 1]
