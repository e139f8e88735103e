"""The kernels for class gradients as rows of one matrix, and those that make them from inputs and output gradients."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F

if find_spec("triton") is None:
    pytest.skip("needs Triton, which comes with torch's builds for CUDA", allow_module_level=True)

from ._kernels import DEVICE, SIZES, by_class, close, drawn

from classgrad.gradients import kernels  # isort: skip
from classgrad.gradients.kernels import _products as products  # isort: skip


@pytest.mark.parametrize(("classes", "width"), [(1, 5), (2, 3000), (5, 700), (19, 33), (3, 0), (301, 9)])
def test_rows_of_one_matrix(classes, width):
    kept = drawn(classes, width + 3)[:, :width]
    weights = drawn(classes)
    close(kernels.weighted_sum(kept, weights), weights.double() @ kept.double())
    close(kernels.row_square_norms(kept), kept.double().square().sum(1))


def test_norms_of_many_blocks():
    kept = drawn(2, 40_000)
    close(kernels.row_square_norms(kept), kept.double().square().sum(1))


def test_a_class_of_weight_zero_is_left_out():
    kept = drawn(4, 50)
    kept[2, 3] = float("nan")
    kept[2, 4] = float("inf")
    weights = torch.tensor([1.0, -2.0, 0.0, 0.5], device=DEVICE)
    out = torch.full((50,), float("nan"), device=DEVICE)
    assert kernels.weighted_sum(kept, weights, out) is out
    rows = [0, 1, 3]
    close(out, weights[rows].double() @ kept[rows].double())
    assert kernels.row_square_norms(kept).isnan().tolist() == [False, False, True, False]


CONVOLUTIONS = {
    "3x3": {"kernel": (3, 3), "padding": (1, 1)},
    "1x1": {},
    "stride": {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)},
    "dilation": {"kernel": (2, 3), "padding": (2, 3), "dilation": (2, 3)},
    "5x5 without padding": {"kernel": (5, 5)},
}
SETTINGS = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
ONE_TAP = products.Blocks(16, 16, 16, taps=True, warps=4, stages=2)
ALL_TAPS = products.Blocks(16, 32, 16, taps=False, warps=4, stages=2)
BLOCKS = [None, ONE_TAP, ALL_TAPS, replace(ALL_TAPS, pad=True)]


def convolution(sizes, settings, format, channels=3, outer=5, side=(6, 7)):
    """Return input, output gradient and the classes' weight gradients."""
    settings = {**SETTINGS, **settings}
    a = drawn(sum(sizes), channels, *side, format=format)
    weight = torch.zeros(outer, channels, *settings["kernel"], dtype=torch.float64, device=DEVICE)
    with_settings = settings["stride"], settings["padding"], settings["dilation"]
    shape = F.conv2d(a.double(), weight, None, *with_settings).shape
    b = drawn(*shape, format=format) - 1
    wanted = [
        torch.nn.grad.conv2d_weight(x, weight.shape, y, *with_settings) if len(x) else weight
        for x, y in zip(a.double().split(sizes), b.double().split(sizes), strict=True)
    ]
    return a, b, torch.stack(wanted).flatten(1), settings


@pytest.mark.parametrize("blocks", BLOCKS, ids=["chosen", "one tap", "all taps", "padded"])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, format, blocks):
    sizes = [2, 0, 3]
    a, b, wanted, settings = convolution(sizes, CONVOLUTIONS[name], format)
    segments = kernels.Segments(sizes, DEVICE)
    flat = torch.full((3, wanted.shape[1] + 16), 9.0, device=DEVICE)
    out = flat[:, 8:-8]
    kernels.conv_products(a, b, segments, **settings, precision="ieee", blocks=blocks, out=out)
    close(out, wanted)
    assert (flat[:, :8] == 9).all()
    assert (flat[:, -8:] == 9).all()
    taps = kernels.conv_products(a, b, segments, **settings, precision="ieee", blocks=blocks, taps_first=True)
    close(taps.view(3, -1, 5 * 3).mT.flatten(1), wanted)
    norms = kernels.conv_products(a, b, segments, **settings, precision="ieee", blocks=blocks, norms=True)
    close(norms, wanted.square().sum(1))


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("programs", [1, 10_000])
@pytest.mark.parametrize("sizes", [[4, 4], [7, 1, 0, 3], [1] * 3])
def test_convolutions_of_many_rows(sizes, programs, format, monkeypatch):
    monkeypatch.setattr(products, "_PROGRAMS", programs)
    small = {"kernel": (2, 2), "padding": (1, 1)}
    a, b, wanted, settings = convolution(sizes, small, format, side=(3, 7))
    segments = kernels.Segments(sizes, DEVICE)
    for blocks in (ONE_TAP, ALL_TAPS):
        found = [
            kernels.conv_products(a, b, segments, **settings, precision="ieee", blocks=blocks, taps_first=first)
            for first in (False, True)
        ]
        close(found[0], wanted)
        close(found[1].view(len(sizes), 4, -1).mT.flatten(1), wanted)
    close(kernels.conv_products(a, b, segments, **settings, precision="ieee", norms=True), wanted.square().sum(1))


