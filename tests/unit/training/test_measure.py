import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classgrad import ClassGradients, InputError
from classgrad.training import _loop, train
from classgrad.training._divergence import Diverged, Watch
from classgrad.training._mailbox import Mailbox
from classgrad.training._measure import ClassRows, products
from classgrad.training._numerics import _deterministic, repeatable, resolve_device
from classgrad.training._optimizers import make_lr_scheduler, make_optimizer
from classgrad.training._spec import RunSpec
from classgrad.training._update import PlainStep, Update


def rows_of(model, x, y, chunk=7):
    grads = ClassGradients(model)

    def forward(part):
        logits = model(x[part])
        return logits, F.cross_entropy(logits, y[part], reduction="none"), y[part]

    return ClassRows(grads, forward, chunk)


@pytest.mark.parametrize("rows_that_fit", [0, 1, 2, 3, 4, 100])
def test_the_gram_matrix_does_not_depend_on_the_memory_it_may_use(rows_that_fit):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    y = torch.arange(40) % 5
    model = nn.Linear(5, 5).double()
    members = [(y == label).nonzero().flatten() for label in range(5)]
    gram, kept = rows_of(model, x, y).gram(members, limit=rows_that_fit * 30 * 8)
    exact = []
    for label in range(5):
        loss = F.cross_entropy(model(x[y == label]), y[y == label], reduction="sum") / 40
        exact.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    expected = torch.stack(exact)
    torch.testing.assert_close(gram, expected @ expected.T, rtol=1e-12, atol=1e-15)
    assert (kept is not None) == (rows_that_fit >= 5)


def test_products_are_summed_in_double_precision(monkeypatch):
    monkeypatch.setattr("classgrad.training._measure._COLUMNS", 3)
    first, second = torch.randn(2, 10), torch.randn(4, 10)
    torch.testing.assert_close(products(first, second), first.double() @ second.double().T)


def test_deterministic_switches_are_set_and_come_back():
    before = torch.backends.cuda.matmul.fp32_precision
    with _deterministic("tf32"), warnings.catch_warnings():
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cuda.matmul.fp32_precision == torch.backends.cudnn.conv.fp32_precision == "tf32"
    with _deterministic("float32"):
        assert torch.backends.cuda.matmul.fp32_precision == torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_number_of_threads_is_that_of_the_run():
    before = torch.get_num_threads()
    with repeatable(torch.device("cpu"), "float32", before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_auto_takes_what_is_there(monkeypatch):
    for there, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert resolve_device("auto").type == kind


def test_unknown_optimizers_and_schedulers_are_refused():
    parameters = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(InputError, match="`optimizer` should be one of"):
        make_optimizer("lbfgs", parameters, 0.1)
    with pytest.raises(InputError, match="`scheduler` should be one of"):
        make_lr_scheduler("LambdaLR", make_optimizer("sgd", parameters, 0.1))


def test_progress_is_told_between_points_and_checkpoints_come_by_time(tmp_path, monkeypatch):
    monkeypatch.setattr(_loop, "_TICK", 0.0)
    spec = RunSpec("digits-bi20", "sgd", lr=0.1, steps=6, grid=(6,), device="cpu", gradients=False)
    seen, stamps = [], set()

    def report(progress):
        seen.append((progress.step, progress.point is None))
        if (tmp_path / "checkpoint.pt").exists():
            stamps.add((tmp_path / "checkpoint.pt").stat().st_ino)

    train(spec, tmp_path, report=report, checkpoint_seconds=0)
    assert seen == [(0, False), *((step, True) for step in range(1, 7)), (6, False)]
    assert len(stamps) > 1


def test_updates_looked_at_together_are_blamed_in_their_order():
    watch = Watch(["a", "b"], Mailbox(late=False), every=3)
    good, bad = torch.zeros(4, 2), torch.tensor([[float("nan"), 0.0]] * 4)
    labels = torch.tensor([0, 0, 1, 1])

    def update(number, logits):
        return Update(number, 0.5, PlainStep(F.cross_entropy(logits, labels), logits, labels))

    watch.note(update(0, good))
    watch.note(update(1, bad))
    with pytest.raises(Diverged, match=r"diverged at step 1: the loss of class 'a' is nan at learning rate 0\.5"):
        watch.note(update(2, bad))
    watch.check()
    watch.note(update(3, bad))
    with pytest.raises(Diverged, match="diverged at step 3"):
        watch.check()
