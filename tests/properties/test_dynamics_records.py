import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from classgrad._errors import InputError
from classgrad.dynamics import Recorder, Run, load_run, save_run

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def runs(draw):
    points, classes = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    gaps = draw(st.lists(st.integers(1, 2**40), min_size=points, max_size=points))
    floats = st.floats(width=64)
    series = {
        "step": np.cumsum(gaps),
        "test/confusion": draw(hnp.arrays(np.int64, (points, classes, classes), elements=st.integers(0, 2**40))),
        "train/loss": draw(hnp.arrays(np.float64, (points, classes), elements=floats)),
        draw(st.sampled_from(["any name", "a/b/c", "ünïcode", "..", "with.npy"])): draw(
            hnp.arrays(np.float64, (points, 2), elements=floats)
        ),
    }
    meta = draw(st.dictionaries(st.sampled_from(["data", "versions", "note", ""]), JSON, max_size=3))
    names = draw(st.lists(st.text(), min_size=classes, max_size=classes))
    return Run({**meta, "classes": names, "counts": list(range(classes))}, series)


@settings(deadline=None, max_examples=50)
@given(runs())
def test_any_run_survives_its_file_bit_for_bit(run):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        save_run(run, path)
        loaded = load_run(path)
    assert loaded.meta == run.meta
    assert loaded.differences(run) == []


def example_file(folder):
    values = np.random.default_rng(0).normal(size=(4, 2))
    series = {"step": np.arange(4), "train/loss": values, "test/confusion": np.ones((4, 2, 2), dtype=np.int64)}
    run = Run({"classes": ["a", "b"], "counts": [3, 1]}, series)
    path = Path(folder) / "run.npz"
    save_run(run, path)
    return run, path


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_a_damaged_file_is_refused_or_read_unchanged(data):
    """Bits may flip, bytes be cut out or overwritten: never another error, never other numbers."""
    with tempfile.TemporaryDirectory() as folder:
        run, path = example_file(folder)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            how = data.draw(st.sampled_from(["flip", "cut", "overwrite"]))
            if how == "flip":
                content[at] ^= 1 << data.draw(st.integers(0, 7))
            elif how == "cut":
                del content[at : at + data.draw(st.integers(1, 40))]
            else:
                junk = data.draw(st.binary(min_size=1, max_size=20))
                content[at : at + len(junk)] = junk
            if not content:
                break
        path.write_bytes(content)
        loaded, message = load_or_message(path)
    assert "\n" not in message
    for name in () if loaded is None else loaded.series.keys() & run.series.keys():
        assert loaded[name].tobytes() == run[name].tobytes()


def load_or_message(path):
    try:
        return load_run(path), ""
    except InputError as error:
        return None, str(error)


def test_every_single_flipped_bit_of_the_numbers_is_noticed():
    with tempfile.TemporaryDirectory() as folder:
        run, path = example_file(folder)
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            damaged = bytearray(whole)
            damaged[at] ^= 16
            path.write_bytes(damaged)
            loaded, _ = load_or_message(path)
            if loaded is not None:
                assert all(values.tobytes() == run[name].tobytes() for name, values in loaded.series.items())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["point", "amend", "every"]), max_size=25), st.data())
def test_a_recorder_stopped_anywhere_goes_on_to_the_same_bits(actions, data):
    def play(recorder, first, last):
        for step, action in enumerate(actions[first:last], start=first + 1):
            value = torch.full((2,), 1 / (step + 2))
            if action == "point":
                recorder.point(step, {"noise": value} if step % 3 else {"projection": value})
            elif action == "amend":
                recorder.amend({"measured_change": value})
            else:
                recorder.every(step, {"norms": value} if step % 2 else {"loss": value[0]})
        return recorder

    start = Recorder({"classes": ["a", "b"], "counts": [3, 1]})
    start.point(0, {})
    stop = data.draw(st.integers(0, len(actions)))
    state = play(start, 0, stop).state_dict()
    whole = play(start, stop, len(actions)).run()
    assert play(Recorder.from_state_dict(state), stop, len(actions)).run().differences(whole) == []


@pytest.mark.parametrize("name", ["classes", "counts"])
def test_a_record_cannot_be_without(name):
    meta = {"classes": ["a"], "counts": [1]}
    del meta[name]
    with pytest.raises(InputError):
        Run(meta, {"step": np.arange(1)})
