"""Many runs at once: the same records however many workers there are, and errors that reach the caller."""

import os
import queue
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from classgrad import InputError
from classgrad.data import Preprocessing
from classgrad.training import Interrupted, Job, Progress, RunSpec, load_data, train_all
from classgrad.training import _pool as pool
from classgrad.training._train import Task, train_together


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


def test_runs_in_turns_are_the_runs_alone(tmp_path):
    jobs = [job(name, seed=seed) for name in ("gd", "pcnsgd+o") for seed in range(2)]
    seen = []
    alone = train_all(jobs, workers=1)
    found = train_all(jobs, workers=1, together=3, report=lambda number, progress: seen.append(number))
    assert [a.differences(b) for a, b in zip(found, alone, strict=True)] == [[]] * 4
    assert seen[:3] == [0, 1, 2]
    folders = [Job(one.spec, tmp_path / str(number)) for number, one in enumerate(jobs)]
    train_all(folders[:1], workers=1)
    resumed = train_all(folders, workers=1, together=4, resume=True)
    assert [a.differences(b) for a, b in zip(resumed, alone, strict=True)] == [[]] * 4
    with pytest.raises(InputError, match="`together` should be at least 1"):
        train_all(jobs, together=0)


def test_only_runs_that_share_nothing_are_made_in_turns():
    tasks = pool._companies(
        [
            Task(one.spec, load_data(one.spec))
            for one in (job(), job("sgd"), job(precision="float64"), job(precision="float64"), job(), job(), job())
        ],
        2,
    )
    assert [len(some) for some in tasks] == [2, 2, 2, 1]
    with pytest.raises(InputError, match="in common and no dropout"):
        train_together([tasks[0][0], tasks[1][0]])
    images = SimpleNamespace(preprocessing=Preprocessing(("a", "b"), (3, 32, 32), (0.0,) * 3, (1.0,) * 3))
    deep = RunSpec("images", "gd", lr=0.1, steps=1, model="vgg16")
    assert Task(deep, images).draws
    assert not Task(replace(deep, model_options={"dropout": 0.0}), images).draws


def test_a_signal_ends_all_runs_in_turns_when_they_are_saved(tmp_path):
    jobs = [job("pcnsgd+r", tmp_path / str(seed), seed=seed, steps=200) for seed in range(2)]

    def interrupt(number, progress):
        if number == 0 and progress.step == 50 and progress.point is not None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="can be resumed"):
        train_all(jobs, workers=1, together=2, report=interrupt)
    alone = train_all([Job(one.spec, None) for one in jobs], workers=1)
    resumed = train_all(jobs, workers=1, together=2, resume=True)
    assert [a.differences(b) for a, b in zip(resumed, alone, strict=True)] == [[], []]
