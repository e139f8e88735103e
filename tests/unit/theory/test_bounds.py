"""The numbers of each bound on paths small enough for pencil and paper, and the records around them."""

from __future__ import annotations

import math

import pytest
import torch

from classgrad._errors import InputError
from classgrad.theory import (
    Bound,
    Constant,
    Constants,
    Trajectory,
    descend,
    dominance,
    dominated_bound,
    dominated_constant_bound,
    dominated_rate,
    dominated_steps,
    gd_alternate_bound,
    gd_bound,
    gd_caps,
    gd_margin,
    largest_step,
    least_squares,
    many_classes,
    pcn_margin,
    pcngd_bound,
    pcngd_second_bound,
    pcnsgd_bound,
    pl_bound,
    pl_steps,
    r_pcngd_bound,
    tightness,
    worst_ratio,
)

f64 = torch.float64
UNIT = Constants.of(1.0)


def path(losses, gram, lr) -> Trajectory:
    return Trajectory(*(torch.tensor(values, dtype=f64) for values in (losses, gram, lr)))


ORTHOGONAL = path([[8.0, 2.0], [7.0, 1.0], [6.0, 1.0]], [[[4.0, 0.0], [0.0, 1.0]]] * 2, [0.1, 0.1])
"""Two steps with gradients of lengths 2 and 1 at right angles: C_t = 1/2 and 2, cos α = 0, all ω = 1."""


def close(actual: torch.Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=f64))


def test_gd():
    bound = gd_bound(ORTHOGONAL, UNIT)
    close(bound.left, [[4.0, 1.0], [4.0, 1.0]])
    # 2 D_0/(ω T̃) (max_k 2 (1 + C_k²) L_2/ω + 1/η) = 2 D_0/T̃ · (10 + 10)
    close(bound.right, [[320.0, 80.0], [160.0, 40.0]])
    assert bound.met.all()
    close(bound.constants["omega_min"], [[1.0, 1.0]] * 2)
    close(bound.constants["C_max"], [[0.25, 4.0]] * 2)
    close(bound.constants["D_0"], [[8.0, 2.0]])
    close(bound.constants["c"], [[0.1], [0.1 * math.sqrt(2)]])


def test_gd_as_printed_and_sharp():
    # class 0 on its own: D_0/T̃ · (2.5 + 10)
    close(gd_bound(ORTHOGONAL, UNIT, statement="printed").right[:, 0], [100.0, 50.0])
    # (D_0 + ½ · 0.01 · 5 T̃)/(0.1 T̃)
    close(gd_bound(ORTHOGONAL, UNIT, statement="sharp").right[:, 0], [80.25, 40.25])


def test_gd_knows_when_its_step_was_not_followed():
    too_large = path([[8.0, 2.0]] * 2, [[[4.0, 0.0], [0.0, 1.0]]], [0.2])
    close(gd_caps(too_large.gram[0], 1.0), [0.4, 0.1])
    assert gd_bound(too_large, UNIT).met.tolist() == [[True, False]]
    too_small = path([[8.0, 2.0]] * 3, [[[4.0, 0.0], [0.0, 1.0]]] * 2, [0.1, 0.001])
    assert gd_bound(too_small, UNIT).met.tolist() == [[True, True], [False, False]]


def test_gd_alternate():
    bound = gd_alternate_bound(ORTHOGONAL, UNIT)
    close(bound.constants["omega"], [[0.0875, 0.05]] * 2)
    close(bound.right, [[8 / 0.0875, 2 / 0.05], [4 / 0.0875, 1 / 0.05]])
    sharp = gd_alternate_bound(ORTHOGONAL, UNIT, statement="sharp")
    close(sharp.right[0], [8 / (0.1 - 0.005 * 1.25), 2 / (0.1 - 0.005 * 5)])


def test_pcngd():
    bound = pcngd_bound(ORTHOGONAL, UNIT)
    close(bound.left, [[2.0, 1.0]] * 2)
    # (D_0/c + 2 c)/√T̃ with c = 0.1 √T̃: D_0/(0.1 T̃) + 0.2
    close(bound.right, [[80.2, 20.2], [40.2, 10.2]])
    close(pcngd_bound(ORTHOGONAL, UNIT, statement="printed").right, bound.right.tolist())
    # two unit gradients at right angles: ‖Σ u‖² = 2
    close(pcngd_bound(ORTHOGONAL, UNIT, statement="sharp").right, [[80.1, 20.1], [40.1, 10.1]])


