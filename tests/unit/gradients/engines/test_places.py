"""Parameters that come to the examples outside of layers: exact, and all by the one backward pass."""

import itertools
import warnings
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from classgrad import ClassGradients, InputError, Normalize

from .._reference import assert_exact, batch, cross_entropy, flat_grad, flat_gradients, unit_sum

TOKENS, WIDTH = 3, 4


class Spread(nn.Module):
    """A network over tokens; ``use(model, h)`` makes use of what its examples share."""

    def __init__(self, use, examples=8):
        super().__init__()
        self.use = use
        self.inward, self.outward = nn.Linear(4, TOKENS * WIDTH), nn.Linear(WIDTH, 3)
        self.table = nn.Embedding(5, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.places = nn.Parameter(torch.randn(1, TOKENS, WIDTH))
        self.rows = nn.Parameter(torch.randn(5, WIDTH))
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.number = nn.Parameter(torch.tensor(1.5))
        self.many = nn.Parameter(torch.randn(examples, TOKENS, WIDTH))
        self.turned = nn.Parameter(torch.randn(WIDTH, TOKENS))
        self.heads = nn.Parameter(torch.randn(2, 2, 2))
        self.kernel = nn.Parameter(torch.randn(WIDTH, 2, 3))
        self.attention = nn.MultiheadAttention(WIDTH, 2, add_bias_kv=True)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 5, dropout=0.0)
        self.cell, self.gru = nn.GRUCell(WIDTH, WIDTH), nn.GRU(WIDTH, 2, bidirectional=True)
        self.normed = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        h = self.inward(x).unflatten(1, (TOKENS, WIDTH))
        return self.outward(torch.tanh(self.use(self, h)).mean(1))


def spread(use):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Spread(use).double()


def token(m, h):
    return torch.cat((m.places[:, :1].expand(len(h), -1, -1), h), 1)


def rows_of(m, h, *numbers):
    """Rows of the table."""
    return m.table(torch.tensor(numbers, device=h.device))


def positions(m, h):
    return h + rows_of(m, h, *range(TOKENS))[None]


def root_mean_square(m, h):
    return m.scale * (h * h.square().mean(-1, keepdim=True).add(1e-6).rsqrt())


def twice(m, h):
    h = h + m.rows[:TOKENS]
    return torch.tanh(h) * m.rows[1:4] + m.number


def mean(m, h):
    """What is added to all examples depends on all of them, but no row of the sum on another."""
    return h + (h.detach() @ m.rows[:WIDTH]).mean(0)


def square(m):
    return m.rows[:WIDTH]


def across(use):
    """Use it on tokens that come before the examples."""
    return lambda m, h: use(m, h.transpose(0, 1)).transpose(0, 1)


def lookup(m, h):
    """Which of the table's rows depends on the example; the padding is among them."""
    return m.table(h.detach().sum(2).mul(10).long() % 5)


