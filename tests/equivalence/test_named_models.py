"""The paper's three networks, and a BERT, a ViT and an LSTM, by every way the fused engine may take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from classgrad import models

from ._case import OUTPUTS, Case, Layout, Network, randomize
from ._models import LENGTH, VOCABULARY, Bert, Lstm, Vit
from ._oracles import STRATEGIES, Strategy, fused, joint, plain_gradients, split, torchjd_gram
from .test_generated_networks import assert_equals_plain_autograd, assert_near

Y = torch.tensor([4, 0, 4, 1, 0])
"""Three classes of unequal size, one of a single example, with a gap."""


def case_of(model: torch.nn.Module, x: Tensor, *, covered: bool = True, whole: bool = False) -> Case:
    y = Y[: len(x)]
    return Case(Network(model.double(), x, covered=covered, whole=whole), Layout(y, None, y.remainder(OUTPUTS)))


def images(size: int) -> Tensor:
    return torch.randn(len(Y), 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (len(Y), LENGTH), generator=torch.Generator().manual_seed(0))


def own(model: torch.nn.Module, x: Tensor, **facts: bool) -> Case:
    return case_of(randomize(model, torch.Generator().manual_seed(1)), x, **facts)


def last(case: Case) -> Case:
    """Weights and images with their channels side by side in memory."""
    case.network.model = case.model.to(memory_format=torch.channels_last)
    case.network.x = case.network.x.to(memory_format=torch.channels_last)
    return case


SMALL: dict[str, Callable[[], Case]] = {
    "simple_cnn": lambda: case_of(models.simple_cnn(OUTPUTS, image_size=8), images(8)),
    "simple_cnn, channels last": lambda: last(case_of(models.simple_cnn(OUTPUTS, image_size=8), images(8))),
    "bert": lambda: own(Bert(), tokens(), covered=False, whole=True),
    "vit": lambda: own(Vit(), images(8), whole=True),
    "lstm": lambda: own(Lstm(), tokens(), covered=False),
}
LARGE: dict[str, Callable[[], Case]] = {
    "resnet18": lambda: case_of(models.resnet18(OUTPUTS), images(32)[:3]),
    "resnet18, channels last": lambda: last(case_of(models.resnet18(OUTPUTS), images(32)[:3])),
    "vgg16": lambda: case_of(models.vgg16(OUTPUTS, dropout=0.0), images(32)[:3]),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_models_by_every_way(name: str) -> None:
    case = SMALL[name]()
    gradients = plain_gradients(case)
    for strategy in STRATEGIES:
        assert_equals_plain_autograd(fused(case, strategy), gradients, 1e-10)
    for found in (fused(case, None), joint(case), split(case), split(case, chunk=1)):
        assert_equals_plain_autograd(found, gradients, 1e-10)
    if name != "lstm":  # its backward does not run under vmap
        assert_near(torchjd_gram(case), gradients @ gradients.T, 1e-10)


@pytest.mark.parametrize("name", LARGE)
def test_the_papers_large_networks(name: str) -> None:
    case = LARGE[name]()
    gradients = plain_gradients(case)
    for strategy in (None, Strategy(ghost=True, rows=True, max_memory=0)):
        assert_equals_plain_autograd(fused(case, strategy, table=False), gradients, 1e-10)
    for found in (joint(case), split(case)):
        assert_equals_plain_autograd(found, gradients, 1e-10)
    if "channels last" not in name:  # vmap does not know it
        assert_near(torchjd_gram(case), gradients @ gradients.T, 1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_single_precision(name: str) -> None:
    case = SMALL[name]()
    case.model.float()
    case.network.x = case.network.x.float() if case.network.x.is_floating_point() else case.network.x
    case.dtype = torch.float32
    assert_equals_plain_autograd(fused(case, None), plain_gradients(case), 1e-5)
