"""Of data: splits, sizes, readers that are fed garbage, encoders against scikit-learn."""

from __future__ import annotations

import io
import json
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from classgrad import InputError
from classgrad.data import Column, Dataset, Preprocessing, load, load_new
from classgrad.data._authors import AUTHORS, POOLS, authors_groups, batch_shares
from classgrad.data._labels import class_labels, stratified
from classgrad.data._profiles import exponential, geometric, step
from classgrad.data._unpickle import safe_unpickle

quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@quick
@given(
    sizes=st.lists(st.integers(3, 200), min_size=2, max_size=6),
    validation=st.floats(0, 0.4),
    test=st.floats(0, 0.4),
    seed=st.integers(0, 2**63),
    shuffle=st.randoms(use_true_random=False),
)
def test_a_stratified_split_is_a_partition_with_the_right_shares(
    sizes: list[int], validation: float, test: float, seed: int, shuffle
) -> None:
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    shuffle.shuffle(labels)
    y = np.array(labels)
    names = tuple(map(str, range(len(sizes))))
    train, validated, tested = stratified(y, names, validation=validation, test=test, seed=seed)
    assert sorted([*train, *validated, *tested]) == list(range(len(y)))
    for share, positions in ((validation, validated), (test, tested)):
        for label, size in enumerate(sizes):
            assert abs(int((y[positions] == label).sum()) - share * size) <= (1 if share else 0)
    for label in range(len(sizes)):
        assert (y[train] == label).any()
        assert (y[tested] == label).any() == (test > 0)


@quick
@given(st.lists(st.sampled_from(["a", "b", "ü", "0", " "]), min_size=2, max_size=60))
def test_class_labels_are_a_renaming_by_frequency(values: list[str]) -> None:
    assume(len(set(values)) > 1)
    y, classes = class_labels(np.array(values), "x")
    assert [classes[label] for label in y] == values
    counts = [values.count(name) for name in classes]
    assert counts == sorted(counts, reverse=True)
    assert set(classes) == set(values)


@quick
@given(st.sampled_from(sorted(AUTHORS)), st.integers(1, 60_000), st.sampled_from(["proportional", "balanced"]))
def test_the_authors_classes_all_have_the_same_number_of_whole_batches(name: str, size: int, composition: str) -> None:
    recipe = AUTHORS[name]
    try:
        groups = authors_groups(recipe, batch_size=size, composition=composition, test_per_class=None)
    except InputError:
        shares = batch_shares(recipe, size, balanced=composition == "balanced")
        assert min(shares) == 0 or max(shares) > POOLS[recipe.pool].train
        return
    shares = batch_shares(recipe, size, balanced=composition == "balanced")
    batches = {group.train // share for group, share in zip(groups, shares, strict=True)}
    assert len(batches) == 1
    assert all(group.train % share == 0 for group, share in zip(groups, shares, strict=True))
    assert max(group.train for group in groups) + max(shares) > POOLS[recipe.pool].train  # no batch more would fit
    weights = [recipe.ratio**i if composition == "proportional" else 1.0 for i in range(len(shares))]
    # in the released code's order, which decides where a share lies halfway between two numbers
    expected = [size / sum(weights) * w / len(m) for w, m in zip(weights, recipe.classes.values(), strict=True)]
    assert shares == [int(np.rint(b)) for b in expected]


@quick
@given(st.integers(10, 10_000), st.floats(1, 10), st.integers(2, 120))
def test_profiles_fall_from_the_largest_class_to_the_smallest(largest: int, imbalance: float, classes: int) -> None:
    for counts in (
        exponential(largest, imbalance, classes),
        step(largest, imbalance, classes),
        geometric(largest, imbalance ** (-1 / (classes - 1)), classes),
    ):
        assert len(counts) == classes
        assert counts[0] == largest
        assert list(counts) == sorted(counts, reverse=True)
        assert abs(counts[-1] - largest / imbalance) <= 1


PLAIN = (dict, list, tuple, bytes, str, int, float, bool, type(None), np.ndarray)


def is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(is_plain(part) for item in value.items() for part in item)
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return type(value) in PLAIN and not (isinstance(value, np.ndarray) and value.dtype.hasobject)


def value_or_refusal(call: Callable[[], object]) -> tuple[object, str]:
    """What a call returns, or the one line it refuses with."""
    try:
        return call(), ""
    except InputError as error:
        return None, str(error)


def check_unpickled(content: bytes) -> None:
    found, refusal = value_or_refusal(lambda: safe_unpickle(content, "file"))
    assert is_plain(found)
    assert "\n" not in refusal


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=80))
def test_the_unpickler_survives_garbage(content: bytes) -> None:
    check_unpickled(content)
    check_unpickled(b"\x80\x02" + content + b".")


