"""Which rows are whose is found out once, and again where that may not hold any longer."""

import warnings
from unittest import mock

import pytest
import torch
from torch import nn

from classgrad import ClassGradients

from .._reference import assert_exact, batch, cross_entropy, flat_grad, flat_gradients, unit_sum
from ._uses import PRODUCTS, SPREAD, WIDTH, passes, spread, square


class Shared(nn.Module):
    """What is spread lies behind no layer, so that the layers know nothing of what becomes of it."""

    def __init__(self, use):
        super().__init__()
        self.use, self.shared, self.outward = use, nn.Parameter(torch.randn(4)), nn.Linear(4, 3)
        self.rows, self.gate = torch.arange(8), 1.0
        self.matrix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return self.outward(torch.tanh(self.use(self, x)))


def pairs(m, x):
    """Examples two by two."""
    return nn.functional.layer_norm((x + m.shared).unflatten(0, (4, 2)), (2, 4)).flatten(0, 1)


def tokens_first(m, x):
    """As many tokens as examples: what is spread over the tokens looks the same."""
    tokens = (x[:, None] * torch.arange(1, 9)[:, None]).transpose(0, 1)
    return m.gate * (tokens + m.shared).sin().transpose(0, 1)[:, 0]


def gated_mean(m, x):
    h = x + m.shared
    return h + m.gate * h.mean(0) @ m.matrix


Y = torch.tensor([0, 0, 1, 1, 2, 2, 0, 0])
OTHER = torch.tensor([0, 1, 1, 2, 2, 0, 1, 0])


@pytest.mark.parametrize(
    ("use", "steps"),
    [
        (tokens_first, [{}, {}]),
        (tokens_first, [{"gate": 0.0}, {}, {}]),
        (lambda m, x: (x + m.shared)[m.rows], [{}, {}, {"rows": torch.arange(8).flip(0)}]),
        (pairs, [{"y": Y}, {"y": Y}, {}]),
        (gated_mean, [{"gate": 0.0}, {}]),
    ],
    ids=["tokens first", "felt later", "rows by number", "within classes", "made of another"],
)
def test_rows_that_are_no_examples_are_found(use, steps):
    torch.manual_seed(0)
    model, (x, _) = Shared(use).double(), batch()
    grads = ClassGradients(model)
    for step in steps:
        y = step.get("y", OTHER)
        model.gate, model.rows = step.get("gate", 1.0), step.get("rows", torch.arange(8))
        gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
        model.zero_grad()
        grads.backward(cross_entropy(model(x), y), y)
        torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=1e-11, atol=1e-13)


def test_what_feels_nothing_yet_goes_the_same_way_in_a_run_that_is_taken_up_again():
    model, (x, y) = spread(lambda m, h: h * m.scale + m.number.detach() * torch.tanh(h + m.places)), batch()
    model.number.data.zero_()
    grads = ClassGradients(model)
    for step in range(13):
        if step == 12:
            model.number.data.fill_(1.5)
        assert_exact(model, lambda: cross_entropy(model(x), y), y, grads)
        found = []
        for each in (grads, ClassGradients(model)):
            each.backward(cross_entropy(model(x), y), y)
            found.append(flat_grad(model))
            model.zero_grad()
        assert torch.equal(*found), step


def test_silence_is_listened_to():
    """The first steps of the way back, of which nothing is used, feel nothing: one pass looks if that is still so."""
    model, y = spread(lambda m, h: h * m.gru(h.transpose(0, 1))[0][-1][:, None]), batch()[1]
    assert passes(model, y) == 2
    grads, (x, _) = ClassGradients(model), batch()
    for use in (model.use, PRODUCTS["recurrent"], model.use):
        model.use = use
        for _ in range(2):
            assert_exact(model, lambda: cross_entropy(model(x), y), y, grads)


def test_what_speaks_up_later_is_probed_then():
    model, (x, y) = spread(lambda m, h: h + m.gate * (h @ m.rows[:WIDTH] + m.places)), batch()
    model.gate, grads = 0.0, ClassGradients(model)
    for gate in (0.0, 0.0, 1.0, 1.0):
        model.gate = gate
        assert_exact(model, lambda: cross_entropy(model(x), y), y, grads)


@pytest.mark.parametrize(
    "name", ["attention", "encoder", "layer, tokens first", "looked up, tokens first", "recurrent"]
)
def test_as_many_tokens_as_examples_and_batches_of_other_sizes(name):
    model = spread({**SPREAD, **PRODUCTS}[name])
    grads = ClassGradients(model)
    for examples in (3, 3, 6, 5, 3):
        x, y = batch(examples)
        with mock.patch("classgrad.gradients.engines._engines.joint_terms", side_effect=AssertionError):
            assert_exact(model, lambda x=x, y=y: cross_entropy(model(x), y), y, grads)


