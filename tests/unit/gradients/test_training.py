"""What comes after the step: optimizers, clipping, schedules; and compiled models."""

import copy

import pytest
import torch
from torch import nn

from classgrad import ClassGradients, Normalize, Sum

from ._reference import batch, cross_entropy, flat_grad, flat_gradients, small_net, unit_sum

OPTIMIZERS = {
    "ASGD": {},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


def write_unit_sum(model, x, y):
    """PCN by plain autograd."""
    direction = unit_sum(flat_gradients(cross_entropy(model(x), y), y, model.parameters()))
    parameters = list(model.parameters())
    for p, part in zip(parameters, direction.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p).clone()


def test_every_optimizer_is_tried_here():
    known = {n for n in dir(torch.optim) if isinstance(getattr(torch.optim, n), type)}
    rest = {"Optimizer", "LBFGS", "Muon", "SparseAdam"}
    assert known - rest == set(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_may_follow(name):
    model, (x, y) = small_net(), batch()
    twin = copy.deepcopy(model)
    ours, theirs = (getattr(torch.optim, name)(m.parameters(), lr=0.1, **OPTIMIZERS[name]) for m in (model, twin))
    grads = ClassGradients(model)
    for _ in range(3):
        ours.zero_grad()
        grads.backward(cross_entropy(model(x), y), y)
        ours.step()
        write_unit_sum(twin, x, y)
        theirs.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


def test_muon():
    model, (x, y) = small_net(), batch()
    twin = copy.deepcopy(model)
    ours, theirs = (torch.optim.Muon([m[0].weight, m[2].weight], lr=0.1) for m in (model, twin))
    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    write_unit_sum(twin, x, y)
    ours.step()
    theirs.step()
    torch.testing.assert_close(model[0].weight, twin[0].weight, rtol=1e-2, atol=1e-3)  # it works in bfloat16


def test_lbfgs_with_its_closure():
    model, (x, y) = small_net(), batch()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    grads = ClassGradients(model, Sum())

    def closure():
        optimizer.zero_grad()
        return grads.backward(cross_entropy(model(x), y), y).losses.sum()

    before = cross_entropy(model(x), y).mean().item()
    for _ in range(3):
        optimizer.step(closure)
    assert cross_entropy(model(x), y).mean().item() < before


class Words(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.words, self.head = layer, nn.Linear(4, 3)

    def forward(self, tokens):
        h = self.words(tokens)
        return self.head(h.mean(1) if h.dim() == 3 else h)


@pytest.mark.parametrize("layer", [nn.Embedding(9, 4, sparse=True), nn.EmbeddingBag(9, 4, sparse=True)])
@pytest.mark.parametrize("rule", [Sum(), Normalize()])
@pytest.mark.parametrize("engine", ["fused", "joint"])
def test_sparse_tables_keep_sparse_gradients(layer, rule, engine):
    model = Words(layer).double()
    y = torch.tensor([0, 1, 2, 0])
    tokens = torch.tensor([[0, 1], [1, 2], [3, 3], [0, 5]])
    gradients = flat_gradients(cross_entropy(model(tokens), y), y, model.parameters())
    model.zero_grad()
    with ClassGradients(model, rule, engine=engine) as grads:
        grads.backward(cross_entropy(model(tokens), y), y)
        assert model.words.weight.grad.is_sparse
        expected = gradients.sum(0) if isinstance(rule, Sum) else unit_sum(gradients)
        torch.testing.assert_close(flat_grad(model), expected)
        grads.backward(cross_entropy(model(tokens), y), y)
        torch.testing.assert_close(flat_grad(model), 2 * expected)
        torch.optim.SparseAdam([model.words.weight]).step()
        model.zero_grad()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        grads.backward(cross_entropy(model(tokens), y), y, scaler=scaler)
        assert model.words.weight.grad.is_sparse
        model.zero_grad()
        grads.accumulate(cross_entropy(model(tokens), y), y)
        grads.finalize()
        assert model.words.weight.grad.is_sparse


def test_a_sparse_gradient_that_is_not_finite():
    model = Words(nn.Embedding(9, 4, sparse=True)).double()
    y = torch.tensor([0, 1])
    model.words.weight.data[1] = torch.inf
    step = ClassGradients(model, Sum()).backward(cross_entropy(model(torch.tensor([[0], [1]])), y), y)
    assert 1 in step.skipped
    assert flat_grad(model).isfinite().all()


def test_clipping_and_a_schedule_after_the_step():
    model, (x, y) = small_net(), batch()
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1.0) for m in (model, twin)]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in optimizers]
    grads = ClassGradients(model)
    for _ in range(3):
        model.zero_grad()
        grads.backward(cross_entropy(model(x), y), y)
        write_unit_sum(twin, x, y)
        for m, optimizer, schedule in zip((model, twin), optimizers, schedules, strict=True):
            assert nn.utils.clip_grad_norm_(m.parameters(), 0.3) > 0.3
            assert float(flat_grad(m).norm()) == pytest.approx(0.3, rel=1e-4)
            nn.utils.clip_grad_value_(m.parameters(), 0.05)
            optimizer.step()
            schedule.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_pcn_trains():
    """On imbalanced data every class's loss comes down."""
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 38 + [1] * 2)
    x = torch.randn(40, 4, generator=generator) + 2 * y[:, None]
    model = small_net(dtype=torch.float32, outputs=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    grads = ClassGradients(model)
    first = None
    for _ in range(150):
        optimizer.zero_grad()
        step = grads.backward(cross_entropy(model(x), y), y)
        optimizer.step()
        first = step if first is None else first
    assert (step.losses < first.losses / 3).all()


def test_a_model_in_channels_last_memory():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Conv2d(8, 3, 3)
        )
    model = model.double().to(memory_format=torch.channels_last)
    x = torch.randn(8, 3, 4, 4).double().to(memory_format=torch.channels_last)
    _, y = batch()
    gradients = flat_gradients(cross_entropy(model(x).mean((2, 3)), y), y, model.parameters())
    ClassGradients(model).backward(cross_entropy(model(x).mean((2, 3)), y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


@pytest.mark.parametrize("engine", ["fused", "joint", "split"])
@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"fused": True, "momentum": 0.9}], ids=str)
def test_optimizers_update_channels_last_weights_as_others(engine, options):
    """A fused one goes by memory, whatever the shapes: a gradient that lies otherwise would be added elsewhere."""
    _, y = batch()
    x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 3, 1), nn.AvgPool2d(2), nn.Flatten())
        model = model.to(memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
        with ClassGradients(model, engine=engine) as grads:
            for _ in range(3):
                optimizer.zero_grad()
                grads.backward_through(
                    lambda x, y, model=model: cross_entropy(model(x), y), x.to(memory_format=memory_format), y
                )
                assert all(p.grad.stride() == p.stride() for p in model.parameters())
                optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found)


# torch itself looks at the gradients of intermediate results where a hook interrupts a compiled graph
compiling = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@compiling
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("order", ["hooks first", "compiled first", "compiled and called first"])
def test_compiled_models(backend, order):
    torch._dynamo.reset()
    model, (x, y) = small_net(), batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    if order == "hooks first":
        grads = ClassGradients(model)
        compiled = torch.compile(model, backend=backend)
    else:
        compiled = torch.compile(model, backend=backend)
        if order == "compiled and called first":
            compiled(x)
        grads = ClassGradients(compiled)
    for _ in range(2):
        model.zero_grad()
        step = grads.backward(cross_entropy(compiled(x), y), y)
        torch.testing.assert_close(flat_grad(model), unit_sum(gradients))
        torch.testing.assert_close(step.norms, gradients.norm(dim=1))
    grads.close()
    torch._dynamo.reset()


@compiling
def test_a_compiled_loss_over_a_hooked_model():
    torch._dynamo.reset()
    model, (x, y) = small_net(), batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    with ClassGradients(model) as grads:
        grads.backward(torch.compile(lambda x, y: cross_entropy(model(x), y), backend="aot_eager")(x, y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))
    torch._dynamo.reset()