@pytest.mark.parametrize("blocks", BLOCKS, ids=["chosen", "one tap", "all taps", "padded"])
def test_input_and_output_gradient_may_lie_in_memory_each_in_its_way(blocks):
    sizes = [2, 3]
    a, b, wanted, settings = convolution(sizes, CONVOLUTIONS["stride"], torch.contiguous_format)
    segments = kernels.Segments(sizes, DEVICE)
    for pair in ((a, _last(b)), (_last(a), b)):
        close(kernels.conv_products(*pair, segments, **settings, precision="ieee", blocks=blocks), wanted)


@pytest.mark.parametrize("programs", [1, 10_000])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("sizes", [[4, 4], [7, 1, 0, 3]])
def test_convolutions_gather_examples_that_are_not_in_class_order(sizes, format, programs, monkeypatch):
    monkeypatch.setattr(products, "_PROGRAMS", programs)
    a, b, wanted, settings = convolution(sizes, CONVOLUTIONS["3x3"], format)
    segments, order = kernels.Segments(sizes, DEVICE), torch.randperm(len(a), device=DEVICE)
    shuffled = [torch.empty_like(v).index_copy_(0, order, v) for v in (a, b)]
    for blocks in (ONE_TAP, ALL_TAPS):
        how = {"precision": "ieee", "blocks": blocks}
        close(kernels.conv_products(*shuffled, segments, **settings, **how, order=order), wanted)
        close(kernels.conv_products(a, b, segments, **settings, **how), wanted)


@pytest.mark.parametrize("programs", [1, 10_000])
@pytest.mark.parametrize("positions", [1, 5])
@pytest.mark.parametrize("sizes", [[4, 4], [7, 1, 0, 3]])
def test_rows_are_gathered_that_are_not_in_class_order(sizes, positions, programs, monkeypatch):
    monkeypatch.setattr(products, "_PROGRAMS", programs)
    a, b = drawn(sum(sizes), positions, 7), drawn(sum(sizes), positions, 18) - 1
    wanted = by_class(torch.einsum("nto,ntd->nod", b.double(), a.double()), sizes).flatten(1)
    segments, order = kernels.Segments(sizes, DEVICE), torch.randperm(len(a), device=DEVICE)
    shuffled = [torch.empty_like(v).index_copy_(0, order, v) for v in (a, b)]
    close(kernels.linear_products(*shuffled, segments, precision="ieee", order=order), wanted)
    close(kernels.linear_products(a, b, segments, precision="ieee"), wanted)


def _last(values):
    return values.contiguous(memory_format=torch.channels_last)


def test_convolutions_keep_a_bad_class_to_itself():
    sizes = [2, 1, 2]
    a, b, _, settings = convolution(sizes, CONVOLUTIONS["3x3"], torch.contiguous_format)
    a[2, 0, 0, 0] = float("nan")
    segments = kernels.Segments(sizes, DEVICE)
    found = kernels.conv_products(a, b, segments, **settings)
    assert found.isfinite().all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("sizes", [*SIZES, [200, 7, 100]])
def test_linear_layers(sizes, positions):
    segments = kernels.Segments(sizes, DEVICE)
    a, b = drawn(sum(sizes), positions, 6), drawn(sum(sizes), 5, positions).mT
    wanted = torch.stack(
        [
            torch.einsum("nto,ntd->od", y, x)
            for x, y in zip(a.double().split(sizes), b.double().split(sizes), strict=True)
        ]
    ).flatten(1)
    close(kernels.linear_products(a, b, segments, precision="ieee"), wanted)
    close(kernels.linear_products(a, b, segments, precision="ieee", norms=True), wanted.square().sum(1))
    close(kernels.linear_products(a, b, segments), wanted, 2e-3)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("tile", [16, 64])
