import math

import pytest
import torch
from sklearn import metrics as oracle

from classgrad._errors import InputError
from classgrad.dynamics import class_loss_sums, class_losses, confusion_matrix, f1, macro_recall, precision, recall


def test_a_worked_example():
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    predictions = torch.tensor([0, 0, 0, 1, 1, 0])
    confusion = confusion_matrix(predictions, labels, 2)
    assert confusion.tolist() == [[3, 1], [1, 1]]
    assert recall(confusion).tolist() == [0.75, 0.5]
    assert precision(confusion).tolist() == [0.75, 0.5]
    assert f1(confusion).tolist() == [0.75, 0.5]
    assert macro_recall(confusion).item() == 0.625


def test_a_class_without_examples_is_left_out_of_the_macro_mean():
    confusion = torch.tensor([[2, 0, 2], [0, 3, 0], [0, 0, 0]])
    assert recall(confusion).isnan().tolist() == [False, False, True]
    assert macro_recall(confusion).item() == 0.75
    assert precision(confusion)[2].item() == 0.0
    assert f1(confusion)[2].item() == 0.0


def test_a_class_neither_present_nor_predicted_is_undefined():
    confusion = torch.tensor([[2, 0], [0, 0]])
    assert [math.isnan(metric(confusion)[1]) for metric in (recall, precision, f1)] == [True] * 3


def test_an_empty_set_has_no_metrics():
    nothing = torch.empty(0, dtype=torch.long)
    confusion = confusion_matrix(nothing, nothing, 3)
    assert confusion.tolist() == [[0] * 3] * 3
    assert macro_recall(confusion).isnan()
    assert class_losses(torch.empty(0), nothing, 2).isnan().all()


def test_metrics_take_leading_dimensions():
    confusion = torch.randint(1, 9, (4, 5, 3, 3), generator=torch.Generator().manual_seed(0))
    for metric in (recall, precision, f1, macro_recall):
        assert torch.equal(metric(confusion)[2, 3], metric(confusion[2, 3]))


def test_a_thousand_classes():
    labels = torch.randint(0, 1000, (5000,), generator=torch.Generator().manual_seed(0))
    predictions = torch.randint(0, 1000, (5000,), generator=torch.Generator().manual_seed(1))
    expected = oracle.confusion_matrix(labels, predictions, labels=range(1000))
    assert torch.equal(confusion_matrix(predictions, labels, 1000), torch.from_numpy(expected))


def test_chunks_add_up():
    labels, predictions = torch.randint(0, 4, (2, 50), generator=torch.Generator().manual_seed(0))
    losses = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    halves = [slice(0, 20), slice(20, 50)]
    parts = sum(confusion_matrix(predictions[half], labels[half], 4) for half in halves)
    sums = sum(class_loss_sums(losses[half], labels[half], 4) for half in halves)
    assert torch.equal(parts, confusion_matrix(predictions, labels, 4))
    torch.testing.assert_close(sums, class_loss_sums(losses, labels, 4))


def test_an_infinite_loss_stays_in_its_class_and_keeps_no_graph():
    losses = torch.tensor([1.0, math.inf, 2.0, math.nan], requires_grad=True)
    sums = class_loss_sums(losses, torch.tensor([0, 1, 0, 2]), 4)
    assert sums.tolist()[:2] == [3.0, math.inf]
    assert math.isnan(sums[2])
    assert sums[3] == 0
    assert not sums.requires_grad


def test_losses_are_summed_in_float64():
    losses = torch.full((3,), 1e-8)
    losses[0] = 1.0
    assert class_loss_sums(losses, torch.zeros(3, dtype=torch.long), 1).item() == pytest.approx(1 + 2e-8, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_any_integer_labels(dtype):
    labels = torch.tensor([0, 1, 1]).to(dtype)
    assert confusion_matrix(labels, labels, 2).tolist() == [[1, 0], [0, 2]]


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (torch.tensor([0, 1]), torch.tensor([0, 2]), r"`labels` should lie below num_classes = 2. Found 0 to 2"),
        (torch.tensor([0, -1]), torch.tensor([0, 1]), r"`predictions` should lie .* Found -1 to 0"),
        (torch.tensor([0, 2]), torch.tensor([0, 1]), r"`predictions` should lie .* Found 0 to 2"),
        (torch.tensor([0]), torch.tensor([0, 1]), r"`predictions` should have shape \(2,\)"),
        (torch.zeros(2, 2), torch.tensor([0, 1]), r"`predictions` should have shape \(2,\).*Found \(2, 2\)"),
        (torch.tensor([0.5, 1.0]), torch.tensor([0, 1]), "`predictions` should hold class indices; take the argmax"),
    ],
)
def test_labels_that_are_none_are_refused(predictions, labels, message):
    with pytest.raises(InputError, match=message):
        confusion_matrix(predictions, labels, 2)


def test_losses_need_one_label_each():
    with pytest.raises(InputError, match=r"`labels` should have shape \(3,\)"):
        class_losses(torch.ones(3), torch.tensor([0, 1]), 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_gives_the_same_counts_and_losses():
    labels, predictions = torch.randint(0, 100, (2, 10_000), generator=torch.Generator().manual_seed(0))
    losses = torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    confusion = confusion_matrix(predictions.cuda(), labels.cuda(), 100)
    assert confusion.is_cuda
    assert torch.equal(confusion.cpu(), confusion_matrix(predictions, labels, 100))
    sums = [class_loss_sums(losses.cuda(), labels.cuda(), 100) for _ in range(3)]
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])
    torch.testing.assert_close(sums[0].cpu(), class_loss_sums(losses, labels, 100))
