"""PCNSGD+R: the weights of Alg. 5, what is done about projections near or below zero, and the authors' form."""

import pytest
import torch

from classgrad import InputError, Rescale
from classgrad.rules._rescale import product_of_others

from ._statistics import GRADIENTS, statistics_of

NORMS = GRADIENTS.norm(dim=1)


def weights(projections, active=None, **options):
    """The rule's weights in units of PCN's."""
    p = torch.tensor(projections, dtype=torch.float64)
    gradients = torch.eye(len(projections), dtype=torch.float64) * 2
    active = None if active is None else torch.tensor(active)
    return (Rescale(**options)(statistics_of(gradients, active=active, projections=p)) * 2).tolist()


def test_the_weights_of_the_paper():
    p = torch.tensor([0.5, 0.9, 1.0], dtype=torch.float64)
    found = Rescale(floor=0.0)(statistics_of(GRADIENTS, projections=p))
    torch.testing.assert_close(found, 1 / (p * NORMS))


def test_every_class_moves_alike_along_its_full_batch_direction():
    """⟨w_l g_l, G_l/‖G_l‖⟩ = 1 for every class: what the rescaling is for."""
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    batch = full + 0.5 * torch.randn(3, 5, generator=generator, dtype=torch.float64)
    unit = full / full.norm(dim=1, keepdim=True)
    p = (batch * unit).sum(1) / batch.norm(dim=1)
    found = Rescale(floor=0.0)(statistics_of(batch, projections=p))
    torch.testing.assert_close((found[:, None] * batch * unit).sum(1), torch.ones(3).double())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"on_negative": "skip", "floor": 0.1}, [2.0, 10.0, 0.0, 0.0]),
        ({"on_negative": "skip", "floor": 0.0}, [2.0, 100.0, 0.0, 0.0]),
        ({"on_negative": "clamp", "floor": 0.1}, [2.0, 10.0, 10.0, 10.0]),
        ({"on_negative": "keep", "floor": 0.1}, [2.0, 10.0, 0.0, -4.0]),
        ({"on_negative": "keep", "floor": 0.0}, [2.0, 100.0, 0.0, -4.0]),
    ],
)
def test_small_zero_and_negative_projections(options, expected):
    assert weights([0.5, 0.01, 0.0, -0.25], **options) == pytest.approx(expected)


def test_the_defaults():
    rule = Rescale()
    assert (rule.every, rule.floor, rule.on_negative, rule.form) == (5, 0.1, "skip", "paper")
    assert rule.needs == {"norms", "projections"}
    assert rule.separable


def test_the_authors_form_is_the_papers_times_the_product_of_all():
    p = torch.tensor([0.5, 0.9, -0.3], dtype=torch.float64)
    statistics = statistics_of(GRADIENTS, projections=p)
    authors = Rescale(form="authors")(statistics)
    torch.testing.assert_close(authors, torch.stack([p[1] * p[2], p[0] * p[2], p[0] * p[1]]) / NORMS)
    paper = Rescale(floor=0.0, on_negative="keep")(statistics)
    torch.testing.assert_close(authors, paper * p.prod())
    assert not Rescale(form="authors").separable


def test_a_zero_projection_in_the_authors_form():
    assert weights([0.5, 0.0, 0.25], form="authors") == pytest.approx([0.0, 0.125, 0.0])


def test_inactive_classes_do_not_reach_others():
    p = [0.5, float("nan"), 0.25]
    active = [True, False, True]
    assert weights(p, active, form="authors")[::2] == pytest.approx([0.25, 0.5])
    assert weights(p, active)[::2] == pytest.approx([2.0, 4.0])


def test_one_class():
    assert weights([0.5], form="authors") == [1.0]
    assert weights([0.5]) == [2.0]


@pytest.mark.parametrize("values", [[2.0], [2.0, 3.0], [0.0, 3.0, 5.0], [0.0, 0.0, 2.0, 1.5]])
def test_product_of_others(values):
    p = torch.tensor(values)
    expected = [float(torch.cat([p[:i], p[i + 1 :]]).prod()) for i in range(len(p))]
    assert product_of_others(p).tolist() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "Parameter `every` should be a whole number of at least 1. Found 0."),
        ({"floor": 1.0}, "Parameter `floor` should be at least 0 and below 1. Found 1.0."),
        ({"floor": -0.1}, "Parameter `floor` should be at least 0 and below 1. Found -0.1."),
        ({"on_negative": "flip"}, "Parameter `on_negative` should be one of skip, clamp, keep. Found 'flip'."),
        ({"form": "mine"}, "Parameter `form` should be one of paper, authors. Found 'mine'."),
        (
            {"on_negative": "clamp", "floor": 0.0},
            "Parameter `floor` should be above 0 with on_negative='clamp'. Found 0.",
        ),
    ],
)
def test_wrong_parameters(options, message):
    with pytest.raises(InputError) as caught:
        Rescale(**options)
    assert str(caught.value) == message
