from __future__ import annotations

import json

import pytest
import torch

from classgrad import InputError
from classgrad.data import Column, Preprocessing
from classgrad.data._normalization import moments

IMAGES = Preprocessing(("cat", "dög"), (3, 4, 5), (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), resize=True)
TABLE = Preprocessing(
    ("no", "yes"), (3,), (1.5, 0.0, 0.0), (2.0, 1.0, 1.0), (Column("age"), Column("city", ("Bern", "Zürich")))
)


@pytest.mark.parametrize("preprocessing", [IMAGES, TABLE])
def test_json_keeps_everything(preprocessing: Preprocessing) -> None:
    text = preprocessing.to_json()
    assert Preprocessing.from_json(text) == preprocessing
    assert "\n" not in text


def test_features_of_a_table() -> None:
    assert TABLE.features == ("age", "city=Bern", "city=Zürich")
    assert IMAGES.features == ()
    assert (IMAGES.images, TABLE.images) == (True, False)


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(TABLE.to_json()), **fields})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "'version'"),
        ("[" * 100_000, "cannot be read"),
        (changed(version=2), "version 1 is understood, found 2"),
        (changed(classes="yes"), "a list of str was expected, found 'yes'"),
        (changed(classes=["a", 1]), "a list of str was expected"),
        (changed(classes=["a", "a"]), "classes must be different names"),
        (changed(classes=[]), "classes must be different names"),
        (changed(shape=[]), "shape must be"),
        (changed(shape=[3, 2]), "shape must be"),
        (changed(shape=[0], mean=[], std=[]), "shape must be"),
        (changed(mean=[1.0]), "mean and std must have one entry"),
        (changed(mean=[float("nan")] * 3), "mean must be finite"),
        (changed(std=[1.0, 1.0, 0.0]), "std must be finite and above 0"),
        (changed(columns=[]), None),
        (changed(columns=[{"name": "age", "categories": None}]), "the columns must give the features"),
        (changed(columns=[{"name": 3, "categories": None}]), "a list of str was expected"),
        (changed(columns=[{"name": "age"}]), "'categories'"),
    ],
)
def test_anything_else_is_refused(text: str, message: str | None) -> None:
    if message is None:
        assert Preprocessing.from_json(text).columns == ()
        return
    with pytest.raises(
        InputError, match=rf"^the preprocessing stored with the model cannot be read: .*{message}|{message}"
    ):
        Preprocessing.from_json(text)


def test_normalize_refuses_another_shape() -> None:
    with pytest.raises(InputError, match=r"x must hold examples of shape \(3, 4, 5\), found \(3, 5, 4\)"):
        IMAGES.normalize(torch.zeros(2, 3, 5, 4, dtype=torch.uint8))


def test_moments_of_many_images_agree_with_torch() -> None:
    x = torch.randint(0, 256, (9000, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = moments(x)
    values = x.double() / 255
    torch.testing.assert_close(torch.tensor(mean).double(), values.mean(dim=(0, 2, 3)), rtol=1e-6, atol=0)
    assert std == pytest.approx(values.std(dim=(0, 2, 3), unbiased=False).tolist(), rel=1e-12)


def test_a_constant_feature_becomes_zero() -> None:
    x = torch.full((7, 2), 0.1)
    x[:, 1] = torch.arange(7)
    mean, std = moments(x)
    assert std[0] == 1.0
    assert std[1] == pytest.approx(2.0)
    assert mean == pytest.approx((0.1, 3.0))
