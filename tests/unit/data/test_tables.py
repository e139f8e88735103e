from __future__ import annotations

import datetime
import decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from classgrad import InputError
from classgrad.data import Column, Preprocessing, load, load_new

N = 60
COLUMNS = {
    "age": [20.5 + i for i in range(N)],
    "city": [["Bern", "Zürich", "Genf"][i % 3] for i in range(N)],
    "member": [i % 4 == 0 for i in range(N)],
    "visits": list(range(N)),
    "churn": ["yes" if i % 5 == 0 else "no" for i in range(N)],
}


def written(tmp_path: Path, suffix: str, columns: dict[str, list] | pa.Table = COLUMNS) -> Path:
    path = tmp_path / f"people{suffix}"
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        mark = {".csv": ",", ".tsv": "\t", ".CSV": ","}[suffix]
        rows = [table.column_names, *zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)]
        path.write_text("".join(mark.join("" if cell is None else str(cell) for cell in row) + "\n" for row in rows))
    return path


def expected_features(rows: np.ndarray, cities: list[str]) -> np.ndarray:
    columns = [[COLUMNS["age"][i] for i in rows]]
    columns += [[float(COLUMNS["city"][i] == city) for i in rows] for city in cities]
    columns += [[float(COLUMNS["member"][i]) for i in rows], [float(i) for i in rows]]
    return np.array(columns, dtype=np.float32).T


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".CSV", ".parquet"])
def test_a_table(tmp_path: Path, suffix: str) -> None:
    data = load(written(tmp_path, suffix), target="churn")
    assert data.classes == ("no", "yes")
    assert data.counts == {"train": (34, 8), "validation": (7, 2), "test": (7, 2)}
    cities = ["Bern", "Genf", "Zürich"]
    assert data.preprocessing.columns == (
        Column("age"),
        Column("city", tuple(cities)),
        Column("member"),
        Column("visits"),
    )
    for split in data.splits.values():
        rows = split.indices.numpy()
        np.testing.assert_array_equal(split.x.numpy(), expected_features(rows, cities))
        assert [data.classes[y] for y in split.y] == [COLUMNS["churn"][i] for i in rows]
    train = expected_features(data.train.indices.numpy(), cities).astype(np.float64)
    numbers = [0, 4, 5]
    np.testing.assert_allclose(np.array(data.mean)[numbers], train.mean(axis=0)[numbers])
    np.testing.assert_allclose(np.array(data.std)[numbers], train.std(axis=0)[numbers])
    assert data.mean[1:4] == (0.0, 0.0, 0.0)  # categories stay 0 and 1
    assert data.std[1:4] == (1.0, 1.0, 1.0)


def test_csv_and_parquet_are_the_same_data(tmp_path: Path) -> None:
    found = [load(written(tmp_path, suffix), target="churn").fingerprint for suffix in (".csv", ".tsv", ".parquet")]
    assert len(set(found)) == 1
    assert load(tmp_path / "people.csv", target="churn", drop=["visits"]).fingerprint != found[0]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([int(i % 5 == 0) for i in range(N)], ("0", "1")),
        ([float(i % 5 == 0) for i in range(N)], ("0", "1")),
        ([i % 5 == 0 for i in range(N)], ("False", "True")),
        (pa.array(COLUMNS["churn"]).dictionary_encode(), ("no", "yes")),
        (pa.array(COLUMNS["churn"], pa.large_string()), ("no", "yes")),
    ],
)
def test_kinds_of_targets(tmp_path: Path, values: object, classes: tuple[str, ...]) -> None:
    path = written(tmp_path, ".parquet", pa.table({"age": COLUMNS["age"], "churn": values}))
    assert load(path, target="churn").classes == classes


def test_kinds_of_features(tmp_path: Path) -> None:
    columns = {
        "word": pa.array(COLUMNS["city"]).dictionary_encode(),
        "long": pa.array(COLUMNS["city"], pa.large_string()),
        "money": pa.array([decimal.Decimal(i) / 4 for i in range(N)], pa.decimal128(10, 2)),
        "churn": COLUMNS["churn"],
    }
    data = load(written(tmp_path, ".parquet", pa.table(columns)), target="churn")
    categories = [f"{column}={city}" for column in ("word", "long") for city in ("Bern", "Genf", "Zürich")]
    assert data.preprocessing.features == (*categories, "money")
    np.testing.assert_array_equal(data.train.x[:, 6].numpy(), data.train.indices.numpy() / 4)


