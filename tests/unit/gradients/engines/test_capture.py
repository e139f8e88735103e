"""The hooks: what they see, what they leave alone, and that they go away."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgrad import ClassGradients, InputError, Normalize, Sum
from classgrad.gradients.layers._taps import Call

from .._reference import assert_exact, batch, cross_entropy, flat_grad, flat_gradients, small_net, unit_sum


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_hooks_with_kwargs) for m in model.modules())


def test_close_and_context_manager_remove_the_hooks():
    model = small_net()
    grads = ClassGradients(model)
    assert hooks_of(model) > 0
    grads.close()
    assert hooks_of(model) == 0
    with ClassGradients(model):
        assert hooks_of(model) > 0
    assert hooks_of(model) == 0
    with pytest.raises(KeyError), ClassGradients(model):
        raise KeyError
    assert hooks_of(model) == 0


@pytest.mark.parametrize("engine", ["joint", "split"])
def test_reference_engines_hook_nothing(engine):
    model = small_net()
    grads = ClassGradients(model, engine=engine)
    assert hooks_of(model) == 0
    grads.close()


def test_hooks_of_a_dropped_object_go_with_the_next_forward():
    model, (x, _) = small_net(), batch()
    reference = weakref.ref(grads := ClassGradients(model))
    del grads
    gc.collect()
    assert reference() is None
    out = model(x)
    assert hooks_of(model) == 0
    assert "Tap" not in out.grad_fn.name()


def test_other_hooks_stay():
    model, (x, _) = small_net(), batch()
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    ClassGradients(model).close()
    model(x)
    assert seen == [1]


@pytest.mark.parametrize("before", [True, False])
def test_a_hook_that_changes_a_layers_output(before):
    model, (x, y) = small_net(), batch()

    def triple(module, args, output):
        return output * 3

    if before:
        model[0].register_forward_hook(triple)
    grads = ClassGradients(model)
    if not before:
        model[0].register_forward_hook(triple)
    grads.backward(cross_entropy(model(x), y), y)
    found = flat_grad(model)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(found, unit_sum(gradients))


def test_a_hook_that_changes_a_layers_input():
    model, (x, y) = small_net(), batch()
    model[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    assert_exact(model, lambda: cross_entropy(model(x), y), y)


def test_a_layer_whose_forward_was_replaced():
    model, (x, y) = small_net(), batch()
    layer = model[0]
    layer.forward = lambda x: F.linear(x * 2, layer.weight, layer.bias)
    assert_exact(model, lambda: cross_entropy(model(x), y), y)


def test_two_objects_on_one_model():
    model, (x, y) = small_net(), batch()
    first, second = ClassGradients(model), ClassGradients(model, Sum(), gram=True)
    norms = first.backward(cross_entropy(model(x), y), y).norms
    gram = second.backward(cross_entropy(model(x), y), y).gram
    torch.testing.assert_close(gram.diagonal().sqrt(), norms)
    first.close()
    torch.testing.assert_close(second.backward(cross_entropy(model(x), y), y).gram, gram)


def test_copies_and_pickles_of_a_hooked_model_are_free():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    losses = cross_entropy(model(x), y)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        torch.testing.assert_close(twin(x), model(x))
        assert "Tap" not in twin(x).grad_fn.name()
        assert_exact(twin, lambda twin=twin: cross_entropy(twin(x), y), y)
    grads.backward(losses, y)
    assert hooks_of(model) > 0


def test_averaged_models():
    model, (x, y) = small_net(), batch()
    with ClassGradients(model) as grads:
        average = torch.optim.swa_utils.AveragedModel(model)
        grads.backward(cross_entropy(model(x), y), y)
        average.update_parameters(model)
    torch.testing.assert_close(average(x), model(x))


IN_PLACE = {
    "relu": lambda: nn.ReLU(inplace=True),
    "leaky relu": lambda: nn.LeakyReLU(inplace=True),
    "silu": lambda: nn.SiLU(inplace=True),
    "dropout of nothing": lambda: nn.Dropout(0.0, inplace=True),
    "hardtanh": lambda: nn.Hardtanh(inplace=True),
}


@pytest.mark.parametrize("activation", IN_PLACE)
@pytest.mark.parametrize("layer", [nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4), nn.Linear(4, 4), nn.PReLU()])
def test_in_place_activations(activation, layer):
    model = nn.Sequential(nn.Linear(4, 4), layer, IN_PLACE[activation](), nn.Linear(4, 3)).double()
    x, y = batch()
    assert_exact(model, lambda: cross_entropy(model(x), y), y)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [*IN_PLACE, None])
@pytest.mark.parametrize("lie", [lambda x: x, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)])
def test_linear_layers_over_positions(activation, bias, lie):
    """Their product has rows of examples and positions alike, and a view gives them their dimensions."""
    between = nn.Identity() if activation is None else IN_PLACE[activation]()
    model = nn.Sequential(nn.Linear(4, 4, bias=bias), between, nn.Linear(4, 3, bias=bias)).double()
    x, y = batch()
    x = lie(torch.stack([x, 2 * x, x - 1], 1))
    assert_exact(model, lambda: cross_entropy(model(x).mean(1), y), y)


class Reuses(nn.Module):
    """Changes the input of a layer after the layer has used it."""

    def __init__(self, frozen):
        super().__init__()
        self.before, self.used, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.used.requires_grad_(not frozen)

    def forward(self, x):
        h = self.before(x) * 1
        out = self.used(h)
        h.mul_(2)
        return self.head(out + h)


def test_an_input_that_was_changed_is_told():
    model, (x, y) = Reuses(frozen=False).double(), batch()
    message = (
        "The input of layer `used` was changed in place after the layer had used it, so its gradient is lost; "
        "use the out-of-place operation there."
    )
    with pytest.raises(InputError) as caught:
        ClassGradients(model).backward(cross_entropy(model(x), y), y)
    assert str(caught.value) == message


def test_an_input_that_is_not_needed_may_be_changed():
    model, (x, y) = Reuses(frozen=True).double(), batch()
    assert_exact(model, lambda: cross_entropy(model(x), y), y)


@pytest.fixture
def calls(monkeypatch):
    """The records of layer calls that are alive, each holding the input its layer saw."""
    alive = weakref.WeakSet()

    class Noted(Call):
        __slots__ = ()

        def __init__(self, *args):
            super().__init__(*args)
            alive.add(self)

    monkeypatch.setattr("classgrad.gradients.engines._capture.Call", Noted)
    return alive


def test_forwards_without_a_backward_leave_nothing(calls):
    model, (x, _) = small_net(), batch()
    grads = ClassGradients(model)
    for _ in range(5):
        model(x)
    assert len(calls) == 0
    assert len(grads._engines._capture._nodes) == 0
    kept = [model(x) for _ in range(3)]
    assert len(calls) == 3 * 2
    del kept
    assert len(calls) == 0


def test_many_forwards_without_a_step_are_not_noted_for_ever():
    model = nn.Linear(2, 2)
    grads = ClassGradients(model)
    x = torch.ones(1, 2)
    kept = [model(x) for _ in range(300)]
    for _ in range(2000):
        model(x)
    assert len(grads._engines._capture._references) <= 2 * 600
    assert len(grads._engines._capture._nodes) == len(kept)


def test_no_layer_keeps_itself_alive(calls):
    """What a normalization saved for its own backward pass leads back to the node that saved it."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3), nn.PReLU()
    )
    grads = ClassGradients(model)
    out = model(torch.randn(5, 2, 4, 4))
    assert len(calls) == 5
    del out
    assert len(calls) == 0
    assert not grads._engines.holding


