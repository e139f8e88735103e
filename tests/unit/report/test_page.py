from __future__ import annotations

import ast
import base64
import gzip
import importlib
import itertools
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from classgrad import InputError
from classgrad.report import write_report
from classgrad.report._experiments import problems
from classgrad.report._page import render

VOID = {"meta", "input", "br", "hr", "img", "link"}
NASTY = "<script>alert(1)</script>"


class Outline(HTMLParser):
    """Elements, attributes and text of a page; fails on tags that do not match."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), list(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def of(self, tag):
        return [attributes for name, attributes, _ in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(pair):
    return render(problems(pair), "A title")


@pytest.fixture(scope="module")
def outline(page):
    return Outline(page)


def data_of(page):
    packed = re.search(r'id="packed-data">([^<]*)<', page).group(1)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_the_page_is_whole(page, outline):
    text = " ".join(outline.text)
    assert "A title" in text
    for phrase in ("What was run", "Results", "How every class is learnt", "Repeat it", "gauss-lt10", "20 : 1"):
        assert phrase in text
    assert data_of(page)["problems"][0]["label"] == "gauss-bi20"
    assert {"script", "style"} <= {tag for tag, _, _ in outline.elements}


def test_the_page_needs_nothing_from_outside(page, outline):
    assert not [attributes for tag in ("img", "link", "iframe") for attributes in outline.of(tag)]
    assert not [attributes for attributes in outline.of("script") if "src" in attributes]
    assert all(attributes["href"].startswith("#") for attributes in outline.of("a"))
    assert "http://" not in page
    assert "https://" not in page
    policy = next(a["content"] for a in outline.of("meta") if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_the_page_is_labelled_for_those_who_do_not_see_it(outline):
    ids = [attributes["id"] for _, attributes, _ in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in outline.elements:
        assert attributes.get("aria-labelledby", ids[0]) in ids
    for attributes in outline.of("a"):
        assert attributes["href"][1:] in ids
    for tag, _, above in outline.elements:
        assert tag != "select" or above[-1] == "label"
    assert len(outline.of("caption")) == len(outline.of("table"))
    assert all(attributes["scope"] in ("row", "col") for attributes in outline.of("th"))
    assert outline.elements[0][:2] == ("html", {"lang": "en"})
    headings = [int(tag[1]) for tag, _, _ in outline.elements if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(headings))


def test_names_that_users_chose_show_as_they_are(synthetic, binary):
    named = {"data": NASTY, "classes": [NASTY, '"&'], "algorithm": f"{NASTY}'", "spec": None}
    runs = [synthetic.changed(run, status="diverged", message=NASTY, **named) for run in binary[:2]]
    page = render(problems(runs), f"About {NASTY}")
    assert NASTY not in page
    found = Outline(page)
    assert " ".join(found.text).count(NASTY) >= 8
    assert len(found.of("script")) == 3
    assert data_of(page)["problems"][0]["classes"][0]["name"] == NASTY
    assert "no command to paste" in page


def test_best_and_drop_are_set_off_in_words_too(page):
    assert re.search(r'<td class="best">[\d.]+ ± [\d.]+ %<span class="unseen"> \(best\)', page)
    assert re.search(r'<td class="drop">yes, \d+ points \(\d+ %\)</td>', page)
    assert '<td class="calm">no</td>' in page
    assert "steps to R* = 70 %" in page


def test_a_single_algorithm_is_not_the_best_of_anything(binary):
    page = render(problems(binary[:3]), "")
    assert 'class="best"' not in page
    assert "How the algorithm gd learns every class of gauss-bi20: 3 training runs" in page


def test_notes_are_numbered_and_linked_once(synthetic, pair):
    runs = [run for run in pair if run.meta["seed"] == 0]
    found = Outline(render(problems(runs), ""))
    links = [attributes["href"] for attributes in found.of("a") if attributes["href"].startswith("#note")]
    assert links == ["#note-1"] * 4
    assert [a.get("value") for a in found.of("li") if "value" in a] == ["1", "1"]


def test_unmeasured_and_empty_classes_are_handled(synthetic, binary):
    gone = {name: None for name in binary[0].series if "/" in name or name == "gram"}
    bare = synthetic.changed(binary[0], gone, counts=[5, 0])
    text = " ".join(Outline(render(problems([bare]), "")).text)
    assert "Recall was not measured" in text
    assert "one empty" in text
    assert "–" in text


def test_many_classes_are_a_skyline(wide):
    found = Outline(render(problems(wide), ""))
    (skyline,) = [attributes for attributes in found.of("div") if attributes.get("class") == "skyline"]
    assert skyline["aria-label"].startswith("30 classes, from ")
    assert "three groups of classes by size" in " ".join(found.text)


def test_equal_runs_make_equal_pages(binary):
    assert render(problems(binary), "x") == render(problems(binary), "x")


@pytest.mark.parametrize("package", ["jinja2", "plotly.offline", "matplotlib"])
def test_a_missing_package_is_named_with_the_way_out(monkeypatch, tmp_path, binary, package):
    real = importlib.import_module

    def without(name, *rest):
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(InputError, match=r"pip install 'classgrad\[lab\]'"):
        write_report(binary, tmp_path, figures=("png",) if package == "matplotlib" else ())


def test_the_packages_of_the_lab_are_imported_only_when_used():
    for file in files("classgrad.report").iterdir():
        if file.name.endswith(".py"):
            top = ast.parse(file.read_text(encoding="utf-8")).body
            names = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
            names += [str(node.module) for node in top if isinstance(node, ast.ImportFrom)]
            assert not [name for name in names if name.partition(".")[0] in ("matplotlib", "plotly", "jinja2")]
