from __future__ import annotations

import dataclasses
import hashlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import rich.console

from classgrad import InputError
from classgrad.data._cifar_files import read_cifar
from classgrad.data._cifar_layouts import CIFAR
from classgrad.data._download import download
from classgrad.data._places import Where

CONTENT = bytes(range(256)) * 400


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A web server on this machine, with the pages to fill in."""
    pages: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = pages.get(self.path[1:])
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/", pages
        httpd.shutdown()
        thread.join()


def fetch(url: str, path: Path, *, progress: bool = False, content: bytes = CONTENT) -> Path:
    md5 = hashlib.md5(content).hexdigest()
    return download(url + path.name, path, md5=md5, progress=progress, instead="put it there yourself")


@pytest.mark.parametrize("progress", [False, True])
def test_a_download_lands_whole(server: tuple, tmp_path: Path, progress: bool, capfd: pytest.CaptureFixture) -> None:
    url, pages = server
    pages["data.gz"] = CONTENT
    path = fetch(url, tmp_path / "new" / "data.gz", progress=progress)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert capfd.readouterr() == ("", "")  # no terminal, no bar


def test_a_person_sees_a_bar(server: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, pages = server
    pages["data.gz"] = CONTENT
    screen = io.StringIO()
    terminal = rich.console.Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(rich.console, "Console", lambda **_: terminal)
    fetch(url, tmp_path / "data.gz", progress=True)
    assert "downloading data.gz" in screen.getvalue()
    assert "102.4" in screen.getvalue()  # kB


@pytest.mark.parametrize(("page", "reason"), [("other.gz", "HTTPError"), (None, "ConnectionError")])
def test_a_failed_download_says_what_to_do(server: tuple, tmp_path: Path, page: str | None, reason: str) -> None:
    url = server[0] if page else "http://127.0.0.1:9/"
    with pytest.raises(InputError, match=rf"^data.gz could not be downloaded .*\({reason}\): put it there yourself$"):
        fetch(url, tmp_path / "data.gz")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_checksum_leaves_nothing(server: tuple, tmp_path: Path) -> None:
    url, pages = server
    pages["data.gz"] = CONTENT[:-1]
    with pytest.raises(InputError, match=r"has a wrong checksum and was thrown away: put it there yourself$"):
        fetch(url, tmp_path / "data.gz")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"could not be downloaded .*\((File exists|Not a directory)\)"):
        fetch("http://127.0.0.1:9/", tmp_path / "file" / "data.gz")


def test_without_pooch_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(
        InputError, match=r"^downloading data.gz needs the package pooch: pip install 'classgrad\[lab\]'"
    ):
        fetch("http://127.0.0.1:9/", tmp_path / "data.gz")


def test_a_missing_set_is_downloaded_once(server: tuple, tiny_cifar: Callable, tmp_path: Path) -> None:
    url, pages = server
    tiny = tiny_cifar("cifar10", 0, archive=True)
    archive = tiny.folder / "cifar-10-binary.tar.gz"
    pages[archive.name] = archive.read_bytes()
    wanted = dataclasses.replace(tiny.wanted, url=url)
    where = Where(tmp_path / "fresh", progress=False)
    first = read_cifar(wanted, where)
    pages.clear()
    assert read_cifar(wanted, where).source == first.source


def test_offline_one_line_says_which_file_to_put_where(tmp_path: Path) -> None:
    offline = dataclasses.replace(CIFAR["cifar100"], url="http://127.0.0.1:9/")
    with pytest.raises(InputError) as refused:
        read_cifar(offline, Where(tmp_path / "mine", progress=False))
    message = str(refused.value)
    assert f"put cifar-100-binary.tar.gz (or its folder cifar-100-binary/) into {tmp_path / 'mine'}" in message
    assert "CLASSGRAD_DATA" in message
    assert "\n" not in message