@pytest.mark.parametrize("rule", [Normalize(), Sum()])
@pytest.mark.parametrize("way", ["backward", "accumulate", "gradients", "stream", "mixing"])
@pytest.mark.filterwarnings("ignore:Layer .* mixes the examples")
def test_a_step_lets_go_of_the_activations_even_if_the_losses_live_on(calls, way, rule):
    """As plain backward does: else two batches' activations would be there during the next forward."""
    model, (x, y) = small_net(), batch(classes=1 if way == "stream" else 3)
    grads = ClassGradients(model, rule, mixing=(nn.Tanh,) if way == "mixing" else ())
    losses = cross_entropy(model(x), y)
    assert len(calls) == 2
    if way == "gradients":
        grads.gradients(losses, y)
    elif way in ("accumulate", "stream"):
        grads.accumulate(losses, y, total=8 if way == "stream" else None)
    else:
        grads.backward(losses, y)
    assert len(calls) == 0
    assert losses.grad_fn is not None


def test_no_graph_no_tap():
    model, (x, _) = small_net(), batch()
    ClassGradients(model)
    with torch.no_grad():
        assert model(x).grad_fn is None
    with torch.inference_mode():
        assert model(x).grad_fn is None


def test_outputs_are_unchanged():
    model, (x, _) = small_net(), batch()
    plain = model(x)
    with ClassGradients(model):
        torch.testing.assert_close(model(x), plain, rtol=0, atol=0)


