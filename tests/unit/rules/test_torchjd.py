"""TorchJD's weightings as rules, against TorchJD's own aggregators."""

import pytest
import torch
from torchjd import aggregation

from classgrad import ClassGradients, InputError, Normalize, Sum, from_torchjd

from ._statistics import GRADIENTS, direction, statistics_of

PAIRS = {
    "mean": (aggregation.MeanWeighting(), aggregation.Mean()),
    "sum": (aggregation.SumWeighting(), aggregation.Sum()),
    "mgda": (aggregation.MGDAWeighting(), aggregation.MGDA()),
    "imtl-g": (aggregation.IMTLGWeighting(), aggregation.IMTLG()),
    "aligned": (aggregation.AlignedMTLWeighting(), aggregation.AlignedMTL()),
    "krum": (aggregation.KrumWeighting(n_byzantine=0), aggregation.Krum(n_byzantine=0)),
    "constant": (aggregation.ConstantWeighting(w := torch.tensor([1.0, 2, 3]).double()), aggregation.Constant(w)),
}
JACOBIAN = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", PAIRS)
def test_the_direction_is_that_of_the_aggregator(name):
    weighting, aggregator = PAIRS[name]
    torch.testing.assert_close(direction(from_torchjd(weighting), JACOBIAN), aggregator(JACOBIAN))


@pytest.mark.parametrize("name", ["mgda", "imtl-g", "mean"])
def test_inactive_classes_are_not_shown(name):
    weighting, _ = PAIRS[name]
    gradients = torch.cat([JACOBIAN, torch.full((1, 7), torch.nan).double()])
    active = torch.tensor([True, True, True, False])
    weights = from_torchjd(weighting)(statistics_of(gradients, active=active))
    assert weights[3] == 0
    torch.testing.assert_close(weights[:3], from_torchjd(weighting)(statistics_of(JACOBIAN)))


def test_no_class_left():
    weights = from_torchjd(PAIRS["mean"][0])(statistics_of(JACOBIAN, active=torch.zeros(3, dtype=torch.bool)))
    assert weights.tolist() == [0.0, 0.0, 0.0]


def test_any_function_of_the_gram_matrix():
    rule = from_torchjd(lambda gram: gram.diagonal().rsqrt())
    torch.testing.assert_close(direction(rule, GRADIENTS), direction(Normalize(), GRADIENTS))
    torch.testing.assert_close(direction(from_torchjd(lambda g: torch.ones(len(g))), GRADIENTS), GRADIENTS.sum(0))


def test_rules_of_torchjd_on_a_model():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).double()
    x, y = torch.randn(9, 4).double(), torch.arange(9) % 3

    def losses():
        return torch.nn.functional.cross_entropy(model(x), y, reduction="none")

    matrix = ClassGradients(model, Sum()).gradients(losses(), y).matrix
    rule = from_torchjd(aggregation.MGDAWeighting())
    assert rule.needs == {"norms", "gram"}
    assert not rule.separable
    ClassGradients(model, rule).backward(losses(), y)
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, aggregation.MGDA()(matrix))
    assert repr(rule) == "from_torchjd(MGDAWeighting())"


@pytest.mark.parametrize("weighting", [None, 3, torch.ones(3)])
def test_what_is_not_callable(weighting):
    with pytest.raises(InputError, match=r"^Parameter `weighting` should be callable on a Gram matrix"):
        from_torchjd(weighting)


@pytest.mark.parametrize("aggregator", [aggregation.MGDA(), aggregation.Mean(), aggregation.ConFIG()])
def test_an_aggregator_would_give_numbers_too_but_wrong_ones(aggregator):
    name = type(aggregator).__name__
    with pytest.raises(InputError) as caught:
        from_torchjd(aggregator)
    assert str(caught.value) == (
        f"Parameter `weighting` should be a weighting, not an aggregator: {name} returns a direction; "
        f"use {name}Weighting()."
    )


def test_a_weighting_of_another_shape():
    with pytest.raises(InputError, match=r"one weight per row of the Gram matrix, 3. Found shape \(3, 3\)"):
        from_torchjd(lambda gram: gram)(statistics_of(JACOBIAN))
