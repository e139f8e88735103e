"""What a step does and reports, also in the odd cases: never NaN into the parameters."""

import pytest
import torch
from torch import nn

from classgrad import Bisect, ClassGradients, InputError, Normalize, Prefer, Rule, Sum

from ._reference import batch, cross_entropy, flat_grad, flat_gradients, small_net, unit_sum

ENGINES = ["fused", "joint", "split"]


def step_of(engine, model, x, y, rule=None, **options):
    grads = ClassGradients(model, rule, engine=engine, **options)
    return grads.backward_through(lambda x, y: cross_entropy(model(x), y), x, y)


@pytest.mark.parametrize("engine", ENGINES)
def test_pcn_writes_the_sum_of_the_unit_class_gradients(engine):
    model, (x, y) = small_net(), batch()
    step = step_of(engine, model, x, y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(step.norms, gradients.norm(dim=1))
    torch.testing.assert_close(step.weights, 1 / gradients.norm(dim=1))
    losses = cross_entropy(model(x), y).detach()
    torch.testing.assert_close(step.losses, torch.stack([losses[y == c].sum() / len(y) for c in range(3)]))
    assert step.classes.tolist() == [0, 1, 2]
    assert step.counts.tolist() == torch.bincount(y).tolist()
    assert step.finite.all()
    assert step.gram is None
    assert step.skipped == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_sum_writes_what_plain_training_writes(engine):
    model, (x, y) = small_net(), batch()
    step_of(engine, model, x, y, Sum())
    found = flat_grad(model)
    model.zero_grad()
    cross_entropy(model(x), y).mean().backward()
    torch.testing.assert_close(found, flat_grad(model), rtol=1e-12, atol=1e-14)


def test_sum_works_out_norms_only_when_asked():
    model, (x, y) = small_net(), batch()
    assert step_of("fused", model, x, y, Sum()).norms is None
    norms = step_of("fused", model, x, y, Sum(), norms=True).norms
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(norms, gradients.norm(dim=1))


@pytest.mark.parametrize("rule", [Normalize(), Sum(), Bisect()])
def test_gram_on_request(rule):
    model, (x, y) = small_net(), batch()
    step = step_of("fused", model, x, y, rule, gram=True)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(step.gram, gradients @ gradients.T)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", [Sum(), Normalize()])
def test_gradients_are_added_to_what_is_there(engine, rule):
    model, (x, y) = small_net(), batch()
    step_of(engine, model, x, y, rule)
    once = flat_grad(model)
    storage = model[0].weight.grad.data_ptr()
    step_of(engine, model, x, y, rule)
    torch.testing.assert_close(flat_grad(model), 2 * once)
    assert model[0].weight.grad.data_ptr() == storage


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_and_unreached_parameters_are_left_alone(engine):
    model, (x, y) = small_net(), batch()
    model[0].weight.requires_grad_(False)
    model.register_parameter("spare", nn.Parameter(torch.ones(2)))
    step_of(engine, model, x, y)
    assert model[0].weight.grad is None
    assert model.spare.grad is None
    assert model[0].bias.grad is not None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("per", ["layer", "parameter"])
def test_rules_per_layer_and_per_parameter(engine, per):
    model, (x, y) = small_net(), batch()
    step = step_of(engine, model, x, y, Normalize(per=per))
    parameters = list(model.parameters())
    groups = [[0, 1], [2, 3]] if per == "layer" else [[0], [1], [2], [3]]
    assert step.weights.shape == (len(groups), 3)
    for row, group in zip(step.weights, groups, strict=True):
        chosen = [parameters[i] for i in group]
        gradients = flat_gradients(cross_entropy(model(x), y), y, chosen)
        torch.testing.assert_close(row, 1 / gradients.norm(dim=1))
        written = torch.cat([p.grad.flatten() for p in chosen])
        torch.testing.assert_close(written, unit_sum(gradients))
    whole = flat_gradients(cross_entropy(model(x), y), y, parameters)
    torch.testing.assert_close(step.norms, whole.norm(dim=1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", [Normalize(), Normalize(per="layer"), Sum(), Prefer(Normalize(), {1: 2.0})])
def test_a_declared_class_that_is_absent_is_left_out(engine, rule):
    model, (x, y) = small_net(), batch()
    y = y.where(y != 1, 0)
    step = step_of(engine, model, x, y, rule, classes=[2, 0, 1])
    assert step.skipped == {1: "missing"}
    assert step.classes.tolist() == [0, 1, 2]
    assert step.counts[1] == 0
    assert step.losses[1] == 0
    assert (step.weights[..., 1] == 0).all()
    found = flat_grad(model)
    model.zero_grad()
    step_of(engine, model, x, y, rule)
    torch.testing.assert_close(found, flat_grad(model))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", [Normalize(), Sum()])
def test_a_missing_class_can_be_an_error(engine, rule):
    model, (x, y) = small_net(), batch()
    with pytest.raises(InputError, match=r"^Class 7 has no example in the batch and on_missing='error'; use a sampler"):
        step_of(engine, model, x, y, rule, classes=[0, 1, 2, 7], on_missing="error")
    assert flat_grad(model).eq(0).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", [Normalize(), Normalize(per="parameter"), Bisect()])
def test_a_class_without_gradient_is_left_out(engine, rule):
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, rule, engine=engine)
    step = grads.backward_through(lambda x, y: cross_entropy(model(x), y) * (y != 2), x, y)
    assert step.skipped == {2: "zero"}
    gradients = flat_gradients(cross_entropy(model(x), y) * (y != 2), y, model.parameters())
    assert flat_grad(model).isfinite().all()
    if rule.per == "model" and not isinstance(rule, Bisect):
        torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_weights_of_a_layer_that_one_class_does_not_reach():
    """Class 1's losses do not touch the second head: its norm there is zero, and so is its weight there."""
    heads = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]).double()
    x, y = batch()
    grads = ClassGradients(heads, Normalize(per="layer"))
    out = torch.where((y == 1)[:, None], heads[0](x), heads[1](x))
    step = grads.backward(cross_entropy(out, y), y)
    assert step.weights[1, 1] == 0
    assert step.weights[0, 1] > 0
    assert step.skipped == {}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", [Normalize(), Sum(), Bisect()])
