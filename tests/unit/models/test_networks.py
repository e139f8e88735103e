from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classgrad._errors import InputError
from classgrad.models import MODELS, build, mlp, resnet18, simple_cnn, vgg16

VARIANTS = ("paper", "authors")
PLAIN = {
    nn.Conv2d, nn.Linear, nn.GroupNorm, nn.ReLU, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.Dropout, nn.Flatten, nn.Identity,
}  # fmt: skip


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def images(number: int, channels: int = 3, side: int = 32) -> Tensor:
    return torch.rand(number, channels, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def with_random_norms(model: nn.Module) -> nn.Module:
    """The model in float64 and eval mode, with affine weights that are not 1 and 0."""
    generator = torch.Generator().manual_seed(2)
    for layer in model.modules():
        if isinstance(layer, nn.GroupNorm):
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=generator)
            nn.init.uniform_(layer.bias, -0.5, 0.5, generator=generator)
    return model.double().eval()


def test_the_parameter_counts_of_the_authors_networks() -> None:
    assert size(simple_cnn(2, variant="authors")) == 18_146
    assert size(simple_cnn(10, variant="authors")) == 34_538
    assert size(resnet18(100, variant="authors")) == 11_232_612
    assert size(vgg16(2, variant="authors")) == 14_724_162


def test_the_papers_resnet_has_the_count_of_the_published_one() -> None:
    assert size(resnet18(1000)) == 11_689_512


@pytest.mark.parametrize("variant", VARIANTS)
def test_simple_cnn_is_the_network_of_the_text(variant: str) -> None:
    model = simple_cnn(3, variant=variant).double()
    w1, b1, w2, b2, w3, b3 = model.parameters()
    x = images(4)
    hidden = F.max_pool2d(F.relu(F.conv2d(x, w1, b1, padding=2)), 2)
    hidden = F.avg_pool2d(torch.tanh(F.conv2d(hidden, w2, b2, padding=2)), 2)
    torch.testing.assert_close(model(x), hidden.flatten(1) @ w3.T + b3)