def test_losses_made_before_the_backward_of_others():
    """Two graphs at a time: each step takes its own layer calls and leaves the other's."""
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    first, second = cross_entropy(model(x), y), cross_entropy(model(2 * x), y)
    expected = flat_gradients(cross_entropy(model(2 * x), y), y, model.parameters())
    grads.backward(first, y)
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        step = grads.backward(second, y)
    torch.testing.assert_close(step.norms, expected.norm(dim=1))
    torch.testing.assert_close(flat_grad(model), unit_sum(expected))


def test_both_graphs_take_one_pass(monkeypatch):
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    first, second = cross_entropy(model(x), y), cross_entropy(model(2 * x), y)

    def refuse(*_, **__):
        raise AssertionError("a backward pass per class where one pass covers everything")

    monkeypatch.setattr("classgrad.gradients.engines._fused.joint_terms", refuse)
    grads.backward(first, y)
    grads.backward(second, y)


def test_one_loss_of_two_forwards():
    model, (x, y) = small_net(), batch()
    assert_exact(model, lambda: cross_entropy(model(x), y) + (model(x) - model(x.flip(1))).square().sum(1), y)


def test_a_batch_in_two_forwards():
    model, (x, y) = small_net(), batch()
    assert_exact(model, lambda: torch.cat([cross_entropy(model(x[:4]), y[:4]), cross_entropy(model(x[4:]), y[4:])]), y)


def test_a_hook_that_comes_first_may_change_the_output():
    model, (x, y) = small_net(), batch()
    with ClassGradients(model) as grads:
        model[0].register_forward_hook(lambda module, args, output: output * torch.arange(1.0, 6.0), prepend=True)
        gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
        step = grads.backward(cross_entropy(model(x), y), y)
        torch.testing.assert_close(step.norms, gradients.norm(dim=1))
        with ClassGradients(model) as second:  # whose hook is in front of that one, which is in front of the first's
            for each in (grads, second):
                torch.testing.assert_close(each.backward(cross_entropy(model(x), y), y).norms, gradients.norm(dim=1))


def test_a_hook_on_all_modules_may_change_their_outputs():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 3)
    try:
        gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
        step = grads.backward(cross_entropy(model(x), y), y)
    finally:
        handle.remove()
    torch.testing.assert_close(step.norms, gradients.norm(dim=1))


def test_a_bias_needs_no_input():
    """Where only the bias is trained the input may be changed, as plain autograd allows."""
    model, (x, y) = nn.ModuleList((nn.Linear(4, 4), nn.Linear(4, 3))).double(), batch()
    model[0].weight.requires_grad_(False)

    def forward():
        h = x * 1.0
        h += model[0](h)
        return cross_entropy(model[1](torch.tanh(h)), y)

    assert_exact(model, forward, y)
