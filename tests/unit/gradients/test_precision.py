"""Mixed precision: bf16 autocast, fp16 with a GradScaler, and float32 at the edges."""

import pytest
import torch
from torch import nn

from classgrad import Bisect, ClassGradients, Normalize, Sum

from ._reference import batch, cross_entropy, flat_grad, flat_gradients, loss_of, small_net, unit_sum


def scaler_of(scale=2.0**16, **options):
    return torch.amp.GradScaler("cpu", init_scale=scale, **options)


def wide_net(dtype=torch.float32):
    """Wide enough that the ghost norms are the cheaper way for its inner layer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 8, 2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(),
            nn.Linear(24, 300), nn.LayerNorm(300), nn.PReLU(), nn.Linear(300, 200), nn.Linear(200, 3),
        ).to(dtype)  # fmt: skip


RULES = [Normalize(), Sum(), Bisect(), Normalize(per="layer")]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("engine", ["fused", "joint", "split"])
@pytest.mark.parametrize("scale", [1.0, 2.0**16, 2.0**40])
def test_the_step_under_a_scaler_is_that_without(rule, engine, scale):
    """Whatever the loss scale: what the scaler hands to the optimizer is the plain step."""
    model, (x, y) = small_net(), batch()
    loss = loss_of(model)
    plain = ClassGradients(model, rule, engine=engine).backward_through(loss, x, y)
    expected = flat_grad(model)
    model.zero_grad()
    scaler = scaler_of(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = ClassGradients(model, rule, engine=engine).backward_through(loss, x, y, scaler=scaler)
    torch.testing.assert_close(flat_grad(model), expected * scale)
    scaler.unscale_(optimizer)
    torch.testing.assert_close(flat_grad(model), expected)
    torch.testing.assert_close(step.weights, plain.weights)
    torch.testing.assert_close(step.losses, plain.losses)
    if step.norms is not None and plain.norms is not None:
        torch.testing.assert_close(step.norms, plain.norms)


@pytest.mark.parametrize(("rule", "total"), [(r, t) for r in RULES for t in (None, 8) if r.separable or t is None])
@pytest.mark.parametrize("who", ["both", "accumulate", "finalize"])
def test_accumulation_under_a_scaler(rule, total, who):
    model, (x, y) = small_net(), batch()
    order = y.argsort(stable=True)
    x, y = x[order], y[order]
    ClassGradients(model, rule).backward(cross_entropy(model(x), y), y)
    expected = flat_grad(model)
    model.zero_grad()
    scaler = scaler_of()
    grads = ClassGradients(model, rule)
    for label in range(3):
        part = (y == label).nonzero()[:, 0]
        mine = None if who == "finalize" else scaler
        grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part], total=total, scaler=mine)
    grads.finalize(scaler=None if who == "accumulate" else scaler)
    torch.testing.assert_close(flat_grad(model), expected * 2.0**16)


def test_a_disabled_scaler_changes_nothing():
    model, (x, y) = small_net(), batch()
    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    expected = flat_grad(model)
    model.zero_grad()
    scaler = scaler_of(enabled=False)
    ClassGradients(model).backward(cross_entropy(model(x), y), y, scaler=scaler)
    torch.testing.assert_close(flat_grad(model), expected)


def test_a_disabled_scaler_leaves_a_class_that_is_not_finite_out():
    model, (x, y) = small_net(), batch()
    x[y == 2] = torch.inf
    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    expected = flat_grad(model)
    model.zero_grad()
    step = ClassGradients(model).backward(cross_entropy(model(x), y), y, scaler=scaler_of(enabled=False))
    assert step.skipped == {2: "nonfinite"}
    assert expected.isfinite().all()
    torch.testing.assert_close(flat_grad(model), expected, rtol=0, atol=0)


def test_without_the_scaler_the_step_would_shrink():
    """Why `scaler` is a parameter: PCN undoes the loss scale, and the scaler then divides by it."""
    model, (x, y) = small_net(), batch()
    scaler = scaler_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ClassGradients(model).backward(scaler.scale(cross_entropy(model(x), y)), y)
    scaler.unscale_(optimizer)
    assert flat_grad(model).norm() < 1e-3


def poisoned(model, bad, value):
    """The losses' graph, with ``value`` as the gradient of some examples at the first layer."""

    def poison(module, args, output):
        output.register_hook(lambda g: g.masked_fill(bad[:, None], value))

    return model[0].register_forward_hook(poison)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize(
    ("rule", "way"),
    [(r, way) for r in RULES for way in ("fused", "joint", "accumulate", "stream") if r.separable or way != "stream"],
)
def test_an_inf_in_a_class_gradient_makes_the_scaler_skip(rule, value, way):
    model, (x, y) = small_net(), batch()
    halves = [{"params": model[0].parameters()}], [{"params": model[2].parameters()}]
    first, second = (torch.optim.SGD(group, lr=1.0) for group in halves)
    scaler = scaler_of()
    before = [p.detach().clone() for p in model.parameters()]
    grads = ClassGradients(model, rule, engine="joint" if way == "joint" else "fused")
    order = y.argsort()
    x, y = x[order], y[order]
    if way in ("fused", "joint"):
        poisoned(model, y == 1, value)
        grads.backward(cross_entropy(model(x), y), y, scaler=scaler)
    else:
        for label in range(3):
            part = (y == label).nonzero()[:, 0]
            handle = poisoned(model, y[part] == 1, value)
            losses = cross_entropy(model(x[part]), y[part])
            grads.accumulate(losses, y[part], scaler=scaler, total=8 if way == "stream" else None)
            handle.remove()
        grads.finalize(scaler=scaler)
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    for p, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old, rtol=0, atol=0)
    assert scaler.get_scale() == 2.0**15


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_loss_that_is_not_finite_makes_the_scaler_skip(rule):
    model, (x, y) = small_net(), batch()
    scaler = scaler_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    factor = torch.where(y == 2, torch.inf, 1.0)
    ClassGradients(model, rule).backward(cross_entropy(model(x), y) * factor, y, scaler=scaler)
    scaler.step(optimizer)
    for p, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old, rtol=0, atol=0)


