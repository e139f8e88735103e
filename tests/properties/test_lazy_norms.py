"""What holds for steps by remembered norms, whatever the batches are."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from classgrad import ClassGradients, Normalize

labels = st.lists(st.integers(0, 3), min_size=1, max_size=10).map(torch.tensor)


def net(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)).double()


@settings(deadline=None, max_examples=60)
@given(
    batches=st.lists(labels, min_size=1, max_size=8),
    refresh=st.integers(1, 4),
    drift=st.sampled_from([1.01, 1.5, 3.0, math.inf]),
    follow=st.booleans(),
    engine=st.sampled_from(["fused", "joint"]),
    declared=st.booleans(),
    stop=st.integers(0, 7),
    seed=st.integers(0, 2**31 - 1),
)
def test_every_step_goes_by_the_norms_of_the_last_exact_one(
    batches, refresh, drift, follow, engine, declared, stop, seed
):
    """Class norms by plain autograd; the object is replaced on the way by one that only has its state."""
    generator = torch.Generator().manual_seed(seed)
    model, rule = net(seed), Normalize(refresh=refresh, drift=drift, follow=follow)
    grads = ClassGradients(model, rule, engine=engine, classes=4 if declared else None)
    parameters = list(model.parameters())
    known, since = {}, refresh
    for number, y in enumerate(batches):
        if number == stop:
            state = grads.state_dict()
            grads.close()
            grads = ClassGradients(model, rule, engine=engine, classes=4 if declared else None)
            grads.load_state_dict(state)
        x = torch.randn(len(y), 3, generator=generator, dtype=torch.float64)
        losses = F.cross_entropy(model(x), y, reduction="none")
        means, extents = {}, {}
        for label in y.unique().tolist():
            parts = torch.autograd.grad(losses[y == label].mean(), parameters, retain_graph=True)
            means[label] = torch.cat([part.flatten() for part in parts])
            extents[label] = (1 - torch.exp(-losses[y == label].detach())).mean() if follow else 1.0
        model.zero_grad()
        step = grads.backward(losses, y)
        found = torch.cat([p.grad.flatten() for p in parameters])
        if step.norms is not None:
            known, since = {label: mean.norm() / extents[label] for label, mean in means.items()}, 0
        since += 1
        assert since <= refresh
        expected = sum(mean / (known[label] * extents[label]) for label, mean in means.items())
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)
        with torch.no_grad():
            for p in parameters:
                p -= 0.1 * p.grad
