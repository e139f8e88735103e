"""The rules that need no reference, on gradients whose directions can be written down."""

import math

import pytest
import torch

from classgrad import Bisect, InputError, Normalize, Prefer, Rescale, Rule, Sum
from classgrad.rules import ClassStatistics
from classgrad.rules._rule import inverse, required

from ._statistics import GRADIENTS, direction, statistics_of


def test_sum_is_the_plain_gradient():
    torch.testing.assert_close(direction(Sum(), GRADIENTS), GRADIENTS.sum(0))


def test_sum_needs_nothing():
    weights = Sum()(ClassStatistics(torch.arange(3), torch.tensor([True, False, True])))
    assert weights.tolist() == [1.0, 1.0, 1.0]
    assert Sum().needs == frozenset()


def test_normalize_is_the_sum_of_unit_gradients():
    expected = torch.tensor([1.0, 1.0, 0.0]) + 1 / math.sqrt(3)
    torch.testing.assert_close(direction(Normalize(), GRADIENTS), expected.double())


def test_normalize_adds_eps_to_the_norms():
    weights = Normalize(eps=0.5)(statistics_of(GRADIENTS))
    torch.testing.assert_close(weights, 1 / (torch.tensor([3.0, 4.0, math.sqrt(3)]).double() + 0.5))


@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_normalize_gives_a_class_without_gradient_no_weight(eps):
    gradients = GRADIENTS.clone()
    gradients[1] = 0
    weights = Normalize(eps=eps)(statistics_of(gradients))
    assert weights[1] == 0
    assert weights.isfinite().all()


def test_bisect_of_orthogonal_gradients():
    """3 and 4 at a right angle: both classes move 5/√2."""
    torch.testing.assert_close(
        direction(Bisect(), GRADIENTS[:2]), torch.tensor([5.0, 5.0, 0.0]).double() / math.sqrt(2)
    )


def test_bisect_has_the_plain_gradients_length_and_pcns_direction():
    found = direction(Bisect(), GRADIENTS)
    pcn, plain = direction(Normalize(), GRADIENTS), GRADIENTS.sum(0)
    torch.testing.assert_close(found.norm(), plain.norm())
    torch.testing.assert_close(found / found.norm(), pcn / pcn.norm())


def test_bisect_of_unit_gradients_that_cancel_is_zero():
    for gradients in ([[1.0, 0.0], [-2.0, 0.0]], [[1.541, 0.3], [-1.541 * 0.19, -0.3 * 0.19]]):
        for dtype in (torch.float32, torch.float64):
            weights = Bisect()(statistics_of(torch.tensor(gradients, dtype=dtype)))
            assert weights.tolist() == [0.0, 0.0]


def test_bisect_of_one_class_is_the_plain_gradient():
    torch.testing.assert_close(direction(Bisect(), GRADIENTS[2:]), GRADIENTS[2])


@pytest.mark.parametrize("rule", [Sum(), Normalize(), Bisect(), Rescale(floor=0.0)], ids=repr)
def test_preferences_multiply_the_weights(rule):
    projections = torch.tensor([0.5, 0.8, 1.0]).double()
    statistics = statistics_of(GRADIENTS, projections=projections)
    weights = rule(statistics)
    torch.testing.assert_close(Prefer(rule, {2: 5.0})(statistics), weights * torch.tensor([1, 1, 5]))
    torch.testing.assert_close(Prefer(rule, [0.0, 2.0])(statistics), weights * torch.tensor([0, 2, 1]))
    assert Prefer(rule, {}).needs == rule.needs
    assert Prefer(rule, {}).separable == rule.separable
    assert Prefer(rule, {}).per == rule.per


def test_preferences_go_by_label():
    statistics = ClassStatistics(torch.tensor([-2, 4, 9]), torch.tensor([True] * 3))
    assert Prefer(Sum(), {4: 2.0, -2: 3.0, 7: 10.0})(statistics).tolist() == [3.0, 2.0, 1.0]


def test_preferences_on_preferences():
    statistics = statistics_of(GRADIENTS)
    rule = Prefer(Prefer(Normalize(per="layer"), {0: 2.0}), {0: 3.0})
    assert rule(statistics)[0] == pytest.approx(6 / 3)
    assert rule.per == "layer"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalize(per="net"), "Parameter `per` should be one of model, layer, parameter. Found 'net'."),
        (lambda: Normalize(eps=-1e-3), "Parameter `eps` should be at least 0. Found -0.001."),
        (lambda: Normalize(eps=math.nan), "Parameter `eps` should be at least 0. Found nan."),
        (
            lambda: Prefer(Sum(), {3: -1.0}),
            "Parameter `preferences` should hold finite weights of at least 0. Found -1.0",
        ),
        (
            lambda: Prefer(Sum(), [math.inf]),
            "Parameter `preferences` should hold finite weights of at least 0. Found inf",
        ),
        (lambda: Prefer(Normalize, {}), "Parameter `rule` should be a rule such as Normalize(). Found <class"),
    ],
)
def test_wrong_parameters(make, message):
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [Sum, Bisect, Normalize, lambda: Normalize("layer", 0.5), Rescale])
def test_reprs_make_the_rule_again(make):
    rule = make()
    names = {"Sum": Sum, "Bisect": Bisect, "Normalize": Normalize, "Rescale": Rescale, "Prefer": Prefer}
    assert vars(eval(repr(rule), names)) == vars(rule)
    again = eval(repr(Prefer(rule, {1: 2.0})), names)
    assert again.preferences == {1: 2.0}
    assert type(again.rule) is type(rule)


def test_rules_are_what_they_say():
    assert [rule.separable for rule in (Sum(), Normalize(), Bisect())] == [True, True, False]
    assert "gram" in Bisect().needs
    assert "gram" not in Normalize().needs
    with pytest.raises(TypeError):
        Rule()


def test_a_rule_that_forgot_to_say_what_it_needs():
    with pytest.raises(RuntimeError, match="a rule read a statistic it does not list in `needs`"):
        required(None)
    with pytest.raises(RuntimeError, match="does not list"):
        Bisect()(ClassStatistics(torch.arange(1), torch.tensor([True]), torch.ones(1)))


def test_inverse_never_divides_by_zero():
    values = torch.tensor([0.0, 2.0, math.nan], requires_grad=True)
    found = inverse(values, torch.tensor([False, True, False]))
    assert found.tolist() == [0.0, 0.5, 0.0]
    found.sum().backward()
    assert values.grad.isfinite().all()


@pytest.mark.parametrize("preferences", [None, {"a": 1}, {1.7: 2}, ["x"]])
def test_preferences_of_another_kind_are_refused(preferences):
    with pytest.raises(InputError, match="Parameter `preferences` should map labels to weights, or list weights"):
        Prefer(Sum(), preferences)
