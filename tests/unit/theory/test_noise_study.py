"""Directional noise: the prediction against brute force over all batches, and against random ones."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from classgrad._errors import InputError
from classgrad.theory import (
    batch_variance,
    noise_study,
    predicted_projection,
    relative_noise,
    rescaling,
    sampled_projections,
)

f64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(count: int, dimension: int, noise: float, seed: int = 0) -> torch.Tensor:
    """Example gradients of mean length about 1."""
    examples = noise * torch.randn(count, dimension, generator=gen(seed), dtype=f64)
    examples[:, 0] += 1
    return examples


def all_batches(examples: torch.Tensor, size: int) -> torch.Tensor:
    return torch.stack([examples[list(rows)].mean(0) for rows in combinations(range(len(examples)), size)])


def test_batch_variance_is_exact_without_replacement():
    examples = cloud(8, 3, 1.0)
    spread = (examples - examples.mean(0)).square().sum() / 7
    for size in range(1, 9):
        actual = (all_batches(examples, size) - examples.mean(0)).square().sum(-1).mean()
        torch.testing.assert_close(batch_variance(spread, size, 8), actual)


@pytest.mark.parametrize("order", ["expansion", "saturating"])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_the_prediction_is_that_of_all_batches_while_noise_is_small(order, size):
    examples = cloud(10, 4, 0.05)
    full = examples.mean(0)
    batches = all_batches(examples, size)
    exact = torch.nn.functional.cosine_similarity(batches, full.unsqueeze(0)).mean()
    predicted = predicted_projection(relative_noise(examples), size, 10, order=order)
    assert 1 - predicted == pytest.approx(float(1 - exact), rel=0.05)


def test_with_much_noise_the_expansion_falls_below_any_projection_and_the_other_does_not():
    examples = cloud(200, 400, 1.0)
    noise = relative_noise(examples)
    measured = sampled_projections(examples, 4, 200, gen()).mean()
    assert predicted_projection(noise, 4, 200) < -1
    assert predicted_projection(noise, 4, 200, order="saturating") == pytest.approx(float(measured), rel=0.1)


def test_sampled_projections_are_those_of_real_batches():
    examples = cloud(6, 3, 0.5)
    seen = sampled_projections(examples, 2, 500, gen())
    possible = torch.nn.functional.cosine_similarity(all_batches(examples, 2), examples.mean(0).unsqueeze(0))
    distance = (seen.unsqueeze(-1) - possible).abs().amin(-1)
    assert distance.max() < 1e-9
    assert seen.mean() == pytest.approx(float(possible.mean()), abs=0.02)


def test_attenuation_follows_the_imbalance_when_the_classes_are_equally_noisy():
    majority, minority = cloud(1200, 30, 0.1, seed=1), cloud(120, 30, 0.1, seed=2)
    study = noise_study([majority, minority], [22, 44, 110], draws=400, generator=gen())
    assert study.per_class.tolist() == [[20, 2], [40, 4], [100, 10]]
    assert study.imbalance[:, 1].tolist() == [10.0, 10.0, 10.0]
    noisier = float(study.noise[1] / study.noise[0])
    assert noisier == pytest.approx(1, rel=0.2)
    assert study.predicted_ratio[:, 1].tolist() == pytest.approx([10 * noisier] * 3, rel=1e-6)
    assert study.attenuation_ratio[:, 1].tolist() == pytest.approx(study.predicted_ratio[:, 1].tolist(), rel=0.2)
    torch.testing.assert_close(study.measured, study.saturating, rtol=0, atol=0.02)
    assert (study.error < 0.01).all()
    torch.testing.assert_close(study.nu[:, 1] * study.measured[:, 1], study.measured[:, 0])


def test_batches_are_of_the_size_that_is_told():
    study = noise_study([cloud(60, 4, 0.1), cloud(3, 4, 0.1)], [2, 4, 8, 63], draws=2, generator=gen())
    assert study.per_class.tolist() == [[1, 1], [3, 1], [7, 1], [60, 3]]


def test_equal_classes_in_the_batch_remove_the_ratio():
    """Oversampling (Sec. 5.3): with ñ_0 = ñ_1 both are attenuated alike."""
    classes = [cloud(60, 20, 0.2, seed=1), cloud(60, 20, 0.2, seed=2)]
    study = noise_study(classes, [20], draws=400, generator=gen())
    assert study.attenuation_ratio[0, 1] == pytest.approx(1.0, rel=0.2)


def test_the_whole_set_has_no_noise():
    study = noise_study([cloud(12, 5, 1.0), cloud(3, 5, 1.0, seed=1)], [15], draws=10, generator=gen())
    torch.testing.assert_close(study.measured, torch.ones(1, 2, dtype=f64))
    torch.testing.assert_close(study.predicted, torch.ones(1, 2, dtype=f64))


def test_rescaling():
    nu = rescaling(torch.tensor([[0.8, 0.2], [0.3, 0.6]]))
    torch.testing.assert_close(nu, torch.tensor([[1.0, 4.0], [2.0, 1.0]]))
    torch.testing.assert_close(rescaling(torch.tensor([0.3, 0.6]), majority=0), torch.tensor([1.0, 0.5]))


def test_a_single_example_has_no_noise():
    assert relative_noise(torch.tensor([[3.0, 4.0]])) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: relative_noise(torch.ones(3)), "examples"),
        (lambda: sampled_projections(torch.ones(3, 2), 4, 1, gen()), "size"),
        (lambda: predicted_projection(torch.tensor(1.0), 2, order="third"), "order"),
        (lambda: noise_study([torch.ones(3, 2)] * 2, [1], generator=gen()), "batch_sizes"),
        (lambda: noise_study([torch.ones(3, 2)] * 2, [7], generator=gen()), "batch_sizes"),
        (lambda: noise_study([torch.ones(3, 2)] * 2, [], generator=gen()), "batch_sizes"),
    ],
)
def test_noise_refuses_what_it_cannot_use(call, message):
    with pytest.raises(InputError, match=message):
        call()
