"""Directional noise: how far the direction of a batch's class gradient is from the full-batch one (Sec. 5.1).

A class is a matrix of example gradients, shape (examples, parameters). Batches are drawn without replacement, as the
algorithms do. Only the ratio of noise to signal matters, so any common scale of the gradients will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from classgrad._errors import InputError
from classgrad.sampling import ProportionalBatches
from classgrad.theory._records import ROUNDING

Order = Literal["expansion", "saturating"]


def batch_variance(spread: Tensor, size: Tensor | int, population: Tensor | int) -> Tensor:
    """E ‖mean of a batch - mean of all‖² = spread/ñ · (1 - ñ/n) for batches of ñ of n drawn without replacement.

    ``spread`` is the total variance of the examples (the trace of their covariance, with n - 1). The paper leaves the
    last factor out, which holds for ñ much smaller than n.

    >>> batch_variance(torch.tensor(6.0), 3, 12), batch_variance(torch.tensor(6.0), 12, 12)
    (tensor(1.5000), tensor(0.))
    """
    size, population = torch.as_tensor(size), torch.as_tensor(population)
    return spread / size * (1 - size / population)


def relative_noise(examples: Tensor) -> Tensor:
    """E ‖Z‖² sin²θ / ‖∇f‖²: variance of the example gradients across the mean gradient, over its squared length.

    >>> relative_noise(torch.tensor([[2.0, 1.0], [2.0, -1.0]])).item()
    0.5
    """
    examples = _checked(examples)
    mean = examples.mean(0)
    signal = mean.square().sum()
    deviation = examples - mean
    along = (deviation @ mean).square().sum() / signal
    return (deviation.square().sum() - along) / (max(len(examples) - 1, 1) * signal)


def predicted_projection(
    noise: Tensor, size: Tensor | int, population: Tensor | int | None = None, *, order: Order = "expansion"
) -> Tensor:
    """Mean projection of a batch's class direction on the full-batch one, from :func:`relative_noise`.

    ``expansion`` is Eq. "proj": 1 - ‖Z‖² sin²θ/(2 ñ ‖∇f‖²), good while that is close to 1; below it falls without
    limit where a projection cannot. ``saturating`` is (1 + ‖Z‖² sin²θ/(ñ ‖∇f‖²))^(-1/2), with the same expansion, and
    right for any batch size when the noise has many dimensions. ``population`` n multiplies the noise by 1 - ñ/n,
    which the paper neglects.

    >>> predicted_projection(torch.tensor(3.0), 3).item()
    0.5
    """
    variance = noise / size if population is None else batch_variance(noise, size, population)
    formulas = {"expansion": lambda: 1 - variance / 2, "saturating": lambda: (1 + variance).rsqrt()}
    if order not in formulas:
        raise InputError(f"Parameter `order` should be 'expansion' or 'saturating'. Found {order!r}.")
    return formulas[order]()


def sampled_projections(examples: Tensor, size: int, draws: int, generator: torch.Generator) -> Tensor:
    """Projections of the directions of random batches on the full-batch one (left of Eq. "proj"), shape (draws,)."""
    examples = _checked(examples)
    if not 1 <= size <= len(examples):
        raise InputError(f"Parameter `size` should be from 1 to the class's {len(examples)} examples. Found {size}.")
    gram = examples @ examples.T
    ranks = torch.rand(draws, len(examples), generator=generator).argsort(-1)
    batches = torch.zeros(draws, len(examples), dtype=gram.dtype).scatter_(1, ranks[:, :size], 1 / size)
    seen = batches @ gram
    along, full = seen.mean(-1), gram.mean().sqrt()
    return along / ((seen * batches).sum(-1).sqrt() * full)


def rescaling(projections: Tensor, majority: int | None = None) -> Tensor:
    """ν_l = p_majority / p_l (Eq. "rescaling"): multiplied by it, every class projects as far as the majority does.

    ``projections`` has shape (..., classes); the majority defaults to the class of the largest projection. Alg. 5 uses
    1/p_l for all classes instead, which is this up to a common factor.

    >>> rescaling(torch.tensor([0.9, 0.3]))
    tensor([1.0000, 3.0000])
    """
    reference = projections.amax(-1, keepdim=True) if majority is None else projections[..., [majority]]
    return reference / projections


@dataclass(frozen=True, eq=False)
class NoiseStudy:
    """Projections against the batch size; tensors have shape (batch sizes, classes) unless said."""

    batch_sizes: tuple[int, ...]
    per_class: Tensor
    """ñ_l, the class's share of the batch, at least 1."""
    noise: Tensor
    """:func:`relative_noise` of every class, shape (classes,)."""
    measured: Tensor
    """Mean projection over random batches."""
    error: Tensor
    """Standard error of ``measured``."""
    predicted: Tensor
    """Eq. "proj", with the finite-population factor."""
    saturating: Tensor
    """The same to all orders, for noise of many dimensions."""

    @property
    def attenuation_ratio(self) -> Tensor:
        """Measured attenuation 1 - p_l over that of class 0; nan where that has none, in the whole training set."""
        return _ratio(1 - self.measured)

    @property
    def predicted_ratio(self) -> Tensor:
        """Eq. "proj" for the same, about ñ_0/ñ_l times the ratio of the relative noises."""
        return _ratio(1 - self.predicted)

    @property
    def imbalance(self) -> Tensor:
        """ñ_0/ñ_l, what the paper says that ratio is when the classes are equally noisy."""
        return self.per_class[:, :1] / self.per_class

    @property
    def nu(self) -> Tensor:
        """The rescaling factors that the measured projections call for, class 0 taken as the majority."""
        return rescaling(self.measured, majority=0)


