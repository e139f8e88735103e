"""Checkpoints, interruptions and divergence."""

import errno
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from classgrad import InputError, _files
from classgrad.data import Dataset, Split, gaussian_classes
from classgrad.dynamics import load_run
from classgrad.training import ALGORITHMS, Interrupted, RunSpec, load_trained, train
from classgrad.training._checkpoint import load_checkpoint

DATA = gaussian_classes([40, 8], dimension=4, overlap=0.1, test_per_class=10, seed=1)


def spec(name="pcnsgd", **changes):
    settings = {"lr": 0.05, "steps": 14, "batch_size": 12, "device": "cpu", "model_options": {"hidden": [4]}}
    return RunSpec("gaussian", name, **{**settings, **changes})


class Crash(Exception):
    """The process dies."""


def crash_at(step):
    def report(progress):
        if progress.step >= step and progress.point is not None:
            raise Crash

    return report


def crash(chosen, folder, step, **how):
    with pytest.raises(Crash):
        train(chosen, folder, data=DATA, resume=True, checkpoint_seconds=0, report=crash_at(step), **how)


VARIANTS = [spec(name, grid="all", every=True) for name in ALGORITHMS] + [
    spec("pcnsgd", optimizer="adamw", scheduler="CosineAnnealingLR", scheduler_options={"T_max": 9}),
    spec("sgd+o", optimizer_options={"momentum": 0.9}, scheduler="MultiStepLR", scheduler_options={"milestones": [3]}),
    spec("gd", scheduler="OneCycleLR", scheduler_options={"max_lr": 0.1, "total_steps": 14}),
    spec("sgd", scheduler="ReduceLROnPlateau", scheduler_options={"patience": 0}),
    spec("pcnsgd+r", rule_options={"every": 3}, schedule="pcngd-second"),
]


@pytest.mark.parametrize("chosen", VARIANTS, ids=lambda s: f"{s.algorithm}-{s.scheduler or s.schedule}")
def test_a_run_that_died_twice_ends_like_one_that_did_not(chosen, tmp_path):
    straight = train(chosen, data=DATA)
    crash(chosen, tmp_path, 4)
    crash(chosen, tmp_path, 9)
    resumed = train(chosen, tmp_path, data=DATA, resume=True)
    assert resumed.differences(straight) == []
    assert load_run(tmp_path / "run.npz").identical(straight)


def test_resuming_a_finished_run_reads_it(tmp_path):
    run = train(spec(), tmp_path, data=DATA)
    stamp = (tmp_path / "checkpoint.pt").stat().st_mtime_ns
    assert train(spec(), tmp_path, data=DATA, resume=True).identical(run)
    assert (tmp_path / "checkpoint.pt").stat().st_mtime_ns == stamp


def test_a_record_lost_after_the_last_checkpoint_is_written_again(tmp_path):
    run = train(spec(), tmp_path, data=DATA)
    (tmp_path / "run.npz").unlink()
    assert train(spec(), tmp_path, data=DATA, resume=True).identical(run)
    assert load_run(tmp_path / "run.npz").identical(run)


def test_resume_starts_where_there_is_nothing(tmp_path):
    assert train(spec(), tmp_path / "new", data=DATA, resume=True).identical(train(spec(), data=DATA))


def test_a_run_is_not_overwritten_unasked(tmp_path):
    run = train(spec(), tmp_path, data=DATA)
    with pytest.raises(InputError, match=r"holds a run already; resume it \(--resume\)"):
        train(spec(lr=0.5), tmp_path, data=DATA)
    assert load_run(tmp_path / "run.npz").identical(run)
    with pytest.raises(InputError, match="Found both"):
        train(spec(), tmp_path, data=DATA, resume=True, overwrite=True)
    other = train(spec(lr=0.5), tmp_path, data=DATA, overwrite=True)
    assert load_run(tmp_path / "run.npz").identical(other)
    assert not other.identical(run)


