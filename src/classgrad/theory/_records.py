"""What the statements are about (a path with its constants) and what a statement says (a bound)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from classgrad._errors import InputError

Statement = Literal["corrected", "printed", "sharp", "minibatch"]
"""``corrected``: the paper's statement with its mistakes mended (equal to ``printed`` where there are none).
``printed``: word for word. ``sharp``: the same proof without its avoidable losses, for any step sizes.
``minibatch``: see :func:`classgrad.theory.pcnsgd_bound`, which alone has it."""

ROUNDING = 1e-9
"""Relative slack of every comparison of two float64 results that exact arithmetic could make equal."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant of an assumption, one value per class, and where it comes from."""

    value: Tensor
    exact: bool = True
    """Whether the value is known to meet its definition; False for everything measured by sampling or search."""
    how: str = "given"

    @property
    def along_steps(self) -> Tensor:
        """The values with a step axis, shape (..., 1, classes)."""
        return self.value.unsqueeze(-2) if self.value.ndim else self.value


@dataclass(frozen=True, eq=False)
class Constants:
    """The constants of the paper's assumptions on the class losses f^(l); each tensor has shape (..., classes)."""

    smoothness: Constant
    """L_2 of L_2-Lipschitz gradients of f^(l). One per class is allowed; the paper takes the largest for all."""
    minima: Constant
    """f^(l)_*, or any number known to be below f^(l)."""
    lipschitz: Constant | None = None
    """L_1. Every theorem of the paper assumes it and no proof uses it, so no bound here needs it."""

    @classmethod
    def of(
        cls, smoothness: Tensor | float, minima: Tensor | float = 0.0, lipschitz: Tensor | float | None = None
    ) -> Constants:
        """Take plain numbers or tensors as known constants."""
        known = [None if value is None else Constant(_float64(value)) for value in (smoothness, minima, lipschitz)]
        assert known[0] is not None
        assert known[1] is not None
        return cls(known[0], known[1], known[2])

    def named(self) -> dict[str, Tensor]:
        """Give the values under the paper's names, those that are known."""
        named = {"L_1": self.lipschitz, "L_2": self.smoothness, "f_*": self.minima}
        return {name: constant.value for name, constant in named.items() if constant is not None}

    @property
    def estimated(self) -> tuple[str, ...]:
        """Names of the constants that are estimates."""
        named = {"L_2": self.smoothness, "f_*": self.minima, "L_1": self.lipschitz}
        return tuple(name for name, constant in named.items() if constant is not None and not constant.exact)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A run as the theorems see it, every step of it.

    Any leading dimensions stand for independent runs. ``losses`` holds f^(l)(x_t) for t = 0 .. T, shape
    (..., T + 1, classes); ``gram`` the Gram matrices of the class gradients at x_0 .. x_{T-1}, shape
    (..., T, classes, classes); ``lr`` the step sizes η_0 .. η_{T-1}, shape (..., T).
    """

    losses: Tensor
    gram: Tensor
    lr: Tensor

    def __post_init__(self) -> None:
        for name in ("losses", "gram", "lr"):
            object.__setattr__(self, name, _float64(getattr(self, name)))
        if self.gram.ndim < 3 or self.gram.shape[-1] != self.gram.shape[-2]:
            raise InputError(
                f"Parameter `gram` should have shape (..., steps, classes, classes). Found {tuple(self.gram.shape)}."
            )
        steps, classes = self.gram.shape[-3:-1]
        if self.losses.shape[-2:] != (steps + 1, classes):
            raise InputError(
                f"Parameter `losses` should have shape (..., {steps + 1}, {classes}), one row more than `gram` has "
                f"steps. Found {tuple(self.losses.shape)}."
            )
        if self.lr.shape[-1:] != (steps,) or not bool((self.lr > 0).all()):
            raise InputError(
                f"Parameter `lr` should hold {steps} step sizes above 0. Found shape {tuple(self.lr.shape)}, "
                f"smallest {float(self.lr.min()) if self.lr.numel() else None}."
            )

    @property
    def steps(self) -> int:
        """Number of steps T."""
        return self.gram.shape[-3]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.gram.shape[-1]


@dataclass(frozen=True, eq=False)
class Bound:
    """A theorem applied to a trajectory: left side ≤ right side, for every horizon T̃ = 1 .. T and every class.

    All tensors have shape (..., T, classes); row i is the statement for T̃ = i + 1, whose constants (ω_min, C_max, ...)
    are taken over the steps before T̃, which is all the proofs use.
    """

    name: str
    statement: Statement
    left: Tensor
    right: Tensor
    met: Tensor
    """Where the assumptions hold at all steps before T̃."""
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    """Every constant that enters, under the paper's name."""
    estimated: tuple[str, ...] = ()
    """Names of the constants that are estimates; such a bound is an indication, not a proof."""

    @property
    def holds(self) -> Tensor:
        """Where left ≤ right (up to rounding), whether or not the assumptions are met."""
        return self.left <= self.right * (1 + ROUNDING) + 1e-12

    @property
    def violated(self) -> Tensor:
        """Where the assumptions are met and left > right; never, for a true statement with true constants."""
        return self.met & ~self.holds

    @property
    def ratio(self) -> Tensor:
        """Left / right where the assumptions are met (1 is tight), nan elsewhere."""
        return torch.where(self.met, self.left / self.right, torch.nan)

    @property
    def tightest(self) -> float:
        """The largest ratio over all runs, horizons and classes; nan if the assumptions never hold."""
        known = self.ratio[~self.ratio.isnan()]
        return float(known.max()) if known.numel() else float("nan")


def checked(statement: str, *allowed: Statement) -> None:
    """Refuse a statement that a function does not know."""
    allowed = allowed or ("corrected", "printed", "sharp")
    if statement not in allowed:
        raise InputError(f"Parameter `statement` should be one of {', '.join(allowed)}. Found {statement!r}.")


def _float64(value: Tensor | float) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)
