"""What all tests share."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let output be as wide as it is: xdist tells its workers of a terminal of 80 columns that is not there."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def nothing_waits() -> Callable[[], AbstractContextManager[None]]:
    """Give a context in which waiting for the GPU raises."""

    @contextmanager
    def context() -> Iterator[None]:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
                torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return context