@pytest.mark.parametrize("max_memory", [0, 2**30])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_fp16_autocast_with_a_scaler_matches_float32(rule, max_memory):
    model, (x, y) = wide_net(), batch(dtype=torch.float32)
    ClassGradients(model, rule).backward(cross_entropy(model(x), y), y)
    expected = flat_grad(model)
    model.zero_grad()
    scaler = scaler_of(2.0**12)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    grads = ClassGradients(model, rule, max_memory=max_memory)
    with torch.autocast("cpu", dtype=torch.float16):
        losses = cross_entropy(model(x), y)
    grads.backward(losses, y, scaler=scaler)
    scaler.unscale_(optimizer)
    found = flat_grad(model)
    assert found.isfinite().all()
    assert float(found.norm() / expected.norm()) == pytest.approx(1, abs=0.01)
    assert float((found - expected).norm() / expected.norm()) < 0.03


@pytest.mark.parametrize("factor", [1e-3, 1e-6])
def test_weights_that_half_precision_cannot_hold(factor):
    """Class norms of 1e-6 ask for weights of 1e6."""
    model, (x, y) = wide_net(), batch(dtype=torch.float32)
    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    expected = flat_grad(model)
    model.zero_grad()
    scaler = scaler_of(2.0**14)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    grads = ClassGradients(model, max_memory=0)
    with torch.autocast("cpu", dtype=torch.float16):
        losses = cross_entropy(model(x), y) * factor
    grads.backward(losses, y, scaler=scaler)
    scaler.unscale_(optimizer)
    assert float((flat_grad(model) - expected).norm() / expected.norm()) < 0.1


