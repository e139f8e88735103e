"""Per-class metrics from one confusion matrix, and per-class losses.

A confusion matrix counts examples, rows the true class, columns the predicted one, shape (..., L, L). What is
undefined is nan (scikit-learn's ``zero_division=nan``): the recall of a class without examples, the precision of one
never predicted. :func:`macro_recall` averages over the classes that have examples, as scikit-learn's
``balanced_accuracy_score`` does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from classgrad._errors import InputError


def confusion_matrix(predictions: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Count (true, predicted) pairs on the tensors' device, without waiting for it; int64, shape (L, L).

    Matrices of several chunks of a data set add up.

    >>> confusion_matrix(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), num_classes=2).tolist()
    [[1, 1], [0, 1]]
    """
    for name, values in (("predictions", predictions), ("labels", labels)):
        _check_labels(name, values, num_classes, like=labels)
    if labels.is_cuda:  # bincount waits for the device
        numbers = torch.arange(num_classes, device=labels.device)
        true, predicted = labels == numbers[:, None], predictions[:, None] == numbers
        return (true.double() @ predicted.double()).long()
    pairs = labels.long() * num_classes + predictions.long()
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def class_loss_sums(losses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Sum of the examples' losses in every class, float64, shape (L,).

    Deterministic on every device, and an infinite loss stays in its own class. Builds an L × N table, so hand large
    sets over in chunks; the sums add up.
    """
    _check_labels("labels", labels, num_classes, like=losses)
    members = labels == torch.arange(num_classes, device=labels.device).unsqueeze(-1)
    return torch.where(members, losses.detach().to(torch.float64), 0.0).sum(-1)


def class_losses(losses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Mean loss of every class's examples, float64, shape (L,); nan for a class without examples.

    >>> class_losses(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]), num_classes=3).tolist()
    [2.0, 5.0, nan]
    """
    sums = class_loss_sums(losses, labels, num_classes)
    return sums / torch.bincount(labels.long(), minlength=num_classes)


def recall(confusion: Tensor) -> Tensor:
    """Share of every class's examples that are found, shape (..., L); nan for a class without examples."""
    return _hits(confusion) / confusion.sum(-1)


def precision(confusion: Tensor) -> Tensor:
    """Share of every class's predictions that are right, shape (..., L); nan for a class never predicted."""
    return _hits(confusion) / confusion.sum(-2)


def f1(confusion: Tensor) -> Tensor:
    """F1 score of every class, shape (..., L); nan for a class neither present nor predicted."""
    return 2 * _hits(confusion) / (confusion.sum(-1) + confusion.sum(-2))


def macro_recall(confusion: Tensor) -> Tensor:
    """Mean recall of the classes that have examples (balanced accuracy), shape (...); nan for an empty set."""
    return recall(confusion).nanmean(-1)


def _hits(confusion: Tensor) -> Tensor:
    return confusion.diagonal(dim1=-2, dim2=-1).to(torch.float64)


def _check_labels(name: str, values: Tensor, num_classes: int, like: Tensor) -> None:
    if values.ndim != 1 or values.shape != like.shape:
        raise InputError(
            f"Parameter `{name}` should have shape ({like.numel()},), as the examples. Found {tuple(values.shape)}."
        )
    if values.is_floating_point():
        raise InputError(f"Parameter `{name}` should hold class indices; take the argmax first. Found {values.dtype}.")
    if values.numel() and not values.is_cuda and not bool(((values >= 0) & (values < num_classes)).all()):
        found = f"{int(values.min())} to {int(values.max())}"
        raise InputError(f"Parameter `{name}` should lie below num_classes = {num_classes}. Found {found}.")
