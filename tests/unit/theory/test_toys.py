"""The toy problems: closed forms against autograd and against what running them gives."""

from __future__ import annotations

import math

import pytest
import torch

from classgrad._errors import InputError
from classgrad.theory import (
    THEOREMS,
    TOYS,
    Examples,
    Ramps,
    check,
    conflict,
    descend,
    descend_stochastic,
    fixed_points,
    gd_margin,
    gd_steps,
    least_squares,
    logistic,
    many_classes,
    pcn_margin,
    second_steps,
    tightness,
)

f64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gram_of(problem, x=None) -> torch.Tensor:
    gradients = problem.gradients(problem.start if x is None else x)
    return gradients @ gradients.mT


RAMPS = Ramps(
    torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=f64), torch.tensor([0.2, 3.0], dtype=f64), torch.zeros(2, dtype=f64)
)
"""Once on the parabola, once on the slope."""


@pytest.mark.parametrize("problem", [*(make() for make in TOYS.values()), RAMPS], ids=[*TOYS, "ramps"])
def test_gradients_and_constants(problem):
    for seed in range(3):
        x = 0.3 * torch.randn(problem.start.shape, generator=gen(seed), dtype=f64)
        jacobian = torch.autograd.functional.jacobian(problem.losses, x)
        torch.testing.assert_close(problem.gradients(x), jacobian)
        y = 0.3 * torch.randn(problem.start.shape, generator=gen(seed + 100), dtype=f64)
        change = torch.linalg.vector_norm(problem.gradients(x) - problem.gradients(y), dim=-1)
        assert (change <= problem.constants.smoothness.value * torch.linalg.vector_norm(x - y) * (1 + 1e-9)).all()
        assert (problem.losses(x) >= problem.constants.minima.value).all()
        if problem.pl is not None:
            assert (
                problem.gradients(x).square().sum(-1) / 2 >= problem.pl.value * problem.losses(x) * (1 - 1e-9)
            ).all()


def test_gradient_descent_on_quadratics_in_closed_form():
    problem = conflict(angle=100, imbalance=5)
    path = descend(problem, "gd", 20, 0.3)
    for step in (0, 1, 7, 20):
        torch.testing.assert_close(problem.losses(problem.gd_iterate(0.3, step)), path.losses[step])


def test_the_condition_is_necessary_and_the_step_limit_exact_on_the_tightness_problem():
    for margin in (-0.5, -1e-6, 0.0):
        for lr in (1e-9, 1e-3, 0.1, 1.0):
            losses = descend(tightness(margin), "gd", 1, lr).losses
            assert losses[1, 1] > losses[0, 1] - 1e-15
    problem = tightness(0.25)
    limit = 2 * 0.25 / float(gram_of(problem).sum())
    for factor, sign in ((0.999, -1), (1.001, 1)):
        losses = descend(problem, "gd", 1, factor * limit).losses
        assert torch.sign(losses[1, 1] - losses[0, 1]) == sign


def test_conflict_has_the_angle_and_the_imbalance_asked_for():
    problem = conflict(angle=100, imbalance=7)
    assert gd_margin(gram_of(problem)).tolist() == pytest.approx(
        [1 + math.cos(math.radians(100)) / 7, 1 + 7 * math.cos(math.radians(100))]
    )
    assert pcn_margin(gram_of(problem)).tolist() == pytest.approx([1 + math.cos(math.radians(100))] * 2)


def test_conflict_ends_where_its_fixed_points_are():
    problem = conflict(angle=120, imbalance=7)
    middle = problem.centers.mean(0)
    assert fixed_points(gram_of(problem, middle), torch.tensor([7, 1])).pcngd < 1e-7
    assert fixed_points(gram_of(problem, middle), torch.tensor([7, 1])).gd > 0.5
    path = descend(problem, "pcngd", 300, 0.01)
    torch.testing.assert_close(path.losses[-1], problem.losses(middle), rtol=1e-2, atol=0)
    path = descend(problem, "gd", 300, 0.1)
    weighted = (problem.curvature.unsqueeze(-1) * problem.centers).sum(0)
    torch.testing.assert_close(path.losses[-1], problem.losses(weighted))
    assert fixed_points(gram_of(problem, weighted), torch.tensor([7, 1])).gd < 1e-7


def test_fixed_points_wants_counts():
    with pytest.raises(InputError, match="counts"):
        fixed_points(torch.eye(2), torch.tensor([3, -1]))
    assert fixed_points(torch.eye(2), torch.tensor([3, 0])).mean_ratio.isnan().tolist() == [False, True]


def test_logistic_shows_the_drop_under_gd_and_not_under_pcngd():
    """The paper's minority initial drop on its smallest model: the minority's loss rises first, and falls later."""
    problem = logistic()
    gd = descend(problem, "gd", 400, 0.1).losses[:, 1]
    assert gd.max() > 1.15 * gd[0]
    assert gd[-1] < 0.3 * gd[0]
    pcngd = descend(problem, "pcngd", 100, 0.01).losses
    assert (pcngd.diff(dim=0) < 0).all()