@pytest.mark.parametrize("max_memory", [0, 2**30])
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("inside", [True, False])
def test_bf16_autocast(rule, max_memory, inside):
    """Also if the step is made inside the autocast region: it is combined outside."""
    model, (x, y) = wide_net(), batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = cross_entropy(model(x), y)
    expected = flat_gradients(losses, y, model.parameters())
    grads = ClassGradients(model, rule, max_memory=max_memory, norms=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = cross_entropy(model(x), y)
        if inside:
            step = grads.backward(losses, y)
    if not inside:
        step = grads.backward(losses, y)
    torch.testing.assert_close(step.norms, expected.norm(dim=1), rtol=0.02, atol=0)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    if isinstance(rule, Normalize) and rule.per == "model":
        assert float((flat_grad(model) - unit_sum(expected)).norm() / unit_sum(expected).norm()) < 0.02


def test_a_module_called_twice_under_autocast():
    """Autocast casts the weight once for both calls."""
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3))
    x, y = batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = cross_entropy(model(x), y)
    expected = flat_gradients(losses, y, model.parameters())
    grads = ClassGradients(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = cross_entropy(model(x) + nn.functional.linear(x, layer.weight)[:, :3] * 0, y)
    step = grads.backward(losses, y)
    torch.testing.assert_close(step.norms, expected.norm(dim=1), rtol=0.02, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_another_type(dtype):
    model, (x, y) = small_net(dtype=dtype), batch(dtype=dtype)
    step = ClassGradients(model).backward(cross_entropy(model(x), y), y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters()).double()
    assert all(p.grad.dtype == dtype for p in model.parameters())
    torch.testing.assert_close(step.norms.double(), gradients.norm(dim=1), rtol=0.02, atol=0)
    assert step.norms.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)


@pytest.mark.parametrize("factor", [1e-15, 1e-6, 1e6, 1e12])
def test_pcn_does_not_mind_the_size_of_the_loss(factor):
    model, (x, y) = small_net(dtype=torch.float32), batch(dtype=torch.float32)
    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    expected = flat_grad(model)
    model.zero_grad()
    ClassGradients(model).backward(cross_entropy(model(x), y) * factor, y)
    torch.testing.assert_close(flat_grad(model), expected, rtol=1e-4, atol=1e-6)


def test_gradients_too_short_to_square_count_as_zero():
    model, (x, y) = small_net(dtype=torch.float32), batch(dtype=torch.float32)
    step = ClassGradients(model).backward(cross_entropy(model(x), y) * 1e-30, y)
    assert step.skipped == dict.fromkeys(range(3), "zero")
    assert flat_grad(model).eq(0).all()


def test_mixed_types_within_a_model():
    model = nn.Sequential(nn.Linear(4, 5).double(), nn.Tanh(), nn.Identity(), nn.Linear(5, 3))
    model[2].forward = lambda h: h.float()
    x, y = batch()
    step = ClassGradients(model).backward(cross_entropy(model(x), y), y)
    parts = [flat_gradients(cross_entropy(model(x), y), y, m.parameters()).double() for m in (model[0], model[3])]
    torch.testing.assert_close(step.norms.double(), torch.cat(parts, 1).norm(dim=1), rtol=1e-5, atol=0)
    assert model[0].weight.grad.dtype == torch.float64
    assert model[3].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_class_losses_are_summed_in_single_precision(dtype):
    model, (x, y) = small_net(dtype=dtype), batch(examples=4096, dtype=dtype)
    losses = cross_entropy(model(x), y)
    expected = torch.stack([losses[y == label].double().sum() / len(y) for label in range(3)])
    step = ClassGradients(model).backward(losses, y)
    assert step.losses.dtype == torch.float32
    torch.testing.assert_close(step.losses.double(), expected, rtol=1e-5, atol=0)


class Complex(nn.Module):
    """Complex weights between real ones."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6, dtype=torch.float64)
        self.linear = nn.Linear(3, 8, dtype=torch.complex128)
        self.conv = nn.Conv1d(1, 2, 3, dtype=torch.complex128)
        self.last = nn.Linear(12, 3, dtype=torch.float64)

    def forward(self, x):
        z = torch.view_as_complex(self.first(x).view(-1, 3, 2))
        return self.last(self.conv(self.linear(z)[:, None]).abs().flatten(1))


@pytest.mark.parametrize("engine", ["fused", "joint"])
@pytest.mark.parametrize("way", ["step", "gram", "accumulate"])
def test_complex_weights(engine, way):
    torch.manual_seed(0)
    model, (x, y) = Complex(), batch()
    grads = ClassGradients(model, engine=engine, gram=way == "gram")  # before the forward, which it watches
    losses = cross_entropy(model(x), y)
    rows = []
    for label in range(3):
        found = torch.autograd.grad(losses[y == label].sum() / len(y), list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([(torch.view_as_real(g) if g.is_complex() else g).flatten() for g in found]))
    gram = torch.stack(rows) @ torch.stack(rows).T
    if way == "accumulate":
        grads.accumulate(losses, y)
        step = grads.finalize()
    else:
        step = grads.backward(losses, y)
    torch.testing.assert_close(step.norms, gram.diagonal().sqrt())
    if way == "gram":
        torch.testing.assert_close(step.gram, gram)
    written = [torch.view_as_real(p.grad) if p.is_complex() else p.grad for p in model.parameters()]
    direction = torch.cat([part.flatten() for part in written])
    torch.testing.assert_close(direction, sum(row / row.norm() for row in rows))