def test_columns_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, ".csv")
    assert load(path, target="churn", drop="city").preprocessing.features == ("age", "member", "visits")
    assert load(path, target="churn", drop=["city", "age"]).preprocessing.features == ("member", "visits")


def test_another_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(written(tmp_path, ".csv").read_text().replace(",", ";"))
    assert load(path, target="churn", delimiter=";").counts["train"] == (34, 8)
    with pytest.raises(InputError, match=r"no column 'churn': it has age;city;member;visits;churn"):
        load(path, target="churn")


def test_a_category_unknown_in_training_becomes_zeros(tmp_path: Path) -> None:
    data = load(written(tmp_path, ".csv"), target="churn")
    rare = dict(COLUMNS)
    held_out = int(data.test.indices[0])
    rare["city"] = [city if i != held_out else "Lugano" for i, city in enumerate(COLUMNS["city"])]
    data = load(written(tmp_path, ".csv", rare), target="churn")
    assert data.preprocessing.columns[1].categories == ("Bern", "Genf", "Zürich")
    assert data.test.x[0, 1:4].tolist() == [0.0, 0.0, 0.0]


def test_new_rows_are_encoded_as_the_training_rows(tmp_path: Path) -> None:
    data = load(written(tmp_path, ".csv"), target="churn")
    preprocessing = Preprocessing.from_json(data.preprocessing.to_json())
    new = tmp_path / "new.csv"
    new.write_text("visits,extra,city,member,age\n3,x,Genf,true,30\n4,y,Paris,false,31.5\n")
    examples = load_new(new, preprocessing)
    assert examples.names == ("1", "2")
    assert examples.x.tolist() == [[30, 0, 1, 0, 1, 3], [31.5, 0, 0, 0, 0, 4]]
    same = load_new(tmp_path / "people.csv", preprocessing)
    assert torch.equal(same.x[data.test.indices], data.test.x)


def test_new_categories_that_look_like_numbers_stay_texts(tmp_path: Path) -> None:
    columns = {"code": ["1", "02", "x"] * 20, "churn": COLUMNS["churn"]}
    data = load(written(tmp_path, ".csv", columns), target="churn")
    new = tmp_path / "new.csv"
    new.write_text("code\n1\n02\n")
    assert load_new(new, data.preprocessing).x.tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,city,member\n1,Bern,true\n", r"new.csv: no column 'visits': it has age, city, member"),
        ("age,city,member,visit\n1,Bern,true,1\n", r"no column 'visits': did you mean 'visit'\?"),
        ("age,city,member,visits\nold,Bern,true,1\n", r"column 'age' must hold numbers, found string"),
        ("age,city,member,visits\n1,Bern,true,\n2,Bern,true,5\n", r"missing values in 'visits' 1 \(first in row 1\)"),
        ("age,city,member,visits\n1,,true,1\n", r"missing values in 'city' 1"),
        ("age,city,member,visits\n", r"the table has no rows"),
    ],
)
def test_new_rows_that_do_not_fit(tmp_path: Path, content: str, message: str) -> None:
    preprocessing = load(written(tmp_path, ".csv"), target="churn").preprocessing
    new = tmp_path / "new.csv"
    new.write_text(content)
    with pytest.raises(InputError, match=message):
        load_new(new, preprocessing)
    with pytest.raises(InputError, match=r"does not fit the model, which needs a table \(.csv, .tsv, .parquet, .pq\)"):
        load_new(tmp_path, preprocessing)


def changed(**columns: object) -> dict[str, object]:
    return {**COLUMNS, **columns}


def with_gaps(values: list, *rows: int) -> list:
    return [None if i in rows else value for i, value in enumerate(values)]


