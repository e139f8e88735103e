"""The labels of a dataset, read without loading an item."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from classgrad._errors import InputError
from classgrad.sampling._groups import as_array

_ATTRIBUTES = ("targets", "labels")  # torchvision's two spellings
_COLUMNS = ("label", "labels", "target", "targets")


def labels_of(dataset: Any, column: str | None = None) -> NDArray[Any]:
    """Read the label of every example of `dataset`, in order, without loading a single item.

    Known are arrays, tensors and sequences of labels themselves; `TensorDataset` (its last tensor); datasets with
    `targets` or `labels` as in torchvision (a `target_transform` is applied, as loading would); `Subset` and
    `ConcatDataset` of any of these; and Hugging Face datasets, there the column `column`, by default "label",
    "labels", "target", "targets" or the only column of class labels.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.zeros(4, 3, 8, 8), torch.tensor([2, 0, 2, 1]))
    >>> labels_of(torch.utils.data.Subset(data, [3, 0])).tolist()
    [1, 2]
    """
    if isinstance(dataset, Subset):
        return labels_of(dataset.dataset, column)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return _joined([labels_of(part, column) for part in dataset.datasets])
    if isinstance(dataset, TensorDataset):
        return as_array(dataset.tensors[-1])
    if hasattr(dataset, "num_rows") and isinstance(getattr(dataset, "column_names", None), list):
        return as_array(_hugging_face(dataset, column))
    for name in _ATTRIBUTES:
        if hasattr(dataset, name):
            return _transformed(as_array(getattr(dataset, name)), getattr(dataset, "target_transform", None))
    if isinstance(dataset, (Tensor, np.ndarray, list, tuple, range)):
        return as_array(dataset)
    raise InputError(
        f"labels_of finds no labels in a {type(dataset).__name__} without loading its items;"
        " give the dataset an attribute `targets`, or pass a list of labels to the sampler"
    )


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len({part.dtype.kind in "biu" for part in parts}) > 1:
        raise InputError("the parts of a ConcatDataset must all have integer labels or all have strings; found both")
    return np.concatenate(parts)


def _transformed(labels: NDArray[Any], transform: Any) -> NDArray[Any]:
    return labels if transform is None else np.asarray([transform(label) for label in labels.tolist()])


def _hugging_face(dataset: Any, column: str | None) -> Any:
    names = [column] if column else [name for name in _COLUMNS if name in dataset.column_names][:1]
    if not names:
        names = [name for name, feature in dataset.features.items() if type(feature).__name__ == "ClassLabel"]
    if len(names) != 1 or names[0] not in dataset.column_names:
        raise InputError(f"column must name the labels, one of {', '.join(dataset.column_names)}; found {column!r}")
    return dataset.with_format(None)[names[0]][:]
