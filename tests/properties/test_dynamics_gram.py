import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classgrad.dynamics import (
    class_cosines,
    class_norms,
    condition,
    cos_alpha,
    deviation,
    imbalance_ratio,
    normalizing_weights,
    omega,
    orthogonal_noise,
    predicted_change,
    projection,
    unit_gram,
)


@st.composite
def class_gradients(draw):
    """L random class gradients of very different norms, some of them possibly zero."""
    n = draw(st.integers(2, 6))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor(draw(st.lists(st.sampled_from([0.0, 1e-6, 1e-2, 1.0, 1e3]), min_size=n, max_size=n)))
    return torch.randn(n, draw(st.integers(1, 30)), generator=generator, dtype=torch.float64) * scales[:, None]


@settings(deadline=None, max_examples=80)
@given(class_gradients())
def test_quantities_stay_within_their_ranges(g):
    k = g @ g.T
    there = class_norms(k) > 0
    for cosines in (class_cosines(k), cos_alpha(k), cos_alpha(unit_gram(k))):
        known = cosines[~cosines.isnan()]
        assert ((known >= -1) & (known <= 1)).all()
    assert ((omega(k)[there].nan_to_num() >= 0) & (omega(k)[there].nan_to_num() <= 2)).all()
    assert (imbalance_ratio(unit_gram(k))[there] <= int(there.sum()) - 1 + 1e-9).all()
    assert torch.equal(class_norms(k) == 0, normalizing_weights(k) == 0)


@settings(deadline=None, max_examples=80)
@given(class_gradients())
def test_the_condition_has_the_sign_of_the_predicted_decrease(g):
    k = g @ g.T
    there = class_norms(k) > 0
    for gram, weights in ((k, torch.ones(len(g))), (unit_gram(k), normalizing_weights(k))):
        change = predicted_change(k, weights, 0.1)
        clear = there & (condition(gram).abs() > 1e-9)
        assert torch.equal(condition(gram)[clear] > 0, change[clear] < 0)


@settings(deadline=None, max_examples=80)
@given(class_gradients(), st.randoms(use_true_random=False))
def test_relabelling_the_classes_relabels_the_results(g, random):
    order = torch.tensor(random.sample(range(len(g)), len(g)))
    k = g @ g.T
    permuted = k[order][:, order]
    for reader in (class_norms, imbalance_ratio, condition):
        torch.testing.assert_close(reader(permuted), reader(k)[order], equal_nan=True, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=80)
@given(class_gradients(), st.integers(0, 2**31))
def test_first_order_change_of_linear_losses_is_exact(g, seed):
    """Losses f^(l)(x) = ⟨g_l, x⟩ change by exactly what is predicted, whatever the weights."""
    weights = torch.randn(len(g), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = torch.zeros(g.shape[1], dtype=torch.float64)
    after = x - 0.3 * (weights @ g)
    expected = g @ after - g @ x
    torch.testing.assert_close(predicted_change(g @ g.T, weights, 0.3), expected, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=80)
@given(class_gradients(), st.integers(0, 2**31), st.floats(0, 3))
def test_noise_splits_into_along_and_across(full, seed, size):
    noise = torch.randn(full.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    batch = full + size * noise * full.norm(dim=-1, keepdim=True)
    p = projection(batch, full)
    for c in range(len(full)):
        norm = full[c].norm().item()
        if norm == 0:
            assert p[c].isnan()
            continue
        across = orthogonal_noise(batch, full)[c].item()
        along = (batch[c] @ full[c]).item() / norm**2
        assert across**2 + along**2 == pytest.approx((batch[c].norm().item() / norm) ** 2, rel=1e-6, abs=1e-9)
        assert deviation(batch, full)[c].item() == pytest.approx(norm * ((along - 1) ** 2 + across**2) ** 0.5, abs=1e-6)
