"""Places to work in: what is good until when, and how recordings come to work in a step's own memory."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from classgrad.gradients.layers._conv import padded
from classgrad.gradients.terms._scratch import Area, Needs, Scratch, is_small

DTYPES = (torch.uint8, torch.float16, torch.float32, torch.float64)
ASKED = st.lists(
    st.tuples(
        st.sampled_from(["place", "fresh", "fresh_like"]),
        st.sampled_from("abc"),
        st.lists(st.integers(0, 30), min_size=1, max_size=3).map(tuple),
        st.sampled_from(DTYPES),
    ),
    max_size=12,
)


def ask(area, way, use, shape, dtype):
    like = torch.empty(shape, dtype=dtype).mT if way == "fresh_like" and len(shape) > 1 else torch.empty(0, dtype=dtype)
    out = area.fresh_like(use, like) if way == "fresh_like" else getattr(area, way)(use, shape, like)
    if way == "fresh_like":
        assert out.stride() == like.stride()
        assert out.shape == like.shape
    else:
        assert out.shape == shape
    assert out.dtype == dtype
    return out


def span(values):
    return values.data_ptr(), values.data_ptr() + values.numel() * values.element_size()


def inside(values, memory):
    (start, stop), (first, last) = span(values), span(memory)
    return first <= start and stop <= last


@given(ASKED, st.sampled_from([0, 200, 10**6]))
def test_what_was_asked_for_before_comes_from_the_steps_memory(asked, small):
    with mock.patch("classgrad.gradients.terms._scratch._SMALL", small):
        needs = Needs()
        first = Area(needs, needs.memory(torch.empty(0)))
        for each in asked:
            ask(first, *each)
        memory = needs.memory(torch.empty(0))
        area = Area(needs, memory)
        found = [(way, use, ask(area, way, use, *how)) for way, use, *how in asked]
        assert area.complete
        large = [(way, use, v) for way, use, v in found if v.numel() and (way != "place" or v.nbytes > small)]
        assert first.complete == (not large)
        for number, (way, use, values) in enumerate(large):
            assert memory is not None
            assert inside(values, memory)
            start, stop = span(values)
            for other_way, other_use, other in large[:number]:
                if (way, use) != ("place", other_use) or other_way != "place":
                    assert stop <= span(other)[0] or span(other)[1] <= start


def test_more_than_was_known_comes_by_itself_and_is_known_the_next_time():
    needs, like = Needs(), torch.empty(0)
    with mock.patch("classgrad.gradients.terms._scratch._SMALL", 0):
        Area(needs, None).place("a", (100,), like)
        memory = needs.memory(like)
        area = Area(needs, memory)
        assert inside(area.place("a", (10, 9), like), memory)
        assert area.complete
        assert not inside(area.place("a", (200,), like), memory)
        assert not inside(area.place("a", (150,), like), memory)
        assert not area.complete
        memory = needs.memory(like)
        assert inside(Area(needs, memory).place("a", (200,), like), memory)


def test_only_small_memory_is_kept_from_step_to_step():
    needs, like = Needs(), torch.empty(0)
    Area(needs, None).fresh("a", (1000,), like)
    small = needs.memory(like)
    assert is_small(small)
    assert needs.memory(like) is small
    Area(needs, None).fresh("b", (10**6,), like)
    large = needs.memory(like)
    assert not is_small(large)
    assert needs.memory(like) is not large


def test_memory_that_is_kept_stays_where_it_is_until_more_is_needed():
    needs, like = Needs(), torch.empty(0)
    Area(needs, None).fresh("a", (1000,), like)
    kept = needs.memory(like)
    Area(needs, None).fresh("a", (900,), like)
    assert needs.memory(like) is kept
    Area(needs, None).fresh("a", (1200,), like)
    assert needs.memory(like) is not kept


def test_a_cpu_works_in_the_same_places_again():
    scratch, like = Scratch(), torch.empty(0)
    assert scratch.place("a", (3, 4), like).data_ptr() == scratch.place("a", (2, 2), like).data_ptr()
    assert scratch.place("b", (3, 4), like).data_ptr() != scratch.place("a", (3, 4), like).data_ptr()
    assert scratch.fresh("a", (3, 4), like).data_ptr() != scratch.place("a", (3, 4), like).data_ptr()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [(2,), (1, 0), (0, 3), (1, 2, 0)])
def test_padded(padding, last):
    scratch = Scratch()
    for size in (5, 3, 6):
        x = torch.randn(2, 3, *(size + k for k in range(len(padding))))
        wanted = F.pad(x, [p for p in reversed(padding) for _ in range(2)])
        found = padded(x, padding, scratch, last)
        assert torch.equal(found, wanted)
        assert found.stride(1) == 1 or not last


def test_gathered_and_contiguous():
    scratch = Scratch()
    values, order = torch.randn(5, 3), torch.tensor([4, 0, 0])
    assert torch.equal(scratch.gathered("a", values, order), values[order])
    assert scratch.contiguous("a", values) is values
    turned = scratch.contiguous("a", values.T)
    assert turned.is_contiguous()
    assert torch.equal(turned, values.T)
