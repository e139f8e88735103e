"""Ways to a step on a batch, to be compared: the plain one, class gradients, TorchJD, per-example gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classgrad import ClassGradients, Normalize
from classgrad.gradients import CapturedStep

Step = Callable[[], object]
Contender = Callable[[nn.Module, Tensor, Tensor], Step]

MAX_MEMORY = 2 * 2**30  # of ClassGradients, its default
GRAPHS = ("captured", "plain+capt")  # CUDA graphs, whose memory the allocator does not see while they replay


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    def step() -> None:
        F.cross_entropy(model(x), y).backward()

    return step


def with_engine(
    model: nn.Module, x: Tensor, y: Tensor, *, engine: str, gram: bool = False, max_memory: int = MAX_MEMORY
) -> Step:
    grads = ClassGradients(model, Normalize(), engine=engine, gram=gram, max_memory=max_memory)
    losses = partial(F.cross_entropy, reduction="none")
    return lambda: grads.backward_through(lambda a, b: losses(model(a), b), x, y)


def fused(model: nn.Module, x: Tensor, y: Tensor, *, gram: bool = False, max_memory: int = MAX_MEMORY) -> Step:
    """Take the step after one's own forward, on a batch in the order it came in."""
    grads = ClassGradients(model, Normalize(), gram=gram, max_memory=max_memory)

    def step() -> None:
        grads.backward(F.cross_entropy(model(x), y, reduction="none"), y)

    step.grads = grads  # type: ignore[attr-defined]
    return step


def captured(model: nn.Module, x: Tensor, y: Tensor, max_memory: int = MAX_MEMORY) -> Step:
    """Replay the whole step, update included; batches come from a sampler, grouped by class and all alike."""
    grads = ClassGradients(model, Normalize(), max_memory=max_memory)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    step = CapturedStep(grads, lambda a, b: F.cross_entropy(model(a), b, reduction="none"), optimizer)
    order = y.argsort(stable=True)
    x, y = x[order], y[order]
    return lambda: step(x, y, like="all")


def plain_captured(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Replay the plain step and its update as a CUDA graph: what a captured step is to be compared with."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    held = x.clone()

    def work() -> None:
        F.cross_entropy(model(held), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def step() -> None:
        held.copy_(x)
        graph.replay()

    return step


def by_hand(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Make one backward pass per class as one writes it down first, without a check of anything."""
    parameters = list(model.parameters())

    def step() -> None:
        losses = F.cross_entropy(model(x), y, reduction="none") / len(y)
        total = [torch.zeros_like(p) for p in parameters]
        for label in y.unique():
            gradients = torch.autograd.grad(losses[y == label].sum(), parameters, retain_graph=True)
            norm = torch.nn.utils.get_total_norm(gradients)
            for summed, gradient in zip(total, gradients, strict=True):
                summed += gradient / norm
        for p, summed in zip(parameters, total, strict=True):
            p.grad = summed

    return step


def _class_sums(y: Tensor) -> Tensor:
    return F.one_hot(y.unique(return_inverse=True)[1]).T.float()


def torchjd_autogram(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Make the Gramian of the examples, sum it by class, then one weighted backward."""
    from torchjd.autogram import Engine

    engine = Engine(model, batch_dim=0)
    members = _class_sums(y)

    def step() -> None:
        losses = F.cross_entropy(model(x), y, reduction="none")
        gram = members @ engine.compute_gramian(losses) @ members.T
        losses.backward(gram.diagonal().rsqrt() @ members)

    return step


def torchjd_autojac(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Make the Jacobian of the class losses."""
    from torchjd.aggregation import GramianWeightedAggregator, Weighting
    from torchjd.autojac import backward, jac_to_grad

    class Unit(Weighting):  # type: ignore[misc]
        def forward(self, gram: Tensor, /) -> Tensor:
            return gram.diagonal().rsqrt()

    members = _class_sums(y)

    def step() -> None:
        losses = members @ F.cross_entropy(model(x), y, reduction="none")
        backward(losses)
        jac_to_grad(list(model.parameters()), GramianWeightedAggregator(Unit()))

    return step


def per_sample(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Per-example gradients by vmap, summed by class."""
    members = _class_sums(y)
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, values, (a[None],)), b[None])

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0), randomness="different")

    def step() -> None:
        values = {k: p.detach() for k, p in parameters.items()}
        rows = {k: members @ g.flatten(1) for k, g in gradients(values, x, y).items()}
        weights = sum(g.square().sum(1) for g in rows.values()).rsqrt()
        for name, p in parameters.items():
            p.grad = (weights @ rows[name]).view_as(p)

    return step


CONTENDERS: dict[str, Contender] = {
    "plain": plain,
    "fused": fused,
    "fused+gram": partial(fused, gram=True),
    "through": partial(with_engine, engine="fused"),
    "captured": captured,
    "plain+capt": plain_captured,
    "joint": partial(with_engine, engine="joint"),
    "split": partial(with_engine, engine="split"),
    "by-hand": by_hand,
    "autogram": torchjd_autogram,
    "autojac": torchjd_autojac,
    "vmap": per_sample,
}

FIXED = ("captured", "plain+capt", "autogram", "autojac", "vmap")
"""Those that go by the labels as they were at first."""
OURS = ("fused", "fused+gram", "through", "captured", "joint", "split")


def hopeless(contender: str, classes: int, examples: int, parameters: int, base: float, limit: float) -> str | None:
    """Say why a contender is not even tried: a pass per class, or a gradient per class or example, is too much."""
    passes = classes if contender in ("joint", "split", "by-hand", "autojac") else 1
    if passes * base > limit:
        return f"about {passes * base:.0f} s per step"
    copies = {"vmap": examples, "autojac": classes}.get(contender, 0)
    if 4 * copies * parameters > 12 * 2**30:
        return f"{4 * copies * parameters / 2**30:.0f} GiB of gradients"
    return None
