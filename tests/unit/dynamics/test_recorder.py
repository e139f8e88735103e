import io

import numpy as np
import pytest
import torch

from classgrad._errors import InputError
from classgrad.dynamics import Recorder, _recorder

META = {"classes": ["a", "b"], "counts": [9, 1], "seed": 0}


def through_checkpoint(recorder):
    """The recorder as a checkpoint file without pickled objects brings it back."""
    file = io.BytesIO()
    torch.save({"recorder": recorder.state_dict()}, file)
    file.seek(0)
    return Recorder.from_state_dict(torch.load(file, weights_only=True)["recorder"])


def test_points_become_series():
    recorder = Recorder(META)
    recorder.point(0, {"test/confusion": torch.eye(2, dtype=torch.int32), "lr": 0.1})
    recorder.point(7, {"test/confusion": np.eye(2, dtype=np.uint8), "lr": np.float32(0.5)})
    run = recorder.run()
    assert len(recorder) == 2
    assert run.steps.tolist() == [0, 7]
    assert run.confusion("test").dtype == np.int64
    assert run.confusion("test").tolist() == [[[1, 0], [0, 1]]] * 2
    assert run["lr"].tolist() == [0.1, 0.5]
    assert (run.meta["status"], run.meta["message"]) == ("finished", "")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_float_is_kept_exactly_in_float64(dtype):
    value = torch.tensor([0.1, 2.0]).to(dtype)
    recorder = Recorder(META)
    recorder.point(0, {"noise": value})
    assert recorder.run()["noise"].dtype == np.float64
    assert recorder.run()["noise"][0].tolist() == value.tolist()


def test_what_is_not_measured_at_a_point_is_nan_there():
    recorder = Recorder(META)
    recorder.point(0, {"lr": 0.1})
    recorder.point(1, {"lr": 0.1, "noise": torch.ones(2)})
    recorder.point(2, {"memory_bytes": 5})
    run = recorder.run()
    np.testing.assert_array_equal(run["lr"], [0.1, 0.1, np.nan])
    np.testing.assert_array_equal(run["noise"], [[np.nan] * 2, [1.0, 1.0], [np.nan] * 2])
    np.testing.assert_array_equal(run["memory_bytes"], [np.nan, np.nan, 5.0])


def test_amending_adds_to_the_last_point_and_may_correct_it():
    recorder = Recorder(META)
    recorder.point(0, {"lr": torch.tensor(0.5)})
    recorder.point(1, {"lr": torch.tensor(0.5)})
    recorder.amend({"lr": 0.25, "noise": [1.0, 2.0]})
    run = recorder.run()
    assert run["lr"].tolist() == [0.5, 0.25]
    np.testing.assert_array_equal(run["noise"], [[np.nan] * 2, [1.0, 2.0]])


def test_amending_works_after_the_run_was_read_and_after_a_restart():
    recorder = Recorder(META)
    recorder.point(0, {"lr": 0.5})
    recorder.run()
    again = through_checkpoint(recorder)
    for each in (recorder, again):
        each.amend({"lr": 0.25, "noise": torch.ones(2)})
    assert recorder.run()["lr"].tolist() == [0.25]
    assert recorder.run().identical(again.run())


def test_given_tensors_may_change_afterwards():
    value = torch.zeros(2)
    array = np.zeros(2)
    recorder = Recorder(META)
    recorder.point(0, {"noise": value, "projection": array})
    value += 1
    array += 1
    assert recorder.run()["noise"].tolist() == [[0.0, 0.0]]
    assert recorder.run()["projection"].tolist() == [[0.0, 0.0]]


def test_graphs_are_not_kept():
    recorder = Recorder(META)
    recorder.point(0, {"noise": torch.ones(2, requires_grad=True) * 2})
    assert recorder.run()["noise"].tolist() == [[2.0, 2.0]]


def test_every_step_has_its_own_axis(monkeypatch):
    monkeypatch.setattr(_recorder, "_SETTLE_EVERY", 4)
    recorder = Recorder(META)
    recorder.point(0, {"lr": 0.1})
    for step in range(10):
        recorder.every(step, {"norms": torch.tensor([step, -step]), "loss": float(step)})
    steps, norms = recorder.run().every("norms")
    assert steps.tolist() == list(range(10))
    assert norms.tolist() == [[step, -step] for step in range(10)]
    assert recorder.run().every("loss")[1].tolist() == list(range(10))


