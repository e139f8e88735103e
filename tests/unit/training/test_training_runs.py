"""Whole runs: what they record, that they repeat, and that measuring leaves them alone."""

import copy

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix
from torch import nn
from torch.nn import functional as F

from classgrad import InputError
from classgrad.data import DeviceData, Split, gaussian_classes
from classgrad.training import ALGORITHMS, RunSpec, load_data, load_trained, train
from classgrad.training import _trainer as trainer_module
from classgrad.training._trainer import Trainer

DATA = gaussian_classes([60, 15, 6], dimension=6, overlap=0.1, test_per_class=20, seed=3)


def spec(name="pcngd", **changes):
    settings = {"lr": 0.05, "steps": 12, "batch_size": 27, "device": "cpu", "model_options": {"hidden": [6]}}
    return RunSpec("gaussian", name, **{**settings, **changes})


def run_of(name="pcngd", **changes):
    return train(spec(name, **changes), data=DATA)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(name):
    first, second, other = run_of(name), run_of(name), run_of(name, seed=1)
    assert first.identical(second)
    assert not np.array_equal(first.loss("test"), other.loss("test"))


def test_all_algorithms_start_from_the_same_weights():
    starts = {run_of(name, steps=1).loss("train")[0].tobytes() for name in ALGORITHMS}
    assert len(starts) == 1


class Dropping(nn.Module):
    """A network whose every forward pass in training mode draws from the global generator."""

    def __init__(self, plain):
        super().__init__()
        self.plain = plain
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        return self.plain(self.dropout(x))


@pytest.fixture
def dropout(monkeypatch):
    make = trainer_module.make_model
    monkeypatch.setattr(trainer_module, "make_model", lambda *arguments: Dropping(make(*arguments)))


@pytest.mark.parametrize("name", ["gd", "sgd", "pcnsgd+r", "r-pcngd"])
def test_measuring_never_changes_the_training(dropout, name):
    often = run_of(name, grid="all")
    seldom = run_of(name, grid=(12,))
    bare = run_of(name, grid=(12,), gradients=False)
    for run in (seldom, bare):
        assert np.array_equal(run.loss("train")[-1], often.loss("train")[-1])
    assert np.array_equal(seldom["gram"][-1], often["gram"][-1])


def test_the_global_generator_comes_back_as_it_was(dropout):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    torch.rand(3)
    expected = torch.get_rng_state()
    torch.set_rng_state(state)
    run_of("sgd")
    torch.rand(3)
    assert torch.equal(torch.get_rng_state(), expected)


def test_what_is_recorded_agrees_with_sklearn_and_autograd():
    run = run_of("pcngd", precision="float64", grid="all", steps=3, chunk=10)
    trainer = Trainer(spec("pcngd", precision="float64", steps=3), DATA, torch.device("cpu"))
    for t in range(4):
        for name, split in DATA.splits.items():
            x, y = trainer.data[name].batch(slice(None))
            with torch.no_grad():
                logits = trainer.model(x)
            losses = F.cross_entropy(logits, y, reduction="none")
            assert np.array_equal(run.confusion(name)[t], confusion_matrix(split.y, logits.argmax(1), labels=range(3)))
            assert run.macro_recall(name)[t] == pytest.approx(balanced_accuracy_score(split.y, logits.argmax(1)))
            expected = [losses[y == label].mean().item() for label in range(3)]
            np.testing.assert_allclose(run.loss(name)[t], expected, rtol=1e-12)
        rows = class_rows(trainer.model, *trainer.train.batch(slice(None)))
        np.testing.assert_allclose(run["gram"][t], rows @ rows.T, rtol=1e-10)
        if t < 3:
            before = losses_by_class(trainer)
            weights = 1 / rows.norm(dim=1)
            trainer.update(trainer.next_batch())
            np.testing.assert_allclose(run["weights"][t], weights, rtol=1e-10)
            np.testing.assert_allclose(run["predicted_change"][t], -0.05 * (rows @ rows.T) @ weights, rtol=1e-9)
            np.testing.assert_allclose(run["measured_change"][t], losses_by_class(trainer) - before, rtol=1e-8)
            assert run["lr"][t] == 0.05
    assert np.isnan(run["lr"][3])
    assert np.isnan(run["measured_change"][3]).all()


def class_rows(model, x, y, n=None):
    rows = []
    for label in range(3):
        loss = F.cross_entropy(model(x[y == label]), y[y == label], reduction="sum") / (n or len(y))
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


def losses_by_class(trainer):
    x, y = trainer.train.batch(slice(None))
    with torch.no_grad():
        losses = F.cross_entropy(trainer.model(x), y, reduction="none")
    return torch.stack([losses[y == label].sum() for label in range(3)]) / len(y)


