"""Device and precision of a run, and the switches that make its bits repeatable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args

import torch

from classgrad._errors import InputError

Precision = Literal["float64", "float32", "tf32", "bf16"]
Device = Literal["auto", "cpu", "cuda"]


def resolve_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one; a device that is asked for and not there is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in get_args(Device):
        raise InputError(f"Parameter `device` should be auto, cpu, cuda or cuda:N. Found {name!r}.")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"Parameter `device` should be auto, cpu, cuda or cuda:N. Found {name!r}.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"Parameter `device` is {name} and this machine has {torch.cuda.device_count()} CUDA devices; use cpu."
        )
    return device


def dtype_of(precision: str) -> torch.dtype:
    """Give the type of parameters and inputs: bf16 and tf32 keep them in float32."""
    return torch.float64 if precision == "float64" else torch.float32


@contextmanager
def repeatable(device: torch.device, precision: str, threads: int) -> Iterator[None]:
    """Set what decides the last bits: CPU threads, deterministic kernels, TF32 only if asked for.

    torch keeps these switches for the whole process; the old settings come back.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with _deterministic(precision) if device.type == "cuda" else nullcontext():
            yield
    finally:
        torch.set_num_threads(before)


def own_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Make a stream on a GPU: what runs on the default one cannot be recorded."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Work on a stream, if there is one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


@contextmanager
def _deterministic(precision: str) -> Iterator[None]:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may pick another kernel
    products = "tf32" if precision == "tf32" else "ieee"
    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    wanted: list[tuple[Any, str, Any]] = [
        (torch.backends.cuda.matmul, "fp32_precision", products),
        (convolutions, "fp32_precision", products),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "benchmark", False),
        (torch.utils.deterministic, "fill_uninitialized_memory", False),  # a debugging aid that costs a kernel each
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in wanted]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        for place, name, value in wanted:
            setattr(place, name, value)
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