SPREAD = {
    "token": token,
    "positions": lambda m, h: h + m.places,
    "positions, first": lambda m, h: m.places + h,
    "rows": lambda m, h: h + m.rows[1:4],
    "transposed": lambda m, h: h * m.turned.t(),
    "transposed otherwise": lambda m, h: h * m.turned.T + m.turned.mT,
    "with what it is added to, of which nothing comes yet": lambda m, h: h + 0.0 * (h.mean(0) @ square(m)),
    "table": positions,
    "table looked up with a dimension for the batch": lambda m, h: h + m.table(torch.arange(3, device=h.device)[None]),
    "table behind a layer": lambda m, h: h + m.norm(rows_of(m, h, 0, 2, 2)),
    "table, two places": lambda m, h: (h + m.table.weight[0]) * rows_of(m, h, 1, 1, 3),
    "scale": lambda m, h: h * m.scale,
    "scale, first": root_mean_square,
    "number": lambda m, h: h * m.number,
    "number from several": lambda m, h: h * (m.number * m.scale.sum()) + m.places.exp(),
    "expanded": lambda m, h: h * m.places.expand(len(h), -1, -1).sigmoid(),
    "expanded from fewer dimensions": lambda m, h: h + m.scale.expand(len(h), TOKENS, -1).sin(),
    "repeated": lambda m, h: h * m.places.repeat(len(h), 1, 1).sin(),
    "the same twice": twice,
    "as it is and behind an operation": lambda m, h: h * m.scale + m.scale.sin(),
    "mean": mean,
    "scaled before it is added": lambda m, h: torch.add(h, m.places, alpha=2),
    "subtracted": lambda m, h: m.scale - (h - m.places),
    "scaled before it is subtracted": lambda m, h: torch.sub(h, m.places, alpha=2),
    "divided by": lambda m, h: h / (m.scale.exp() + 1),
    "divided": lambda m, h: m.places / (h.square() + 1) - m.number / (h.exp() + 1),
    "scaled, and a mean of that": lambda m, h: h + (h.detach() * m.scale).mean(0),
    "tokens first": across(lambda m, h: h * m.scale + m.places.transpose(0, 1)),
    "normalized": lambda m, h: F.layer_norm(h, (WIDTH,), m.scale, m.rows[0]),
    "normalized in groups": lambda m, h: F.group_norm(h.mT, 2, m.scale, m.rows[0]).mT,
    "normalized, tokens first": across(lambda m, h: m.norm(h)),
}
PRODUCTS = {
    "matrix": lambda m, h: h @ square(m),
    "transposed": lambda m, h: F.linear(h, square(m)),
    "transposed, as it is": lambda m, h: h @ m.turned @ m.turned.T,
    "with a bias": lambda m, h: F.linear(h, square(m), m.scale),
    "a layer's weight and bias": lambda m, h: (
        F.linear(m.normed(h), m.outward.weight @ square(m), m.outward.bias) @ m.rows[:3]
    ),
    "on the left": lambda m, h: (square(m) @ h.mT).mT,
    "on the left of a matrix": lambda m, h: (square(m) @ h.flatten(0, 1).T).T.view_as(h),
    "scaled product and more": lambda m, h: torch.addmm(m.scale, h.flatten(0, 1), square(m), beta=2, alpha=3).view_as(
        h
    ),
    "more and a product, on the left": lambda m, h: torch.addmm(
        m.scale[:, None], square(m), h.flatten(0, 1).T, alpha=2
    ).T.view_as(h),
    "einsum": lambda m, h: torch.einsum("btd,od->bto", h, square(m)),
    "batch of matrices": lambda m, h: torch.bmm(h, square(m).expand(len(h), -1, -1)),
    "several matrices": lambda m, h: torch.einsum("bthd,hde->bthe", h.unflatten(2, (2, 2)), m.heads).flatten(2),
    "several, on the left": lambda m, h: (
        (m.heads @ h.flatten(0, 1).unflatten(1, (2, 2)).permute(1, 2, 0)).permute(2, 0, 1).reshape(h.shape)
    ),
    "vector": lambda m, h: (h @ m.scale).softmax(1)[..., None] * h,
    "vector of a matrix": lambda m, h: h * (h.mean(1) @ m.scale)[:, None, None],
    "tokens first": across(lambda m, h: h @ square(m)),
    "layer, tokens first": across(lambda m, h: m.normed(h)),
    "layer of single vectors": lambda m, h: torch.stack([m.outward(h[:, i]) for i in range(3)], 1) @ m.rows[:3],
    "spread, and a matrix": lambda m, h: (h + m.rows[0]) @ square(m),
    "spread beside a matrix": lambda m, h: (h + m.places) @ square(m),
    "made once for two": lambda m, h: (lambda w: h @ w + h.cos() @ w)(square(m).tanh()),
    "made of a product": lambda m, h: h @ (square(m) @ square(m).T).tanh(),
    "looked up": lambda m, h: h + lookup(m, h),
    "looked up in columns": lambda m, h: h @ F.embedding(h.detach().argmax(2) % 3, m.turned.t()).mT @ m.turned.T,
    "looked up with padding": lambda m, h: h + F.embedding(h.detach().argmax(2), m.rows, padding_idx=1),
    "looked up, tokens first": across(lambda m, h: h + lookup(m, h)),
    "looked up, and multiplied": lambda m, h: (h + lookup(m, h)) @ m.table.weight[:WIDTH],
    "convolution": lambda m, h: F.conv1d(h.mT, m.kernel, m.scale, groups=2, padding=1).mT,
    "convolution, sums": lambda m, h: F.conv1d(h.mT, m.kernel.tanh(), m.scale.sin(), groups=2, padding=1).mT,
    "transposed convolution": lambda m, h: F.conv_transpose1d(h.mT, m.kernel, padding=1).mT @ m.rows[:2],
    "attention": across(lambda m, h: m.attention(h, h, h, need_weights=False)[0]),
    "encoder": across(lambda m, h: m.encoder(h)),
    "recurrent cell": lambda m, h: torch.stack((m.cell(h[:, 0]), m.cell(h[:, 1], h[:, 0]), h[:, 2]), 1),
    "recurrent": across(lambda m, h: m.gru(h)[0]),
}
PER_CLASS = {
    "one for each example": lambda m, h: h + m.many,
    "an operation nothing is known of": lambda m, h: F.prelu(h.mT, m.scale).mT,
    "sparse": lambda m, h: h + torch.sparse.mm(h.detach()[:, 0].to_sparse(), square(m))[:, None],
    "checkpoint": lambda m, h: checkpoint(lambda h: torch.tanh(h @ square(m)) * m.scale, h, use_reentrant=False),
    "one place behind the other": lambda m, h: (lambda s: s + s.mean(0))(h + m.places),
}
KNOWN = {**SPREAD, **{f"product: {name}": use for name, use in PRODUCTS.items()}}
ALL = KNOWN | PER_CLASS


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_exact(name, gram):
    model, (x, y) = spread(ALL[name]), batch()
    warns = name == "one place behind the other"
    with pytest.warns(UserWarning, match="mixes the examples") if warns else nullcontext():
        grads = ClassGradients(model, gram=gram)
        for _ in range(2):
            assert_exact(model, lambda: cross_entropy(model(x), y), y, grads)


