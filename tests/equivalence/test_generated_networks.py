"""Every engine on networks nobody chose, against plain autograd and against TorchJD."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ._case import Case, Layout, Network, layouts
from ._images import images
from ._oracles import STRATEGIES, Found, fused, joint, plain_gradients, split, torchjd_gram
from ._sequences import bags, sequences
from ._vectors import vectors

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

FAMILIES = {"images": images, "sequences": sequences, "bags": bags, "vectors": vectors}
EXAMPLES = {"images": 120, "sequences": 90, "bags": 30, "vectors": 90}


@st.composite
def cases(draw: st.DrawFn, family: Any, dtype: torch.dtype) -> Case:
    layout: Layout = draw(layouts())
    network: Network = draw(family(layout))
    network.model.to(dtype)
    network.x = _as(network.x, dtype)
    return Case(network, layout, dtype)


def _as(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, tuple):
        return tuple(_as(part, dtype) for part in x)
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def assert_near(found: Tensor, expected: Tensor, tolerance: float, scale: Tensor | None = None) -> None:
    """The error is relative to the largest of what is expected, or of what that is a sum of."""
    largest = float((expected if scale is None else scale).abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * max(largest, 1e-300))


def assert_equals_plain_autograd(found: Found, gradients: Tensor, tolerance: float) -> None:
    norms = gradients.norm(dim=1)
    unit = gradients / norms.where(norms > 0, 1.0)[:, None]
    assert_near(found.norms, norms, tolerance)
    assert_near(found.direction, unit.sum(0), tolerance, unit)  # unit vectors may all but cancel
    if found.gram is not None:  # products of two: twice the relative error
        assert_near(found.gram, gradients @ gradients.T, 2 * tolerance)
    if found.matrix is not None:
        assert_near(found.matrix, gradients, tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_engine_agrees_in_double_precision(family: str) -> None:
    @settings(deadline=None, derandomize=True, max_examples=EXAMPLES[family])
    @given(cases(FAMILIES[family], torch.float64), st.sampled_from(STRATEGIES), st.none() | st.integers(1, 3))
    def check(case: Case, strategy: Any, chunk: int | None) -> None:
        gradients = plain_gradients(case)
        for found in (fused(case, strategy), joint(case), split(case, chunk)):
            assert_equals_plain_autograd(found, gradients, 1e-10)
        if case.network.vectorized:
            present = [label in case.layout.y for label in sorted(case.layout.declared or [])] or slice(None)
            rows = gradients[present]
            assert_near(torchjd_gram(case), rows @ rows.T, 1e-10)

    check()


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_agrees_in_single_precision(family: str) -> None:
    @settings(deadline=None, derandomize=True, max_examples=EXAMPLES[family] // 6)
    @given(cases(FAMILIES[family], torch.float32), st.sampled_from(STRATEGIES))
    def check(case: Case, strategy: Any) -> None:
        assert_equals_plain_autograd(fused(case, strategy), plain_gradients(case), 1e-5)

    check()