VALID = pickle.dumps({b"data": np.arange(20, dtype=np.uint8).reshape(4, 5), b"labels": [1, 2]}, protocol=3)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=8))
def test_the_unpickler_survives_damage(changes: list[tuple[int, int]]) -> None:
    content = bytearray(VALID)
    for position, value in changes:
        content[position] = value
    check_unpickled(bytes(content))


def loads_or_says_why(path: Path, **options: object) -> Dataset | None:
    found, refusal = value_or_refusal(lambda: load(path, **options))
    assert "\n" not in refusal
    return found


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6), st.floats(0, 1))
def test_a_damaged_npz_is_loaded_or_refused(changes: list[tuple[float, int]], kept: float) -> None:
    stream = io.BytesIO()
    np.savez(stream, x=np.eye(12, dtype=np.float32), y=np.arange(12) % 2)
    content = bytearray(stream.getvalue())
    for place, value in changes:
        content[int(place * len(content))] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npz"
        path.write_bytes(content[: int(len(content) * kept)] if kept < 0.5 else content)
        loads_or_says_why(path)


cells = st.one_of(
    st.integers(-99, 99).map(str), st.sampled_from(["a", "b", "", "NA", "1.5", '"', "é", "true", "2020-01-01"])
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(cells, min_size=1, max_size=4), max_size=12),
    st.sampled_from([",", ";"]),
)
def test_any_text_is_loaded_or_refused(rows: list[list[str]], mark: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        path.write_text("\n".join([mark.join(("a", "b", "y")[: len(rows[0]) if rows else 3]), *map(mark.join, rows)]))
        data = loads_or_says_why(path, target="y")
        if data is not None:
            assert torch.isfinite(data.train.x).all()


words = st.sampled_from(["red", "green", "blue", "ümlaut", "1", " x"])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), words, st.booleans()), min_size=20, max_size=60))
def test_a_table_is_encoded_as_scikit_learn_does(rows: list[tuple[float, str, bool]]) -> None:
    numbers, texts, flags = map(list, zip(*rows, strict=True))
    labels = [("p", "q")[i % 2] for i in range(len(rows))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        pq.write_table(pa.table({"number": numbers, "text": texts, "flag": flags, "y": labels}), path)
        data = load(path, target="y")
        everything = load_new(path, Preprocessing.from_json(data.preprocessing.to_json())).x
    train = data.train.indices.numpy()
    as_column = np.array(texts, dtype=object)[:, None]
    hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(as_column[train]).transform(as_column)
    raw = np.column_stack([numbers, hot, np.array(flags, dtype=float)])
    np.testing.assert_array_equal(everything.numpy(), raw.astype(np.float32))
    scaler = StandardScaler().fit(raw[train][:, [0, -1]])
    normalized = data.preprocessing.normalize(everything, torch.float64).numpy()
    np.testing.assert_allclose(normalized[:, [0, -1]], scaler.transform(raw[:, [0, -1]]), rtol=1e-4, atol=1e-4)


names = st.text(max_size=8)
finite = st.floats(-1e9, 1e9)


@quick
@given(st.data())
def test_preprocessing_survives_json(data: st.DataObject) -> None:
    columns = data.draw(
        st.lists(
            st.builds(Column, names, st.none() | st.lists(names, min_size=1, max_size=4).map(tuple)), max_size=4
        ).map(tuple)
    )
    width = sum(len(column.features) for column in columns) or data.draw(st.integers(1, 4))
    shape = data.draw(st.just((width,)) if columns else st.sampled_from([(width,), (width, 3, 2)]))
    each = {"min_size": width, "max_size": width}
    wanted = Preprocessing(
        classes=tuple(data.draw(st.lists(names, min_size=1, max_size=5, unique=True))),
        shape=shape,
        mean=tuple(data.draw(st.lists(finite, **each))),
        std=tuple(data.draw(st.lists(st.floats(1e-9, 1e9), **each))),
        columns=columns,
        resize=data.draw(st.booleans()),
    )
    assert Preprocessing.from_json(wanted.to_json()) == wanted


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
fields = ["version", "classes", "shape", "mean", "std", "columns", "resize"]


@settings(deadline=None, max_examples=150)
@given(json_values, st.dictionaries(st.sampled_from(fields), json_values))
def test_any_other_json_is_refused_in_one_line(anything: object, changes: dict[str, object]) -> None:
    good = json.loads(Preprocessing(("a", "b"), (1,), (0.0,), (1.0,)).to_json())
    for content in (anything, {**good, **changes}):
        text = json.dumps(content)
        found, refusal = value_or_refusal(lambda text=text: Preprocessing.from_json(text))
        assert (found is None) == refusal.startswith("the preprocessing stored with the model cannot be read: ")
        assert "\n" not in refusal