def passes(model, y):
    """Return how many times the second step sends losses back."""
    (x, _), counts = batch(), []
    grads = ClassGradients(model, Normalize())
    whole = torch.autograd.grad
    for _ in range(2):
        losses = cross_entropy(model(x), y)
        with mock.patch("torch.autograd.grad", wraps=whole) as made:
            grads.backward(losses, y)
        counts.append(sum(call.args[0] is losses for call in made.call_args_list))
    return counts[-1]


@pytest.mark.parametrize("name", KNOWN)
def test_one_pass_for_all_classes(name):
    assert passes(spread(KNOWN[name]), batch()[1]) == 1


@pytest.mark.parametrize("name", [name for name in PER_CLASS if name != "one place behind the other"])
def test_a_pass_per_class_where_anything_comes_in_another_way(name):
    assert passes(spread(PER_CLASS[name]), batch()[1]) == 4


def test_one_class_takes_one_pass_from_the_first_step_on():
    model, (x, _) = spread(PRODUCTS["encoder"]), batch()
    with mock.patch("torch.autograd.grad", wraps=torch.autograd.grad) as made:
        assert_exact(model, lambda: cross_entropy(model(x), torch.zeros(8, dtype=torch.int64)), torch.zeros(8).long())
    assert made.call_count == 2  # one is the reference's


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


def test_a_class_that_is_not_finite_spoils_no_other():
    model, (x, y) = spread(lambda m, h: h * m.scale + rows_of(m, h, *range(TOKENS))), batch()
    kept = y != 2
    gradients = flat_gradients(cross_entropy(model(x), y)[kept] * kept.sum() / len(y), y[kept], model.parameters())
    x = x.clone()
    x[y == 2] = torch.inf
    step = ClassGradients(model).backward(cross_entropy(model(x), y), y)
    assert step.skipped == {2: "nonfinite"}
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_hooks_of_parameters_are_run_on_class_gradients():
    model, (x, y) = spread(SPREAD["positions"]), batch()
    seen = []
    model.places.register_hook(lambda gradient: seen.append(gradient.norm()))
    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    assert len(seen) == 3


