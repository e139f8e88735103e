from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

from classgrad._errors import InputError
from classgrad.sampling import ProportionalBatches, labels_of


class Images(Dataset[Any]):
    """Like torchvision's datasets; loading an item is a mistake."""

    def __init__(self, targets: Any, name: str = "targets", target_transform: Any = None) -> None:
        setattr(self, name, targets)
        self.target_transform = target_transform
        self.length = len(targets)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("an image was loaded")

    def __len__(self) -> int:
        return self.length


class Table:
    """The part of a Hugging Face dataset that is used."""

    def __init__(self, columns: dict[str, list[Any]], class_labels: tuple[str, ...] = (), plain: bool = False) -> None:
        class_label, value = type("ClassLabel", (), {}), type("Value", (), {})
        self.columns, self.class_labels, self.plain = columns, class_labels, plain
        self.column_names = list(columns)
        self.features = {name: (class_label if name in class_labels else value)() for name in columns}
        self.num_rows = len(next(iter(columns.values())))

    def with_format(self, kind: None) -> "Table":
        return Table(self.columns, self.class_labels, plain=kind is None)

    def __getitem__(self, column: str) -> list[Any]:
        assert self.plain, "a format or transform of the user was applied"
        assert column != "image", "an image was loaded"
        return self.columns[column]


@pytest.mark.parametrize(
    "dataset",
    [
        [1, 0, 1],
        (1, 0, 1),
        np.array([1, 0, 1]),
        torch.tensor([1, 0, 1]),
        TensorDataset(torch.zeros(3, 2), torch.tensor([1, 0, 1])),
        Images([1, 0, 1]),
        Images(torch.tensor([1, 0, 1])),
        Images(np.array([1, 0, 1]), name="labels"),
        Subset(Images([5, 1, 1, 0]), [2, 3, 1]),
        Subset(Subset(Images([5, 1, 1, 0, 9]), [3, 2, 1, 0]), [1, 0, 2]),
        Subset(Images([5, 1, 1, 0]), torch.tensor([2, 3, 1])),  # type: ignore[arg-type]
        ConcatDataset([Images([1, 0]), TensorDataset(torch.zeros(1), torch.tensor([1]))]),
        Images(["b", "a", "b"], target_transform={"a": 0, "b": 1}.__getitem__),
        Table({"image": [None] * 3, "label": [1, 0, 1]}),
        Table({"image": [None] * 3, "fine": [1, 0, 1]}, class_labels=("fine",)),
        Subset(Table({"label": [9, 1, 0, 1]}), range(1, 4)),  # type: ignore[arg-type]
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_labels_are_found_without_loading_an_item(dataset: Any) -> None:
    assert labels_of(dataset).tolist() == [1, 0, 1]


def test_strings_stay_strings_and_feed_the_samplers() -> None:
    labels = labels_of(ConcatDataset([Images(["cat"] * 3), Images(["dog", "cat"])]))
    assert labels.tolist() == ["cat", "cat", "cat", "dog", "cat"]
    assert ProportionalBatches(labels, 2).classes == ("cat", "dog")


def test_random_split_keeps_the_labels_of_its_images() -> None:
    labels = list(range(20))
    part, _ = random_split(Images(labels), [12, 8], generator=torch.Generator().manual_seed(3))
    assert labels_of(part).tolist() == list(part.indices)


def test_a_column_can_be_named() -> None:
    table = Table({"fine": [1, 2], "coarse": [0, 0]}, class_labels=("fine", "coarse"))
    assert labels_of(table, column="coarse").tolist() == [0, 0]
    with pytest.raises(InputError, match="column must name the labels, one of fine, coarse; found None"):
        labels_of(table)
    with pytest.raises(InputError, match="found 'medium'"):
        labels_of(table, column="medium")


def test_no_labels_is_an_error_that_says_what_to_do() -> None:
    class Bare(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            raise AssertionError("an image was loaded")

    with pytest.raises(InputError, match=r"no labels in a Bare .* attribute `targets`"):
        labels_of(Bare())
    with pytest.raises(InputError, match="found both"):
        labels_of(ConcatDataset([Images([0, 1]), Images(["cat"])]))
    with pytest.raises(InputError, match="ragged"):
        labels_of([(torch.zeros(2, 2), 1), (torch.zeros(2, 2), 0)])


def test_a_real_hugging_face_dataset() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"image": [[0]] * 4, "label": [0, 1, 1, 0]})
    assert labels_of(data.select([3, 1]).with_format("torch")).tolist() == [0, 1]