def test_projections_and_noise_are_those_of_the_batch():
    run = run_of("sgd+o", precision="float64", steps=1)
    trainer = Trainer(spec("sgd+o", precision="float64", steps=1), DATA, torch.device("cpu"))
    full = class_rows(trainer.model, *trainer.train.batch(slice(None)))
    batch = trainer.next_batch()
    part = class_rows(trainer.model, *trainer.train.batch(batch))
    cosines = F.cosine_similarity(part, full)
    np.testing.assert_allclose(run["projection"][0], cosines, rtol=1e-10)
    share = torch.tensor([60, 15, 6]) / 81 / (torch.bincount(DATA.train.y[batch]) / len(batch))
    scaled = part * share[:, None]
    across = scaled - (scaled * full).sum(1, keepdim=True) / full.square().sum(1, keepdim=True) * full
    np.testing.assert_allclose(run["noise"][0], across.norm(dim=1) / full.norm(dim=1), rtol=1e-6)
    assert np.isnan(run["projection"][1]).all()


def test_a_class_absent_from_a_batch_has_no_projection():
    run = run_of("sgd", batch_size=2, steps=6, grid="all")
    assert np.isnan(run["projection"][:-1]).any(axis=1).all()
    assert (run["weights"][:-1] == 0).any(axis=1).all()


def test_cheap_quantities_of_every_step_are_recorded_if_asked_for():
    run = run_of("pcnsgd", every=True, grid=(12,))
    steps, losses = run.every("loss")
    assert steps.tolist() == list(range(12))
    assert losses.shape == run.every("norms")[1].shape == (12, 3)
    assert (run.every("lr")[1] == 0.05).all()
    assert "every/norms" not in run_of("sgd", every=True)
    assert "every/loss" not in run_of("sgd")


@pytest.mark.parametrize("name", ["pcngd", "pcnsgd", "pcnsgd+o"])
def test_norms_may_be_remembered_between_exact_steps(name):
    run = run_of(name, every=True, rule_options={"refresh": 4, "drift": 1e9})
    exact = np.isfinite(run["every/norms"]).all(1)
    assert exact.tolist() == [step % 4 == 0 for step in range(12)]
    plain = run_of(name, every=True)
    np.testing.assert_array_equal(run["every/norms"][0], plain["every/norms"][0])
    np.testing.assert_allclose(run.loss("train"), plain.loss("train"), rtol=0.1)
    assert not run.identical(plain)


def test_a_batch_in_chunks_takes_no_part_in_remembering():
    lazy = run_of("pcngd", chunk=20, every=True, rule_options={"refresh": 4})
    np.testing.assert_array_equal(lazy["every/norms"], run_of("pcngd", chunk=20, every=True)["every/norms"])


def test_without_gradients_the_gram_matrix_is_left_out():
    run = run_of("sgd", gradients=False)
    assert "gram" not in run
    assert "projection" not in run
    assert np.isfinite(run["measured_change"][:-1]).all()