def test_pcngd_second_step_has_the_square():
    right_angles = pcngd_second_bound(ORTHOGONAL, UNIT)
    close(right_angles.right, [[80.2, 20.2], [40.2, 10.2]])
    cosine = -0.5
    gram = [[[4.0, 2 * cosine], [2 * cosine, 1.0]]]
    slanted = path([[8.0, 2.0]] * 2, gram, [0.2])  # ω = ½, so c = 0.1
    bound = pcngd_second_bound(slanted, UNIT)
    close(bound.constants["omega_min"], [[0.25]])
    close(bound.right, [[80 + 0.2 / 0.25, 20 + 0.2 / 0.25]])
    sharp = pcngd_second_bound(slanted, UNIT, statement="sharp")  # without the square: L_2 c/ω
    close(sharp.right, [[80 + 0.1 / 0.5, 20 + 0.1 / 0.5]])


def test_r_pcngd_weighs_by_omega():
    gram = [[[4.0, 0.0], [0.0, 1.0]], [[9.0, -1.5], [-1.5, 1.0]]]  # ω = 1, then ½
    run = path([[8.0, 2.0]] * 3, gram, [0.1, 0.1])
    bound = r_pcngd_bound(run, UNIT)
    close(bound.left[1], [(2 + 1.5) / 1.5, 1.0])
    close(bound.constants["omega_mean"][1], [0.75, 0.75])
    close(bound.right[1], [(80 / 2 + 0.2) / 0.75, (20 / 2 + 0.2) / 0.75])
    sharp = r_pcngd_bound(run, UNIT, statement="sharp")
    close(sharp.right[1], [(8 + 0.005 * 3) / 0.15, (2 + 0.005 * 3) / 0.15])


def test_dominated():
    one = path([[8.0, 2.0], [0.5, 0.4]], [[[4.0, 0.0], [0.0, 1.0]]], [4.0])
    close(dominance(one, UNIT), [[2 / 16, 1 / 4]])
    close(dominated_rate(one, UNIT), [[0.25, 0.5]])
    bound = dominated_bound(one, UNIT)  # η_0 = 1/m, so m = ¼
    assert bound.met.all()
    close(bound.left, [[0.5, 0.4]])
    close(bound.right, [[8 * 16.0]])
    printed = dominated_bound(one, UNIT, statement="printed")
    close(printed.right, [[8 * 16.0, 8 * 4.0]])
    assert not printed.met.any()


def test_dominated_steps():
    steps = dominated_steps(2.0)
    assert [steps(t, torch.eye(2)) for t in range(3)] == [0.5, 3 / 8, 5 / 18]


def test_dominated_with_a_constant_step():
    run = path([[8.0, 2.0], [0.5, 0.4], [0.3, 0.3]], [[[4.0, 0.0], [0.0, 1.0]]] * 2, [1.0, 1.0])
    bound = dominated_constant_bound(run, UNIT)
    # class 0: ‖g‖/(f - f_*) is ¼ at x_0 and 4 at x_1, so C_μ stays ¼
    close(bound.constants["c"][:, 0], [0.25, 0.25])
    close(bound.right[:, 0], [0.75 * 8 + 2 * 0.25 / 0.0625, 0.75**2 * 8 + 8])
    printed = dominated_constant_bound(run, UNIT, statement="printed")
    close(printed.right[:, 0], [8 + 8.0, 0.75 * 8 + 8])
    with pytest.raises(InputError, match="3 classes"):
        dominated_constant_bound(descend(many_classes((5, 5, 1)), "pcngd", 1, 0.1), UNIT, statement="printed")


def test_pl_steps_and_bound():
    problem = least_squares()
    assert problem.pl is not None
    start = problem.losses(problem.start)
    lr = pl_steps(50, start, problem.constants, problem.pl, 0.1)
    run = descend(problem, "pcngd", 50, lr)
    bound = pl_bound(run, problem.constants, problem.pl, 0.1)
    b = 2 * float(problem.constants.smoothness.value.max())
    a = 0.1 * math.sqrt(2 * float(problem.pl.value.min()))
    s = 8 * b / a**2
    assert lr[0] == pytest.approx(a * math.sqrt(float(start.max())) / (2 * b))
    assert bound.right[9, 0] == pytest.approx(float(start.max()) * (s / (10 + s)) ** 2)
    assert bound.met.all()
    assert not bound.violated.any()
    other = pl_bound(descend(problem, "pcngd", 50, 2 * lr), problem.constants, problem.pl, 0.1)
    assert not other.met.any()
    with pytest.raises(InputError, match="omega"):
        pl_steps(5, start, problem.constants, problem.pl, 0.0)


