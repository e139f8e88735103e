"""Each layer rule with its options, one layer at a time, by every way the engine may take."""

import copy
import math
import warnings
from dataclasses import replace
from itertools import product
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from classgrad import ClassGradients, Normalize
from classgrad.gradients.layers import _normalization
from classgrad.gradients.layers._conv import windows
from classgrad.gradients.terms._scratch import Scratch

from .._reference import cross_entropy, flat_grad, flat_gradients, unit_sum

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype"),
]

EXAMPLES = 6
Y = torch.tensor([2, 0, 0, 2, 0, 5])
"""Three classes of unequal size, out of order."""
EQUAL = torch.tensor([1, 0, 2, 1, 2, 0])


def values(*shape):
    return torch.randn(EXAMPLES, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens(*shape):
    return torch.randint(5, (EXAMPLES, *shape), generator=torch.Generator().manual_seed(2))


class Called(nn.Module):
    """A layer called in a particular way."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer = layer
        self.call = call

    def forward(self, x):
        return self.call(self.layer, x)


def nested(layer, x, layout):
    """Call it with as many copies of each example as its place says."""
    parts = [v.expand(number, -1) for number, v in enumerate(x, 1)]
    return layer(torch.nested.as_nested_tensor(parts, layout=layout)).to_padded_tensor(0.0)


OFFSETS = torch.tensor([0, 2, 2, 3, 6, 6, 8])
WEIGHTS = torch.linspace(-1, 1, 8, dtype=torch.float64)

LAYERS = {
    "linear": (nn.Linear(4, 3), values(4)),
    "linear without bias": (nn.Linear(4, 3, bias=False), values(4)),
    "linear over positions": (nn.Linear(4, 3), values(2, 3, 4)),
    "linear by keyword": (Called(nn.Linear(4, 3), lambda layer, x: layer(input=x)), values(4)),
    "linear of an expanded input": (nn.Linear(4, 3), values(4)[:, None].expand(-1, 3, -1)),
    "conv1d": (nn.Conv1d(2, 3, 3, stride=2, padding=1), values(2, 7)),
    "conv1d with padding 'same' that is not even": (nn.Conv1d(2, 3, 4, padding="same"), values(2, 7)),
    "conv1d, valid": (nn.Conv1d(2, 3, 2, padding="valid", bias=False), values(2, 7)),
    "conv2d": (nn.Conv2d(2, 4, (2, 3), stride=(1, 2), padding=(1, 0), dilation=(2, 1)), values(2, 6, 5)),
    "conv2d in groups": (nn.Conv2d(4, 4, 3, groups=2, padding=1), values(4, 4, 4)),
    "conv2d by depth": (nn.Conv2d(3, 6, 3, groups=3), values(3, 4, 4)),
    "conv2d of one position": (nn.Conv2d(2, 3, 4), values(2, 4, 4)),
    "conv2d, channels last": (nn.Conv2d(3, 4, 3), values(3, 5, 5).to(memory_format=torch.channels_last)),
    "conv2d, transposed memory": (nn.Conv2d(3, 4, 3), values(3, 5, 6).transpose(2, 3)),
    "conv2d with tail that no kernel sees": (nn.Conv2d(2, 3, 2, stride=3), values(2, 7, 7)),
    "conv3d": (nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=(0, 1, 0)), values(2, 3, 4, 3)),
    "transposed conv1d": (nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), values(2, 4)),
    "transposed conv2d": (nn.ConvTranspose2d(4, 2, 3, stride=2, dilation=2, groups=2), values(4, 3, 3)),
    "transposed conv2d of a given size": (
        Called(nn.ConvTranspose2d(2, 3, 3, stride=2), lambda layer, x: layer(x, output_size=[8, 8])),
        values(2, 3, 3),
    ),
    "transposed conv3d": (nn.ConvTranspose3d(2, 2, 2, stride=2), values(2, 2, 2, 2)),
    "embedding": (nn.Embedding(5, 3), tokens(4)),
    "embedding of one token": (nn.Embedding(5, 3), tokens()),
    "embedding over images of tokens": (nn.Embedding(5, 3), tokens(2, 3)),
    "embedding with padding": (nn.Embedding(5, 3, padding_idx=1), tokens(4)),
    "embedding of nothing but padding": (nn.Embedding(5, 3, padding_idx=1), torch.ones(EXAMPLES, 2).long()),
    "embedding of bounded norm": (nn.Embedding(5, 3, max_norm=0.5), tokens(4)),
    "embedding of small integers": (nn.Embedding(5, 3), tokens(4).int()),
    "embedding, sparse": (nn.Embedding(5, 3, sparse=True), tokens(4)),
    "bag": (nn.EmbeddingBag(5, 3, mode="sum"), tokens(4)),
    "bag of means with padding": (nn.EmbeddingBag(5, 3, padding_idx=0), tokens(4)),
    "bag of means of nothing but padding": (nn.EmbeddingBag(5, 3, padding_idx=1), torch.ones(EXAMPLES, 2).long()),
    "bag by offsets": (
        Called(nn.EmbeddingBag(5, 3), lambda layer, x: layer(torch.arange(8) % 5, OFFSETS[:-1]) * x),
        values(1),
    ),
    "bag by offsets with the last, weighted": (
        Called(
            nn.EmbeddingBag(5, 3, mode="sum", include_last_offset=True),
            lambda layer, x: layer(torch.arange(8) % 5, offsets=OFFSETS, per_sample_weights=WEIGHTS) * x,
        ),
        values(1),
    ),
    "layer norm": (nn.LayerNorm(4), values(4)),
    "layer norm over positions": (nn.LayerNorm(4), values(3, 4)),
    "layer norm over two dimensions": (nn.LayerNorm((3, 4)), values(2, 3, 4)),
    "layer norm without bias": (nn.LayerNorm(4, bias=False), values(3, 4)),
    "rms norm": (nn.RMSNorm(4), values(3, 4)),
    "rms norm by keyword": (Called(nn.RMSNorm(4, eps=0.1), lambda layer, x: layer(x=x)), values(3, 4)),
    "group norm": (nn.GroupNorm(2, 4), values(4, 3, 3)),
    "group norm, channels last": (  # alone, torch's own backward crashes
        nn.Sequential(nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4)),
        values(4, 3, 3).to(memory_format=torch.channels_last),
    ),
    "instance norm": (nn.InstanceNorm2d(3, affine=True), values(3, 4, 4)),
    "instance norm in 1d": (nn.InstanceNorm1d(3, affine=True), values(3, 4)),
    "instance norm in 3d": (nn.InstanceNorm3d(3, affine=True), values(3, 2, 2, 2)),
    "instance norm, tracking": (nn.InstanceNorm2d(3, affine=True, track_running_stats=True), values(3, 4, 4)),
    "instance norm, tracked": (nn.InstanceNorm2d(3, affine=True, track_running_stats=True).eval(), values(3, 4, 4)),
    "batch norm of vectors, evaluating": (nn.BatchNorm1d(4).eval(), values(4)),
    "batch norm in 1d, evaluating": (nn.BatchNorm1d(4).eval(), values(4, 3)),
    "batch norm in 2d, evaluating": (nn.BatchNorm2d(4, eps=0.1).eval(), values(4, 3, 3)),
    "batch norm in 3d, evaluating": (nn.BatchNorm3d(4).eval(), values(4, 2, 2, 2)),
    "prelu": (nn.PReLU(), values(4)),
    "prelu per channel": (nn.PReLU(3), values(3, 4, 4)),
    "prelu per channel of vectors": (nn.PReLU(4), values(4)),
}
FALLS_BACK = {
    "embedding scaled by frequency": (nn.Embedding(5, 3, scale_grad_by_freq=True), tokens(4)),
    "bag of maxima": (nn.EmbeddingBag(5, 3, mode="max"), tokens(4)),
    "conv1d of the batch as one long example": (Called(nn.Conv1d(4, 3, 1), lambda layer, x: layer(x.mT).mT), values(4)),
    "instance norm of the batch as one example": (
        Called(nn.InstanceNorm1d(EXAMPLES, affine=True), lambda layer, x: layer(x)),
        values(4),
    ),
    "layer norm over the batch": (nn.LayerNorm((EXAMPLES, 4)), values(4)),
    "linear of single vectors": (
        Called(nn.Linear(4, 3), lambda layer, x: torch.stack([layer(v) for v in x])),
        values(4),
    ),
    "linear of a sparse input": (Called(nn.Linear(4, 3), lambda layer, x: layer(x.to_sparse())), values(4)),
    "linear of a sparse input by rows": (Called(nn.Linear(4, 3), lambda layer, x: layer(x.to_sparse_csr())), values(4)),
    "linear of nested examples": (Called(nn.Linear(4, 3), lambda layer, x: nested(layer, x, torch.strided)), values(4)),
    "linear of jagged examples": (Called(nn.Linear(4, 3), lambda layer, x: nested(layer, x, torch.jagged)), values(4)),
    "subclass": (type("Mine", (nn.PReLU,), {})(4), values(4)),
}


def losses_of(model, x):
    out = model(x)
    return (out.flatten(1) if out.dim() > 1 else out[:, None]).sin().square().sum(1)


def prepared(model):
    """Return a copy, so that tests leave nothing behind for others, with parameters that are always the same."""
    generator = torch.Generator().manual_seed(3)
    model = copy.deepcopy(model).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return model


WAYS = [*product((False, True), (False, True), (0, 2**30))]
"""Ghost norms or not, patches as rows or not, and how much memory; only matrices and convolutions have the choice."""


@pytest.mark.parametrize("labels", [Y, EQUAL], ids=["unequal", "equal"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer_rules_by_every_way(name, labels):
    model, x = LAYERS[name]
    model = prepared(model)
    gradients = flat_gradients(losses_of(model, x), labels, model.parameters())
    refusal = AssertionError("a rule should cover this layer")
    chooses = any(isinstance(m, (nn.Linear, _ConvNd)) for m in model.modules())
    for ghost, rows, memory in WAYS if chooses else WAYS[:2]:
        layers = "classgrad.gradients.layers"
        with (
            mock.patch(f"{layers}._linear.ghost_is_cheaper", return_value=ghost),
            mock.patch(f"{layers}._conv.ghost_is_cheaper", return_value=ghost),
            mock.patch(f"{layers}._conv.rows_are_cheaper", return_value=rows),
            mock.patch("classgrad.gradients.engines._fused.joint_terms", side_effect=refusal),
            mock.patch("classgrad.gradients.engines._engines.joint_terms", side_effect=refusal),
            ClassGradients(model, max_memory=memory, classes=[0, 1, 2, 3, 5]) as grads,
            ClassGradients(model, gram=True, max_memory=memory) as with_gram,
        ):
            model.zero_grad()
            step = grads.backward(losses_of(model, x), labels)
            found = flat_grad(model)
            gram = with_gram.backward(losses_of(model, x), labels).gram
        torch.testing.assert_close(step.norms[step.counts > 0], gradients.norm(dim=1), rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(found, unit_sum(gradients), rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(gram, gradients @ gradients.T, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", FALLS_BACK)
def test_what_no_rule_covers_is_exact_too(name):
    model, x = FALLS_BACK[name]
    model = prepared(model)
    gradients = flat_gradients(losses_of(model, x), Y, model.parameters())
    with mock.patch("classgrad.gradients.engines._fused.joint_terms", wraps=_joint()) as fallback:
        ClassGradients(model, Normalize()).backward(losses_of(model, x), Y)
    assert fallback.called
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=1e-11, atol=1e-13)


def _joint():
    from classgrad.gradients.engines._joint import joint_terms

    return joint_terms


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("name", ["linear", "conv2d", "group norm", "layer norm", "instance norm", "transposed conv1d"])
def test_half_frozen_layers(name, frozen):
    model, x = LAYERS[name]
    model = prepared(model)
    getattr(model, frozen).requires_grad_(False)
    gradients = flat_gradients(losses_of(model, x), Y, model.parameters())
    model.zero_grad()
    ClassGradients(model).backward(losses_of(model, x), Y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=1e-11, atol=1e-13)
    assert getattr(model, frozen).grad is None


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "name", ["linear", "linear without bias", "conv1d, valid", "conv2d", "conv2d in groups", "transposed conv1d"]
)
def test_an_input_that_is_not_finite_spoils_its_class_alone(name, value):
    model, x = LAYERS[name]
    model = prepared(model)
    kept = Y != 2
    gradients = flat_gradients(losses_of(model, x)[kept] * kept.sum() / EXAMPLES, Y[kept], model.parameters())
    x = x.clone()
    x[0] = value
    for ghost, rows, memory in WAYS:
        layers = "classgrad.gradients.layers"
        with (
            mock.patch(f"{layers}._linear.ghost_is_cheaper", return_value=ghost),
            mock.patch(f"{layers}._conv.ghost_is_cheaper", return_value=ghost),
            mock.patch(f"{layers}._conv.rows_are_cheaper", return_value=rows),
        ):
            model.zero_grad()
            with ClassGradients(model, max_memory=memory) as grads:
                step = grads.backward(losses_of(model, x), Y)
            found = flat_grad(model)
            with ClassGradients(model, gram=True, max_memory=memory) as grads:
                gram = grads.backward(losses_of(model, x), Y).gram
        assert step.skipped == {2: "nonfinite"}
        torch.testing.assert_close(found, unit_sum(gradients), rtol=1e-11, atol=1e-13)
        assert not gram[1].isfinite().any()
        torch.testing.assert_close(gram[::2, ::2], gradients @ gradients.T, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("rows_bytes", [1, 100])
def test_patches_made_in_parts(rows_bytes):
    """Rows of few classes at a time, by the cost table's limit."""
    from classgrad.gradients.terms import _cost

    model, x = LAYERS["conv2d"]
    model = prepared(model)
    gradients = flat_gradients(losses_of(model, x), Y, model.parameters())
    cpu = _cost._RATES["cpu"]
    small = {"cpu": replace(cpu, rows_bytes=rows_bytes)}
    for ghost in (False, True):
        with (
            mock.patch.dict(_cost._RATES, small),
            mock.patch("classgrad.gradients.layers._conv.ghost_is_cheaper", return_value=ghost),
            mock.patch("classgrad.gradients.layers._conv.rows_are_cheaper", return_value=True),
        ):
            step = ClassGradients(model, classes=[0, 1, 2, 5]).backward(losses_of(model, x), Y)
        torch.testing.assert_close(step.norms[[0, 2, 3]], gradients.norm(dim=1))


@pytest.mark.parametrize(("inputs", "outputs"), [(0, 3), (4, 0)])
def test_linear_layers_without_inputs_or_outputs(inputs, outputs):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd = nn.Linear(inputs, outputs)
            self.last = nn.Linear(4 + outputs, 3)

        def forward(self, x):
            return self.last(torch.cat((x, self.odd(x[:, :inputs])), 1))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's: there is nothing to initialize
        model = Odd().double()
    torch.manual_seed(0)
    x, y = torch.randn(6, 4).double(), torch.arange(6) % 2
    found = ClassGradients(model).backward(cross_entropy(model(x), y), y)
    expected = ClassGradients(model, engine="joint").backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(found.norms, expected.norms)


@pytest.mark.parametrize("labels", [Y, EQUAL], ids=["unequal", "equal"])
@pytest.mark.parametrize("ghost", [False, True])
def test_a_linear_layer_over_no_positions(ghost, labels):
    model = prepared(nn.Linear(4, 3))
    with mock.patch("classgrad.gradients.layers._linear.ghost_is_cheaper", return_value=ghost):
        step = ClassGradients(model).backward(losses_of(model, values(0, 4)), labels)
    assert step.norms.eq(0).all()
    assert model.weight.grad.eq(0).all()


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_patches_are_those_of_torch_and_flattened_without_a_copy(format):
    layer = nn.Conv2d(3, 4, (2, 3), stride=(1, 2), dilation=(2, 1))
    x = values(3, 7, 9).to(memory_format=format)
    rows = windows(x, layer(x.float()).shape[2:], layer, Scratch())
    wanted = nn.functional.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride)
    assert torch.equal(rows, wanted.mT)
    assert rows.flatten(0, 1).data_ptr() == rows.data_ptr()
    behind = windows(x, layer(x.float()).shape[2:], layer, Scratch(), last=True)
    kernel = math.prod(layer.kernel_size)
    assert torch.equal(behind, wanted.mT.unflatten(2, (3, kernel)).mT.flatten(2))
    assert behind.flatten(0, 1).data_ptr() == behind.data_ptr()


@pytest.mark.parametrize("at_a_time", [1, 12, 13, 100, 2**18])
def test_products_of_channels_a_few_at_a_time(at_a_time, monkeypatch):
    monkeypatch.setattr(_normalization, "_PRODUCTS", at_a_time)
    b, x = values(4, 5), values(4, 5).flip(2)
    torch.testing.assert_close(_normalization._channel_dot(b, x), (b * x).sum(2))
