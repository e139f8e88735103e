from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from classgrad._errors import InputError
from classgrad.models import to_group_norm


class Net(nn.Module):
    """Batch norms at several depths, one of them used under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32, eps=1e-3), nn.ReLU())
        self.shared = nn.BatchNorm2d(32)
        self.alias = self.shared
        self.deep = nn.ModuleDict({"a": nn.Sequential(nn.Flatten(), nn.Linear(32 * 36, 20), nn.BatchNorm1d(20))})
        self.head = nn.Linear(20, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.alias(self.shared(self.stem(x)))
        return self.head(self.deep["a"](x))  # type: ignore[no-any-return]


def norm_types(model: nn.Module) -> set[str]:
    return {type(layer).__name__ for layer in model.modules() if "Norm" in type(layer).__name__}


def test_all_layers_are_replaced_in_place_and_the_parameters_stay() -> None:
    model = Net()
    parameters = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    assert to_group_norm(model) is model
    assert norm_types(model) == {"GroupNorm"}
    assert model.alias is model.shared
    assert {name: id(p) for name, p in model.named_parameters()} == {name: old for name, (old, _) in parameters.items()}
    assert all(torch.equal(p, parameters[name][1]) for name, p in model.named_parameters())
    assert not list(model.buffers())


def test_an_optimizer_made_before_still_trains_the_model() -> None:
    model: Any = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    to_group_norm(model)
    before = model.stem[1].weight.detach().clone()
    model(torch.rand(4, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.stem[1].weight)


def test_the_result_is_group_normalization_of_each_example() -> None:
    layer = nn.BatchNorm2d(8, eps=1e-2, dtype=torch.float64)
    nn.init.uniform_(layer.weight)
    nn.init.uniform_(layer.bias)
    converted = to_group_norm(layer, channels_per_group=4)
    assert isinstance(converted, nn.GroupNorm)
    x = torch.rand(3, 8, 5, 5, dtype=torch.float64)
    expected = torch.stack([F.layer_norm(half, half.shape[1:], eps=1e-2) for half in x.view(6, 1, 4, 5, 5)])
    expected = expected.view(3, 8, 5, 5) * layer.weight.view(-1, 1, 1) + layer.bias.view(-1, 1, 1)
    torch.testing.assert_close(converted(x), expected)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.BatchNorm1d(32), (4, 32)),
        (lambda: nn.BatchNorm1d(32), (4, 32, 7)),
        (lambda: nn.BatchNorm2d(32), (4, 32, 3, 3)),
        (lambda: nn.BatchNorm3d(32), (4, 32, 2, 2, 2)),
        (lambda: nn.SyncBatchNorm(32), (4, 32, 3, 3)),
    ],
)
def test_every_dimension(make: Any, shape: tuple[int, ...]) -> None:
    converted = to_group_norm(make())
    out = converted(torch.rand(shape))
    groups = out.detach().reshape(4, 2, -1)
    torch.testing.assert_close(groups.mean(-1), torch.zeros(4, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(groups.std(-1, correction=0), torch.ones(4, 2), atol=1e-3, rtol=0)


def test_mode_dtype_and_frozen_parameters_are_kept() -> None:
    model = nn.Sequential(nn.BatchNorm2d(16).double(), nn.BatchNorm2d(16, affine=False)).eval()
    model[0].weight.requires_grad_(False)
    first, second = to_group_norm(model).children()
    assert isinstance(first, nn.GroupNorm)
    assert isinstance(second, nn.GroupNorm)
    assert not first.training
    assert first.weight.dtype == torch.float64
    assert (first.weight.requires_grad, first.bias.requires_grad) == (False, True)
    assert second.affine is False
    assert second.weight is None
    assert to_group_norm(nn.BatchNorm2d(16)).training


@pytest.mark.parametrize(
    ("channels", "wanted", "size"),
    [
        (64, 16, 16),
        (24, 16, 12),
        (20, 16, 20),
        (7, 16, 7),
        (17, 16, 17),
        (6, 4, 3),
        (9, 2, 3),
        (64, 1000, 64),
        (8, 6, 8),
    ],
)
def test_the_nearest_group_that_divides_the_channels(channels: int, wanted: int, size: int) -> None:
    converted: Any = to_group_norm(nn.BatchNorm1d(channels), channels_per_group=wanted)
    assert converted.num_groups == channels // size


def test_a_model_without_batch_norm_is_left_as_it_is() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    children = list(model)
    assert list(to_group_norm(model).children()) == children


@pytest.mark.parametrize(
    ("make", "wanted", "found"),
    [
        (
            lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
            1,
            "layer 1 .BatchNorm1d. of 4 channels .* single value",
        ),
        (lambda: nn.BatchNorm1d(1), 16, "layer given .BatchNorm1d. of 1 channels"),
        (lambda: nn.BatchNorm2d(4), 0, "channels_per_group must be an integer of at least 1; found 0"),
        (lambda: nn.Sequential(nn.LazyBatchNorm2d()), 16, "layer 0 .LazyBatchNorm2d. may do more"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_what_cannot_be_converted_is_named_and_nothing_is_changed(make: Any, wanted: int, found: str) -> None:
    model = make()
    before = norm_types(model)
    with pytest.raises(InputError, match=found):
        to_group_norm(model, channels_per_group=wanted)
    assert norm_types(model) == before


def test_groups_of_one_channel_are_warned_about_once() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1), nn.BatchNorm2d(1))
    with pytest.warns(UserWarning, match="groups of one channel in 2 hold a single value") as caught:
        to_group_norm(model, channels_per_group=2)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="groups of one channel in the layer"):
        to_group_norm(nn.BatchNorm2d(4), channels_per_group=1)