def test_pl_names_an_estimated_constant():
    problem = tightness()
    guess = Constant(problem.curvature, exact=False, how="guess")
    run = descend(problem, "pcngd", 1, 0.1)
    assert pl_bound(run, problem.constants, guess, 0.1).estimated == ("mu",)


def stochastic(sigma=(0.3, 0.5), **kwargs) -> Bound:
    losses = torch.tensor([[[8.0, 2.0], [7.0, 1.0]], [[10.0, 2.0], [9.0, 1.0]]])
    gram = torch.tensor([[[[4.0, 0.0], [0.0, 1.0]]], [[[16.0, 0.0], [0.0, 1.0]]]])
    runs = Trajectory(losses, gram, torch.full((2, 1), 0.1))
    return pcnsgd_bound(runs, UNIT, Constant(torch.tensor(sigma, dtype=f64)), **kwargs)


def test_pcnsgd():
    bound = stochastic()
    close(bound.left, [[3.0, 1.0]])  # means over the two runs
    # (E D_0/c + 2 c) + 2 max Σ σ_i ‖g_l‖/‖g_i‖
    close(bound.right, [[90.2 + 2 * (0.3 + 0.5 * 4), 20.2 + 2 * (0.3 / 2 + 0.5)]])
    sharp = stochastic(statement="sharp")
    close(sharp.right, [[90.2 + 2 * (0.3 + 0.5 * 3), 20.2 + 2 * (0.3 * 0.375 + 0.5)]])
    close(stochastic(statement="printed").right, [[90.2 + 0.3 * 3, 20.2 + 0.5 * 3]])


def test_pcnsgd_with_chances_and_minibatch_angles():
    close(stochastic(chances=torch.tensor([1.0, 3.0])).left, [[3.5, 1.0]])
    batch = torch.tensor([[[[4.0, 0.0], [0.0, 1.0]]], [[[16.0, -2.0], [-2.0, 1.0]]]])  # ω̃ = 1 and ½
    bound = stochastic(statement="minibatch", batch_gram=batch)
    close(bound.right, [[90.2 / 0.5 + 0.3 * 5, 20.2 / 0.5 + 0.5 * 5]])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"statement": "minibatch"}, "batch_gram"),
        ({"chances": torch.ones(3)}, "chances"),
        ({"chances": torch.zeros(2)}, "chances"),
        ({"statement": "best"}, "statement"),
    ],
)
def test_pcnsgd_refuses(kwargs, message):
    with pytest.raises(InputError, match=message):
        stochastic(**kwargs)


def test_pcnsgd_wants_several_runs_and_two_classes_when_printed():
    sigma = Constant(torch.zeros(2, dtype=f64), exact=False, how="guess")
    with pytest.raises(InputError, match="first dimension"):
        pcnsgd_bound(ORTHOGONAL, UNIT, sigma)
    runs = Trajectory(torch.ones(2, 2, 3), torch.eye(3).expand(2, 1, 3, 3), torch.ones(2, 1))
    with pytest.raises(InputError, match="3 classes"):
        pcnsgd_bound(runs, UNIT, sigma, statement="printed")
    two = Trajectory(torch.ones(2, 2, 2), torch.eye(2).expand(2, 1, 2, 2), torch.ones(2, 1))
    assert pcnsgd_bound(two, UNIT, sigma).estimated == ("sigma",)


@pytest.mark.parametrize("bound", [pcngd_bound, pcngd_second_bound, r_pcngd_bound])
def test_the_printed_pcngd_theorems_are_for_two_classes(bound):
    run = descend(many_classes((5, 5, 1)), "pcngd", 2, 0.1)
    with pytest.raises(InputError, match="3 classes"):
        bound(run, UNIT, statement="printed")


@pytest.mark.parametrize(
    ("bound", "statement"), [(gd_bound, "minibatch"), (pcngd_bound, "wrong"), (dominated_bound, "sharp")]
)
def test_unknown_statements_are_refused(bound, statement):
    with pytest.raises(InputError, match="statement"):
        bound(ORTHOGONAL, UNIT, statement=statement)


