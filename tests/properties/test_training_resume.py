"""Whatever is trained, and wherever it dies: a resumed run ends like one that did not stop."""

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classgrad.data import gaussian_classes
from classgrad.rules import Normalize
from classgrad.training import ALGORITHMS, RunSpec, train

DATA = gaussian_classes([30, 9, 3], dimension=4, overlap=0.1, test_per_class=6, seed=2)


class Crash(Exception):
    """The process dies."""


@settings(deadline=None, max_examples=10)
@given(
    name=st.sampled_from(sorted(ALGORITHMS)),
    optimizer=st.sampled_from(["sgd", "adam", "rmsprop", "adagrad"]),
    scheduler=st.sampled_from([None, "ExponentialLR", "CyclicLR"]),
    batch_size=st.integers(3, 40),
    chunk=st.sampled_from([5, 4096]),
    precision=st.sampled_from(["float64", "float32", "bf16"]),
    seed=st.integers(0, 9),
    refresh=st.sampled_from([1, 2, 5]),
    crashes=st.lists(st.integers(0, 12), min_size=1, max_size=3),
)
def test_a_resumed_run_is_the_uninterrupted_one(
    name, optimizer, scheduler, batch_size, chunk, precision, seed, refresh, crashes
):
    options = {"ExponentialLR": {"gamma": 0.9}, "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "cycle_momentum": False}}
    spec = RunSpec(
        "gaussian", name, lr=0.02, steps=12, batch_size=batch_size, chunk=chunk, precision=precision, seed=seed,
        optimizer=optimizer, scheduler=scheduler, scheduler_options=options.get(scheduler, {}), grid="all", every=True,
        device="cpu", model_options={"hidden": [4]},
        rule_options={"refresh": refresh, "drift": 1.2} if ALGORITHMS[name].rule is Normalize else {},
    )  # fmt: skip
    straight = train(spec, data=DATA)
    with tempfile.TemporaryDirectory() as folder:
        for step in sorted(crashes):

            def die(progress, step=step):
                if progress.step >= step and progress.point is not None:
                    raise Crash

            with pytest.raises(Crash):
                train(spec, folder, data=DATA, resume=True, checkpoint_seconds=0, report=die)
        assert train(spec, folder, data=DATA, resume=True).differences(straight) == []
