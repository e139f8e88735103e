"""Steps by remembered norms, with what they are compared with."""

import torch

from classgrad import ClassGradients, Normalize

from ._reference import cross_entropy, flat_grad, flat_gradients, small_net

NEVER = 1e9  # a factor that nothing moves by


def setup(refresh=5, drift=NEVER, follow=False, **options):
    model = small_net()
    return model, ClassGradients(model, Normalize(refresh=refresh, drift=drift, follow=follow), **options)


def take(grads, x, y, move=0.05):
    """A step, its direction, the class gradients by plain autograd; then the model moves."""
    model = grads.model
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    model.zero_grad()
    step = grads.backward(cross_entropy(model(x), y), y)
    direction = flat_grad(model)
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= move * p.grad
    model.zero_grad()
    return step, direction, gradients


def kinds(steps):
    return "".join("l" if step.norms is None else "e" for step in steps)
