"""Layers that mix the examples of a batch: exact by one backward pass per class, with one warning."""

import warnings

import pytest
import torch
from torch import nn

from classgrad import ClassGradients, Normalize, Sum
from classgrad.gradients.engines._audit import probe
from classgrad.models import to_group_norm

from .._reference import batch, cross_entropy, flat_grad, flat_gradients, small_net, unit_sum


def batch_normed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()


class Centered(nn.Module):
    """Subtracts the mean over the batch, which no layer type tells; only while training, if asked."""

    def __init__(self, always=True):
        super().__init__()
        self.always = always

    def forward(self, h):
        return h - h.mean(0) if self.training or self.always else h


def centered(**options):
    net = small_net()
    return nn.Sequential(net[0], Centered(**options), net[1], net[2])


def assert_step_is_exact(grads, model, x, y):
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    model.zero_grad()
    grads.backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_batch_norm_falls_back_with_one_warning():
    model, (x, y) = batch_normed(), batch()
    grads = ClassGradients(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_step_is_exact(grads, model, x, y)
        grads.gradients(cross_entropy(model(x), y), y)
        grads.verify(lambda x, y: cross_entropy(model(x), y), (x, y))
    assert [str(w.message) for w in caught] == [
        "Layer 1 (BatchNorm1d) mixes the examples of a batch, so class gradients take one backward pass per class "
        "(3 instead of 1); classgrad.models.to_group_norm(model) replaces batch by group normalization."
    ]


@pytest.mark.parametrize("way", ["backward", "backward_through", "accumulate", "gradients", "verify"])
def test_the_warning_names_the_line_of_the_caller(way):
    model, (x, y) = batch_normed(), batch()
    grads = ClassGradients(model)

    def losses(x, y):
        return cross_entropy(model(x), y)

    given = {"backward_through": (losses, x, y), "verify": (losses, (x, y))}.get(way) or (losses(x, y), y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(grads, way)(*given)
    assert [w.filename for w in caught] == [__file__]


def test_the_way_out():
    model, (x, y) = to_group_norm(batch_normed(), channels_per_group=2), batch()
    assert_step_is_exact(ClassGradients(model), model, x, y)


def test_no_warning_where_nothing_falls_back():
    model, (x, y) = batch_normed(), batch()
    ClassGradients(model, engine="joint").backward(cross_entropy(model(x), y), y)
    ClassGradients(model, Sum()).backward(cross_entropy(model(x), y), y)
    model.eval()
    assert_step_is_exact(ClassGradients(model), model, x, y)


def test_batch_norm_without_statistics_mixes_when_evaluating_too():
    model, (x, y) = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).double(), batch()
    model.eval()
    with pytest.warns(UserWarning, match=r"Layer 1 \(BatchNorm1d\) mixes the examples"):
        assert_step_is_exact(ClassGradients(model), model, x, y)


def test_evaluating_between_forward_and_backward():
    """The mode of the forward counts."""
    model, (x, y) = batch_normed(), batch()
    grads = ClassGradients(model)
    model.eval()
    assert_step_is_exact(grads, model, x, y)
    model.train()
    expected = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    losses = cross_entropy(model(x), y)
    model.eval()
    model.zero_grad()
    with pytest.warns(UserWarning, match="mixes the examples"):
        grads.backward(losses, y)
    torch.testing.assert_close(flat_grad(model), unit_sum(expected))


def test_instance_norm_uses_the_statistics_of_its_forward():
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.InstanceNorm1d(3, affine=True, track_running_stats=True), nn.Flatten())
    model = nn.Sequential(*model, nn.Linear(12, 3)).double()
    x, (_, y) = torch.randn(8, 2, 4).double(), batch()
    expected = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    grads = ClassGradients(model)
    losses = cross_entropy(model(x), y)
    model.eval()
    grads.backward(losses, y)
    torch.testing.assert_close(flat_grad(model), unit_sum(expected))


def test_declared_types():
    model, (x, y) = small_net(), batch()
    model.add_module("mine", type("Mine", (nn.Identity,), {})())
    grads = ClassGradients(model, mixing=(type(model.mine),))
    with pytest.warns(UserWarning, match=r"^Layer mine \(Mine\) mixes the examples of a batch"):
        assert_step_is_exact(grads, model, x, y)


@pytest.mark.parametrize("gram", [False, True])
def test_mixing_that_no_type_tells_is_found(gram):
    model, (x, y) = centered(), batch()
    grads = ClassGradients(model, gram=gram)
    with pytest.warns(UserWarning, match=r"^Something after layer 0 \(Linear\) mixes the examples of a batch"):
        assert_step_is_exact(grads, model, x, y)
    assert_step_is_exact(grads, model, x, y)  # a second warning would be an error


def test_mixing_that_begins_with_training():
    model, (x, y) = centered(always=False), batch()
    grads = ClassGradients(model)
    assert_step_is_exact(grads, model.eval(), x, y)
    with pytest.warns(UserWarning, match="Something after layer 0"):
        assert_step_is_exact(grads, model.train(), x, y)


def test_mixing_in_the_loss_from_the_second_step_on():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    assert_step_is_exact(grads, model, x, y)

    def forward():
        out = model(x)
        return -(out @ out.T).log_softmax(1).diagonal()

    expected = flat_gradients(forward(), y, model.parameters())
    model.zero_grad()
    with pytest.warns(UserWarning, match=r"Something after layer 2 \(Linear\)"):
        grads.backward(forward(), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(expected))


