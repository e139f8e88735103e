from __future__ import annotations

from classgrad.report._experiments import problems
from classgrad.report._notes import notes


def notes_of(*runs):
    return notes(problems(runs)[0].experiments[0])


def test_several_seeds_that_finished_need_no_note(binary):
    assert notes_of(*binary[:3]) == ()


def test_a_single_seed_has_no_error(binary):
    assert notes_of(binary[0]) == ("One seed: no error bands.",)


def test_runs_that_broke_off_are_named_with_step_and_reason(synthetic, binary):
    diverged = synthetic.cut(binary[2], 5, "diverged", "the loss of class 'x' is nan at learning rate 9.")
    assert notes_of(*binary[:2], diverged) == (
        "1 of 3 runs left out of all averages, 2 kept: seed 2 diverged after step 4 (the loss of class 'x' is nan at "
        "learning rate 9).",
    )


def test_runs_none_of_which_finished_are_shown_as_far_as_they_went(synthetic, binary):
    stopped = [synthetic.cut(run, 6, message="") for run in binary[:2]]
    (note,) = notes_of(*stopped)
    assert note.startswith("No run finished: seed 0 interrupted after step 5; seed 1 interrupted after step 5.")


def test_unequal_grids_are_told_with_what_is_left(synthetic, binary):
    every_second = {name: values[::2] for name, values in binary[0].series.items()}
    total, kept = len(binary[0].steps), len(every_second["step"])
    assert notes_of(synthetic.changed(binary[0], every_second), binary[1]) == (
        f"The seeds were measured at different steps: curves show the {kept} of {total} steps they share.",
    )


def test_what_was_not_measured_is_told(synthetic, binary):
    bare = [synthetic.changed(run, {"gram": None}) for run in binary[:2]]
    assert notes_of(*bare) == ("Class gradients were not measured: their plots are left out.",)
    gone = {f"{split}/confusion": None for split in ("train", "validation", "test")}
    blind = [synthetic.changed(run, gone) for run in binary[:2]]
    assert notes_of(*blind) == ("Recall was not measured: no results, no recall curves, no confusion matrices.",)


def test_balanced_data_has_no_minority(synthetic, binary):
    balanced = [synthetic.changed(run, counts=[50, 50]) for run in binary[:2]]
    assert notes_of(*balanced) == ("Trained on equally many examples of every class: there is no minority.",)
