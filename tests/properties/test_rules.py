"""What holds for the rules whatever the class gradients are."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from classgrad import Bisect, Normalize, Prefer, Rescale, Rule, Sum, from_torchjd
from classgrad.rules import ClassStatistics

RULES: list[Rule] = [
    Sum(),
    Normalize(),
    Normalize(eps=1e-3),
    Bisect(),
    Rescale(),
    Rescale(on_negative="clamp"),
    Rescale(on_negative="keep", floor=0.0),
    Rescale(form="authors"),
    from_torchjd(lambda gram: gram.sum(1) / gram.sum()),
]
rules = st.sampled_from(RULES)


@st.composite
def class_gradients(draw: st.DrawFn, min_classes: int = 1) -> Tensor:
    """Rows of very different lengths, in any direction."""
    classes = draw(st.integers(min_classes, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    scales = torch.tensor(draw(st.lists(st.floats(-4, 4), min_size=classes, max_size=classes)), dtype=torch.float64)
    return (
        torch.randn(classes, draw(st.integers(1, 8)), generator=generator, dtype=torch.float64) * 10 ** scales[:, None]
    )


def statistics_of(gradients: Tensor, labels: Tensor | None = None, active: Tensor | None = None) -> ClassStatistics:
    gram = gradients @ gradients.T
    labels = torch.arange(len(gradients)) if labels is None else labels
    active = torch.ones(len(gradients), dtype=torch.bool) if active is None else active
    projections = torch.cos(labels.double())  # some number of the class, between −1 and 1
    return ClassStatistics(labels, active, gram.diagonal().sqrt(), gram, projections)


@settings(deadline=None, max_examples=150)
@given(rules, class_gradients(), st.randoms(use_true_random=False))
def test_the_order_of_the_classes_does_not_matter(rule, gradients, random):
    order = list(range(len(gradients)))
    random.shuffle(order)
    weights = rule(statistics_of(gradients))
    permuted = rule(statistics_of(gradients[order], torch.tensor(order)))
    torch.testing.assert_close(permuted, weights[order], rtol=1e-6, atol=1e-12)


@settings(deadline=None, max_examples=100)
@given(class_gradients(), st.lists(st.floats(-6, 6), min_size=6, max_size=6))
def test_normalize_does_not_mind_the_length_of_any_class_gradient(gradients, exponents):
    scales = 10 ** torch.tensor(exponents, dtype=torch.float64)[: len(gradients), None]
    plain = Normalize()(statistics_of(gradients)) @ gradients
    scaled = Normalize()(statistics_of(gradients * scales)) @ (gradients * scales)
    torch.testing.assert_close(scaled, plain, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=100)
@given(class_gradients())
def test_pcn_is_at_most_as_long_as_there_are_classes(gradients):
    direction = Normalize()(statistics_of(gradients)) @ gradients
    assert direction.norm() <= len(gradients) * (1 + 1e-12)
    longest = Normalize()(statistics_of(gradients[:1].expand(4, -1))) @ gradients[:1].expand(4, -1)
    torch.testing.assert_close(longest.norm(), torch.tensor(4.0).double())


@settings(deadline=None, max_examples=100)
@given(class_gradients(min_classes=2))
def test_pcn_gives_two_classes_the_same_progress(gradients):
    """⟨g_0, d⟩/‖g_0‖ = ⟨g_1, d⟩/‖g_1‖ = 1 + cos: exact symmetry."""
    pair = gradients[:2]
    direction = Normalize()(statistics_of(pair)) @ pair
    progress = (pair @ direction) / pair.norm(dim=1)
    torch.testing.assert_close(progress[0], progress[1], rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=100)
@given(rules, class_gradients())
def test_two_equal_classes_get_equal_weights(rule, gradients):
    twice = torch.cat([gradients[:1], gradients])
    statistics = statistics_of(twice, torch.tensor([0, *range(len(gradients))]))
    weights = rule(statistics)
    # norms of equal rows may differ in the last bit: rows are summed several at a time
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-14, atol=0)


@settings(deadline=None, max_examples=100)
@given(class_gradients())
def test_bisect_is_as_long_as_the_plain_gradient_and_points_where_pcn_does(gradients):
    statistics = statistics_of(gradients)
    bisect, pcn = Bisect()(statistics) @ gradients, Normalize()(statistics) @ gradients
    if pcn.norm() > 1e-5:  # else the unit gradients nearly cancel
        torch.testing.assert_close(bisect.norm(), gradients.sum(0).norm(), rtol=1e-4, atol=1e-12)
        torch.testing.assert_close(bisect / bisect.norm() * pcn.norm(), pcn, rtol=1e-4, atol=1e-8)


@settings(deadline=None, max_examples=100)
@given(class_gradients(), st.floats(0.1, 10))
def test_bisect_scales_with_the_gradients(gradients, factor):
    weights, scaled = (Bisect()(statistics_of(g)) for g in (gradients, gradients * factor))
    pcn = Normalize()(statistics_of(gradients)) @ gradients
    if pcn.norm() > 1e-5:  # else the unit gradients nearly cancel
        torch.testing.assert_close(scaled, weights, rtol=1e-4, atol=0)
    assert (weights @ gradients).norm() <= 2 * gradients.sum(0).norm() + 1e-9


@settings(deadline=None, max_examples=200)
@given(
    rules,
    class_gradients(),
    st.lists(st.booleans(), min_size=7, max_size=7),
    st.sampled_from([0.0, float("nan"), float("inf")]),
)
def test_inactive_classes_never_reach_others(rule, gradients, flags, garbage):
    """Whatever stands in their place, the weights of the others are as if they were not there."""
    flags[0] = True
    active = torch.tensor(flags[: len(gradients)])
    spoiled = gradients.clone()
    spoiled[~active] = garbage
    labels = torch.arange(len(gradients))
    found = rule(statistics_of(spoiled, labels, active))[active]
    alone = rule(statistics_of(gradients[active], labels[active]))
    torch.testing.assert_close(found, alone, rtol=1e-9, atol=0)
    assert found.isfinite().all()


@settings(deadline=None, max_examples=100)
@given(rules, class_gradients(), st.dictionaries(st.integers(0, 8), st.floats(0, 5)))
def test_preferences_are_factors(rule, gradients, preferences):
    statistics = statistics_of(gradients)
    factors = torch.tensor([preferences.get(label, 1.0) for label in range(len(gradients))], dtype=torch.float64)
    torch.testing.assert_close(Prefer(rule, preferences)(statistics), rule(statistics) * factors)


@settings(deadline=None, max_examples=100)
@given(class_gradients(), st.sampled_from([0.05, 0.1, 0.5]))
def test_rescale_is_never_longer_than_its_floor_allows(gradients, floor):
    for mode in ("skip", "clamp"):
        weights = Rescale(floor=floor, on_negative=mode)(statistics_of(gradients))
        moved = weights * gradients.norm(dim=1)
        assert (moved >= 0).all()
        assert (moved <= (1 + 1e-12) / floor).all()