def test_one_class_only(engine, rule):
    model, (x, y) = small_net(), batch()
    step = step_of(engine, model, x, torch.zeros_like(y), rule)
    assert step.classes.tolist() == [0]
    plain = flat_gradients(cross_entropy(model(x), torch.zeros_like(y)), torch.zeros_like(y), model.parameters())[0]
    expected = plain / plain.norm() if isinstance(rule, Normalize) else plain
    torch.testing.assert_close(flat_grad(model), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_example_per_class(engine):
    model, (x, _) = small_net(outputs=8), batch()
    y = torch.arange(8).flip(0)
    step_of(engine, model, x, y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("classes", [None, 2])
def test_an_empty_batch_writes_nothing(engine, classes):
    model = small_net()
    step = step_of(engine, model, torch.zeros(0, 4).double(), torch.zeros(0, dtype=torch.int64), classes=classes)
    assert all(p.grad is None for p in model.parameters())
    assert step.skipped == ({} if classes is None else {0: "missing", 1: "missing"})
    assert len(step.norms) == len(step.losses) == len(step.weights) == (classes or 0)


def test_an_empty_batch_can_be_an_error():
    with pytest.raises(InputError, match="Class 0 has no example"):
        ClassGradients(small_net(), classes=2, on_missing="error").backward(torch.zeros(0), torch.zeros(0).long())


class Poison(nn.Module):
    """Passes on; the gradient of the examples marked by ``bad`` becomes ``value`` in the backward pass."""

    def __init__(self):
        super().__init__()
        self.bad = None
        self.value = torch.nan

    def forward(self, x):
        if self.bad is not None and x.requires_grad:
            bad, value = self.bad, self.value
            x.register_hook(lambda g: g.masked_fill(bad[:, None], value))
        return x


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("rule", [Normalize(), Normalize(per="layer"), Sum(), Prefer(Sum(), [1.0, 2.0])])
def test_a_loss_that_is_not_finite_leaves_its_class_out(rule, value):
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, rule)
    factor = torch.where(torch.arange(len(y)) == int((y == 1).nonzero()[0]), value, 1.0)
    step = grads.backward(cross_entropy(model(x), y) * factor, y)
    assert step.skipped == {1: "nonfinite"}
    assert not step.finite[1]
    found = flat_grad(model)
    model.zero_grad()
    kept = y != 1
    weighted = cross_entropy(model(x[kept]), y[kept]) * kept.sum() / len(y)
    ClassGradients(model, rule).backward(weighted, y[kept])
    torch.testing.assert_close(found, flat_grad(model))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", [Normalize(), Sum(), Bisect()])
def test_nothing_that_is_not_finite_reaches_the_parameters(engine, rule):
    """joint passes zeros back through the bad example, which gives NaN for all; then no class is left."""
    model, (x, y) = small_net(), batch()
    x = x.clone()
    x[int((y == 1).nonzero()[0])] = torch.nan
    step = step_of(engine, model, x, y, rule)
    assert step.skipped[1] == "nonfinite"
    assert flat_grad(model).isfinite().all()
    if engine == "split":
        assert step.skipped == {1: "nonfinite"}


@pytest.mark.parametrize("rule", [Normalize(), Sum(), Bisect()])
def test_a_gradient_that_is_not_finite_under_finite_losses(rule):
    model, (x, y) = small_net(), batch()
    poison = Poison()
    net = nn.Sequential(model[0], poison, model[1:])
    poison.bad = y == 1
    step = ClassGradients(net, rule).backward(cross_entropy(net(x), y), y)
    assert step.losses.isfinite().all()
    assert step.skipped == (dict.fromkeys(range(3), "nonfinite") if isinstance(rule, Sum) else {1: "nonfinite"})
    assert flat_grad(net).isfinite().all()
    assert flat_grad(net).any() != isinstance(rule, Sum)


@pytest.mark.parametrize("engine", ["fused", "joint", "split"])
@pytest.mark.parametrize("rule", [Normalize(), Sum()])
def test_a_class_that_is_not_finite_can_be_an_error(engine, rule):
    model, (x, y) = small_net(), batch()
    model[0].weight.data[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"^The loss or gradient of class \d is inf or NaN and on_nonfinite='error'"):
        step_of(engine, model, x, y, rule, on_nonfinite="error")
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("options", [{"on_missing": "error"}, {"on_nonfinite": "error"}])
def test_other_reasons_are_no_error(options):
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model, classes=3 if "on_missing" in options else 4, **options)
    step = grads.backward(cross_entropy(model(x), y) * (y != 2), y)
    assert step.skipped == {2: "zero"} | ({} if "on_missing" in options else {3: "missing"})