BAD = {
    "missing number": (
        changed(age=with_gaps(COLUMNS["age"], 6, 9)),
        r"missing values in 'age' 2 \(first in row 7\): fill them",
    ),
    "missing text": (changed(city=with_gaps(COLUMNS["city"], 3)), r"missing values in 'city' 1 \(first in row 4\)"),
    "missing target": (
        changed(churn=with_gaps(COLUMNS["churn"], 3)),
        r"missing values in 'churn' 1 \(first in row 4\)",
    ),
    "nothing but missing": (changed(age=[None] * N), r"missing values in 'age' 60"),
    "NaN": (changed(age=[float("nan"), *COLUMNS["age"][1:]]), r"missing values in 'age' 1 \(first in row 1\)"),
    "many gaps": (
        {**{f"c{i}": [None] + [1.0] * (N - 1) for i in range(8)}, "churn": COLUMNS["churn"]},
        r"'c0' 1 \(first in row 1\), .* and 3 more columns: fill",
    ),
    "infinite": (
        changed(age=[float("inf"), *COLUMNS["age"][1:]]),
        r"1 values are missing, infinite or too large for single precision, the first in row 1",
    ),
    "too large": (changed(age=[1e39, *COLUMNS["age"][1:]]), r"1 values are missing, infinite or too large"),
    "dates": (
        changed(age=[datetime.date(2020, 1, 1)] * N),
        r"column 'age' holds date32\[day\], neither numbers nor texts",
    ),
    "an identifier": (
        {"id": [f"p{i}" for i in range(400)], "churn": ["a", "b"] * 200},
        r"column 'id' holds 280 different texts, at most 100 can be categories: leave it out with drop",
    ),
    "target of fractions": (changed(churn=COLUMNS["age"]), r"column 'churn': labels must be texts or whole numbers"),
    "one class": (changed(churn=["no"] * N), r"column 'churn': at least 2 classes are needed, found 1"),
    "a class with one row": (changed(churn=["yes"] + ["no"] * (N - 1)), r"class 'yes' has 1 examples, too few"),
    "no features": ({"churn": COLUMNS["churn"]}, r"no column is left for the features"),
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(("columns", "message"), BAD.values(), ids=BAD.keys())
def test_bad_tables(tmp_path: Path, suffix: str, columns: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(written(tmp_path, suffix, columns), target="churn")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, ".csv")
    with pytest.raises(InputError, match=r"no column 'Churn': did you mean 'churn'\?"):
        load(path, target="Churn")
    with pytest.raises(InputError, match=r"no column 'zzz': it has age, city, member, visits, churn"):
        load(path, target="churn", drop=["zzz"])
    with pytest.raises(InputError, match=r"people.csv needs the option 'target'"):
        load(path)


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        (".csv", b"", r"cannot be read as a table: Empty CSV file"),
        (".csv", b"a,b\n1,2,3\n", r"cannot be read as a table"),
        (".csv", b"a,b\n\xff\xfe,1\n", None),
        (".csv", b"a,a\n1,2\n", r"two columns are called 'a': give each its own name"),
        (".csv", b"a,b\n", r"the table has no rows"),
        (".parquet", b"PAR1 broken", r"cannot be read as a table"),
        (".parquet", b"", r"cannot be read as a table"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, suffix: str, content: bytes, message: str | None) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        load(path, target="b")
    assert "\n" not in str(refused.value)


def test_binary_columns_are_refused(tmp_path: Path) -> None:
    columns = pa.table({"raw": pa.array([b"x"] * N), "age": COLUMNS["age"], "churn": COLUMNS["churn"]})
    with pytest.raises(InputError, match=r"column 'raw' holds binary, neither numbers nor texts"):
        load(written(tmp_path, ".parquet", columns), target="churn")
    raw = pa.table({"age": COLUMNS["age"], "churn": pa.array([b"x", b"y"] * (N // 2))})
    with pytest.raises(InputError, match=r"labels must be texts or whole numbers"):
        load(written(tmp_path, ".parquet", raw), target="churn")


def test_lines_may_break_within_quotes(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    rows = (f'{i},"x\ny{i % 3}",{"yes" if i % 5 else "no"}\n' for i in range(150_000))
    path.write_text("n,text,churn\n" + "".join(rows))
    assert sum(load(path, target="churn").counts["train"]) == 105_000


def test_columns_may_be_called_by_numbers(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("1,2,5\n" + "".join(f"{i},{i % 4},{'a' if i % 3 else 'b'}\n" for i in range(60)))
    assert load(path, target=5, drop=1).train.x.shape[1] == 1
