"""What only a GPU can show of the kernels: recorded and replayed, they give the same numbers to the bit."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton, which comes with torch's builds for CUDA", allow_module_level=True)

from ._kernels import drawn

from classgrad.gradients import kernels  # isort: skip

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("sizes", [[64, 64], [100, 3, 0, 25], [1] * 128])
def test_recorded(sizes):
    segments = kernels.Segments(sizes, "cuda")
    a, b = drawn(128, 32, 16, 16), drawn(128, 64, 16, 16)
    mean, rstd, weight = drawn(128, 8), drawn(128, 8), drawn(32)
    rows = [v.flatten(2).mT.contiguous() for v in (a, b)]
    row_mean, row_rstd = rows[0].mean(2), rows[0].var(2).rsqrt()
    settings = ((3, 3), (1, 1), (1, 1), (1, 1))

    def everything():
        kept = kernels.conv_products(a, b, segments, *settings)
        return [
            *kernels.group_norm_backward(b[:, :32].contiguous(), a, mean, rstd, weight, 8),
            *kernels.layer_norm_backward(rows[0] * 2, rows[0], row_mean, row_rstd, weight, segments, 32),
            *kernels.rms_norm_backward(rows[0] * 2, rows[0], None, weight, segments, 32, 1e-5),
            kernels.class_row_sums(rows[1], segments),
            kernels.class_channel_sums(b, segments),
            kept,
            kernels.conv_products(a, b, segments, *settings, norms=True),
            kernels.linear_products(*rows, segments),
            kernels.row_square_norms(kept),
            kernels.weighted_sum(kept, kept[:, 0].contiguous()),
        ]

    eager = everything()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = everything()
    for _ in range(3):
        for values in recorded:
            values.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        for ours, theirs in zip(recorded, eager, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 2e-3), ("ieee", 1e-5)])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("sizes", [[40, 40], [70, 0, 1, 9], [1] * 80])
def test_large_products(sizes, format, precision, tolerance):
    segments = kernels.Segments(sizes, "cuda")
    a, b = drawn(80, 64, 16, 16, format=format) - 0.5, drawn(80, 128, 16, 16, format=format) - 0.5
    settings = ((3, 3), (1, 1), (1, 1), (1, 1))
    windows = torch.nn.functional.unfold(a.double(), 3, 1, 1)
    each = torch.einsum("nop,nkp->nok", b.double().flatten(2), windows).flatten(1)
    wanted = torch.stack([part.sum(0) for part in each.split(sizes)])
    found = kernels.conv_products(a, b, segments, *settings, precision=precision)
    assert ((found - wanted).norm(dim=1) <= tolerance * wanted.norm(dim=1)).all()
    norms = kernels.conv_products(a, b, segments, *settings, precision=precision, norms=True)
    torch.testing.assert_close(norms.double(), wanted.square().sum(1), rtol=2 * tolerance, atol=0)
