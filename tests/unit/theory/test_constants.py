"""Exact constants against autograd Hessians, and the estimates for networks against the exact ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from classgrad._errors import InputError
from classgrad.theory import (
    Constant,
    class_gradients,
    class_losses,
    estimate_dominance,
    estimate_minima,
    estimate_noise,
    estimate_smoothness,
    example_gradients,
    flat_parameters,
    least_squares,
    logistic,
    logistic_constants,
    quadratic_constants,
    quadratic_pl,
    softmax_constants,
)

f64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def largest_curvature(losses, x: torch.Tensor) -> torch.Tensor:
    """The largest |eigenvalue| of every class's Hessian, by brute force."""
    hessian = torch.autograd.functional.hessian
    return torch.stack(
        [torch.linalg.eigvalsh(hessian(lambda z, k=k: losses(z)[k], x)).abs().max() for k in range(len(losses(x)))]
    )


def test_logistic_smoothness_is_the_curvature_at_zero_and_nowhere_exceeded():
    problem = logistic()
    exact = problem.constants.smoothness.value
    torch.testing.assert_close(largest_curvature(problem.losses, torch.zeros(4, dtype=f64)), exact)
    for seed in range(10):
        x = 3 * torch.randn(4, generator=gen(seed), dtype=f64)
        assert (largest_curvature(problem.losses, x) <= exact * (1 + 1e-9)).all()


def test_logistic_lipschitz_bounds_the_gradients():
    problem = logistic()
    steep = torch.linalg.vector_norm(problem.gradients(torch.tensor([-50.0, 0, 0, 0], dtype=f64)), dim=-1)
    assert (steep <= problem.constants.lipschitz.value).all()
    assert (steep > 0.4 * problem.constants.lipschitz.value).all()


def softmax_problem():
    random = gen()
    inputs = torch.cat([torch.randn(30, 3, generator=random, dtype=f64), torch.ones(30, 1, dtype=f64)], 1)
    labels = torch.arange(30) % 3

    def losses(weights: torch.Tensor) -> torch.Tensor:
        values = cross_entropy(inputs @ weights.reshape(4, 3), labels, reduction="none")
        return torch.stack([values[labels == label].sum() / 30 for label in range(3)])

    return inputs, labels, losses


def test_softmax_smoothness_is_never_exceeded_and_nearly_reached():
    inputs, labels, losses = softmax_problem()
    exact = softmax_constants(inputs, labels).smoothness.value
    for seed in range(10):
        assert (largest_curvature(losses, 2 * torch.randn(12, generator=gen(seed), dtype=f64)) <= exact).all()
    tie = torch.zeros(4, 3, dtype=f64)
    tie[3] = torch.tensor([0.0, 0.0, -30.0])  # two classes at ½ each, the third out of the question
    near = largest_curvature(losses, tie.flatten())
    torch.testing.assert_close(near, exact, rtol=1e-6, atol=0)
    assert softmax_constants(inputs, labels).lipschitz is not None


def test_softmax_with_two_classes_is_twice_logistic():
    problem = logistic()
    two, one = (
        make(problem.inputs, problem.labels).smoothness.value for make in (softmax_constants, logistic_constants)
    )
    torch.testing.assert_close(two, 2 * one)


def test_least_squares_constants_and_pl():
    problem = least_squares()
    torch.testing.assert_close(
        largest_curvature(problem.losses, torch.zeros(40, dtype=f64)), problem.constants.smoothness.value
    )
    for seed in range(20):
        x = torch.randn(40, generator=gen(seed), dtype=f64)
        squared = problem.gradients(x).square().sum(-1)
        assert (squared / 2 >= problem.pl.value * problem.losses(x)).all()
        assert (squared <= 2 * problem.constants.smoothness.value * problem.losses(x)).all()


def test_quadratics():
    hessians = torch.diag_embed(torch.tensor([[4.0, 1.0, 0.0], [2.0, 3.0, 0.5]], dtype=f64))
    assert quadratic_constants(hessians).smoothness.value.tolist() == [4.0, 3.0]
    assert quadratic_pl(hessians).value.tolist() == [1.0, 0.5]


def test_data_of_the_wrong_shape_is_refused():
    with pytest.raises(InputError, match="inputs"):
        logistic_constants(torch.ones(3), torch.zeros(3, dtype=torch.long))