def test_declared_classes_that_are_missing_and_frozen_parameters():
    model, (x, y) = spread(SPREAD["number from several"]), batch()
    model.scale.requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(2).double())
    grads = ClassGradients(model, classes=5)
    step = grads.backward(cross_entropy(model(x), y), y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, [p for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(step.norms[:3], gradients.norm(dim=1))
    assert not step.norms[3:].any()
    assert model.unused.grad is None
    assert model.scale.grad is None


def test_half_precision_sums_up_to_what_autograd_does():
    shared = nn.ParameterList([torch.zeros(2, dtype=torch.bfloat16)])
    y = torch.arange(2).repeat(512)
    x = torch.zeros(1024, 2, dtype=torch.bfloat16)
    step = ClassGradients(shared).backward((x + shared[0])[:, 0], y)
    assert step.norms.tolist() == [0.5, 0.5]


def test_half_precision():
    model, (x, y) = spread(lambda m, h: h * m.scale + m.places).float(), batch()
    x = x.float()

    def losses():
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model(x), y).float()

    gradients = flat_gradients(losses(), y, model.parameters())
    step = ClassGradients(model).backward(losses(), y)
    torch.testing.assert_close(step.norms, gradients.norm(dim=1), rtol=0.02, atol=0)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=0.05, atol=0.02)


OTHERWISE = {"token", "one for each example", "mean", "scaled, and a mean of that", "one place behind the other"}
"""Those that make other shapes, or of fewer examples another function."""
USES = sorted(ALL.keys() - OTHERWISE)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(USES), min_size=1, max_size=4), st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_any_of_them_one_after_the_other(names, labels):
    def use(m, h):
        for name in names:
            h = torch.tanh(ALL[name](m, h))
        return h

    model, (x, _), y = spread(use), batch(), torch.tensor(labels)
    for gram, accumulated in itertools.product((False, True), repeat=2):
        gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
        model.zero_grad()
        grads = ClassGradients(model, gram=gram)
        if accumulated:
            for part in (slice(0, 6), slice(6, 8)):  # of 3, as there are tokens, the norm of a table would seem to mix
                grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part])
            step = grads.finalize()
        else:
            step = grads.backward(cross_entropy(model(x), y), y)
        torch.testing.assert_close(step.norms, gradients.norm(dim=1), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=1e-10, atol=1e-12)


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


def test_class_gradients_that_must_be_held_are_streamed_or_refused():
    model, (x, y) = spread(PRODUCTS["made of a product"]), batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    step = ClassGradients(model, max_memory=100).backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))
    torch.testing.assert_close(step.norms, gradients.norm(dim=1))
    with pytest.raises(InputError, match="exceed `max_memory` = 100 bytes; raise it") as caught:
        ClassGradients(model, gram=True, max_memory=100).backward(cross_entropy(model(x), y), y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["attention", "encoder", "looked up, tokens first", "convolution"])
def test_without_memory_for_class_gradients(name):
    model, (x, y) = spread(PRODUCTS[name]), batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    made = "classgrad.gradients.engines._fused.joint_terms"
    with mock.patch(made, side_effect=AssertionError), ClassGradients(model, gram=True, max_memory=0) as grads:
        gram = grads.backward(cross_entropy(model(x), y), y).gram
    torch.testing.assert_close(gram, gradients @ gradients.T)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_mixed_precision_sees_through_casts():
    model, (x, y) = spread(PRODUCTS["encoder"]).float(), batch()
    x = x.float()

    def losses():
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model(x), y).float()

    gradients = flat_gradients(losses(), y, model.parameters())
    grads = ClassGradients(model)
    for _ in range(2):
        model.zero_grad()
        with mock.patch("classgrad.gradients.engines._below.kept_terms", side_effect=AssertionError):
            step = grads.backward(losses(), y)
        torch.testing.assert_close(step.norms, gradients.norm(dim=1), rtol=0.02, atol=0)
        torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=0.05, atol=0.02)


def test_the_table_of_class_gradients_and_its_verification():
    model, (x, y) = spread(PRODUCTS["encoder"]), batch()
    grads = ClassGradients(model)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(grads.gradients(cross_entropy(model(x), y), y).matrix, gradients)
    found = grads.verify(lambda x, y: cross_entropy(model(x), y), (x, y))
    assert found.engine == "fused"
    assert found.largest < 1e-12
