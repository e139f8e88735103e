from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from classgrad import InputError
from classgrad.data._unpickle import safe_unpickle


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_of_python_2_is_read(kit: ModuleType, order: str) -> None:
    data = np.array(np.arange(12, dtype=np.uint8).reshape(3, 4), order=order)
    found = safe_unpickle(kit.py2_pickle({b"labels": [1, 300, 70000], b"data": data}), "batch")
    assert found[b"labels"] == [1, 300, 70000]
    np.testing.assert_array_equal(found[b"data"], data)


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("dtype", ["<u1", "<i8", ">i4", "<f8", "|b1"])
def test_arrays_of_numbers_are_read(protocol: int, dtype: str) -> None:
    array = np.array([[1, 0, 1], [0, 1, 1]], dtype=dtype)
    found = safe_unpickle(pickle.dumps({"x": array, "more": [(1, 2.5, None, True, "a", b"b")]}, protocol), "batch")
    np.testing.assert_array_equal(found["x"], array)
    assert found["x"].dtype == array.dtype
    assert found["more"] == [(1, 2.5, None, True, "a", b"b")]


class _Harmful:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_something_is_refused(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made by the pickle"
    content = pickle.dumps({"data": _Harmful(target)}, protocol)
    with pytest.raises(InputError, match=r"batch is not a file of plain arrays and lists: it names .*mkdir"):
        safe_unpickle(content, "batch")
    assert not target.exists()


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
ARRAY = RECONSTRUCT + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R"
DTYPE = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"

HOSTILE = {
    "eval": b"cbuiltins\neval\n(U\x011tR.",
    "old-style instance": b"(ios\nsystem\n.",
    "old-style object": b"(cos\nsystem\nU\x01xo.",
    "persistent id": b"Psomething\n.",
    "extension registry": b"\x82\x01.",
    "another name of numpy": b"cnumpy\nload\n.",
    "the class itself": b"cnumpy\nndarray\n.",
    "the dtype itself": b"cnumpy\ndtype\n.",
    "a bare dtype": DTYPE + b".",
    "array without content": ARRAY + b".",
    "objects for numbers": ARRAY + b"(K\x01K\x01\x85" + b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R" + b"\x89](K\x01etb.",
    "content that is no bytes": ARRAY + b"(K\x01K\x01\x85" + DTYPE + b"\x89](K\x01etb.",
    "dtype that is none": ARRAY + b"(K\x01K\x01\x85K\x05\x89U\x01atb.",
    "shape that does not fit": ARRAY + b"(K\x01K\x07\x85" + DTYPE + b"\x89U\x01atb.",
    "unknown byte order": DTYPE + b"(K\x03U\x01xNNNK\x00K\x00K\x00tb.",
    "attributes for the stand-in": RECONSTRUCT + b"}U\x01aK\x01sb.",
    "attributes for its class": b"cnumpy\nndarray\n}U\x01aK\x01sb.",
    "array made by hand": b"cnumpy\nndarray\n]\x85R.",
    "a set": pickle.dumps({1, 2}),
    "a complex number": pickle.dumps(1j),
    "an ordered dict": pickle.dumps(OrderedDict(a=1)),
    "a key that is an array": b"}" + ARRAY + b"(K\x01K\x01\x85" + DTYPE + b"\x89U\x01atb" + b"K\x01s.",
    "a list that holds itself": b"]\x94h\x00a.",
    "nothing": b"",
    "no pickle": b"\x00\x01\x02",
    "cut short": pickle.dumps({b"labels": list(range(100))})[:-20],
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_anything_but_plain_data_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match=r"^batch is not a file of plain arrays and lists: .+$"):
        safe_unpickle(content, "batch")