@pytest.mark.parametrize("precision", ["float64", "float32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["pcngd", "pcnsgd+r"])
def test_precisions_agree_as_far_as_they_go(name, precision):
    exact, run = run_of(name, precision="float64"), run_of(name, precision=precision)
    tolerance = {"float64": 0, "bf16": 0.1}.get(precision, 1e-4)
    np.testing.assert_allclose(run.loss("train"), exact.loss("train"), rtol=tolerance, atol=tolerance)
    assert run.meta["precision"] == precision


def test_the_returned_iterate_of_r_pcngd_is_the_model_that_is_kept(tmp_path):
    chosen = spec("r-pcngd", seed=4, grid="all")
    run = train(chosen, tmp_path, data=DATA)
    at = run.meta["returned_step"]
    assert 0 <= at < 12
    x, y = DeviceData(DATA.train, mean=DATA.mean, std=DATA.std).batch(slice(None))
    losses = F.cross_entropy(load_trained(tmp_path).model(x), y, reduction="none")
    np.testing.assert_allclose(
        [losses[y == label].mean().item() for label in range(3)], run.loss("train")[at], rtol=1e-5
    )


def test_a_trained_model_is_loaded_as_the_run_left_it(tmp_path):
    run = train(spec("pcnsgd+o"), tmp_path, data=DATA)
    trained = load_trained(tmp_path)
    with torch.no_grad():
        logits = trained.model(trained.preprocessing.normalize(DATA.test.x))
    assert balanced_accuracy_score(DATA.test.y, logits.argmax(1)) == pytest.approx(run.macro_recall("test")[-1])
    assert trained.spec == spec("pcnsgd+o")
    assert not trained.model.training


@pytest.mark.parametrize(
    ("optimizer", "options"), [("Adam", {}), ("rmsprop", {"momentum": 0.5}), ("adamw", {"weight_decay": 0.1})]
)
def test_any_torch_optimizer_stands_in_for_plain_steps(optimizer, options):
    run = run_of("pcnsgd", optimizer=optimizer, optimizer_options=options, lr=0.002, steps=60)
    assert run.loss("train")[-1].mean() < run.loss("train")[0].mean()
    np.testing.assert_allclose(run["predicted_change"][0], run["measured_change"][0], rtol=0.3, atol=2e-3)


@pytest.mark.parametrize(
    ("scheduler", "options", "rates"),
    [
        ("StepLR", {"step_size": 1, "gamma": 0.5}, [0.05, 0.025, 0.0125]),
        ("ReduceLROnPlateau", {"patience": 0, "factor": 0.1, "threshold": 1e9, "mode": "min"}, [0.05, 0.005, 0.0005]),
    ],
)
def test_any_torch_scheduler_sets_the_rate(scheduler, options, rates):
    run = run_of("gd", scheduler=scheduler, scheduler_options=options, grid="all", steps=3)
    np.testing.assert_allclose(run["lr"][:3], rates)


def test_schedules_by_name_set_the_rate():
    decreasing = run_of("gd", schedule="dominated-decreasing", grid="all", steps=4)
    t = np.arange(4)
    np.testing.assert_allclose(decreasing["lr"][:4], 0.05 * (2 * t + 1) / (t + 1) ** 2)
    theorem = run_of("gd", schedule="gd-alternate", schedule_options={"smoothness": 2.0}, grid="all", lr=9.0, steps=4)
    condition, ratio = theorem.condition[:4], theorem.imbalance_ratio[:4]
    caps = (condition / (2 * (1 + ratio**2) * 2.0)).min(axis=1)
    np.testing.assert_allclose(theorem["lr"][:4], np.where(caps > 0, caps, 9.0), rtol=1e-4)
    decay = run_of("sgd+o", schedule="authors-decay", grid="all", steps=80)
    epochs = np.arange(80) // 7  # 60 majority examples, 9 in a batch
    np.testing.assert_allclose(decay["lr"][:80], np.where(epochs < 7, 0.05, 0.005))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer_options": {"colour": 1}}, "Optimizer 'sgd' cannot be made"),
        ({"optimizer_options": {"momentum": -1}}, "Optimizer 'sgd' cannot be made"),
        ({"optimizer_options": {"differentiable": True}}, "without `differentiable`"),
        ({"optimizer_options": {"momentum": 0.9, "dampening": "abc"}}, "Optimizer 'sgd' cannot make a step"),
        ({"scheduler": "StepLR"}, "Scheduler 'steplr' cannot be made"),
        ({"model_options": {"depth": 3}}, "options of mlp"),
        ({"model_options": {"generator": 3}}, "follows from the run"),
        ({"model_options": {"num_classes": 3}}, "follows from the run"),
        ({"model_options": {"hidden": 5}}, "hidden must list the widths"),
        ({"optimizer": "adam", "optimizer_options": {"betas": [0.9]}}, "Optimizer 'adam' cannot be made"),
        ({"scheduler": "cosineannealinglr", "scheduler_options": {"T_max": 0}}, "Scheduler 'cosineannealinglr' cannot"),
        ({"model": "simple_cnn", "model_options": {}}, "use mlp"),
        ({"device": "tpu"}, "`device` should be auto, cpu, cuda"),
        ({"device": "cuda:-5"}, "`device`"),
        ({"crop": 2}, "crop, flip and channels_last are for images"),
    ],
)
def test_what_torch_or_the_data_refuse_is_one_line(changes, message):
    with pytest.raises(InputError, match=message) as error:
        run_of("gd", **changes)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="0 CUDA devices"):
        run_of("gd", device="cuda")


def test_images_are_augmented_in_training_alone():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8, generator=generator)
    y = torch.arange(40) % 2
    data = copy.copy(DATA)
    split = Split(x, y, torch.arange(40))
    from classgrad.data import Dataset, Preprocessing

    data = Dataset("noise", None, split, split, split, Preprocessing(("a", "b"), (1, 8, 8), (0.5,), (0.3,)), "none")
    plain = train(spec("gd", steps=2), data=data)
    moved = train(spec("gd", steps=2, crop=1, flip=True), data=data)
    again = train(spec("gd", steps=2, crop=1, flip=True), data=data)
    assert np.array_equal(plain.loss("train")[0], moved.loss("train")[0])
    assert not np.array_equal(plain.loss("train")[1], moved.loss("train")[1])
    assert moved.identical(again)


@pytest.mark.parametrize(("name", "composition"), [("sgd+o", "balanced"), ("sgd", "proportional")])
def test_the_authors_data_depends_on_the_algorithm_and_the_batch(monkeypatch, name, composition):
    asked = {}
    monkeypatch.setattr("classgrad.training._train.load", lambda source, **options: asked.update(options))
    load_data(RunSpec("bi7a", name, lr=0.1, steps=1, protocol="authors", batch_size=400))
    assert asked == {
        "protocol": "authors", "data_dir": None, "progress": False, "composition": composition, "batch_size": 400,
    }  # fmt: skip
    asked.clear()
    load_data(RunSpec("bi7a", name, lr=0.1, steps=1), data_dir="here")
    assert asked == {"protocol": "paper", "data_dir": "here", "progress": False}


def test_a_balanced_batch_larger_than_the_data_can_fill_is_refused():
    with pytest.raises(InputError, match="`batch_size` should be at most 180 for balanced batches"):
        run_of("pcnsgd+o", batch_size=181)