def test_norms_without_gradients(sizes, positions, tile):
    a, b = drawn(sum(sizes), positions, 37), drawn(sum(sizes), positions, 5)
    segments = kernels.Segments(sizes, DEVICE)
    pairs = zip(a.double().split(sizes), b.double().split(sizes), strict=True)
    expected = torch.stack([torch.einsum("ntd,nto->do", left, right).square().sum() for left, right in pairs])
    close(kernels.ghost_norms(a, b, segments, tile, precision="ieee"), expected)
    shuffle = torch.randperm(len(a), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    a, b = a[shuffle], b[shuffle]
    close(kernels.ghost_norms(a, b, segments, tile, precision="ieee", order=shuffle.argsort()), expected)


def test_norms_of_classes_of_many_tiles_where_one_is_not_finite():
    sizes = [50, 3, 0, 33, 16]
    a, b = drawn(sum(sizes), 1, 8), drawn(sum(sizes), 1, 6)
    a[51], segments = torch.nan, kernels.Segments(sizes, DEVICE)
    found = kernels.ghost_norms(a, b, segments, 16, precision="ieee")
    assert found.isfinite().tolist() == [True, False, True, True, True]
    pairs = zip(a.double().split(sizes), b.double().split(sizes), strict=True)
    expected = torch.stack([(left[:, 0].T @ right[:, 0]).square().sum() for left, right in pairs])
    close(found[found.isfinite()], expected[found.isfinite()])


WEIGHTS = torch.tensor([0.5, 0.0, -2.0, 3.0], device=DEVICE)


def weighed_classes(examples):
    """Return weights with the owner of each example; the class of weight 0 has some."""
    owners = torch.arange(examples, device=DEVICE).flip(0) % len(WEIGHTS)
    return (WEIGHTS, owners), WEIGHTS.double()[owners]


@pytest.mark.parametrize("programs", [1, 10_000])
@pytest.mark.parametrize("blocks", [None, ONE_TAP, ALL_TAPS], ids=["chosen", "one tap", "all taps"])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["3x3", "1x1", "stride"])
def test_convolutions_of_weighed_examples(name, format, blocks, programs, monkeypatch):
    monkeypatch.setattr(products, "_PROGRAMS", programs)
    a, b, singles, settings = convolution([1] * 9, CONVOLUTIONS[name], format)
    weighed, factors = weighed_classes(len(a))
    wanted = factors @ singles
    a[factors == 0], b[factors == 0] = torch.nan, torch.inf
    whole = kernels.one_segment(len(a), a.device)
    out = torch.full((1, singles.shape[1]), torch.nan, device=DEVICE)
    kernels.conv_products(a, b, whole, **settings, precision="ieee", blocks=blocks, weighed=weighed, out=out)
    close(out[0], wanted)


@pytest.mark.parametrize("programs", [1, 10_000])
@pytest.mark.parametrize("positions", [1, 5])
def test_linear_layers_of_weighed_examples(positions, programs, monkeypatch):
    monkeypatch.setattr(products, "_PROGRAMS", programs)
    a, b = drawn(11, positions, 7), drawn(11, positions, 18) - 1
    weighed, factors = weighed_classes(len(a))
    wanted = torch.einsum("n,nto,ntd->od", factors, b.double(), a.double()).flatten()
    a[factors == 0], b[factors == 0] = torch.inf, torch.nan
    whole = kernels.one_segment(len(a), a.device)
    close(kernels.linear_products(a, b, whole, precision="ieee", weighed=weighed)[0], wanted)


def test_weighed_examples_may_be_gathered_by_class_too():
    sizes = [3, 0, 4]
    a, b = drawn(7, 2, 5), drawn(7, 2, 6)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    weighed, factors = weighed_classes(7)
    each = torch.einsum("n,nto,ntd->nod", factors, b.double(), a.double())[order]
    found = kernels.linear_products(
        a, b, kernels.Segments(sizes, DEVICE), precision="ieee", order=order, weighed=weighed
    )
    close(found, by_class(each, sizes).flatten(1))