@pytest.mark.parametrize("changes", [{"batch_size": 1}, {"optimizer_options": {"momentum": -3}}])
def test_what_is_there_stays_until_the_new_run_has_begun(tmp_path, changes):
    run = train(spec(), tmp_path, data=DATA)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(InputError):
        train(spec(**changes), tmp_path, data=DATA, overwrite=True)
    assert load_run(tmp_path / "run.npz").identical(run)
    assert train(spec(), tmp_path, data=DATA, resume=True).identical(run)
    with pytest.raises(Crash):
        train(spec(lr=0.5), tmp_path, data=DATA, overwrite=True, report=crash_at(3))
    assert load_run(tmp_path / "run.npz").identical(run)  # nothing of the new run had been saved yet
    with pytest.raises(InputError, match="Scheduler 'onecyclelr'"):
        train(
            spec(scheduler="onecyclelr", scheduler_options={"max_lr": 0.1, "total_steps": 2}),
            tmp_path,
            data=DATA,
            overwrite=True,
        )
    assert load_run(tmp_path / "run.npz").identical(run)
    with pytest.raises(Crash):
        train(spec(lr=0.5), tmp_path, data=DATA, overwrite=True, checkpoint_seconds=0, report=crash_at(3))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]  # and none of the old run beside it
    assert train(spec(lr=0.5), tmp_path, data=DATA, resume=True).identical(train(spec(lr=0.5), data=DATA))


def test_a_death_while_a_run_is_overwritten(tmp_path, monkeypatch):
    """Its first checkpoint is there, and the record of the old run is not yet gone."""
    train(spec(), tmp_path, data=DATA)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            train(spec(lr=0.5), tmp_path, data=DATA, overwrite=True)
    assert (tmp_path / "run.npz").exists()
    assert train(spec(lr=0.5), tmp_path, data=DATA, resume=True).identical(train(spec(lr=0.5), data=DATA))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["sgd", "pcnsgd+r"])
def test_a_signal_stops_between_two_steps_and_the_run_goes_on_later(tmp_path, number, name):
    chosen = spec(name, grid="all")

    def report(progress):
        if progress.step == 3 and progress.point is not None:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"stopped after step \d+; its state is in"):
        train(chosen, tmp_path, data=DATA, report=report)
    assert signal.getsignal(number) is before
    stopped = load_run(tmp_path / "run.npz")
    assert stopped.meta["status"] == "interrupted"
    assert stopped.steps[-1] < 14
    with pytest.raises(InputError, match=r"is at step \d+ and not finished"):
        load_trained(tmp_path)
    assert train(chosen, tmp_path, data=DATA, resume=True).identical(train(chosen, data=DATA))


def test_a_second_signal_acts_at_once(tmp_path):
    def report(progress):
        if progress.step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt) as error:
            train(spec(grid="all"), tmp_path, data=DATA, report=report)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not isinstance(error.value, Interrupted)


def test_an_interrupted_run_without_a_folder_just_stops():
    with pytest.raises(Interrupted, match=r"^stopped after step \d+$"):
        train(spec(grid="all"), data=DATA, report=lambda progress: signal.raise_signal(signal.SIGINT))


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path):
    runs = []
    thread = threading.Thread(target=lambda: runs.append(train(spec(), tmp_path, data=DATA)))
    thread.start()
    thread.join()
    assert runs[0].identical(train(spec(), data=DATA))


def full_disk(path, write):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    chosen = spec(grid="all")
    crash(chosen, tmp_path, 6)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "fsync", lambda handle: full_disk(None, None))
        with pytest.raises(InputError, match=r"cannot be written: No space left .* the one written before is kept"):
            train(chosen, tmp_path, data=DATA, resume=True, checkpoint_seconds=0)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert train(chosen, tmp_path, data=DATA, resume=True).identical(train(chosen, data=DATA))


