"""Constants of networks, which nobody knows: estimates, and labelled so.

Everything works on a function from a flat parameter vector to the class losses, which :func:`class_losses` makes from
a module and data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from classgrad._errors import InputError
from classgrad.gradients import ClassGradients
from classgrad.theory._records import Constant

Losses = Callable[[Tensor], Tensor]
"""From parameters (D,) to the class losses (classes,), differentiable."""
ExampleLoss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and labels to one loss per example."""


def flat_parameters(model: nn.Module) -> Tensor:
    """Copy the model's trainable parameters into one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in _trainable(model).values()])


def class_losses(
    model: nn.Module, inputs: Tensor, labels: Tensor, classes: int, loss: ExampleLoss | None = None
) -> Losses:
    """f^(l) = 1/n Σ over the examples of class l as a function of the flat parameters; cross entropy unless told."""
    example_loss = loss or _cross_entropy
    membership = nn.functional.one_hot(labels, classes)

    def losses(x: Tensor) -> Tensor:
        values = example_loss(functional_call(model, _unflattened(model, x), (inputs,)), labels)
        return values @ membership.to(values) / len(labels)

    return losses


def class_gradients(losses: Losses, x: Tensor) -> Tensor:
    """g_l at x, one backward per class, shape (classes, D)."""
    x = x.detach().requires_grad_()
    values = losses(x)
    rows = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in values]
    return torch.stack(rows)


def example_gradients(
    model: nn.Module, inputs: Tensor, labels: Tensor, loss: ExampleLoss | None = None, *, chunk: int = 64
) -> Tensor:
    """Gradients of single examples, shape (examples, D), ``chunk`` at a time: each example is a class of its own."""
    example_loss = loss or _cross_entropy
    rows = []
    with ClassGradients(model) as grads:
        for x, y in zip(torch.split(inputs, chunk), torch.split(labels, chunk), strict=True):
            table = grads.gradients(example_loss(model(x), y), torch.arange(len(y), device=y.device))
            rows.append(table.matrix * len(y))
    return torch.cat(rows)


def estimate_smoothness(
    losses: Losses, points: Iterable[Tensor], *, iterations: int = 20, generator: torch.Generator
) -> Constant:
    """Estimate L_2 of every class: the largest eigenvalue (in size) of its Hessian along a run, by power iteration.

    Below the true constant in two ways: the iteration converges from below, and a run visits few points.
    """
    found = [_curvatures(losses, point, iterations, generator) for point in points]
    if not found:
        raise InputError("Parameter `points` should hold at least one parameter vector of the run. Found none.")
    return Constant(
        torch.stack(found).amax(0), exact=False, how=f"power iteration ({iterations}) at {len(found)} points"
    )


def estimate_noise(sample: Callable[[], Tensor], full: Tensor, draws: int) -> Constant:
    """Estimate σ_l at a point: the root mean square of ‖g̃_l - g_l‖ over ``draws`` batches.

    ``sample`` draws the class gradients of a batch, (classes, D), in the scale of the full-batch ``full``.
    """
    squares = [(sample() - full).double().square().sum(-1) for _ in range(draws)]
    if not squares:
        raise InputError(f"Parameter `draws` should be at least 1. Found {draws}.")
    return Constant(torch.stack(squares).mean(0).sqrt(), exact=False, how=f"{draws} batches")


def estimate_minima(losses: Losses, start: Tensor, *, steps: int = 200, lr: float = 1.0) -> Constant:
    """Estimate f^(l)_* by descending every class's loss on its own from ``start``: the lowest value a long run saw.

    Steps that fail to lower the loss are taken back and halved; ``lr`` is the first one tried. Never below the true
    minimum, and above it for as long as the run could have gone on.
    """
    values = [_lowest(losses, label, start, steps, lr) for label in range(len(losses(start)))]
    return Constant(torch.stack(values), exact=False, how=f"{steps} descent steps per class")


def estimate_dominance(losses: Losses, points: Iterable[Tensor], minima: Constant) -> Constant:
    """Estimate μ^(l) of ½‖g_l‖ ≥ μ^(l) (f^(l) - f^(l)_*): the smallest ratio at the points of a long run."""
    ratios = [
        torch.linalg.vector_norm(class_gradients(losses, point), dim=-1).double()
        / (2 * (losses(point).detach().double() - minima.value).clamp(min=0))
        for point in points
    ]
    if not ratios:
        raise InputError("Parameter `points` should hold at least one parameter vector of the run. Found none.")
    return Constant(torch.stack(ratios).amin(0), exact=False, how=f"smallest ratio at {len(ratios)} points")


def _curvatures(losses: Losses, point: Tensor, iterations: int, generator: torch.Generator) -> Tensor:
    x = point.detach().requires_grad_()
    values = losses(x)
    found = []
    for value in values:
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        vector = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        size = x.new_zeros(())
        for _ in range(iterations):
            vector = vector / torch.linalg.vector_norm(vector).clamp(min=torch.finfo(x.dtype).tiny)
            (vector,) = torch.autograd.grad(gradient, x, vector, retain_graph=True)
            size = torch.linalg.vector_norm(vector)
        found.append(size.double())
    return torch.stack(found)


def _lowest(losses: Losses, label: int, start: Tensor, steps: int, lr: float) -> Tensor:
    x, size = start.detach().clone(), lr
    value, gradient = _value_and_gradient(losses, label, x)
    for _ in range(steps):
        trial = x - size * gradient
        new_value, new_gradient = _value_and_gradient(losses, label, trial)
        if bool(new_value < value):
            x, value, gradient, size = trial, new_value, new_gradient, 2 * size
        else:
            size = size / 2
    return value.double()


def _value_and_gradient(losses: Losses, label: int, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    value = losses(x)[label]
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _unflattened(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    named = _trainable(model)
    pieces = torch.split(x, [parameter.numel() for parameter in named.values()])
    return {name: piece.view_as(parameter) for (name, parameter), piece in zip(named.items(), pieces, strict=True)}


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels, reduction="none")