def noise_study(
    classes: Sequence[Tensor], batch_sizes: Sequence[int], *, draws: int = 200, generator: torch.Generator
) -> NoiseStudy:
    """Compare Eq. "proj" with random batches of every size; ``classes`` holds the example gradients of each class.

    A batch of B has the classes in their shares of the examples, at least one of each (Alg. 2). Class 0 should be the
    majority, as in the paper.
    """
    counts = torch.tensor([len(examples) for examples in classes])
    sizes = torch.tensor(batch_sizes).unsqueeze(-1)
    if len(batch_sizes) == 0 or int(sizes.min()) < len(classes) or int(sizes.max()) > int(counts.sum()):
        raise InputError(
            f"Parameter `batch_sizes` should be from {len(classes)}, the classes, to {int(counts.sum())}, the "
            f"examples. Found {list(batch_sizes)}."
        )
    labels = torch.arange(len(classes)).repeat_interleave(counts)
    per_class = torch.tensor([ProportionalBatches(labels, size).counts for size in batch_sizes])
    noise = torch.stack([relative_noise(examples) for examples in classes])
    drawn = [
        torch.stack([sampled_projections(examples, int(size), draws, generator) for size in per_class[:, label]])
        for label, examples in enumerate(classes)
    ]
    samples = torch.stack(drawn, 1)
    return NoiseStudy(
        batch_sizes=tuple(batch_sizes),
        per_class=per_class,
        noise=noise,
        measured=samples.mean(-1),
        error=samples.std(-1) / draws**0.5,
        predicted=predicted_projection(noise, per_class, counts),
        saturating=predicted_projection(noise, per_class, counts, order="saturating"),
    )


def _ratio(attenuation: Tensor) -> Tensor:
    majority = attenuation[:, :1]
    return torch.where(majority > ROUNDING, attenuation / majority, torch.nan)


def _checked(examples: Tensor) -> Tensor:
    if examples.ndim != 2 or len(examples) == 0:
        raise InputError(
            f"Parameter `examples` should have shape (examples, parameters). Found {tuple(examples.shape)}."
        )
    return examples.double()
