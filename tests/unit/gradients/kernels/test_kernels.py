"""The kernels against torch in double precision: on the GPU, or through Triton's interpreter where it is installed."""

from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F

if find_spec("triton") is None:
    pytest.skip("needs Triton, which comes with torch's builds for CUDA", allow_module_level=True)

from ._kernels import DEVICE, SIZES, by_class, close, drawn

from classgrad.gradients import kernels  # isort: skip
from classgrad.gradients.kernels import _group_norm  # isort: skip

FORMATS = [torch.contiguous_format, torch.channels_last]


def reference_group_norm(dy, x, groups, weight, eps=1e-5):
    """Return mean, rstd, dx and every example's own parameter gradients."""
    x, dy = x.double().requires_grad_(), dy.double()
    grouped = x.detach().reshape(len(x), groups, -1)
    mean, rstd = grouped.mean(2), (grouped.var(2, correction=0) + eps).rsqrt()
    F.group_norm(x, groups, None if weight is None else weight.double(), eps=eps).backward(dy)
    normal = F.group_norm(x.detach(), groups, eps=eps)
    flat = [v.reshape(*v.shape[:2], -1).sum(2) for v in (dy * normal, dy)]
    return mean.float(), rstd.float(), x.grad, *flat


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((5, 8, 4, 4), 2), ((3, 12, 3, 5), 3), ((2, 32, 1, 1), 8), ((4, 6, 2, 2), 2), ((1, 4, 9, 9), 1)],
)
@pytest.mark.parametrize("elements", [None, 16])
def test_group_norm(shape, groups, format, affine, elements, monkeypatch):
    if elements:  # large groups are summed first
        monkeypatch.setattr(_group_norm, "_ELEMENTS", elements)
    x, dy = drawn(*shape, format=format), drawn(*shape[::-1]).permute(3, 2, 1, 0)
    weight = drawn(shape[1]) if affine else None
    mean, rstd, *wanted = reference_group_norm(dy, x, groups, weight)
    found = kernels.group_norm_backward(dy, x, mean, rstd, weight, groups)
    assert found[0].is_contiguous(memory_format=format)
    for ours, theirs in zip(found, wanted, strict=True):
        close(ours, theirs)
    for ours, theirs in zip(kernels.group_norm_sums(dy, x, mean, rstd, groups), wanted[1:], strict=True):
        close(ours, theirs)


def test_group_norm_of_other_dimensions():
    for shape in ((3, 8), (3, 8, 5), (2, 4, 2, 3, 2)):
        x, dy, weight = drawn(*shape), drawn(*shape) * 2, drawn(shape[1])
        mean, rstd, *wanted = reference_group_norm(dy, x, 2, weight)
        for ours, theirs in zip(kernels.group_norm_backward(dy, x, mean, rstd, weight, 2), wanted, strict=True):
            close(ours, theirs)


def test_group_norm_keeps_a_bad_example_to_itself():
    x, weight = drawn(4, 8, 3, 3), drawn(8)
    dy = x.flip(1).clone()
    dy[1, 2, 0, 0] = float("nan")
    mean, rstd, *_ = reference_group_norm(dy, x, 2, weight)
    for found in kernels.group_norm_backward(dy, x, mean, rstd, weight, 2):
        assert found.isfinite().flatten(1).all(1).tolist() == [True, False, True, True]