def resnet_reference(model: nn.Module, x: Tensor, group: int, authors: bool) -> Tensor:
    """The forward pass written out, on the model's parameters in order."""
    parameters = iter(model.parameters())

    def conv(x: Tensor, stride: int, padding: int) -> Tensor:
        return F.conv2d(x, next(parameters), next(parameters) if authors else None, stride, padding)

    def norm(x: Tensor) -> Tensor:
        return F.group_norm(x, x.shape[1] // group, next(parameters), next(parameters))

    x = conv(x, 2, 3)
    x = F.relu(norm(F.max_pool2d(x, 3, 2, 1))) if authors else F.max_pool2d(F.relu(norm(x)), 3, 2, 1)
    for stride, projected in [(1, False), (1, False), *[(2, True), (1, False)] * 3]:
        out = norm(conv(F.relu(norm(conv(x, stride, 1))), 1, 1))
        out = F.relu(out) if authors else out
        x = F.relu(out + (norm(conv(x, stride, 0)) if projected else x))
    return x.mean((2, 3)) @ next(parameters).T + next(parameters)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("side", [32, 40])
def test_resnet18_is_the_network_described(variant: str, side: int) -> None:
    model = with_random_norms(resnet18(5, image_size=side, channels_per_group=16, variant=variant))
    x = images(2, side=side)
    torch.testing.assert_close(model(x), resnet_reference(model, x, 16, variant == "authors"))


def vgg_reference(model: nn.Module, x: Tensor, group: int, authors: bool) -> Tensor:
    parameters = iter(model.parameters())
    layout = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512]
    for entry in layout:
        if isinstance(entry, str):
            x = F.max_pool2d(x, 2)
            continue
        x = F.conv2d(x, next(parameters), next(parameters), padding=1)
        assert x.shape[1] == entry
        norm = next(parameters), next(parameters)
        if authors:
            x = F.group_norm(torch.tanh(x), entry // group, *norm)
        else:
            x = F.relu(F.group_norm(x, entry // group, *norm))
    x = F.avg_pool2d(x, 2) if authors else F.max_pool2d(x, 2)
    return x.mean((2, 3)) @ next(parameters).T + next(parameters)


@pytest.mark.parametrize("variant", VARIANTS)
def test_vgg16_is_the_network_described(variant: str) -> None:
    model = with_random_norms(vgg16(4, channels_per_group=8, variant=variant))
    x = images(2)
    torch.testing.assert_close(model(x), vgg_reference(model, x, 8, variant == "authors"))


def letters(model: nn.Module) -> str:
    names = {nn.Conv2d: "c", nn.Dropout: "D", nn.MaxPool2d: "M", nn.AvgPool2d: "A"}
    return "".join(names.get(type(layer), "") for layer in model.modules())


def test_vgg16_has_its_dropouts_where_the_text_and_the_code_say() -> None:
    assert letters(vgg16(2, variant="authors")) == "cDcMcDcMcDcDcMcDcDcMcDcDcAD"
    assert letters(vgg16(2, variant="paper")) == "cDcDMcDcDMcDcDcDMcDcDcDMcDcDcDM"
    rates = {layer.p for layer in vgg16(2, dropout=0.4).modules() if isinstance(layer, nn.Dropout)}
    assert rates == {0.4}


def test_mlp_is_relu_relu_tanh() -> None:
    model = mlp(3, in_features=12, hidden=(7, 5, 4)).double()
    w1, b1, w2, b2, w3, b3, w4, b4 = model.parameters()
    x = images(6, side=2)
    hidden = F.relu(F.relu(x.flatten(1) @ w1.T + b1) @ w2.T + b2)
    torch.testing.assert_close(model(x), torch.tanh(hidden @ w3.T + b3) @ w4.T + b4)


def test_mlp_without_hidden_layers_is_softmax_regression() -> None:
    model = mlp(3, in_features=12, hidden=())
    assert [tuple(parameter.shape) for parameter in model.parameters()] == [(3, 12), (3,)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_examples_do_not_mix_and_every_layer_is_plain_and_runs_once(name: str, variant: str) -> None:
    model = with_random_norms(build(name, 4, (3, 32, 32), variant=variant))
    calls: Counter[str] = Counter()
    leaves = {key: layer for key, layer in model.named_modules() if not list(layer.children())}
    for key, layer in leaves.items():
        assert type(layer) in PLAIN
        layer.register_forward_hook(lambda *_, key=key: calls.update([key]))
    x = images(3)
    together = model(x)
    assert calls == dict.fromkeys(leaves, 1)
    torch.testing.assert_close(together, torch.cat([model(one[None]) for one in x]))
    assert not list(model.buffers())


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("simple_cnn", (1, 8, 8)),
        ("simple_cnn", (1, 28, 20)),
        ("mlp", (1, 8, 8)),
        ("mlp", (30,)),
        ("resnet18", (1, 8, 8)),
        ("resnet18", (2, 64, 33)),
        ("vgg16", (1, 32, 70)),
    ],
)
def test_other_shapes_train(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, 3, shape)
    out = model(torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert out.shape == (2, 3)
    out.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def trunk(model: nn.Module) -> Iterator[tuple[type[nn.Module], nn.Module]]:
    return ((type(layer), layer) for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear)))


def he(weight: Tensor) -> float:
    return float((2 / weight[0].numel()) ** 0.5)


def glorot(weight: Tensor) -> float:
    receptive = weight[0, 0].numel()
    return float((2 / (weight[0].numel() + len(weight) * receptive)) ** 0.5)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("simple_cnn", {nn.Conv2d: he, nn.Linear: glorot}),
        ("vgg16", {nn.Conv2d: glorot, nn.Linear: glorot}),
        ("mlp", {nn.Linear: he}),
    ],
)
def test_initial_weights_have_the_variances_of_their_rule(name: str, rules: dict[Any, Any]) -> None:
    layers: list[Any] = list(trunk(build(name, 50, (3, 32, 32))))
    for number, (kind, layer) in enumerate(layers):
        rule = glorot if name == "mlp" and number == len(layers) - 1 else rules[kind]
        weight = layer.weight.detach()
        assert float(weight.std() / rule(weight)) == pytest.approx(1, abs=3 / weight.numel() ** 0.5)
        assert float((weight.abs() > 2 * weight.std()).double().mean()) == pytest.approx(0.0455, abs=0.03)  # normal
        assert not layer.bias.any()