def test_bounds_handle_many_runs_and_problems_at_once():
    gram = torch.rand(5, 3, 4, 2, 2, dtype=f64)
    gram = gram @ gram.mT
    runs = Trajectory(torch.rand(5, 3, 5, 2), gram, torch.full((5, 3, 4), 0.01))
    constants = Constants.of(torch.rand(5, 3, 2) + 1, torch.zeros(5, 3, 2), torch.ones(5, 3, 2))
    for bound in (
        gd_bound,
        gd_alternate_bound,
        pcngd_bound,
        pcngd_second_bound,
        r_pcngd_bound,
        dominated_constant_bound,
    ):
        many = bound(runs, constants)
        single = bound(
            Trajectory(runs.losses[2, 1], runs.gram[2, 1], runs.lr[2, 1]),
            Constants.of(constants.smoothness.value[2, 1]),
        )
        torch.testing.assert_close(many.right[2, 1], single.right)
        assert torch.equal(many.met[2, 1], single.met)
        assert set(many.constants) >= {"L_1", "L_2", "f_*"}


def test_a_class_without_a_gradient_ends_the_assumptions():
    run = path([[1.0, 1.0]] * 3, [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]], [0.1, 0.1])
    bound = pcngd_bound(run, UNIT)
    assert bound.met.tolist() == [[True, True], [True, False]]
    assert not bound.violated.any()


def test_the_record_tells_what_is_violated_and_how_tight_it_is():
    bound = Bound("x", "printed", torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 4.0]]), torch.tensor([[True, True]]))
    assert bound.holds.tolist() == [[False, True]]
    assert bound.violated.tolist() == [[True, False]]
    assert bound.tightest == 2.0
    never = Bound("x", "printed", bound.left, bound.right, torch.zeros(1, 2, dtype=torch.bool))
    assert math.isnan(never.tightest)
    assert not never.violated.any()


def test_estimated_constants_are_named():
    guess = Constant(torch.ones(2, dtype=f64), exact=False, how="guess")
    constants = Constants(guess, Constant(torch.zeros(2, dtype=f64)), guess)
    assert constants.estimated == ("L_2", "L_1")
    assert gd_bound(ORTHOGONAL, constants).estimated == ("L_2", "L_1")


@pytest.mark.parametrize(
    ("losses", "gram", "lr", "message"),
    [
        (torch.ones(2, 2), torch.eye(2), torch.ones(1), "gram"),
        (torch.ones(2, 2), torch.ones(1, 2, 3), torch.ones(1), "gram"),
        (torch.ones(1, 2), torch.eye(2).unsqueeze(0), torch.ones(1), "losses"),
        (torch.ones(2, 2), torch.eye(2).unsqueeze(0), torch.ones(2), "lr"),
        (torch.ones(2, 2), torch.eye(2).unsqueeze(0), torch.zeros(1), "lr"),
        (torch.ones(2, 2), torch.eye(2).unsqueeze(0), torch.ones(0), "lr"),
    ],
)
def test_a_trajectory_checks_its_shapes(losses, gram, lr, message):
    with pytest.raises(InputError, match=message):
        Trajectory(losses, gram, lr)


def test_largest_steps_by_hand():
    gram = ORTHOGONAL.gram[0]
    close(largest_step(gram, 1.0), [2 * 4 / 5, 2 * 1 / 5])
    close(largest_step(gram, torch.tensor([1.0, 2.0])), [8 / 5, 1 / 5])
    close(largest_step(gram, 1.0, "pcngd"), [2.0, 1.0])  # ‖g_l‖/L_2
    close(largest_step(gram, 1.0, torch.tensor([0.0, 1.0])), [0.0, 2.0])
    close(largest_step(gram, 1.0, statement="printed"), [1 / 1.25, 1 / 5])
    close(largest_step(gram, 1.0, "pcngd", statement="printed"), [1.0, 0.5])
    close(pcn_margin(gram), [1.0, 1.0])


def test_conditions_refuse_what_they_cannot_use():
    with pytest.raises(InputError, match="rule"):
        largest_step(torch.eye(2), 1.0, "adam")
    with pytest.raises(InputError, match="prints a step"):
        largest_step(torch.eye(3), 1.0, "pcngd", statement="printed")
    with pytest.raises(InputError, match="3 classes"):
        gd_margin(torch.eye(3), statement="printed")
    with pytest.raises(InputError, match="counts"):
        worst_ratio(torch.tensor([3, 0]))