def small_network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch_state = torch.random.get_rng_state()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    torch.random.set_rng_state(torch_state)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=gen(5), dtype=f64))
    return model, torch.randn(12, 3, generator=gen(1), dtype=f64), torch.arange(12) % 3


def test_class_losses_and_gradients_of_a_network_are_those_of_plain_autograd():
    model, inputs, labels = small_network()
    losses = class_losses(model, inputs, labels, 3)
    x = flat_parameters(model)
    plain = cross_entropy(model(inputs), labels, reduction="none")
    expected = []
    for label in range(3):
        loss = plain[labels == label].sum() / 12
        torch.testing.assert_close(losses(x)[label], loss)
        rows = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        expected.append(torch.cat([row.flatten() for row in rows]))
    torch.testing.assert_close(class_gradients(losses, x), torch.stack(expected))


def test_example_gradients_add_up_to_the_class_gradients():
    model, inputs, labels = small_network()
    examples = example_gradients(model, inputs, labels, chunk=5)
    classes = torch.stack([examples[labels == label].sum(0) / 12 for label in range(3)])
    torch.testing.assert_close(classes, class_gradients(class_losses(model, inputs, labels, 3), flat_parameters(model)))


def test_another_loss_and_frozen_parameters():
    model, inputs, labels = small_network()
    model[0].weight.requires_grad_(False)

    def squared(outputs, y):
        return (outputs - nn.functional.one_hot(y, 3)).square().sum(-1)

    assert flat_parameters(model).shape == (4 + 12 + 3,)
    losses = class_losses(model, inputs, labels, 3, squared)
    examples = example_gradients(model, inputs, labels, squared)
    torch.testing.assert_close(examples.sum(0) / 12, class_gradients(losses, flat_parameters(model)).sum(0))


def test_power_iteration_finds_the_curvature_of_a_network():
    model, inputs, labels = small_network()
    losses = class_losses(model, inputs, labels, 3)
    x = flat_parameters(model)
    found = estimate_smoothness(losses, [x, x / 2], iterations=300, generator=gen())
    brute = torch.maximum(largest_curvature(losses, x), largest_curvature(losses, x / 2))
    torch.testing.assert_close(found.value, brute, rtol=1e-3, atol=0)
    assert not found.exact
    assert "2 points" in found.how
    rough = estimate_smoothness(losses, [x], iterations=2, generator=gen())
    assert (rough.value <= largest_curvature(losses, x) * (1 + 1e-9)).all()


def test_power_iteration_survives_a_flat_class():
    flat = estimate_smoothness(lambda x: torch.stack([x.square().sum(), 0 * x.sum()]), [torch.ones(3)], generator=gen())
    assert flat.value.tolist() == pytest.approx([2.0, 0.0])


def test_noise_of_batches():
    random = gen()
    full = torch.zeros(2, 3, dtype=f64)
    scale = torch.tensor([[1.0], [0.1]], dtype=f64)
    found = estimate_noise(lambda: scale * torch.randn(2, 3, generator=random, dtype=f64), full, draws=4000)
    assert found.value.tolist() == pytest.approx([3**0.5, 0.1 * 3**0.5], rel=0.05)
    assert not found.exact


def test_minima_and_dominance_by_long_runs():
    problem = least_squares()
    found = estimate_minima(problem.losses, problem.start, steps=300)
    assert (found.value >= 0).all()
    assert (found.value < 1e-3 * problem.losses(problem.start)).all()
    points = [problem.start, problem.start + 0.1]
    mu = estimate_dominance(problem.losses, points, Constant(torch.zeros(2, dtype=f64)))
    ratios = [
        torch.linalg.vector_norm(problem.gradients(point), dim=-1) / (2 * problem.losses(point)) for point in points
    ]
    torch.testing.assert_close(mu.value, torch.stack(ratios).amin(0))
    assert not mu.exact


@pytest.mark.parametrize(
    "call",
    [
        lambda: estimate_smoothness(lambda x: x, [], generator=gen()),
        lambda: estimate_dominance(lambda x: x, [], Constant(torch.zeros(1))),
        lambda: estimate_noise(lambda: torch.zeros(1, 1), torch.zeros(1, 1), draws=0),
    ],
)
def test_estimates_need_something_to_look_at(call):
    with pytest.raises(InputError, match="at least"):
        call()
