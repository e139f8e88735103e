from __future__ import annotations

import pytest
import torch

from classgrad import InputError
from classgrad.data import DeviceData, Split, load
from classgrad.data._device import DeviceData as Private


def images(count: int = 5, channels: int = 3, height: int = 4, width: int = 6, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(1, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)
    return Split(x, torch.arange(count) % 2, torch.arange(count))


MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("indices", [torch.tensor([3, 0, 3]), slice(1, 4)])
def test_batches_are_normalized(dtype: torch.dtype, indices: torch.Tensor | slice) -> None:
    split = images()
    x, y = DeviceData(split, mean=MEAN, std=STD, dtype=dtype).batch(indices)
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (MEAN, STD))
    expected = (split.x[indices].double() / 255 - mean) / std
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.05}[dtype]
    assert x.dtype == dtype
    torch.testing.assert_close(x.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(y, split.y[indices])


def test_features_are_normalized_once() -> None:
    split = Split(torch.tensor([[1.0, 10.0], [3.0, 30.0]]), torch.tensor([1, 0]), torch.arange(2))
    data = DeviceData(split, mean=(2.0, 20.0), std=(1.0, 10.0))
    x, y = data.batch(torch.tensor([1, 0]))
    assert x.tolist() == [[1.0, 1.0], [-1.0, -1.0]]
    assert y.tolist() == [0, 1]
    data.batch(slice(None))[0].zero_()  # a batch is the caller's
    data.batch(torch.arange(2))[0].zero_()
    assert data.batch(slice(None))[0].tolist() == [[-1.0, -1.0], [1.0, 1.0]]
    assert split.x.tolist() == [[1.0, 10.0], [3.0, 30.0]]
    assert len(data) == 2


def windows(image: torch.Tensor, crop: int, flip: bool) -> list[torch.Tensor]:
    """Every picture that augmentation may make of an image, by brute force."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * crop, width + 2 * crop, dtype=image.dtype)
    padded[:, crop : crop + height, crop : crop + width] = image
    cut = [
        padded[:, top : top + height, left : left + width]
        for top in range(2 * crop + 1)
        for left in range(2 * crop + 1)
    ]
    return cut + [piece.flip(-1) for piece in cut] * flip


@pytest.mark.parametrize(("crop", "flip"), [(1, False), (0, True), (1, True), (2, True)])
def test_augmentation_makes_all_and_only_the_windows(crop: int, flip: bool) -> None:
    split = images(count=3)
    data = DeviceData(split, mean=(0.0,) * 3, std=(1 / 255,) * 3, crop=crop, flip=flip)
    drawn = torch.arange(3).repeat(400)
    x, _ = data.batch(drawn)
    for image in range(3):
        allowed = {tuple(w.flatten().tolist()) for w in windows(split.x[image], crop, flip)}
        found = {tuple(p.flatten().round().int().tolist()) for p in x[drawn == image]}
        assert found == allowed


def test_augmentation_has_its_own_generator_and_state() -> None:
    split = images(count=64)

    def make(seed: int = 3) -> DeviceData:
        return DeviceData(split, mean=MEAN, std=STD, crop=2, flip=True, seed=seed)

    everything = torch.arange(64)
    data, state = make(), torch.get_rng_state()
    first = data.batch(everything)[0]
    saved = data.state_dict()
    second = data.batch(everything)[0]
    data.load_state_dict(saved)
    plain = data.batch(everything, augment=False)[0]
    assert torch.equal(plain, DeviceData(split, mean=MEAN, std=STD).batch(everything)[0])
    assert torch.equal(data.batch(everything)[0], second)
    assert torch.equal(make().batch(everything)[0], first)
    assert not torch.equal(first, second)
    assert not torch.equal(make(seed=4).batch(everything)[0], first)
    assert torch.equal(torch.get_rng_state(), state)


def test_images_stay_uint8() -> None:
    data = Private(images(), mean=MEAN, std=STD)
    assert data._x.dtype == torch.uint8


def test_an_epoch_of_a_dataset() -> None:
    dataset = load("digits-bi20")
    data = DeviceData(dataset.train, mean=dataset.mean, std=dataset.std, dtype=torch.float64)
    x = torch.cat([data.batch(slice(i, i + 100))[0] for i in range(0, len(data), 100)])
    assert float(x.mean()) == pytest.approx(0, abs=1e-12)
    assert float(x.std(unbiased=False)) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(x, dataset.preprocessing.normalize(dataset.train.x, torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.5,)}, "one entry for each of the 3 channels or features, found 1 and 3"),
        ({"crop": -1}, "crop must be a whole number of at least 0, found -1"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_bad_arguments(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DeviceData(images(), **{"mean": MEAN, "std": STD, **options})


@pytest.mark.parametrize("options", [{"crop": 1}, {"flip": True}])
def test_features_cannot_be_cropped(options: dict) -> None:
    split = Split(torch.ones(2, 2), torch.tensor([1, 0]), torch.arange(2))
    with pytest.raises(InputError, match="crop, flip and channels_last are for images, found features"):
        DeviceData(split, mean=(0.0, 0.0), std=(1.0, 1.0), **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu() -> None:
    split = images(count=64)
    data = DeviceData(split, mean=MEAN, std=STD, device="cuda", crop=2, flip=True)
    x, y = data.batch(torch.arange(64))
    assert x.is_cuda
    assert y.is_cuda
    saved = data.state_dict()
    again = data.batch(torch.arange(64))[0]
    data.load_state_dict(saved)
    assert torch.equal(data.batch(torch.arange(64))[0], again)
    plain = data.batch(slice(None), augment=False)[0].cpu()
    torch.testing.assert_close(plain, DeviceData(split, mean=MEAN, std=STD).batch(slice(None))[0])


@pytest.mark.parametrize("crop", [0, 1])
@pytest.mark.parametrize("indices", [torch.tensor([3, 0, 3]), slice(1, 4)])
def test_batches_with_channels_side_by_side_hold_the_same(indices: torch.Tensor | slice, crop: int) -> None:
    usual, last = (
        DeviceData(images(), mean=MEAN, std=STD, crop=crop, flip=crop > 0, seed=4, channels_last=channels_last)
        for channels_last in (False, True)
    )
    for augment in (True, False):
        expected, found = usual.batch(indices, augment=augment)[0], last.batch(indices, augment=augment)[0]
        assert torch.equal(found, expected)
        assert expected.is_contiguous()
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_features_have_no_channels() -> None:
    split = Split(torch.zeros(2, 3), torch.tensor([1, 0]), torch.arange(2))
    with pytest.raises(InputError, match="channels_last are for images, found features"):
        DeviceData(split, mean=(0.0,) * 3, std=(1.0,) * 3, channels_last=True)