def test_a_finite_loss_with_a_bad_gradient_can_be_an_error_under_sum():
    model, (x, y) = small_net(), batch()
    poison = Poison()
    net = nn.Sequential(model[0], poison, model[1:])
    poison.bad = y == 1
    with pytest.raises(InputError, match="on_nonfinite='error'"):
        ClassGradients(net, Sum(), on_nonfinite="error").backward(cross_entropy(net(x), y), y)
    assert all(p.grad is None for p in net.parameters())


class Wild(Rule):
    """A rule that answers with anything."""

    def __call__(self, statistics):
        return torch.full_like(statistics.norms, torch.nan)


def test_a_weight_that_is_not_finite_counts_as_zero():
    model, (x, y) = small_net(), batch()
    step = step_of("fused", model, x, y, Wild())
    assert (step.weights == 0).all()
    assert flat_grad(model).eq(0).all()


def test_losses_that_reach_no_parameter():
    model = small_net()
    leaf = torch.randn(4, requires_grad=True)
    step = ClassGradients(model).backward(leaf * 2, torch.tensor([0, 1, 0, 1]))
    assert step.skipped == {0: "zero", 1: "zero"}
    assert all(p.grad is None for p in model.parameters())


def test_losses_that_are_a_parameter():
    model = nn.Module()
    model.register_parameter("p", nn.Parameter(torch.randn(4)))
    ClassGradients(model).backward(model.p, torch.tensor([0, 1, 0, 0]))
    torch.testing.assert_close(model.p.grad, torch.tensor([3**-0.5, 1.0, 3**-0.5, 3**-0.5]))


def test_negative_and_distant_labels_of_any_integer_type():
    model, (x, y) = small_net(), batch()
    labels = torch.tensor([-7, 100, 3])[y]
    first = ClassGradients(model).backward(cross_entropy(model(x), y), labels)
    assert first.classes.tolist() == [-7, 3, 100]
    for dtype in (torch.int8, torch.int16, torch.int32):
        step = ClassGradients(model).backward(cross_entropy(model(x), y), labels.to(dtype))
        torch.testing.assert_close(step.norms, first.norms)
    assert step_of("fused", model, x, y.to(torch.uint8).long(), classes=3).classes.tolist() == [0, 1, 2]


@pytest.mark.parametrize("rule", [Normalize(), Normalize(refresh=3), Sum()], ids=repr)
@pytest.mark.parametrize("examples", [8, 0])
def test_a_step_shares_no_tensor_with_the_next(rule, examples):
    model, (x, y) = small_net(), batch()
    x, y = x[:examples], y[:examples]
    counts = y.bincount(minlength=3).tolist()
    grads = ClassGradients(model, rule, classes=3)
    for _ in range(3):
        step = grads.backward(cross_entropy(model(x), y), y)
        assert (step.classes.tolist(), step.counts.tolist()) == ([0, 1, 2], counts)
        step.classes.add_(7)
        step.counts.add_(7)
    assert grads.classes.tolist() == [0, 1, 2]
