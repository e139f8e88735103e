"""A split on the training device: batches are cut, augmented and normalized there, never image by image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from classgrad._errors import InputError
from classgrad.data._checks import whole
from classgrad.data._dataset import Split
from classgrad.data._normalization import constants, scale_and_shift


class DeviceData:
    """The examples and labels of a split on a device, served as normalized batches.

    Images stay uint8 on the device and become floating batch by batch; features are normalized once. Augmentation
    draws from a generator of its own, so that it neither disturbs nor is disturbed by any other randomness.

    Args:
        split: the examples.
        mean: of each channel, on the scale 0..1, or feature; as :attr:`Dataset.mean`.
        std: as :attr:`Dataset.std`.
        device: where to keep them.
        dtype: of the batches.
        channels_last: whether images lie in memory with their channels side by side, as do the batches.
        crop: black pixels to add on every side before a window of the image's size is cut at random; 0 for none.
        flip: whether to mirror every other image, at random.
        seed: of the augmentation.

    >>> split = Split(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0, 1, 0]), torch.arange(3))
    >>> x, y = DeviceData(split, mean=(0.5,), std=(0.25,)).batch(torch.tensor([1, 2]))
    >>> x.flatten().tolist(), y.tolist()
    ([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], [1, 0])
    """

    def __init__(
        self,
        split: Split,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        crop: int = 0,
        flip: bool = False,
        seed: int = 0,
    ) -> None:
        self._images = split.x.dtype == torch.uint8
        if not self._images and (crop or flip or channels_last):
            raise InputError("crop, flip and channels_last are for images, found features: leave them out")
        if not split.x.shape[1] == len(mean) == len(std):
            raise InputError(
                f"mean and std must have one entry for each of the {split.x.shape[1]} channels or features, "
                f"found {len(mean)} and {len(std)}"
            )
        self.device = torch.device(device)
        self._mean, self._std = constants(mean, std, images=self._images, dtype=dtype, device=self.device)
        self._crop, self._flip = whole("crop", crop), flip
        self._generator = torch.Generator(self.device).manual_seed(whole("seed", seed))
        self.y = split.y.to(self.device)
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._x = split.x.to(self.device)
        if self._images:
            self._x = self._x.contiguous(memory_format=self._format)  # batches that are gathered lie as it does
        else:
            self._x = scale_and_shift(self._x.to(dtype, copy=True), self._mean, self._std)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def generator(self) -> torch.Generator:
        """What augmentation draws from; a CUDA graph that cuts batches must know of it."""
        return self._generator

    def batch(self, indices: Tensor | slice, *, augment: bool = True) -> tuple[Tensor, Tensor]:
        """Return normalized examples and labels at ``indices``; ``augment=False`` leaves the generator alone."""
        chosen = indices if isinstance(indices, slice) else indices.to(self.device)
        x, y = self._x[chosen], self.y[chosen]
        if not self._images:
            return (x.clone() if isinstance(indices, slice) else x), y
        if augment and (self._crop or self._flip):
            x = self._augmented(x)
        return scale_and_shift(x.to(self._mean.dtype), self._mean, self._std), y

    def _augmented(self, x: Tensor) -> Tensor:
        """Cut each image's own window, mirrored or not, with one gather for the batch."""
        count, channels, height, width = x.shape
        top, left = (self._draw(count, 2 * self._crop + 1) for _ in range(2))
        mirrored = self._draw(count, 2 if self._flip else 1)
        rows = top + torch.arange(height, device=self.device)
        columns = torch.arange(width, device=self.device)
        columns = left + torch.where(mirrored > 0, width - 1 - columns, columns)
        padded = F.pad(x, (self._crop,) * 4)
        picture = torch.arange(count, device=self.device)[:, None, None, None]
        channel = torch.arange(channels, device=self.device)[None, :, None, None]
        cut = padded[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]
        return cut.contiguous(memory_format=self._format)

    def _draw(self, count: int, choices: int) -> Tensor:
        return torch.randint(choices, (count, 1), generator=self._generator, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the augmentation's generator."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the augmentation from a :meth:`state_dict`."""
        self._generator.set_state(state["generator"].cpu())