def test_settling_early_changes_nothing(monkeypatch):
    def record():
        recorder = Recorder(META)
        recorder.point(0, {"lr": 0.1})
        for step in range(7):
            recorder.every(step, {"a": torch.tensor(1.0 / (step + 1))} if step % 2 else {"b": step})
        return recorder.run()

    whole = record()
    monkeypatch.setattr(_recorder, "_SETTLE_EVERY", 1)
    assert record().identical(whole)


@pytest.mark.parametrize("stop", range(6))
def test_a_restored_recorder_goes_on_to_the_same_bits(stop):
    def record(recorder, steps):
        for step in steps:
            recorder.every(step, {"norms": torch.full((2,), 1.0 / (step + 3))})
            if step % 2 == 0:
                values = {"test/confusion": torch.full((2, 2), step)}
                recorder.point(step, values if step else {**values, "noise": torch.ones(2)})
            else:
                recorder.amend({"measured_change": torch.tensor([0.1, float("nan")]) * step})

    whole, parts = Recorder(META), Recorder(META)
    record(whole, range(6))
    record(parts, range(stop))
    parts = through_checkpoint(parts)
    record(parts, range(stop, 6))
    assert parts.run().differences(whole.run()) == []


def test_the_state_holds_plain_tensors_and_a_string():
    recorder = Recorder(META)
    recorder.point(0, {"lr": 0.1})
    state = recorder.state_dict()
    assert isinstance(state["meta"], str)
    assert all(isinstance(values, torch.Tensor) for values in state["series"].values())


def test_the_run_says_how_it_ended():
    recorder = Recorder(META)
    recorder.point(0, {})
    run = recorder.run("diverged", "class b at step 3", steps=3)
    assert (run.meta["status"], run.meta["message"], run.meta["steps"]) == ("diverged", "class b at step 3", 3)
    assert recorder.run().meta["status"] == "finished"


def test_settings_are_copied():
    meta = {**META, "versions": {"torch": "1"}}
    recorder = Recorder(meta)
    meta["versions"]["torch"] = "2"
    recorder.point(0, {})
    assert recorder.run().meta["versions"] == {"torch": "1"}


@pytest.mark.parametrize("step", [-1, 0, 3])
def test_steps_must_rise(step):
    recorder = Recorder(META)
    recorder.point(3, {})
    with pytest.raises(InputError, match=f"`step` should come once and rise from 0 on. Found {step} after 3"):
        recorder.point(step, {})
    assert len(recorder) == 1


def test_steps_rise_across_a_restart():
    recorder = Recorder(META)
    recorder.point(3, {})
    with pytest.raises(InputError, match="Found 3 after 3"):
        through_checkpoint(recorder).point(3, {})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 3}, "`step` should come once"),
        ({"every/norms": 3}, "'every/norms' should be given to `every`"),
        ({"noise": torch.ones(3)}, r"'noise' should keep its shape \(2,\)\. Found \(3,\)"),
        ({"lr": "fast"}, "'lr' should hold numbers. Found 'fast'"),
        ({"lr": 1j}, "'lr' should hold real numbers"),
    ],
)
def test_values_that_are_no_series_are_refused(values, message):
    recorder = Recorder(META)
    recorder.point(0, {"noise": torch.ones(2)})
    with pytest.raises(InputError, match=message):
        recorder.point(1, {"lr": 0.5, **values})
    assert recorder.run().steps.tolist() == [0]
    assert "lr" not in recorder.run()


def test_amending_needs_a_point():
    with pytest.raises(InputError, match="call `point` first"):
        Recorder(META).amend({"lr": 0.1})


def test_settings_must_be_plain():
    with pytest.raises(InputError, match="`meta` should be plain JSON"):
        Recorder({**META, "lr": torch.tensor(0.1)})


def test_a_record_needs_a_point():
    with pytest.raises(InputError, match=r"'step' should be one row of int64 steps.* Found nothing"):
        Recorder(META).run()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_come_from_any_device():
    recorder = Recorder(META)
    recorder.point(0, {"noise": torch.ones(2)})
    recorder.point(1, {"noise": torch.ones(2, device="cuda")})
    recorder.every(0, {"norms": torch.ones(2, device="cuda")})
    assert recorder.run()["noise"].tolist() == [[1.0, 1.0]] * 2
