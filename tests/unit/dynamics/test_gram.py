import math

import pytest
import torch

from classgrad._errors import InputError
from classgrad.dynamics import (
    class_cosines,
    class_norms,
    condition,
    cos_alpha,
    imbalance_ratio,
    normalizing_weights,
    omega,
    predicted_change,
    unit_gram,
    weighted_gram,
)

READERS = [class_norms, normalizing_weights, unit_gram, class_cosines, imbalance_ratio, cos_alpha, condition, omega]


def gradients(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def others(g, class_):
    return torch.stack([g[i] for i in range(len(g)) if i != class_]).sum(0)


def angle_cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_every_quantity_equals_its_definition_on_the_gradients_themselves(classes):
    g = gradients(classes, 20) * torch.logspace(0, -3, classes, dtype=torch.float64)[:, None]
    unit = torch.stack([row / row.norm() for row in g])
    k = g @ g.T
    for l in range(classes):  # noqa: E741
        assert class_norms(k)[l].item() == pytest.approx(g[l].norm().item(), rel=1e-12)
        assert normalizing_weights(k)[l].item() == pytest.approx(1 / g[l].norm().item(), rel=1e-12)
        assert imbalance_ratio(k)[l].item() == pytest.approx((others(g, l).norm() / g[l].norm()).item(), rel=1e-9)
        assert cos_alpha(k)[l].item() == pytest.approx(angle_cosine(g[l], others(g, l)), abs=1e-9)
        assert imbalance_ratio(unit_gram(k))[l].item() == pytest.approx(others(unit, l).norm().item(), rel=1e-9)
        assert cos_alpha(unit_gram(k))[l].item() == pytest.approx(angle_cosine(g[l], others(unit, l)), abs=1e-9)
        assert omega(k)[l].item() == pytest.approx(1 + angle_cosine(g[l], others(unit, l)), abs=1e-9)
        for i in range(classes):
            assert class_cosines(k)[l, i].item() == pytest.approx(angle_cosine(g[l], g[i]), abs=1e-12)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_condition_is_one_plus_c_cos_alpha(classes):
    g = gradients(classes, 9)
    k = g @ g.T
    expected = 1 + torch.nan_to_num(imbalance_ratio(k) * cos_alpha(k))  # nothing to oppose a single class
    torch.testing.assert_close(condition(k), expected, rtol=1e-12, atol=1e-12)


def test_two_classes_share_one_angle_and_have_inverse_ratios():
    g = gradients(2, 6)
    k = g @ g.T
    assert omega(k)[0].item() == pytest.approx(omega(k)[1].item(), rel=1e-14)
    assert imbalance_ratio(k).prod().item() == pytest.approx(1.0, rel=1e-14)


def test_ratio_keeps_its_digits_where_one_class_dwarfs_the_others():
    k = torch.tensor([[1e20, 0.0], [0.0, 1e-4]], dtype=torch.float64)
    assert imbalance_ratio(k).tolist() == pytest.approx([1e-12, 1e12], rel=1e-14)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_ratios_do_not_depend_on_the_scale_of_the_gradients(scale):
    k = torch.tensor([[4.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    for reader in (class_cosines, imbalance_ratio, cos_alpha, condition, omega):
        torch.testing.assert_close(reader(k * scale), reader(k), rtol=1e-12, atol=0)


@pytest.mark.parametrize("reader", READERS)
def test_batches_of_matrices_give_what_single_matrices_give(reader):
    g = gradients(2, 3, 4, 11)
    k = g @ g.transpose(-1, -2)
    whole = reader(k)
    assert whole.shape[:2] == (2, 3)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(whole[i, j], reader(k[i, j]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("reader", READERS)
def test_results_are_float64_whatever_comes_in(reader):
    g = gradients(3, 5).float()
    assert reader(g @ g.T).dtype == torch.float64


def test_predicted_change_is_the_derivative_along_the_step():
    g = gradients(3, 8)
    for weights in (torch.ones(3), normalizing_weights(g @ g.T), torch.tensor([0.0, 2.0, -1.0])):
        step = -0.1 * (weights.double() @ g)
        torch.testing.assert_close(predicted_change(g @ g.T, weights, 0.1), g @ step)


def test_predicted_change_takes_one_rate_for_every_matrix():
    g = gradients(4, 3, 8)
    k, w, lr = g @ g.transpose(-1, -2), gradients(4, 3, seed=1), torch.tensor([0.1, 0.2, 0.3, 0.4])
    expected = torch.stack([predicted_change(k[t], w[t], float(lr[t])) for t in range(4)])
    torch.testing.assert_close(predicted_change(k, w, lr), expected)


def test_sign_of_the_condition_says_whether_a_gradient_step_raises_the_loss_of_the_class():
    k = torch.tensor([[100.0, -5.0], [-5.0, 1.0]], dtype=torch.float64)
    assert condition(k).tolist() == [0.95, -4.0]
    assert (predicted_change(k, torch.ones(2), 0.1) > 0).tolist() == [False, True]
    assert (predicted_change(k, normalizing_weights(k), 0.1) > 0).tolist() == [False, False]


def test_a_class_without_gradient_adds_nothing_and_has_no_direction():
    g = gradients(3, 6)
    g[1] = 0
    k = g @ g.T
    rest = torch.tensor([0, 2])
    without = k[rest][:, rest]
    for reader in (class_norms, imbalance_ratio, cos_alpha, condition, omega):
        torch.testing.assert_close(reader(k)[rest], reader(without))
    assert class_norms(k)[1] == 0
    assert normalizing_weights(k)[1] == 0
    assert imbalance_ratio(k)[1] == math.inf
    for reader in (cos_alpha, condition, omega):
        assert reader(k)[1].isnan()
    assert class_cosines(k)[1].isnan().all()
    assert class_cosines(k)[:, 1].isnan().all()
    assert not unit_gram(k).isnan().any()


def test_no_gradient_at_all_is_undefined_throughout():
    k = torch.zeros(2, 2)
    assert class_norms(k).tolist() == [0, 0]
    assert imbalance_ratio(k).isnan().all()
    assert condition(k).isnan().all()


def test_a_single_class_is_opposed_by_nothing():
    k = torch.tensor([[4.0]])
    assert imbalance_ratio(k).item() == 0
    assert condition(k).item() == 1
    assert cos_alpha(k).isnan().item()


def test_weighted_gram_is_the_gram_of_the_weighted_gradients():
    g, w = gradients(3, 7), torch.tensor([0.5, 0.0, -2.0], dtype=torch.float64)
    scaled = w[:, None] * g
    torch.testing.assert_close(weighted_gram(g @ g.T, w), scaled @ scaled.T)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 0)])
def test_a_gram_that_is_not_square_is_refused(shape):
    with pytest.raises(InputError, match="`gram` should have shape"):
        class_norms(torch.ones(shape))


@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
def test_weights_that_do_not_fit_are_refused(shape):
    with pytest.raises(InputError, match=r"`weights` should have shape \(..., 3\)"):
        predicted_change(torch.eye(3), torch.ones(shape), 0.1)