def test_least_squares_can_be_solved():
    problem = least_squares()
    solution = torch.linalg.lstsq(problem.inputs, problem.targets).solution
    assert problem.losses(solution).max() < 1e-20


def test_least_squares_that_cannot_be_solved_have_no_pl_constant():
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((12, 2), (12,)))
    problem = Examples("least-squares", inputs, targets, torch.arange(12) % 2, torch.zeros(2, dtype=torch.float64))
    assert problem.pl is None
    assert check(problem, steps=10)


def test_many_classes_hurts_the_last_one_under_both_rules():
    problem = many_classes()
    for rule in ("gd", "pcngd"):
        losses = descend(problem, rule, 1, 1e-3).losses
        assert (losses[1] - losses[0]).sign().tolist() == [-1.0, -1.0, -1.0, 1.0]


def test_steps_of_the_theorems():
    problem = tightness(0.25)
    gram = gram_of(problem)
    small = gd_steps(problem.constants.smoothness.value, 1e-9)(0, gram)
    assert small == 1e-9
    own = gd_steps(problem.constants.smoothness.value, 1.0)(0, gram)
    assert own == pytest.approx(0.25 / (2 * (1 + 16)))
    assert gd_steps(problem.constants.smoothness.value, 0.7)(0, gram_of(tightness(-0.25))) == 0.7
    assert second_steps(1.0, 4)(0, torch.eye(2)) == 0.5
    assert second_steps(1.0, 4)(0, gram_of(many_classes())) == 0.5


def test_stochastic_runs_are_what_they_say():
    problem = logistic(counts=(6, 3))
    drawn = descend_stochastic(problem, torch.tensor([6, 3]), 5, 0.1, runs=2, generator=gen())
    path = descend(problem, "pcngd", 5, 0.1)
    torch.testing.assert_close(drawn.paths.losses[0], path.losses)  # the whole set: no noise
    torch.testing.assert_close(drawn.batch_gram, drawn.paths.gram)
    assert drawn.sigma.value.max() < 1e-7


def test_sigma_is_the_covariance_at_the_points_visited():
    problem = logistic(counts=(4, 3))
    drawn = descend_stochastic(problem, torch.tensor([2, 1]), 1, 0.1, runs=6000, generator=gen())
    full, batch = drawn.paths.gram[:, 0], drawn.batch_gram[:, 0]
    for label in range(2):
        # E ‖g̃ - g‖² = E ‖g̃‖² - ‖g‖², since batches are unbiased
        variance = batch[:, label, label].mean() - full[0, label, label]
        assert drawn.sigma.value[label] == pytest.approx(math.sqrt(float(variance)), rel=0.03)


@pytest.mark.parametrize("statement", ["corrected", "sharp", "minibatch"])
def test_check_finds_every_proved_bound_true(statement):
    rows = [(name, row) for name, make in TOYS.items() for row in check(make(), steps=40, statement=statement)]
    assert all(row.held and row.proved for _, row in rows)
    seen = {row.theorem for _, row in rows if row.steps_met > 0}
    assert seen == {name for name, theorem in THEOREMS.items() if statement in theorem.statements}


def test_check_finds_the_printed_multiclass_bound_false():
    rows = {row.theorem: row for row in check(many_classes(), statement="printed")}
    assert not rows["pcngd-multiclass"].held
    assert not rows["pcngd-multiclass"].proved
    assert rows["pcngd-multiclass"].tightest > 1
    assert "pcngd" not in rows  # its printed form is for two classes


def test_check_can_be_asked_for_one_theorem():
    (row,) = check(conflict(), steps=10, theorems=["pcngd"])
    assert (row.theorem, row.steps, row.classes) == ("pcngd", 10, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tightness(margin=9.0, ratio=1.0), "margin"),
        (lambda: conflict(imbalance=0), "imbalance"),
        (lambda: logistic(counts=(1, 2, 3)), "counts"),
        (lambda: logistic(counts=(0, 2)), "counts"),
        (lambda: least_squares(counts=(30, 30)), "dimension"),
        (lambda: many_classes(counts=(3,)), "counts"),
        (lambda: descend(conflict(), "gd", 0, 0.1), "steps"),
        (lambda: descend_stochastic(logistic((4, 2)), torch.tensor([5, 1]), 1, 0.1, 1, gen()), "per_class"),
        (lambda: tightness(1.0, 0.0), "ratio"),
        (lambda: tightness(1.0, math.inf), "ratio"),
        (lambda: tightness(math.nan, 4.0), "margin"),
    ],
)
def test_toys_refuse_what_they_cannot_make(call, message):
    with pytest.raises(InputError, match=message):
        call()
