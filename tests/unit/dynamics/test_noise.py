import math

import pytest
import torch

from classgrad._errors import InputError
from classgrad.dynamics import deviation, orthogonal_noise, projection, to_population


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_measures_of_one_known_pair():
    full = torch.tensor([[2.0, 0.0, 0.0]])
    batch = torch.tensor([[3.0, 4.0, 0.0]])
    assert projection(batch, full).tolist() == pytest.approx([0.6])
    assert deviation(batch, full).tolist() == pytest.approx([math.sqrt(17)])
    assert orthogonal_noise(batch, full).tolist() == pytest.approx([2.0])


def test_without_noise():
    full = normal(4, 30)
    torch.testing.assert_close(projection(full, full), torch.ones(4, dtype=torch.float64))
    assert deviation(full, full).tolist() == [0.0] * 4
    assert orthogonal_noise(full, full).abs().max() < 1e-12


def test_projection_ignores_both_scales_and_knows_opposite_directions():
    full, batch = normal(3, 10), normal(3, 10, seed=1)
    torch.testing.assert_close(projection(5 * batch, 0.1 * full), projection(batch, full))
    torch.testing.assert_close(projection(-batch, full), -projection(batch, full))


def test_the_papers_expansion_of_the_projection():
    """Eq. "proj": p_l = 1 − ‖Z‖² sin²θ / (2ñ‖∇f‖²) + o(1/ñ), Z the noise of one example."""
    full, z = normal(3, 50), normal(3, 50, seed=1)
    for n in (10**4, 10**6):
        batch = full + z / math.sqrt(n)
        error = projection(batch, full) - (1 - orthogonal_noise(batch, full) ** 2 / 2)
        assert error.abs().max() * n < 40 / math.sqrt(n)


def test_orthogonal_noise_is_that_of_the_papers_formula():
    full, z, n = normal(2, 9), normal(2, 9, seed=1), 16
    cos = (full * z).sum(-1) / full.norm(dim=-1) / z.norm(dim=-1)
    expected = z.norm(dim=-1) * (1 - cos**2).sqrt() / (math.sqrt(n) * full.norm(dim=-1))
    torch.testing.assert_close(orthogonal_noise(full + z / math.sqrt(n), full), expected)


def test_population_factors_make_balanced_batches_estimate_the_class_gradients():
    """Class gradients are 1/n times a sum, so a balanced batch overstates the minority's until rescaled."""
    examples = [normal(60, 4), normal(20, 4, seed=1)]
    full = torch.stack([e.sum(0) / 80 for e in examples])
    batch = torch.stack([e.sum(0) / len(e) * 8 / 16 for e in examples])  # 8 of each, at their class means
    factors = to_population(torch.tensor([8, 8]), torch.tensor([60, 20]))
    torch.testing.assert_close(factors[:, None] * batch, full)


def test_population_factors_are_one_in_proportion_and_nan_for_the_absent():
    assert to_population(torch.tensor([6, 2]), torch.tensor([60, 20])).tolist() == [1.0, 1.0]
    assert to_population(torch.tensor([4, 0]), torch.tensor([60, 20])).isnan().tolist() == [False, True]


def test_a_class_absent_from_the_batch_has_no_direction():
    full, batch = normal(2, 5), normal(2, 5, seed=1)
    batch[1] = 0
    assert projection(batch, full).isnan().tolist() == [False, True]
    assert orthogonal_noise(batch, full).isnan().tolist() == [False, True]
    assert deviation(batch, full)[1].item() == pytest.approx(full[1].norm().item())


def test_a_class_without_full_gradient_has_no_direction():
    full, batch = normal(2, 5), normal(2, 5, seed=1)
    full[0] = 0
    assert projection(batch, full).isnan().tolist() == [True, False]
    assert orthogonal_noise(batch, full).isnan().tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_gradients_give_float64(dtype):
    full, batch = normal(2, 100), normal(2, 100, seed=1)
    for measure in (projection, deviation, orthogonal_noise):
        low = measure(batch.to(dtype), full.to(dtype))
        assert low.dtype == torch.float64
        torch.testing.assert_close(low, measure(batch, full), rtol=0.05, atol=0.05)


def test_leading_dimensions():
    full, batch = normal(3, 2, 7), normal(3, 2, 7, seed=1)
    for measure in (projection, deviation, orthogonal_noise):
        torch.testing.assert_close(measure(batch, full)[1], measure(batch[1], full[1]))


@pytest.mark.parametrize("measure", [projection, deviation, orthogonal_noise])
def test_shapes_that_do_not_match_are_refused(measure):
    with pytest.raises(InputError, match="`batch` and `full` should have one shape"):
        measure(torch.ones(2, 3), torch.ones(2, 4))
