"""The official forms of CIFAR-10 and CIFAR-100: their files, checksums, and how each is read.

Every file becomes rows of the binary form: the label (CIFAR-100: coarse, then fine), then 3072 bytes of image, the red
plane, the green and the blue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from classgrad._errors import InputError
from classgrad.data._cifar_names import CIFAR10, CIFAR100
from classgrad.data._unpickle import safe_unpickle

PIXELS = 3 * 32 * 32
Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class File:
    """A file of ``rows`` images; ``checksum`` is an MD5 (32 digits) or a SHA-1 (40)."""

    name: str
    checksum: str
    rows: int


@dataclass(frozen=True)
class Layout:
    """A folder of files, or the archive that holds it; ``parse(content, labels, origin)`` reads one of them."""

    folder: str
    archive: str
    archive_checksum: str
    train: tuple[File, ...]
    test: tuple[File, ...]
    parse: Callable[[bytes, int, str], Rows]


@dataclass(frozen=True)
class CifarSet:
    """One of the two sets: its class names, its labels a row (the last one counts) and its layouts, best first."""

    name: str
    classes: tuple[str, ...]
    labels: int
    layouts: tuple[Layout, ...]
    url: str = "https://www.cs.toronto.edu/~kriz/"


def parse_binary(content: bytes, labels: int, origin: str) -> Rows:
    """Rows of a file of the binary form."""
    width = labels + PIXELS
    if len(content) % width:
        raise InputError(f"{origin} has {len(content)} bytes, not a multiple of {width}: it is truncated")
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, width)


def parse_python(content: bytes, labels: int, origin: str) -> Rows:
    """Rows of a file of the python form."""
    found = safe_unpickle(content, origin)
    keys = {1: [b"labels"], 2: [b"coarse_labels", b"fine_labels"]}[labels]
    data = found.get(b"data") if isinstance(found, dict) else None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PIXELS,):
        raise InputError(f"{origin} holds no array 'data' of {PIXELS} bytes a row: it is not a CIFAR file")
    try:
        columns = [np.array(found[key], dtype=np.uint8) for key in keys]  # type: ignore[index]
        return np.concatenate([np.stack(columns, axis=1), data], axis=1)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{origin} holds no label of 0..255 for each of its {len(data)} images") from error


CIFAR = {
    "cifar10": CifarSet(
        "cifar10",
        CIFAR10,
        1,
        (
            Layout(
                "cifar-10-batches-bin",
                "cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                (
                    File("data_batch_1.bin", "aadd24acce27caa71bf4b10992e9e7b2d74c2540", 10000),
                    File("data_batch_2.bin", "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795", 10000),
                    File("data_batch_3.bin", "1dd00a74ab1d17a6e7d73e185b69dbf31242f295", 10000),
                    File("data_batch_4.bin", "aab85764eb3584312d3c7f65fd2fd016e36a258e", 10000),
                    File("data_batch_5.bin", "26e2849e66a845b7f1e4614ae70f4889ae604628", 10000),
                ),
                (File("test_batch.bin", "67eb016db431130d61cd03c7ad570b013799c88c", 10000),),
                parse_binary,
            ),
            Layout(
                "cifar-10-batches-py",
                "cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
                (
                    File("data_batch_1", "c99cafc152244af753f735de768cd75f", 10000),
                    File("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec", 10000),
                    File("data_batch_3", "54ebc095f3ab1f0389bbae665268c751", 10000),
                    File("data_batch_4", "634d18415352ddfa80567beed471001a", 10000),
                    File("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb", 10000),
                ),
                (File("test_batch", "40351d587109b95175f43aff81a1287e", 10000),),
                parse_python,
            ),
        ),
    ),
    "cifar100": CifarSet(
        "cifar100",
        CIFAR100,
        2,
        (
            Layout(
                "cifar-100-binary",
                "cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8",
                (File("train.bin", "e207cd2e05b73b1393c74c7f5e7bea451d63e08e", 50000),),
                (File("test.bin", "8fb6623e830365ff53cf14adec797474f5478006", 10000),),
                parse_binary,
            ),
            Layout(
                "cifar-100-python",
                "cifar-100-python.tar.gz",
                "eb9058c3a382ffc7106e4002c42a8d85",
                (File("train", "16019d7e3df5f24257cddd939b257f8d", 50000),),
                (File("test", "f0ef6b0ae62326f3e7ffdfab6717acfc", 10000),),
                parse_python,
            ),
        ),
    ),
}
