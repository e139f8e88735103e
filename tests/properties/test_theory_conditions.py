"""The conditions decide, to the last ε, whether a step lowers the loss of every class."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from classgrad.theory import Quadratics, descend, gd_margin, largest_step, pcn_margin, tightness

PROBLEMS = 128
few = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
rules = st.sampled_from(["gd", "pcngd"])
MARGINS = {"gd": gd_margin, "pcngd": pcn_margin}


def quadratics_with(gradients: torch.Tensor) -> Quadratics:
    """Unit curvature, the given gradients at the start."""
    return Quadratics(
        torch.ones(gradients.shape[:-1], dtype=torch.float64), -gradients, torch.zeros_like(gradients[..., 0, :])
    )


def random_gradients(seed: int, classes: int, dimension: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randn(PROBLEMS, classes, 1, generator=random, dtype=torch.float64).exp()
    return lengths * torch.randn(PROBLEMS, classes, dimension, generator=random, dtype=torch.float64)


def change(gradients: torch.Tensor, rule: str, lr: torch.Tensor) -> torch.Tensor:
    losses = descend(quadratics_with(gradients), rule, 1, lr.unsqueeze(-1)).losses
    return losses[..., 1, :] - losses[..., 0, :]


@few
@given(seeds, rules, st.integers(2, 6), st.integers(1, 5), st.floats(1e-4, 1e-2))
def test_for_isotropic_quadratics_the_largest_step_is_exact(seed, rule, classes, dimension, epsilon):
    gradients = random_gradients(seed, classes, dimension)
    gram = gradients @ gradients.mT
    limit = largest_step(gram, 1.0, rule)
    for label in range(classes):
        lowered = limit[:, label] > 1e-6
        below = change(gradients, rule, limit[:, label].clamp(min=1e-9) * (1 - epsilon))[:, label]
        above = change(gradients, rule, limit[:, label].clamp(min=1e-9) * (1 + epsilon))[:, label]
        assert (below[lowered] < 0).all()
        assert (above[lowered] > 0).all()


@few
@given(seeds, rules, st.integers(2, 6), st.floats(1e-6, 1e-1), st.floats(1e-6, 10))
def test_a_margin_below_zero_by_epsilon_makes_every_step_raise_the_loss(seed, rule, classes, epsilon, lr):
    """The other gradients are as drawn; the first is turned until its margin is ±ε, and the loss follows the sign."""
    gradients = random_gradients(seed, classes, 4)
    weight = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True).reciprocal() if rule == "pcngd" else 1.0
    rest = (weight * gradients)[:, 1:].sum(1)
    along = torch.nn.functional.normalize(rest, dim=-1)
    across = torch.nn.functional.normalize(
        gradients[:, 0] - (gradients[:, 0] * along).sum(-1, keepdim=True) * along, dim=-1
    )
    ratio = torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
    for sign in (-1, 1):
        length = torch.ones_like(ratio) if rule == "pcngd" else ratio / 2
        cosine = (sign * epsilon - 1) * (1 if rule == "pcngd" else length) / ratio
        possible = cosine.abs().squeeze(-1) < 1
        turned = length * (cosine * along + (1 - cosine.square()).clamp(min=0).sqrt() * across)
        tried = torch.cat([turned.unsqueeze(1), gradients[:, 1:]], 1)[possible]
        if len(tried) == 0:
            continue
        gram = tried @ tried.mT
        torch.testing.assert_close(
            MARGINS[rule](gram)[:, 0],
            torch.full((len(tried),), sign * epsilon, dtype=torch.float64),
            rtol=1e-6,
            atol=1e-9,
        )
        limit = largest_step(gram, 1.0, rule)[:, 0]
        if sign < 0:
            assert (limit == 0).all()
            assert (change(tried, rule, torch.full((len(tried),), lr))[:, 0] > 0).all()
        else:
            assert (change(tried, rule, limit / 2)[:, 0] < 0).all()


@few
@given(seeds, rules, st.integers(2, 6), st.floats(0.01, 0.999))
def test_below_the_smallest_limit_every_class_gets_better(seed, rule, classes, share):
    gradients = random_gradients(seed, classes, 5)
    smallest = largest_step(gradients @ gradients.mT, 1.0, rule).amin(-1)
    useful = smallest > 1e-6
    assert (change(gradients, rule, share * smallest.clamp(min=1e-9))[useful] < 0).all()


@few
@given(seeds, st.integers(1, 4))
def test_the_printed_steps_are_never_larger(seed, dimension):
    gradients = random_gradients(seed, 2, dimension)
    gram = gradients @ gradients.mT
    for rule in ("gd", "pcngd"):
        printed, best = (largest_step(gram, 1.0, rule, statement=statement) for statement in ("printed", "corrected"))
        assert (printed <= best * (1 + 1e-9)).all()


@few
@example(4.9, 3.9)
@given(st.floats(-2.9, 4.9), st.floats(3.9, 20))
def test_the_tightness_problem_has_the_margin_it_was_asked_for(margin, ratio):
    problem = tightness(margin, ratio)
    gradients = problem.gradients(problem.start)
    assert abs(float(gd_margin(gradients @ gradients.mT)[1]) - margin) < 1e-9


@few
@given(seeds)
def test_with_two_classes_pcngd_lowers_both_whatever_their_lengths_and_angle(seed):
    gradients = random_gradients(seed, 2, 3)
    shortest = torch.linalg.vector_norm(gradients, dim=-1).amin(-1)
    assert (change(gradients, "pcngd", shortest * 0.999) < 0).all()