def test_a_folder_that_cannot_be_written_to_is_found_out_at_once(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(_files.tempfile, "mkstemp", refuse)
    steps = []
    with pytest.raises(InputError, match=r"checkpoint\.pt cannot be written: Permission denied\."):
        train(spec(), tmp_path, data=DATA, report=lambda progress: steps.append(progress.step))
    assert steps == []


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    file = tmp_path / "taken"
    file.write_text("mine")
    with pytest.raises(InputError, match="should be a folder"):
        train(spec(), file, data=DATA)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused_and_left_alone(tmp_path, keep):
    crash(spec(grid="all"), tmp_path, 6)
    path = tmp_path / "checkpoint.pt"
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(len(whole) * keep)])
    part = path.read_bytes()
    with pytest.raises(InputError, match=r"is damaged or none of classgrad's") as error:
        train(spec(grid="all"), tmp_path, data=DATA, resume=True)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == part


def test_a_checkpoint_of_another_run_is_refused_and_left_alone(tmp_path):
    crash(spec(grid="all"), tmp_path, 6)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(InputError, match=r"is of another run .* settings or data differ"):
        train(spec(grid="all", lr=0.06), tmp_path, data=DATA, resume=True)
    other_data = gaussian_classes([40, 8], dimension=4, overlap=0.1, test_per_class=10, seed=2)
    with pytest.raises(InputError, match="is of another run"):
        train(spec(grid="all"), tmp_path, data=other_data, resume=True)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_a_record_of_another_run_is_refused(tmp_path):
    train(spec(), tmp_path, data=DATA)
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(InputError, match=r"run\.npz is of another run"):
        train(spec(lr=0.06), tmp_path, data=DATA, resume=True)


def test_a_checkpoint_cannot_run_code(tmp_path):
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return Path.touch, (marker,)

    torch.save({"format": "classgrad.checkpoint/1", "evil": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="is damaged or none of classgrad's"):
        load_checkpoint(tmp_path / "checkpoint.pt")
    assert not marker.exists()


def test_other_files_are_no_checkpoints(tmp_path):
    torch.save({"weights": torch.zeros(2)}, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match=r"does not say classgrad\.checkpoint/1"):
        load_checkpoint(tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_checkpoint(tmp_path / "none.pt")
    with pytest.raises(InputError, match="holds no run"):
        load_trained(tmp_path / "nowhere")


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    crash(spec(grid="all"), tmp_path, 6)
    (tmp_path / ".checkpoint.pt.x1.part").write_bytes(b"half")
    train(spec(grid="all"), tmp_path, data=DATA, resume=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint.pt", "run.npz"]


@pytest.mark.parametrize("name", ["gd", "sgd", "pcngd"])
def test_a_diverging_run_stops_with_step_class_and_rate_and_keeps_its_record(tmp_path, name):
    chosen = spec(name, lr=1e38, steps=200, batch_size=48)
    run = train(chosen, tmp_path, data=DATA)
    assert run.meta["status"] == "diverged"
    assert run.meta["message"].startswith("diverged at step ")
    assert "of class 'class " in run.meta["message"]
    assert "at learning rate 1e+38" in run.meta["message"]
    assert len(run.steps) >= 1
    assert run.steps[-1] < 200
    assert load_run(tmp_path / "run.npz").identical(run)
    assert train(chosen, tmp_path, data=DATA, resume=True).identical(run)


def test_the_step_of_divergence_does_not_depend_on_when_it_is_noticed():
    few = train(spec("pcnsgd", lr=1e38, steps=100, grid=(100,)), data=DATA)
    many = train(spec("pcnsgd", lr=1e38, steps=100, grid=(40, 100)), data=DATA)
    assert few.meta["message"] == many.meta["message"]


def test_data_that_is_not_finite_is_named_at_step_zero():
    broken = DATA.train.x.clone()
    broken[DATA.train.y == 1] = float("nan")
    data = Dataset(
        "broken", None, Split(broken, DATA.train.y, DATA.train.indices), DATA.validation, DATA.test,
        DATA.preprocessing, "broken",
    )  # fmt: skip
    run = train(spec("gd"), data=data)
    assert run.meta["message"].startswith("diverged at step 0: the loss of class 'class 1' is nan")
    assert run.steps.tolist() == [0]
    assert np.isnan(run.loss("train")[0, 1])
