"""Values that reach the host some steps after they were measured make the same record."""

import numpy as np
import pytest
import torch
from torch import nn

from classgrad.data import gaussian_classes
from classgrad.dynamics import Recorder
from classgrad.training import RunSpec, train
from classgrad.training._chunk import ON_CPU, resolve_chunk
from classgrad.training._clock import Clock
from classgrad.training._divergence import Watch
from classgrad.training._loop import Loop
from classgrad.training._mailbox import Mailbox
from classgrad.training._numerics import repeatable
from classgrad.training._recording import run_meta
from classgrad.training._signals import Interruption
from classgrad.training._trainer import Trainer

DATA = gaussian_classes([60, 15, 6], dimension=5, overlap=0.2, test_per_class=10, seed=1)
CPU = torch.device("cpu")


def spec(name, **changes):
    settings = {"lr": 0.05, "steps": 30, "batch_size": 19, "device": "cpu", "grid": "log:8", "every": True}
    return RunSpec("gaussian", name, **{**settings, **changes})


def late_run(chosen, every):
    """Run as on a GPU: updates are looked at together, and everything is delivered later."""
    trainer = Trainer(chosen, DATA, CPU)
    trainer.mailbox = Mailbox(late=True)
    trainer.watch = Watch(DATA.classes, trainer.mailbox, every=every)
    told = []
    loop = Loop(
        trainer, Recorder(run_meta(chosen, DATA, CPU)), None, Interruption(), 60.0, told.append, DATA.preprocessing
    )
    steps = loop.run(resume=False)
    with repeatable(CPU, chosen.precision, chosen.threads):
        try:
            while True:
                next(steps)
        except StopIteration as end:
            return end.value, [progress.step for progress in told if progress.point is not None]


@pytest.mark.parametrize("every", [2, 7, 100])
@pytest.mark.parametrize("name", ["sgd", "pcnsgd+o", "gd", "pcngd"])
def test_a_late_record_is_the_record(name, every):
    run, told = late_run(spec(name), every)
    assert run.differences(train(spec(name), data=DATA)) == []
    assert told == run.steps.tolist()


@pytest.mark.parametrize("every", [2, 7, 100])
@pytest.mark.parametrize("name", ["gd", "pcngd"])
def test_a_run_that_diverges_ends_with_the_same_record_however_late_that_is_seen(name, every):
    chosen = spec(name, lr=1e15, grid="all", optimizer_options={"momentum": 20.0})
    straight = train(chosen, data=DATA)
    assert straight.meta["status"] == "diverged"
    run, _ = late_run(chosen, every)
    assert run.differences(straight) == []
    assert len(run.steps) < 30


def test_letters_are_delivered_in_their_order_and_after_a_failure_not_at_all():
    mailbox, seen = Mailbox(late=True), []
    value = torch.zeros(2)
    for number in range(4):
        value.fill_(number)
        mailbox.send({"x": value, "n": lambda number=number: number}, seen.append)
    mailbox.deliver(keep=3)
    assert [letter["n"] for letter in seen] == [0]
    assert len(mailbox) == 3

    def fail(letter):
        raise ZeroDivisionError

    mailbox.send({}, fail)
    mailbox.send({}, seen.append)
    with pytest.raises(ZeroDivisionError):
        mailbox.deliver()
    assert [letter["x"].tolist() for letter in seen] == [[float(n)] * 2 for n in range(4)]
    mailbox.deliver()
    assert len(seen) == 4


def test_a_clock_counts_stretches_and_laps(monkeypatch):
    now = iter([1.0, 3.0, 10.0, 11.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = Clock(CPU)
    clock.stop()
    clock.start()
    clock.start()
    clock.stop()
    first = clock.lap()
    clock.start()
    clock.stop()
    assert (first(), clock.lap()(), clock.lap()(), clock.total) == (2.0, 1.0, 0, 3.0)


def test_chunks_on_a_cpu_are_those_asked_for_or_the_usual():
    def never(part):
        raise AssertionError

    def chunk(examples, width, least=0, asked="auto"):
        return resolve_chunk(asked, never, torch.arange(examples), width, least)

    assert chunk(ON_CPU, 3072) == chunk(ON_CPU + 1, 64) == chunk(ON_CPU + 1, 0) == ON_CPU
    assert (chunk(5714, 3072), chunk(5714, 3 * 224 * 224), chunk(5714, 3072, least=400)) == (256, 16, 400)
    assert chunk(5714, 3072, least=400, asked=3) == 3


def test_a_resumed_run_keeps_the_chunk_it_began_with():
    state = Trainer(spec("pcngd", chunk=7), DATA, CPU).state_dict()
    trainer = Trainer(spec("pcngd"), DATA, CPU)
    trainer.load_state_dict(state)
    assert trainer.chunk == 7
    other = Trainer(spec("pcngd", chunk=7), DATA, CPU)
    for one in (trainer, other):
        one.update(one.next_batch())
    assert all(torch.equal(p, q) for p, q in zip(trainer.parameters, other.parameters, strict=True))
    assert np.isfinite(nn.utils.parameters_to_vector(trainer.parameters).detach().numpy()).all()