@pytest.mark.parametrize("chunk", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("rows", [1, 3])
def test_slots_never_meet(sizes, rows, chunk):
    segments = kernels.Segments(sizes, DEVICE)
    chunks = segments.cut(rows, chunk)
    offsets = segments.offsets.tolist()
    used = []
    for label, size in enumerate(sizes):
        first = label * chunks.uniform if chunks.uniform else offsets[label] * rows // chunk + label
        used += range(first, first - (-size * rows // chunk))
    assert len(set(used)) == len(used)
    assert not used or max(used) < chunks.slots


@pytest.mark.parametrize(("positions", "wide"), [(1, 6), (3, 150), (40, 6)])
@pytest.mark.parametrize("sizes", SIZES)
def test_class_sums(sizes, positions, wide):
    segments = kernels.Segments(sizes, DEVICE)
    b = drawn(sum(sizes), positions, wide)
    wanted = by_class(b.double().sum(1), sizes)
    close(kernels.class_row_sums(b, segments), wanted)
    close(kernels.class_row_sums(b.mT.contiguous().mT, segments), wanted)
    close(kernels.class_channel_sums(b.mT, segments), wanted)
    close(kernels.class_channel_sums(b.mT.contiguous(), segments), wanted)
    close(kernels.class_channel_sums(b[:, 0], segments), by_class(b[:, 0].double(), sizes))


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("sizes", SIZES)
def test_class_sums_of_shuffled_examples(sizes, positions):
    """They are gathered as they are read, and may be written to columns of a wider matrix."""
    segments = kernels.Segments(sizes, DEVICE)
    grouped = drawn(sum(sizes), positions, 6)
    order = torch.randperm(len(grouped), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    b = torch.empty_like(grouped)
    b[order] = grouped
    wanted = by_class(grouped.double().sum(1), sizes)
    close(kernels.class_row_sums(b, segments, order=order), wanted)
    out = drawn(len(sizes), 10)
    beside = out[:, 8:].clone()
    kernels.class_row_sums(b, segments, order=order, out=out[:, 2:8])
    close(out[:, 2:8], wanted)
    assert out[:, 8:].equal(beside)


def test_class_sums_of_many_chunks(monkeypatch):
    sizes = [70, 1, 33]
    segments = kernels.Segments(sizes, DEVICE)
    whole = segments.cut
    monkeypatch.setattr(segments, "cut", lambda rows, size: whole(rows, 1))
    b = drawn(sum(sizes), 2, 5)
    close(kernels.class_row_sums(b, segments), by_class(b.double().sum(1), sizes))
    out = drawn(3, 9)
    kernels.class_row_sums(b, segments, out=out[:, 1:6])
    close(out[:, 1:6], by_class(b.double().sum(1), sizes))
    close(kernels.class_channel_sums(b.mT.contiguous(), segments), by_class(b.double().sum(1), sizes))


@pytest.mark.parametrize(("shape", "affine"), [((4,), True), ((3, 6), True), ((3, 2, 300), False)])
@pytest.mark.parametrize("sizes", [*SIZES, [1] * 100])
def test_layer_norm(sizes, shape, affine):
    segments = kernels.Segments(sizes, DEVICE)
    width = shape[-1]
    x, dy = drawn(sum(sizes), *shape), drawn(sum(sizes), *shape[:-1], width + 1)[..., 1:]
    weight = drawn(width) if affine else None
    exact = x.double().requires_grad_()
    out, mean, rstd = torch.native_layer_norm(exact, (width,), None if weight is None else weight.double(), None, 1e-5)
    out.backward(dy.double())
    normal = F.layer_norm(exact.detach(), (width,))
    wanted = [by_class((v * dy.double()).reshape(len(x), -1, width).sum(1), sizes) for v in (normal, normal**0)]
    found = kernels.layer_norm_backward(dy, x, mean.float(), rstd.float(), weight, segments, width)
    for ours, theirs in zip(found, [exact.grad, *wanted], strict=True):
        close(ours, theirs)
    only = kernels.layer_norm_backward(dy, x, mean.float(), rstd.float(), weight, segments, width, with_input=False)
    assert only[0] is None
    assert torch.equal(only[1], found[1])


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_rms_norm(sizes, saved):
    segments = kernels.Segments(sizes, DEVICE)
    x, dy, weight = drawn(sum(sizes), 3, 6), drawn(sum(sizes), 3, 6) * 2, drawn(6)
    exact = x.double().requires_grad_()
    F.rms_norm(exact, (6,), weight.double(), 1e-3).backward(dy.double())
    rstd = (exact.detach().square().mean(2) + 1e-3).rsqrt()
    wanted = by_class((exact.detach() * rstd[..., None] * dy.double()).sum(1), sizes)
    found = kernels.rms_norm_backward(dy, x, rstd.float() if saved else None, weight, segments, 6, 1e-3)
    close(found[0], exact.grad)
    close(found[1], wanted)


@pytest.mark.filterwarnings("ignore:invalid value")  # from the interpreter's arithmetic
def test_a_bad_class_stays_alone():
    sizes = [2, 1, 3]
    segments = kernels.Segments(sizes, DEVICE)
    x = drawn(6, 3, 6)
    dy = x.flip(0).clone()
    dy[2, 1, 1] = float("inf")
    mean, rstd = x.mean(2), x.var(2, correction=0).rsqrt()
    for found in (
        *kernels.layer_norm_backward(dy, x, mean, rstd, None, segments, 6)[1:],
        kernels.class_row_sums(dy, segments),
        kernels.class_channel_sums(dy.mT.contiguous(), segments),
    ):
        assert found.isfinite().all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("format", FORMATS)
def test_weighed_examples_leave_out_those_of_weight_zero(format):
    a, b = drawn(5, 3, 7, 9, format=format), drawn(5, 40)
    a[1], b[1, 3], b[3] = torch.inf, torch.nan, torch.inf
    weights, owners = torch.tensor([2.0, 0.0, -0.5], device=DEVICE), torch.tensor([2, 1, 0, 1, 2], device=DEVICE)
    factors = weights[owners]
    found, scaled = kernels.weigh_examples(a, b, weights, owners)
    assert found.stride() == a.stride()
    torch.testing.assert_close(found, a.where((factors != 0).view(-1, 1, 1, 1), 0.0), rtol=0, atol=0)
    wanted = (b * factors[:, None]).where((factors != 0)[:, None], 0.0)
    torch.testing.assert_close(scaled, wanted, rtol=0, atol=0)
    spread = weights.repeat_interleave(3)[::3]
    torch.testing.assert_close(kernels.weigh_examples(b, a, spread, owners)[0], b.where((factors != 0)[:, None], 0.0))
    assert all(not part.numel() for part in kernels.weigh_examples(a[:0], b[:0], weights, owners[:0]))
