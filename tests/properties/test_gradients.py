"""What holds for a step whatever the batch is."""

from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from classgrad import Bisect, ClassGradients, Normalize, Prefer, Rule, Sum
from classgrad.gradients._layout import class_layout
from classgrad.gradients.terms._ghost import ghost_gram, ghost_square_norms
from classgrad.gradients.terms._products import class_products

RULES: list[Rule] = [Sum(), Normalize(), Normalize(per="layer"), Bisect(), Prefer(Normalize(), {1: 0.5})]
rules = st.sampled_from(RULES)
engines = st.sampled_from(["fused", "joint", "split"])
labels = st.lists(st.integers(-2, 3), min_size=1, max_size=12).map(torch.tensor)
seeds = st.integers(0, 2**31 - 1)


def net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 6)).double()


def inputs(seed: int, examples: int) -> Tensor:
    return torch.randn(examples, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def direction(
    model: nn.Module, rule: Rule, engine, x: Tensor, y: Tensor, grouping: Tensor, scale: float = 1.0
) -> Tensor:
    """The direction of a step, with targets y and classes ``grouping``."""
    model.zero_grad()

    def loss(batch: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
        x, y = batch
        return scale * F.cross_entropy(model(x), y + 2, reduction="none")

    with ClassGradients(model, rule, engine=engine) as grads:
        grads.backward_through(loss, (x, y), grouping)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@settings(deadline=None, max_examples=40)
@given(rules, engines, labels, seeds, st.randoms(use_true_random=False))
def test_the_order_of_the_examples_does_not_matter(rule, engine, y, seed, random):
    model, x = net(seed), inputs(seed, len(y))
    order = list(range(len(y)))
    random.shuffle(order)
    first = direction(model, rule, engine, x, y, y)
    second = direction(model, rule, engine, x[order], y[order], y[order])
    torch.testing.assert_close(first, second, rtol=1e-8, atol=1e-11)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(RULES[:4]), engines, labels, seeds)
def test_the_names_of_the_classes_do_not_matter(rule, engine, y, seed):
    model, x = net(seed), inputs(seed, len(y))
    first = direction(model, rule, engine, x, y, y)
    second = direction(model, rule, engine, x, y, -100 * y + 7)
    torch.testing.assert_close(first, second, rtol=1e-8, atol=1e-11)


@settings(deadline=None, max_examples=40)
@given(engines, labels, seeds, st.floats(-8, 8))
def test_pcn_does_not_mind_the_scale_of_the_loss(engine, y, seed, exponent):
    model, x = net(seed), inputs(seed, len(y))
    first = direction(model, Normalize(), engine, x, y, y)
    second = direction(model, Normalize(), engine, x, y, y, scale=10**exponent)
    torch.testing.assert_close(first, second, rtol=1e-8, atol=1e-10)
    assert first.norm() <= len(y.unique()) * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(engines, labels, seeds)
def test_one_class_alone_is_a_unit_vector(engine, y, seed):
    model, x = net(seed), inputs(seed, len(y))
    found = direction(model, Normalize(), engine, x, y, torch.zeros_like(y))
    torch.testing.assert_close(found.norm(), torch.tensor(1.0).double())


@settings(deadline=None, max_examples=40)
@given(rules, labels, seeds, st.data())
def test_any_cut_into_micro_batches_gives_the_same_step(rule, y, seed, data):
    model, x = net(seed), inputs(seed, len(y))
    whole = direction(model, rule, "fused", x, y, y)
    owner = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(y), max_size=len(y))))
    model.zero_grad()
    with ClassGradients(model, rule) as grads:
        for part in range(4):
            chosen = owner == part
            losses = F.cross_entropy(model(x[chosen]), y[chosen] + 2, reduction="none")
            grads.accumulate(losses, y[chosen])
        grads.finalize()
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, whole, rtol=1e-8, atol=1e-11)


@settings(deadline=None, max_examples=60)
@given(labels, st.none() | st.lists(st.integers(4, 9), max_size=3, unique=True))
def test_layouts(y, absent):
    declared = None if absent is None else torch.tensor([*range(-2, 4), *absent]).unique()
    layout = class_layout(y, declared)
    expected = y.unique() if declared is None else declared
    assert layout.classes.tolist() == expected.tolist()
    assert layout.sizes == [(y == label).sum().item() for label in expected]
    assert layout.classes[layout.index].tolist() == y.tolist()
    assert layout.group(y).tolist() == y.sort(stable=True).values.tolist()
    assert [stop - start for start, stop in layout.bounds] == layout.sizes
    values = torch.arange(2.0 * len(y)).view(-1, 2)
    sums = torch.stack([values[y == label].sum(0) for label in expected])
    torch.testing.assert_close(layout.sum(values), sums)
    layout.prepare()
    torch.testing.assert_close(layout.members(values.dtype) @ values, sums)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=9),
    st.integers(1, 3),
    seeds,
    st.sampled_from([0, 2**20]),
    st.sampled_from([0, 2**20]),
)
def test_ghost_identities(sizes, positions, seed, limit, whole):
    """Norms and Gram from pairs of rows are those of the sums of outer products, in blocks of any size."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(sum(sizes), positions, 3, generator=generator, dtype=torch.float64)
    b = torch.randn(sum(sizes), positions, 2, generator=generator, dtype=torch.float64)
    parts = zip(a.split(sizes), b.split(sizes), strict=True)
    expected = torch.stack([torch.einsum("nro,nrd->od", right, left) for left, right in parts])
    torch.testing.assert_close(class_products(a, b, sizes), expected)
    flat = expected.flatten(1)
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    with mock.patch.multiple("classgrad.gradients.terms._cost", _WHOLE_BATCH=whole, _LEAST_BLOCK=1):
        torch.testing.assert_close(ghost_square_norms(a, b, sizes, owners, limit), flat.square().sum(1))
    torch.testing.assert_close(ghost_gram(a, b, len(sizes), owners), flat @ flat.T)


def test_a_row_that_is_not_finite_stays_in_its_class():
    sizes = [3, 1, 4, 2, 5, 1, 3]
    torch.manual_seed(0)
    a, b = torch.randn(sum(sizes), 2, 3), torch.randn(sum(sizes), 2, 4)
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    with mock.patch.multiple("classgrad.gradients.terms._cost", _WHOLE_BATCH=0, _LEAST_BLOCK=1):
        clean = ghost_square_norms(a, b, sizes, owners, 2**30)
        a[9], b[4] = torch.inf, torch.nan
        found = ghost_square_norms(a, b, sizes, owners, 2**30)
    touched = torch.tensor([False, False, True, True, False, False, False])
    assert not found[touched].isfinite().any()
    torch.testing.assert_close(found[~touched], clean[~touched])
