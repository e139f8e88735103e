"""Where the paper's statements fail as printed: the smallest example of each, and the corrected statement on it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from classgrad.theory import (
    Constant,
    Constants,
    Quadratics,
    Ramps,
    Trajectory,
    conflict,
    descend,
    dominance_ceiling,
    dominated_bound,
    dominated_steps,
    fixed_points,
    gd_bound,
    gd_margin,
    gd_steps,
    largest_step,
    many_classes,
    pcn_margin,
    pcngd_bound,
    pcngd_multiclass_bound,
    pcnsgd_bound,
    predicted_projection,
    r_pcngd_bound,
    sampled_projections,
    worst_ratio,
)

f64 = torch.float64


def ramps(directions, offsets, start) -> Ramps:
    return Ramps(*(torch.tensor(value, dtype=f64) for value in (directions, offsets, start)))


def quadratics(gradients) -> Quadratics:
    """Unit curvature and the given gradients at 0."""
    gradients = torch.tensor(gradients, dtype=f64)
    return Quadratics(torch.ones(len(gradients), dtype=f64), -gradients, torch.zeros(gradients.shape[1], dtype=f64))


def gram_of(problem) -> torch.Tensor:
    gradients = problem.gradients(problem.start)
    return gradients @ gradients.mT


def test_th1_loses_a_factor_of_two():
    """f^(0) = f^(1) = x²/2 near 0, one step: ‖g‖² = 1, printed 1/2. Lipschitz and smooth everywhere."""
    problem = ramps([[1.0], [1.0]], [0.0, 0.0], [1.0])
    path = descend(problem, "gd", 1, gd_steps(problem.constants.smoothness.value, 10.0))
    assert path.lr.item() == 0.5  # (1 + C cos α)/(2 (1 + C²) L_2) with C = cos α = L_2 = 1
    printed = gd_bound(path, problem.constants, cap=10.0, statement="printed")
    assert printed.met.all()
    assert printed.left.tolist() == [[1.0, 1.0]]
    assert printed.right.tolist() == [[0.525, 0.525]]
    assert printed.violated.all()
    assert gd_bound(path, problem.constants, cap=10.0).right.tolist() == [[1.05, 1.05]]


def test_th1_gives_a_step_for_one_class_at_a_time():
    """Both classes meet the condition, yet the step that Th. 1 allows class 0 raises the loss of class 1."""
    problem = quadratics([[1.0, 0.0], [0.0, 0.1]])
    assert (gd_margin(gram_of(problem)) > 0).all()
    step = gd_steps(problem.constants.smoothness.value[:1], math.inf)(0, gram_of(problem))
    own = 1 / (2 * (1 + 0.1**2))
    losses = descend(problem, "gd", 1, own).losses
    assert losses[1, 0] < losses[0, 0]
    assert losses[1, 1] > losses[0, 1]
    assert step < own
    lowered = descend(problem, "gd", 1, float(step)).losses
    assert (lowered[1] < lowered[0]).all()


def test_c_t_of_the_notation_is_upside_down_for_class_1():
    """‖g_1‖/‖g_0‖ for both classes says that both get better; class 1 gets worse."""
    problem = quadratics([[10.0, 0.0], [-0.5, math.sqrt(0.75)]])
    assert (gd_margin(gram_of(problem), statement="printed") > 0).all()
    assert gd_margin(gram_of(problem))[1] < 0
    losses = descend(problem, "gd", 1, 1e-3).losses
    assert losses[1, 1] > losses[0, 1]


def test_a_positive_cosine_does_not_make_every_step_descend():
    """App. "Alternate step size": "ω_t > 0, i.e. β_t ≥ 0 or ..." leaves out the step size."""
    problem = quadratics([[1.0, 0.0], [0.0, 1.0]])
    losses = descend(problem, "gd", 1, 3.0).losses
    assert (losses[1] > losses[0]).all()


def test_c_t_of_1_is_not_the_least_restrictive():
    """With C_t = 1/2 no angle at all violates the condition of class l; with C_t = 1 one does."""
    half, one = (quadratics([[1.0], [-size]]) for size in (0.5, 1.0))
    assert gd_margin(gram_of(half))[0] > 0
    assert gd_margin(gram_of(one))[0] == 0


def test_a_minority_class_can_be_better_off_than_a_balanced_one():
    """App.: "the imbalance condition implies Σ_{i≠0} n_i/n_0 > L - 1"; it does where n_0 is below the average class."""
    counts = torch.tensor([60, 100, 10])
    assert worst_ratio(counts)[0] < len(counts) - 1
    for below in (worst_ratio(counts)[2], worst_ratio(torch.tensor([50, 100, 10]))[0]):
        assert below > len(counts) - 1


def opposed_ramps(steps: int) -> Ramps:
    """Class 0 against two equal classes at 135°, with slopes that are longer than the run."""
    back = [-math.sqrt(0.5), math.sqrt(0.5)]
    return ramps([[1.0, 0.0], back, back], [1.0, 10.0 + steps, 10.0 + steps], [0.0, 0.0])


def test_multiclass_pcngd_needs_more_than_an_angle_other_than_180_degrees():
    """cos α^(0) = -0.71 ≠ -1, and the loss of class 0 only grows; the printed bound goes to 0."""
    steps, c = 100, 0.5
    problem = opposed_ramps(steps)
    path = descend(problem, "pcngd", steps, c / math.sqrt(steps))
    assert (path.losses.diff(dim=0)[:, 0] > 0).all()
    printed = pcngd_multiclass_bound(path, problem.constants, statement="printed")
    assert printed.met[-1, 0]
    assert printed.left[-1, 0] == 1
    assert printed.right[-1, 0] < 0.35
    assert (pcn_margin(path.gram)[:, 0] < 0).all()
    assert not pcngd_multiclass_bound(path, problem.constants).met[:, 0].any()


def test_multiclass_pcngd_does_not_gain_a_factor_of_l_minus_1():
    """Right angles, so that the printed and the corrected condition agree: the bound is still too small."""
    problem = ramps([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [5.0, 50.0, 50.0], [0.0, 0.0])
    path = descend(problem, "pcngd", 16, 0.25)
    torch.testing.assert_close(pcn_margin(path.gram)[:, 0], pcn_margin(path.gram, statement="printed")[:, 0])
    printed = pcngd_multiclass_bound(path, problem.constants, statement="printed")
    assert printed.left[-1, 0] == 1
    assert printed.right[-1, 0] == pytest.approx(3.25 / 4)
    assert pcngd_multiclass_bound(path, problem.constants).right[-1, 0] == pytest.approx((4.5 + 4.5) / 4)


def test_multiclass_pcngd_is_not_th2_for_two_classes():
    """L_2 c in place of 2 L_2 c: two equal parabolas break it, Th. 2 holds on them."""
    problem = ramps([[1.0], [1.0]], [0.0, 0.0], [1.0])
    path = descend(problem, "pcngd", 1, math.sqrt(0.5))
    assert pcngd_multiclass_bound(path, problem.constants, statement="printed").violated.all()
    assert pcngd_bound(path, problem.constants, statement="printed").holds.all()


def test_the_sum_in_the_proof_of_r_pcngd():
    """(Σ η_t)⁻¹ D_0 in place of D_0/η: too small by a factor T̃. The theorem itself holds."""
    problem = ramps([[1.0, 0.0], [0.0, 1.0]], [11.0, 50.0], [0.0, 0.0])
    steps, lr = 100, 0.1
    path = descend(problem, "pcngd", steps, lr)
    bound = r_pcngd_bound(path, problem.constants, statement="printed")
    initial, total = float(path.losses[0, 0]), steps * lr
    printed_line = (initial / total + 2 * total) / steps
    assert bound.left[-1, 0] == 1
    assert printed_line < 0.22
    assert bound.holds.all()


def test_no_parabola_is_gradient_dominated_everywhere():
    """Th. 3 asks for ½‖∇f‖ ≥ μ (f - f_*) at every x: for f = x²/2 it fails beyond |x| = 1/μ, whatever μ."""
    for mu in (1.0, 1e-3):
        for x, dominated in ((0.99 / mu, True), (1.01 / mu, False)):
            assert (x / 2 >= mu * x**2 / 2) == dominated
            assert (x**2 / 2 <= dominance_ceiling(1.0, mu)) == dominated


def test_th3_breaks_the_condition_that_it_says_it_needs():
    """ "η_t < 1/(2μ(1 + cos α)) < 1/C_μ", yet the first step is 1/C_μ; the bound holds all the same."""
    problem = ramps([[1.0], [1.0]], [0.0, 0.0], [1.0])
    rate = 4.0  # 2 μ (1 + cos α) with μ = ½‖g‖/(f - f_*) = 1
    assert dominated_steps(rate)(0, torch.eye(2)) == 1 / rate
    bound = dominated_bound(descend(problem, "pcngd", 20, dominated_steps(rate)), problem.constants)
    assert float(bound.constants["C_mu"][0, 0]) == rate
    assert bound.met.all()
    assert bound.holds.all()


def test_dominated_classes_do_not_make_a_dominated_sum():
    """Each class loss falls to its own minimum without a flat spot; their sum has a local minimum besides."""
    x = np.linspace(-4, 4, 400_001)
    falling = np.where(x <= 1, -(1 + 0.8 * np.sin(4 * np.pi * x)), np.clip(x - 2, -1, 1))
    rising = np.where(x >= -1, 1.05, 1.05 * np.clip(x + 2, -1, 1))
    losses = [np.cumsum(slope) * (x[1] - x[0]) for slope in (falling, rising)]
    for slope, loss in zip((falling, rising), losses, strict=True):
        gap = loss - loss.min()
        assert (np.abs(slope) >= 0.01 * gap).all()
    total_slope, total = falling + rising, sum(losses)
    stationary = (total_slope[:-1] < 0) & (total_slope[1:] >= 0)
    assert (total[:-1][stationary] - total.min()).max() > 0.01


def noisy_pair(runs: int, steps: int, lr: float):
    """Class 0 is free of noise; class 1 is orthogonal to it on average, but its batches nearly always oppose it.

    Nine examples of class 1 have the gradient (-1, 0.1), one has (9, 0.1): on average (0, 0.1).
    """
    examples = torch.tensor([[-1.0, 0.1]] * 9 + [[9.0, 0.1]], dtype=f64)
    random = torch.Generator().manual_seed(0)
    x = torch.full((runs,), 4.5, dtype=f64)
    positions = [x]
    for _ in range(steps):
        batch = examples[torch.randint(10, (runs,), generator=random)]
        x = x - lr * (1 + torch.nn.functional.normalize(batch, dim=-1)[:, 0])
        positions.append(x)
    height = torch.stack(positions, 1)
    slope = height.clamp(-1, 1)[:, :-1]
    loss = torch.where(height.abs() <= 1, height.square() / 2, height.abs() - 0.5)
    gram = torch.zeros(runs, steps, 2, 2, dtype=f64)
    gram[..., 0, 0] = slope.square()
    gram[..., 1, 1] = 0.1**2
    sigma = Constant(
        torch.stack([torch.zeros((), dtype=f64), (examples - examples.mean(0)).square().sum(-1).mean().sqrt()])
    )
    losses = torch.stack([loss, torch.full_like(loss, 100.0)], -1)  # class 1 is far up its slope
    return Trajectory(losses, gram, torch.full((runs, steps), lr)), sigma


def test_th4_leaves_out_the_noise_of_the_other_class():
    runs, sigma = noisy_pair(runs=256, steps=100, lr=0.1)
    constants = Constants.of(torch.tensor([1.0, 1.0]))
    assert sigma.value[0] == 0
    printed = pcnsgd_bound(runs, constants, sigma, statement="printed")
    assert printed.met[-1, 0]
    assert printed.left[-1, 0] > 0.9
    assert printed.right[-1, 0] == pytest.approx((4.0 + 2.0) / 10)
    assert pcnsgd_bound(runs, constants, sigma).holds.all()


def test_noise_alone_does_not_make_the_loss_rise():
    """After Eq. "pcnsgd-mono": "if σ is finite the loss function is not monotonic on average"; noise along g_l is."""
    examples = torch.tensor([[0.1, 0.0], [1.9, 0.0]], dtype=f64)
    assert (examples - examples.mean(0)).square().sum(-1).mean() > 0.8
    directions = torch.nn.functional.normalize(examples, dim=-1)
    torch.testing.assert_close(directions[0], directions[1])


def test_k_is_not_independent_of_the_horizon():
    """Th. 2 informal: min ‖g_l‖ ≤ K/√T̃ with one K. Conflicting classes stop at a distance, as ω_min goes to 0."""
    problem = conflict(angle=120, imbalance=7)
    constants, left = [], []
    for steps in (10, 100, 1000):
        bound = pcngd_bound(descend(problem, "pcngd", steps, 1 / math.sqrt(steps)), problem.constants)
        constants.append(float(bound.left[-1, 0]) * math.sqrt(steps))
        left.append(float(bound.left[-1, 0]))
        assert not bound.violated.any()
    assert constants[0] < constants[1] < constants[2]
    assert min(left) > 0.5


def test_gds_fixed_point_is_for_sums_not_means():
    """Sec. 4.5 writes ∇f_{n_0} = -∇f_{n_1} for the mean gradients; at GD's limit the means differ by the imbalance."""
    problem = conflict(angle=120, imbalance=7)
    end = problem.gd_iterate(0.5, 200)
    gradients = problem.gradients(end)
    found = fixed_points(gradients @ gradients.mT, torch.tensor([7, 1]))
    assert found.gd < 1e-6
    means = gradients * torch.tensor([[8 / 7], [8.0]])
    assert torch.linalg.vector_norm(means.sum(0)) > 1
    assert found.mean_ratio[1] == pytest.approx(7.0)


def test_eq_proj_leaves_noise_in_the_full_batch():
    """Without the factor 1 - ñ/n even the whole class is predicted to be off its own direction."""
    examples = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=f64)
    assert sampled_projections(examples, 2, 4, torch.Generator().manual_seed(0)).tolist() == [1.0] * 4
    noise = torch.tensor(2.0)
    assert predicted_projection(noise, 2).item() == 0.5
    assert predicted_projection(noise, 2, 2).item() == 1.0


def test_worst_case_of_many_classes_reaches_l_minus_1_at_any_imbalance():
    for counts in ((30, 30, 30, 30), (90, 90, 90, 1)):
        problem = many_classes(counts, angle=150)
        margin = pcn_margin(gram_of(problem))[-1]
        assert margin == pytest.approx(1 + (len(counts) - 1) * math.cos(math.radians(150)))
        assert gd_margin(gram_of(problem))[-1] == pytest.approx(
            1 + float(worst_ratio(torch.tensor(counts))[-1]) * math.cos(math.radians(150))
        )
        assert largest_step(gram_of(problem), 1.0, "pcngd")[-1] == 0