class Neighbour(nn.Module):
    """Every example takes from one other: any two classes may be the ones that touch."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def forward(self, h):
        return h + h[self.source]


@pytest.mark.parametrize(("taker", "giver"), [(a, b) for a in range(5) for b in range(5) if a != b])
def test_one_pair_of_classes_is_enough_to_be_found(taker, giver):
    x, _ = batch(examples=5)
    y = torch.arange(5)
    source = torch.arange(5)
    source[taker] = giver
    net = small_net(outputs=5)
    model = nn.Sequential(net[0], Neighbour(source), net[1], net[2])
    with pytest.warns(UserWarning, match="Something after layer 0"):
        assert_step_is_exact(ClassGradients(model), model, x, y)


def test_mixing_within_a_class_is_no_mixing():
    x, _ = batch(examples=6)
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    net = small_net()
    model = nn.Sequential(net[0], Neighbour(torch.tensor([1, 0, 3, 2, 5, 4])), net[1], net[2])
    assert_step_is_exact(ClassGradients(model), model, x, y)


def test_mixing_within_a_class_is_mixing_under_other_labels():
    x, _ = batch(examples=6)
    net = small_net()
    pairs = nn.Sequential(nn.Unflatten(0, (3, 2)), nn.LayerNorm((2, 5), elementwise_affine=False), nn.Flatten(0, 1))
    model = nn.Sequential(net[0], pairs, net[1], net[2])
    grads = ClassGradients(model)
    assert_step_is_exact(grads, model, x, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert_step_is_exact(grads, model, x, torch.tensor([1, 1, 0, 0, 2, 2]))
    with pytest.warns(UserWarning, match="Something after layer 0"):
        assert_step_is_exact(grads, model, x, torch.tensor([0, 1, 1, 2, 2, 0]))


@pytest.mark.parametrize("classes", [None, 3])
def test_one_class_cannot_mix_but_the_next_batch_can(classes):
    model, (x, y) = centered(), batch()
    grads = ClassGradients(model, classes=classes)
    assert_step_is_exact(grads, model, x, torch.zeros_like(y))
    with pytest.warns(UserWarning, match="Something after layer 0"):
        assert_step_is_exact(grads, model, x, y)


def test_a_first_batch_that_is_not_finite_is_not_taken_for_mixing():
    model, (x, y) = small_net(), batch()
    grads = ClassGradients(model)
    bad = x.clone()
    bad[0] = torch.nan
    assert grads.backward(cross_entropy(model(bad), y), y).skipped == {int(y[0]): "nonfinite"}
    assert_step_is_exact(grads, model, x, y)


def test_mixing_behind_a_first_batch_that_is_not_finite_is_found_later():
    model, (x, y) = centered(), batch()
    grads = ClassGradients(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grads.backward(cross_entropy(model(x * torch.nan), y), y)
        grads._engines._warned.clear()
    with pytest.warns(UserWarning, match="Something after layer 0"):
        assert_step_is_exact(grads, model, x, y)


class LastStep(nn.Module):
    """Works on (time, examples, features) and reads the last step: its gradient lies in one row."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x.transpose(0, 1)).tanh()[-1])


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("length", [3, 6])
def test_time_first_even_if_there_are_as_many_steps_as_examples(length, last):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, length, 4, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1, 0, last])
    model = LastStep().double()
    assert_step_is_exact(ClassGradients(model, Normalize()), model, x, y)


@pytest.mark.parametrize("length", [3, 8])
def test_a_transformer_with_the_batch_in_the_second_dimension(length):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=False)
    model = nn.ModuleDict({"layer": layer, "head": nn.Linear(4, 3)}).double()
    x = torch.randn(8, length, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, y = batch()

    def forward():
        return cross_entropy(model["head"](model["layer"](x.transpose(0, 1)).mean(0)), y)

    expected = flat_gradients(forward(), y, model.parameters())
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Something after layer")
        ClassGradients(model).backward(forward(), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(expected))


def test_mixing_behind_a_head_of_zeros_is_found_once_anything_is_felt():
    model, (x, y) = centered(), batch()
    torch.nn.init.zeros_(model[3].weight)
    grads = ClassGradients(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert_step_is_exact(grads, model, x, y)  # no gradient reaches the layer below the mixing yet
    optimizer.step()
    with pytest.warns(UserWarning, match="Something after layer 0"):
        assert_step_is_exact(grads, model, x, y)
    optimizer.step()
    assert_step_is_exact(grads, model, x, y)


class OwnBatchNorm(nn.Module):
    """Normalizes over the batch while it trains; autograd's node has the same name in both modes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(5, dtype=torch.float64))

    def forward(self, h):
        return nn.functional.batch_norm(h, self.mean, self.variance, training=self.training)


def test_an_operation_that_mixes_in_training_mode_alone():
    net, (x, y) = small_net(), batch()
    model = nn.Sequential(net[0], OwnBatchNorm(), net[1], net[2]).eval()
    grads = ClassGradients(model)
    assert_step_is_exact(grads, model, x, y)
    model.train()
    with pytest.warns(UserWarning, match="Something after layer 0"):
        assert_step_is_exact(grads, model, x, y)


def test_a_layer_that_never_feels_anything_is_probed_ever_more_rarely(monkeypatch):
    model, (x, y) = small_net(), batch()
    torch.nn.init.zeros_(model[2].weight)
    model[2].weight.requires_grad_(False)
    made = []
    monkeypatch.setattr("classgrad.gradients.engines._engines.probe", lambda *a: made.append(1) or probe(*a))
    grads = ClassGradients(model)
    for _ in range(40):
        grads.backward(cross_entropy(model(x), y), y)
    assert len(made) == 8 + 2  # of the steps 9 to 40, the 16th and the 32nd
