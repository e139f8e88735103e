"""Many runs at once: the same records however many workers there are, and errors that reach the caller."""

import os
import queue
import signal

import pytest

from classgrad import InputError
from classgrad.training import Interrupted, Job, Progress, RunSpec, train_all
from classgrad.training import _pool as pool


def job(name="gd", folder=None, **changes):
    options = {"data_options": {"majority": 40, "imbalance": 4, "dimension": 3, "test_per_class": 5}}
    settings = {"lr": 0.1, "steps": 4, "batch_size": 10, "device": "cpu", "grid": "all", **options, **changes}
    return Job(RunSpec("gaussian", name, **settings), folder)


@pytest.fixture(autouse=True)
def _signals_as_before():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


def test_two_workers_make_the_records_of_one(tmp_path):
    jobs = [job(name, tmp_path / name) for name in ("gd", "pcnsgd+o", "sgd")]
    seen = []
    together = train_all(jobs, workers=2, report=lambda number, progress: seen.append((number, progress)))
    in_turn = train_all([job(name) for name in ("gd", "pcnsgd+o", "sgd")], workers=1)
    assert [a.differences(b) for a, b in zip(together, in_turn, strict=True)] == [[], [], []]
    for number in range(3):
        points = [progress for index, progress in seen if index == number and progress.point is not None]
        assert [point.step for point in points] == [0, 1, 2, 3, 4]
        assert points[0].point["test/confusion"].sum() == 10


def test_an_error_in_a_worker_reaches_the_caller(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="should be a folder"):
        train_all([job("gd", tmp_path / "taken"), job("sgd", tmp_path / "fine")], workers=2)


def test_one_worker_reports_with_the_number_of_the_job():
    seen = []
    train_all([job("gd"), job("sgd")], workers=1, report=lambda number, progress: seen.append(number))
    assert sorted(set(seen)) == [0, 1]


def test_the_number_of_workers_is_checked_and_has_a_default(monkeypatch):
    with pytest.raises(InputError, match="`workers` should be at least 1"):
        train_all([job(), job()], workers=0)
    assert pool._default_workers([job()]) == len(os.sched_getaffinity(0))
    assert pool._default_workers([job(), job(device="cuda")]) == 1
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert pool._default_workers([job(device="auto")]) == 1


def work(*jobs):
    """A worker's life, in this process; returns what it says."""
    todo, messages = queue.Queue(), queue.Queue()
    for item in (*enumerate(jobs), None):
        todo.put(item)
    pool._work(todo, messages, None, {"resume": False, "overwrite": False})
    return list(messages.queue)


def test_a_worker_sends_progress_and_records():
    said = work(job("gd"), job("sgd"))
    assert [number for kind, number, _ in said if kind == "run"] == [0, 1]
    assert all(isinstance(content, Progress) for kind, _, content in said if kind == "progress")


def test_a_worker_says_why_it_stopped(monkeypatch):
    assert work(job("pcnsgd", batch_size=1))[-1][0] == "refused"
    monkeypatch.setattr(pool, "train", lambda *a, **k: (_ for _ in ()).throw(ZeroDivisionError("oops")))
    kind, _, text = work(job())[-1]
    assert kind == "failed"
    assert "ZeroDivisionError: oops" in text
    monkeypatch.setattr(pool, "train", lambda *a, **k: (_ for _ in ()).throw(Interrupted("stopped after step 3")))
    assert work(job())[-1] == ("interrupted", 0, "stopped after step 3")


def parent(messages, codes=(None,)):
    """The parent's side with workers that exist on paper only."""
    side = pool._Pool([job(), job()], 1, None, {}, None)
    side._messages = queue.Queue()
    side._workers = [type("Worker", (), {"exitcode": code})() for code in codes]
    for message in messages:
        side._messages.put(message)
    return side


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (("refused", 0, "no such data"), InputError, "no such data"),
        (("interrupted", 0, "stopped"), Interrupted, "stopped"),
        (("failed", 0, "a long story"), RuntimeError, "a long story"),
    ],
)
def test_the_parent_raises_what_a_worker_met(message, error, text):
    with pytest.raises(error, match=text):
        parent([message])._listen()


def test_a_worker_that_was_killed_is_noticed():
    with pytest.raises(InputError, match="ended with code -9"):
        parent([], codes=(None, -9))._listen()
    parent([], codes=(None, 0))._listen()
    parent([("progress", 0, None)])._listen()  # nobody wants to know
