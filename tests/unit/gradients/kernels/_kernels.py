"""Kernels run on the GPU, or by Triton's interpreter where there is none; imported before any kernel is."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported


pytest.importorskip("triton", reason="needs Triton, which comes with torch's builds for CUDA")

from triton.runtime import interpreter  # noqa: E402

_patch = interpreter._patch_lang_tensor


def _with_index(tensor, *rest):
    """Let NumPy 2.4 take the interpreter's numbers, arrays of one element, for the bounds of a range."""
    scope = _patch(tensor, *rest)
    target = rest[0] if rest else scope
    if hasattr(target, "set_attr"):
        target.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
    else:
        tensor.__index__ = lambda self: self.handle.data.item()
    return scope


interpreter._patch_lang_tensor = _with_index


def drawn(*shape, format=torch.contiguous_format):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))
    return (values + 0.5).to(DEVICE).contiguous(memory_format=format)


def by_class(values, sizes):
    return torch.stack([part.sum(0) for part in values.split(sizes)])


def close(found, wanted, tolerance=1e-5):
    assert found.dtype == torch.float32
    assert found.shape == wanted.shape
    scale = wanted.abs().max().clamp_min(1e-30) if wanted.numel() else 1.0
    torch.testing.assert_close(found.double() / scale, wanted / scale, rtol=0, atol=tolerance)


SIZES = [[3, 3, 3], [1, 4, 0, 2], [0, 7], [5], [1] * 9, [0, 0, 2, 0]]
