from __future__ import annotations

import itertools
import sys

import matplotlib
import numpy as np
import pytest
from PIL import Image

from classgrad import InputError
from classgrad.report import _figures, write_report
from classgrad.report._experiments import problems
from classgrad.report._figures import _stems, write_figures
from classgrad.report._panels import plain_text


@pytest.fixture(scope="module")
def written(binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    before = dict(matplotlib.rcParams)
    figures = write_figures(problems(binary), folder)
    assert dict(matplotlib.rcParams) == before
    return figures, folder


@pytest.fixture(scope="module")
def recalls(synthetic, binary):
    """A run that measured test recall alone."""
    return synthetic.changed(
        binary[0], {name: None for name in binary[0].series if name not in ("step", "test/confusion")}
    )


def test_every_figure_of_the_page_is_written_in_both_kinds(written):
    figures, folder = written
    names = ["overview", "recall", "loss", "norm", "ratio", "angle", "confusion", "confusion-drop"]
    assert [figure.paths[0].stem for figure in figures] == [f"gauss-bi20-{name}" for name in names]
    expected = sorted(path for figure in figures for path in figure.paths)
    assert sorted(folder.iterdir()) == expected
    assert {path.suffix for path in expected} == {".png", ".pdf"}
    assert figures[1].title == "gauss-bi20, recall of every class, test set"
    assert figures[3].title == "gauss-bi20, class-gradient norms, train set"


def test_pictures_are_wide_enough_for_print_and_show_the_class_colours(written):
    figures, _ = written
    with Image.open(figures[1].paths[0]) as picture:
        assert picture.info["dpi"][0] == pytest.approx(200, abs=0.1)
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    for colour in ((0x15, 0x22, 0x6E), (0xD6, 0x7D, 0x00)):
        assert (np.abs(pixels.astype(int) - colour).max(axis=1) <= 2).sum() > 200


def test_pdfs_embed_fonts_that_journals_take(written):
    figures, _ = written
    content = figures[0].paths[1].read_bytes()
    assert content.startswith(b"%PDF")
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    assert b"CreationDate" not in content


def test_equal_runs_make_equal_files(recalls, tmp_path, monkeypatch):
    drawings = _figures._drawings
    monkeypatch.setattr(_figures, "_drawings", lambda problem: itertools.islice(drawings(problem), 1))
    first, second = (write_figures(problems([recalls]), tmp_path / name) for name in ("first", "second"))
    assert [path.read_bytes() for path in first[0].paths] == [path.read_bytes() for path in second[0].paths]


def test_many_classes_get_a_map(wide, tmp_path):
    names = [figure.paths[0].name for figure in write_figures(problems(wide), tmp_path, ("png",))]
    assert "gauss-wide-recall-map.png" in names
    assert all((tmp_path / name).stat().st_size > 5000 for name in names)


def test_what_was_not_measured_is_left_out_or_said(synthetic, binary, tmp_path):
    bare = synthetic.changed(binary[0], {"gram": None, "test/loss": None})
    names = {figure.paths[0].stem for figure in write_figures(problems([bare]), tmp_path, ("png",))}
    assert names == {f"gauss-bi20-{name}" for name in ("overview", "recall", "confusion", "confusion-drop")}
    without_loss = synthetic.changed(binary[3], {"gram": None})
    names = {figure.paths[0].stem for figure in write_figures(problems([bare, without_loss]), tmp_path, ("png",))}
    assert "gauss-bi20-loss" in names
    nothing = synthetic.changed(binary[0], {name: None for name in bare.series if name != "step"} | {"gram": None})
    assert write_figures(problems([nothing]), tmp_path) == []


def test_losses_that_are_not_finite_are_drawn_without_warning(synthetic, binary, tmp_path):
    losses = binary[0]["test/loss"].copy()
    losses[3:] = [np.inf, np.nan]
    gone = np.full_like(losses, np.nan)
    for values in (losses, gone):
        runs = [synthetic.changed(run, {"test/loss": values, "gram": None}) for run in binary[:2]]
        assert len(write_figures(problems(runs), tmp_path, ("png",))) == 5


@pytest.mark.parametrize("count", [1, 4])
def test_any_number_of_algorithms_has_room_for_the_legend(synthetic, recalls, tmp_path, count):
    runs = [synthetic.changed(recalls, algorithm=f"a{k}") for k in range(count)]
    assert len(write_figures(problems(runs), tmp_path, ("png",))) == 4


def test_files_of_data_sets_with_odd_names_do_not_collide(synthetic, recalls):
    runs = [synthetic.changed(recalls, data=name) for name in ("../Ä/b", "../ä/B", "&&", "Bi 20")]
    assert _stems(problems(runs)) == ["b-1", "b-2", "data", "bi-20"]


def test_odd_names_are_drawn_as_they_are(synthetic, recalls, tmp_path):
    for names in (["$\\frac{$", "_hidden"], ["a $ b", "名前"], ["x" * 300, ""]):
        run = synthetic.changed(recalls, classes=names, algorithm="$_^{")
        assert len(write_figures(problems([run]), tmp_path, ("png",))) == 4
    assert plain_text("_a$b", 9) == r" _a\$b"
    assert plain_text("abcdef", 4) == "abc…"


def test_an_unknown_kind_is_refused(binary, tmp_path):
    with pytest.raises(InputError, match=r"Parameter `figures` .* Found 'svg'"):
        write_report(binary, tmp_path, figures=("svg",))


def test_pyplot_and_its_global_state_are_not_used(recalls, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it fails from here on
    assert write_figures(problems([recalls]), tmp_path, ("png",))