def test_what_was_found_out_of_single_tokens_is_not_taken_for_several():
    """The rows of a single token each are in any order; of several tokens that come first they are not."""
    model = nn.ParameterDict({"a": torch.randn(4, 4), "b": torch.randn(4, 3)}).double()
    y, grads = torch.tensor([0, 1, 1, 2]), ClassGradients(model)
    for tokens in (1, 1, 3, 3, 4, 1):
        x = torch.randn(4, tokens, 4).double()

        def losses(x=x):
            return cross_entropy((x.transpose(0, 1) @ model["a"]).tanh().mean(0) @ model["b"], y)

        assert_exact(model, losses, y, grads)


def test_few_rows_that_feel_anything_do_not_tell_where_the_others_are():
    model = nn.ParameterDict({"a": torch.randn(4, 4), "b": torch.randn(4, 3)}).double()
    x, y, grads = torch.randn(3, 3, 4).double(), torch.tensor([0, 1, 2]), ClassGradients(model)
    some = torch.zeros(3, 3, 1).double()
    some[0, 0] = 1
    for mask in (some, torch.ones_like(some)):

        def losses(mask=mask):
            return cross_entropy(((x.transpose(0, 1) @ model["a"]).tanh() * mask).mean(0) @ model["b"], y)

        assert_exact(model, losses, y, grads)


class TimeFirst(nn.Module):
    """Two layers that see tokens before examples, perhaps as many."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.gate, self.rows = 1.0, None

    def forward(self, x):
        h = x.transpose(0, 1)
        h = (self.first(h).tanh() + self.gate * self.second(h).tanh()).transpose(0, 1)
        return self.head((h if self.rows is None else h[self.rows]).cumsum(1)[:, 1])


@pytest.mark.parametrize(
    "steps",
    [
        [{"gate": 0.0}, {"gate": 1.0}],
        [{"y": torch.zeros(3).long()}, {"y": torch.zeros(3).long()}, {}],
        [{"rows": torch.arange(3)}, {"rows": torch.arange(3)}, {"rows": torch.tensor([1, 2, 0])}],
    ],
    ids=["a layer felt later", "one class first", "rows by number"],
)
@pytest.mark.parametrize("tokens", [3, 5])
def test_layers_that_see_tokens_before_examples(steps, tokens):
    torch.manual_seed(0)
    model, x = TimeFirst().double(), torch.randn(3, tokens, 4).double()
    grads = ClassGradients(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore" if "rows" in steps[0] else "error", message="Something after layer")
        for step in steps:
            y = step.get("y", torch.tensor([0, 1, 2]))
            model.gate, model.rows = step.get("gate", 1.0), step.get("rows")
            assert_exact(model, lambda y=y: cross_entropy(model(x), y), y, grads)


class Branches(nn.Module):
    """A layer that sees as many tokens as examples first, beside one whose examples are mixed two by two."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        tokens = self.first(x.transpose(0, 1)).tanh().mean(0)
        pairs = nn.functional.layer_norm(self.second(x[:, 0]).unflatten(0, (2, 2)), (2, 4)).flatten(0, 1)
        return self.head(tokens) + pairs[:, :3]


def test_mixing_within_classes_beside_a_layer_that_sees_tokens_first():
    torch.manual_seed(0)
    model, x = Branches().double(), torch.randn(4, 4, 4).double()
    grads = ClassGradients(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Something after layer")
        for labels in ([0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1]):
            y = torch.tensor(labels)
            assert_exact(model, lambda y=y: cross_entropy(model(x), y), y, grads)


def test_other_parameters_under_the_same_operations():
    """Those of somebody else stand in for one at first and for the other then."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 3))

        def forward(self, x):
            return x @ self.a + x.cos() @ self.b

    model, (x, y) = Two().double(), batch()
    grads, other = ClassGradients(model), torch.randn(4, 3).double().requires_grad_()
    for name in ("b", "a", "b"):
        assert_exact(
            model, lambda name=name: cross_entropy(torch.func.functional_call(model, {name: other}, x), y), y, grads
        )


def test_what_is_sparse_later_on():
    model, (x, y) = spread(lambda m, h: h + (m.form(h.detach()[:, 0]) @ square(m))[:, None]), batch()
    grads = ClassGradients(model)
    for form in (torch.Tensor.to_dense, torch.Tensor.to_sparse, torch.Tensor.to_dense):
        model.form = form
        assert_exact(model, lambda: cross_entropy(model(x), y), y, grads)