def test_the_resnet_starts_from_torchs_defaults() -> None:
    for _, layer in trunk(resnet18(100, variant="authors")):
        for parameter in map(Tensor.detach, layer.parameters()):
            bound = layer.weight[0].numel() ** -0.5  # type: ignore[index]
            assert float(parameter.abs().max()) <= bound
            assert float(parameter.std() / bound) == pytest.approx(3**-0.5, rel=3 / parameter.numel() ** 0.5)


def test_group_norms_start_at_one_and_zero() -> None:
    for name in ("resnet18", "vgg16"):
        norms = [layer for layer in build(name, 2, (3, 32, 32)).modules() if isinstance(layer, nn.GroupNorm)]
        assert len(norms) == {"resnet18": 20, "vgg16": 13}[name]
        assert all(bool((norm.weight == 1).all() and (norm.bias == 0).all()) for norm in norms)


@pytest.mark.parametrize("name", MODELS)
def test_the_generator_decides_and_the_global_one_is_left_alone(name: str) -> None:
    before = torch.get_rng_state()

    def weights(seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return nn.utils.parameters_to_vector(build(name, 2, (3, 32, 32), generator=generator).parameters())

    assert torch.equal(weights(0), weights(0))
    assert torch.equal(weights(0), weights(None))
    assert not torch.equal(weights(0), weights(1))
    assert torch.equal(before, torch.get_rng_state())


def test_the_default_dtype_is_followed() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert next(simple_cnn(2).parameters()).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (
            lambda: build("lenet", 2, (3, 32, 32)),
            "model must be one of mlp, resnet18, simple_cnn, vgg16; found 'lenet'",
        ),
        (
            lambda: build("mlp", 2, (3, 32, 32), widths=3),
            "options of mlp must be one of generator, hidden, variant; found 'widths'",
        ),
        (lambda: build("vgg16", 2, (30,)), r"\(channels, height, width\) for vgg16, found \(30,\)"),
        (lambda: simple_cnn(2, variant="text"), "variant must be one of authors, paper; found 'text'"),
        (lambda: simple_cnn(0), "num_classes must be an integer of at least 1; found 0"),
        (lambda: simple_cnn(2.5), "num_classes must be an integer of at least 1; found 2.5"),  # type: ignore[arg-type]
        (lambda: simple_cnn(2, image_size=3), "image_size must be an integer of at least 4; found 3"),
        (lambda: simple_cnn(2, image_size=(1, 2, 3)), r"\(height, width\); found \(1, 2, 3\)"),  # type: ignore[arg-type]
        (lambda: simple_cnn(2, in_channels=0), "in_channels must be an integer of at least 1"),
        (lambda: mlp(2, hidden=(3, 0)), "hidden must be an integer of at least 1; found 0"),
        (lambda: vgg16(2, image_size=16), "image_size must be an integer of at least 32; found 16"),
        (lambda: vgg16(2, dropout=1.0), "dropout must be at least 0 and below 1; found 1.0"),
        (lambda: vgg16(2, channels_per_group=3), "channels_per_group must divide the 64 channels"),
        (lambda: resnet18(2, channels_per_group=128), "channels_per_group must divide the 64 channels"),
        (lambda: resnet18(2, channels_per_group=1), "groups of a single value"),
    ],
)
def test_bad_arguments_are_named(make: Any, found: str) -> None:
    with pytest.raises(InputError, match=found):
        make()


def test_single_channel_groups_work_where_the_maps_are_large_enough() -> None:
    assert resnet18(2, image_size=33, channels_per_group=1)(torch.rand(2, 3, 33, 33)).shape == (2, 2)
    assert vgg16(2, channels_per_group=1)(torch.rand(2, 3, 32, 32)).shape == (2, 2)
