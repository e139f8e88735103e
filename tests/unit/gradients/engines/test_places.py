"""Parameters that come to the examples outside of layers: exact, and all by the one backward pass."""

import itertools
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from classgrad import ClassGradients, InputError

from .._reference import assert_exact, batch, cross_entropy, flat_grad, flat_gradients, unit_sum
from ._uses import ALL, KNOWN, PER_CLASS, PRODUCTS, SPREAD, TOKENS, passes, rows_of, spread


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_exact(name, gram):
    model, (x, y) = spread(ALL[name]), batch()
    warns = name == "one place behind the other"
    with pytest.warns(UserWarning, match="mixes the examples") if warns else nullcontext():
        grads = ClassGradients(model, gram=gram)
        for _ in range(2):
            assert_exact(model, lambda: cross_entropy(model(x), y), y, grads)


@pytest.mark.parametrize("name", KNOWN)
def test_one_pass_for_all_classes(name):
    assert passes(spread(KNOWN[name]), batch()[1]) == 1


@pytest.mark.parametrize("name", [name for name in PER_CLASS if name != "one place behind the other"])
def test_a_pass_per_class_where_anything_comes_in_another_way(name):
    assert passes(spread(PER_CLASS[name]), batch()[1]) == 4


def test_one_class_takes_one_pass_from_the_first_step_on():
    model, (x, _) = spread(PRODUCTS["encoder"]), batch()
    with mock.patch("torch.autograd.grad", wraps=torch.autograd.grad) as made:
        assert_exact(model, lambda: cross_entropy(model(x), torch.zeros(8, dtype=torch.int64)), torch.zeros(8).long())
    assert made.call_count == 2  # one is the reference's


def test_a_class_that_is_not_finite_spoils_no_other():
    model, (x, y) = spread(lambda m, h: h * m.scale + rows_of(m, h, *range(TOKENS))), batch()
    kept = y != 2
    gradients = flat_gradients(cross_entropy(model(x), y)[kept] * kept.sum() / len(y), y[kept], model.parameters())
    x = x.clone()
    x[y == 2] = torch.inf
    step = ClassGradients(model).backward(cross_entropy(model(x), y), y)
    assert step.skipped == {2: "nonfinite"}
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_hooks_of_parameters_are_run_on_class_gradients():
    model, (x, y) = spread(SPREAD["positions"]), batch()
    seen = []
    model.places.register_hook(lambda gradient: seen.append(gradient.norm()))
    ClassGradients(model).backward(cross_entropy(model(x), y), y)
    assert len(seen) == 3


def test_declared_classes_that_are_missing_and_frozen_parameters():
    model, (x, y) = spread(SPREAD["number from several"]), batch()
    model.scale.requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(2).double())
    grads = ClassGradients(model, classes=5)
    step = grads.backward(cross_entropy(model(x), y), y)
    gradients = flat_gradients(cross_entropy(model(x), y), y, [p for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(step.norms[:3], gradients.norm(dim=1))
    assert not step.norms[3:].any()
    assert model.unused.grad is None
    assert model.scale.grad is None


def test_half_precision_sums_up_to_what_autograd_does():
    shared = nn.ParameterList([torch.zeros(2, dtype=torch.bfloat16)])
    y = torch.arange(2).repeat(512)
    x = torch.zeros(1024, 2, dtype=torch.bfloat16)
    step = ClassGradients(shared).backward((x + shared[0])[:, 0], y)
    assert step.norms.tolist() == [0.5, 0.5]


def test_half_precision():
    model, (x, y) = spread(lambda m, h: h * m.scale + m.places).float(), batch()
    x = x.float()

    def losses():
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model(x), y).float()

    gradients = flat_gradients(losses(), y, model.parameters())
    step = ClassGradients(model).backward(losses(), y)
    torch.testing.assert_close(step.norms, gradients.norm(dim=1), rtol=0.02, atol=0)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=0.05, atol=0.02)


OTHERWISE = {"token", "one for each example", "mean", "scaled, and a mean of that", "one place behind the other"}
"""Those that make other shapes, or of fewer examples another function."""
USES = sorted(ALL.keys() - OTHERWISE)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(USES), min_size=1, max_size=4), st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_any_of_them_one_after_the_other(names, labels):
    def use(m, h):
        for name in names:
            h = torch.tanh(ALL[name](m, h))
        return h

    model, (x, _), y = spread(use), batch(), torch.tensor(labels)
    for gram, accumulated in itertools.product((False, True), repeat=2):
        gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
        model.zero_grad()
        grads = ClassGradients(model, gram=gram)
        if accumulated:
            for part in (slice(0, 6), slice(6, 8)):  # of 3, as there are tokens, the norm of a table would seem to mix
                grads.accumulate(cross_entropy(model(x[part]), y[part]), y[part])
            step = grads.finalize()
        else:
            step = grads.backward(cross_entropy(model(x), y), y)
        torch.testing.assert_close(step.norms, gradients.norm(dim=1), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=1e-10, atol=1e-12)


def test_class_gradients_that_must_be_held_are_streamed_or_refused():
    model, (x, y) = spread(PRODUCTS["made of a product"]), batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    step = ClassGradients(model, max_memory=100).backward(cross_entropy(model(x), y), y)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))
    torch.testing.assert_close(step.norms, gradients.norm(dim=1))
    with pytest.raises(InputError, match="more than `max_memory` = 100; raise it, or use a rule") as caught:
        ClassGradients(model, gram=True, max_memory=100).backward(cross_entropy(model(x), y), y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["attention", "encoder", "looked up, tokens first", "convolution"])
def test_without_memory_for_class_gradients(name):
    model, (x, y) = spread(PRODUCTS[name]), batch()
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    made = "classgrad.gradients.engines._fused.joint_terms"
    with mock.patch(made, side_effect=AssertionError), ClassGradients(model, gram=True, max_memory=0) as grads:
        gram = grads.backward(cross_entropy(model(x), y), y).gram
    torch.testing.assert_close(gram, gradients @ gradients.T)
    torch.testing.assert_close(flat_grad(model), unit_sum(gradients))


def test_mixed_precision_sees_through_casts():
    model, (x, y) = spread(PRODUCTS["encoder"]).float(), batch()
    x = x.float()

    def losses():
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model(x), y).float()

    gradients = flat_gradients(losses(), y, model.parameters())
    grads = ClassGradients(model)
    for _ in range(2):
        model.zero_grad()
        with mock.patch("classgrad.gradients.engines._below.kept_terms", side_effect=AssertionError):
            step = grads.backward(losses(), y)
        torch.testing.assert_close(step.norms, gradients.norm(dim=1), rtol=0.02, atol=0)
        torch.testing.assert_close(flat_grad(model), unit_sum(gradients), rtol=0.05, atol=0.02)


def test_the_table_of_class_gradients_and_its_verification():
    model, (x, y) = spread(PRODUCTS["encoder"]), batch()
    grads = ClassGradients(model)
    gradients = flat_gradients(cross_entropy(model(x), y), y, model.parameters())
    torch.testing.assert_close(grads.gradients(cross_entropy(model(x), y), y).matrix, gradients)
    found = grads.verify(lambda x, y: cross_entropy(model(x), y), (x, y))
    assert found.engine == "fused"
    assert found.largest < 1e-12
