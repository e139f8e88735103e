"""Every mistake a caller can make gets one line that names the parameter, the rule and what was found."""

import pytest
import torch
from torch import nn

from classgrad import Bisect, ClassGradients, InputError, Normalize, Rescale, Sum

from ._reference import batch, cross_entropy, small_net


def refuses(message, call):
    """The call raises an InputError of one line that starts with the message."""
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(message), text


@pytest.fixture
def net():
    return small_net()


BAD_LOSSES = [
    ("a float", lambda out, y: 1.0, "Parameter `losses` should be a tensor of one loss per example. Found float."),
    (
        "a scalar",
        lambda out, y: cross_entropy(out, y).mean(),
        "Parameter `losses` should hold one loss per example, shape (N,). Found a scalar; "
        'use the loss with reduction="none".',
    ),
    (
        "a matrix",
        lambda out, y: out.square(),
        "Parameter `losses` should hold one loss per example, shape (N,). Found shape (8, 3); "
        "sum or average over the other dimensions.",
    ),
    ("integers", lambda out, y: y, "Parameter `losses` should have a floating dtype. Found torch.int64."),
    (
        "no graph",
        lambda out, y: cross_entropy(out, y).detach(),
        "Parameter `losses` should carry a graph. Found losses without one; compute them outside torch.no_grad() "
        "from parameters that require gradients.",
    ),
]


@pytest.mark.parametrize(("losses", "message"), [b[1:] for b in BAD_LOSSES], ids=[b[0] for b in BAD_LOSSES])
@pytest.mark.parametrize("engine", ["fused", "joint"])
@pytest.mark.parametrize("method", ["backward", "accumulate", "gradients"])
def test_losses(net, engine, method, losses, message):
    x, y = batch()
    call = getattr(ClassGradients(net, engine=engine), method)
    refuses(message, lambda: call(losses(net(x), y), y))


BAD_LABELS = [
    ("a list", lambda y: y.tolist(), "Parameter `y` should be a tensor of integer labels. Found list."),
    ("too few", lambda y: y[:-1], "Parameter `y` should hold one label per example, shape (8,). Found shape (7,)."),
    (
        "a column",
        lambda y: y[:, None],
        "Parameter `y` should hold one label per example, shape (8,). Found shape (8, 1).",
    ),
    (
        "floats",
        lambda y: y.float(),
        "Parameter `y` should have an integer dtype such as torch.int64. Found torch.float32.",
    ),
    ("booleans", lambda y: y > 0, "Parameter `y` should have an integer dtype such as torch.int64. Found torch.bool."),
    (
        "another device",
        lambda y: y.to("meta"),
        "Parameter `y` should be on the device of the losses, cpu. Found meta; move it with y.to('cpu').",
    ),
]


@pytest.mark.parametrize(("labels", "message"), [b[1:] for b in BAD_LABELS], ids=[b[0] for b in BAD_LABELS])
@pytest.mark.parametrize("method", ["backward", "accumulate", "gradients"])
def test_labels(net, method, labels, message):
    x, y = batch()
    call = getattr(ClassGradients(net), method)
    refuses(message, lambda: call(cross_entropy(net(x), y), labels(y)))


@pytest.mark.parametrize("engine", ["fused", "joint"])
@pytest.mark.parametrize("rule", [Sum(), Normalize(), Bisect()])
def test_a_second_backward(net, engine, rule):
    x, y = batch()
    grads = ClassGradients(net, rule, engine=engine)
    losses = cross_entropy(net(x), y)
    grads.backward(losses, y)
    message = "Parameter `losses` should be fresh. Found one whose graph a backward pass already used"
    refuses(message, lambda: grads.backward(losses, y))
    refuses(message, lambda: grads.accumulate(losses, y))
    refuses(message, lambda: grads.gradients(losses, y))


def test_other_errors_of_autograd_are_passed_on(net):
    x, y = batch()
    out = net(x)
    out.register_hook(lambda g: (_ for _ in ()).throw(RuntimeError("of my own")))
    with pytest.raises(RuntimeError, match="of my own"):
        ClassGradients(net, Sum()).backward(cross_entropy(out, y), y)


CONSTRUCTION = [
    ({"model": 3}, "Parameter `model` should be a torch.nn.Module. Found int."),
    ({"rule": "pcn"}, "Parameter `rule` should be a rule such as Normalize(). Found 'pcn'."),
    ({"rule": Normalize}, "Parameter `rule` should be a rule such as Normalize(). Found <class"),
    ({"engine": "fast"}, "Parameter `engine` should be one of auto, fused, joint, split. Found 'fast'."),
    ({"on_missing": "warn"}, "Parameter `on_missing` should be one of skip, error. Found 'warn'."),
    ({"on_nonfinite": None}, "Parameter `on_nonfinite` should be one of skip, error. Found None."),
    ({"max_memory": -1}, "Parameter `max_memory` should be a number of bytes of at least 0. Found -1."),
    ({"mixing": ["BatchNorm2d"]}, "Parameter `mixing` should be a sequence of layer types. Found ['BatchNorm2d']."),
    ({"mixing": nn.LSTM}, "Parameter `mixing` should be a sequence of layer types. Found <class"),
    (
        {"classes": 0},
        "Parameter `classes` should be a positive number of classes or a sequence of integer labels. Found 0.",
    ),
    ({"classes": -1}, "Parameter `classes` should be a positive number of classes"),
    ({"classes": []}, "Parameter `classes` should be a positive number of classes"),
    ({"classes": [0.5, 1.0]}, "Parameter `classes` should be a positive number of classes"),
    ({"classes": 2.0}, "Parameter `classes` should be a positive number of classes"),
    ({"classes": "ab"}, "Parameter `classes` should be a positive number of classes"),
    ({"classes": True}, "Parameter `classes` should be a positive number of classes"),
    ({"max_memory": "1GB"}, "Parameter `max_memory` should be a number of bytes"),
    ({"record": "yes"}, "Parameter `record` should be true or false. Found 'yes'."),
    ({"classes": [1, 2, 1]}, "Parameter `classes` should not repeat a label. Found 1, 2, 1."),
]


@pytest.mark.parametrize(("options", "message"), CONSTRUCTION)
def test_construction(options, message):
    refuses(message, lambda: ClassGradients(**{"model": small_net(), **options}))


def test_an_undeclared_class(net):
    x, y = batch()
    grads = ClassGradients(net, classes=range(2, 40))
    refuses(
        "Parameter `y` should hold only the declared classes 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …. Found 0, 1.",
        lambda: grads.backward(cross_entropy(net(x), y), y),
    )


def test_use_after_close(net):
    x, y = batch()
    for engine in ("fused", "joint", "split"):
        grads = ClassGradients(net, engine=engine)
        grads.close()
        grads.close()
        message = "This ClassGradients was closed; make a new one."
        refuses(message, lambda g=grads: g.accumulate(cross_entropy(net(x), y), y))
        refuses(message, lambda g=grads: g.backward_through(lambda x, y: cross_entropy(net(x), y), x, y))


def test_split_has_no_backward(net):
    x, y = batch()
    refuses(
        "Engine 'split' runs the forward itself; use backward_through(loss_fn, x, y).",
        lambda: ClassGradients(net, engine="split").backward(cross_entropy(net(x), y), y),
    )


def test_finalize_without_anything(net):
    grads = ClassGradients(net)
    message = "finalize() should follow at least one accumulate() with examples. Found none."
    refuses(message, grads.finalize)
    grads.accumulate(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    refuses(message, grads.finalize)


@pytest.mark.parametrize("chunk", [0, -3])
def test_chunk(net, chunk):
    x, y = batch()
    refuses(
        f"Parameter `chunk` should be a whole number of at least 1. Found {chunk}.",
        lambda: ClassGradients(net).backward_through(lambda x, y: cross_entropy(net(x), y), x, y, chunk=chunk),
    )


INPUTS = [
    (
        "nothing to count",
        None,
        "Parameter `x` should hold tensors with the examples in their first dimension. Found none.",
    ),
    (
        "unequal tensors",
        (torch.zeros(8, 4), torch.zeros(3)),
        "Parameter `x` should hold tensors with the examples in their first dimension. Found 3, 8.",
    ),
    ("too few", torch.zeros(3, 4), "Parameter `y` should hold one label per example, shape (3,). Found shape (8,)."),
]


@pytest.mark.parametrize(("x", "message"), [i[1:] for i in INPUTS], ids=[i[0] for i in INPUTS])
def test_inputs_that_cannot_be_cut(net, x, message):
    _, y = batch()
    grads = ClassGradients(net, engine="split")
    refuses(message, lambda: grads.backward_through(lambda x, y: cross_entropy(net(x), y), x, y))
    refuses("Parameter `y` should be a tensor", lambda: grads.backward_through(None, torch.zeros(8), y.tolist()))


def test_mixed_use_of_total(net):
    x, y = batch()
    y = y.sort().values
    grads = ClassGradients(net)
    grads.accumulate(cross_entropy(net(x[:2]), y[:2]), y[:2], total=8)
    message = "Parameter `total` should be the same for all micro-batches of a step. Found 8 and"
    refuses(message, lambda: grads.accumulate(cross_entropy(net(x[2:4]), y[2:4]), y[2:4]))
    refuses(message, lambda: grads.accumulate(cross_entropy(net(x[2:4]), y[2:4]), y[2:4], total=9))


def test_total_is_checked(net):
    x, y = batch(classes=1)
    for total, message in (
        (0, "Parameter `total` should be the number of examples of the whole step. Found 0."),
        ("8", "Parameter `total` should be the number of examples of the whole step. Found '8'."),
        (9, "Parameter `total` should be the number of examples of the whole step. Found 9, but 8 came."),
    ):
        grads = ClassGradients(net)

        def step(grads=grads, total=total):
            grads.accumulate(cross_entropy(net(x), y), y, total=total)
            grads.finalize()

        refuses(message, step)


def test_a_scaler_is_checked(net):
    x, y = batch()
    grads = ClassGradients(net)
    message = "Parameter `scaler` should be a torch.amp.GradScaler. Found 'x'."
    refuses(message, lambda: grads.backward(cross_entropy(net(x), y), y, scaler="x"))
    refuses(message, lambda: grads.accumulate(cross_entropy(net(x), y), y, scaler="x"))


def test_streams_need_one_class_at_a_time(net):
    x, y = batch()
    grads = ClassGradients(net)
    refuses(
        "Parameter `y` should hold one class per micro-batch when `total` is given. Found 3.",
        lambda: grads.accumulate(cross_entropy(net(x), y), y, total=8),
    )


def test_streams_need_classes_in_order(net):
    x, y = batch()
    grads = ClassGradients(net)
    positions = [int((y == c).nonzero()[k]) for c, k in ((0, 0), (1, 0), (0, 1))]
    for i in positions[:2]:
        grads.accumulate(cross_entropy(net(x[[i]]), y[[i]]), y[[i]], total=3)
    refuses(
        "Class 0 came back after another class; with `total` given, send micro-batches class by class.",
        lambda: grads.accumulate(cross_entropy(net(x[positions[2:]]), y[positions[2:]]), y[positions[2:]], total=3),
    )


@pytest.mark.parametrize(
    ("rule", "options"), [(Bisect(), {}), (Rescale(form="authors"), {}), (Normalize(), {"gram": True})]
)
def test_streams_need_rules_that_weigh_classes_by_themselves(net, rule, options):
    x, y = batch(classes=1)
    refuses(
        "Classes can be streamed one by one only under a rule that weighs each by itself and without `gram`. Found",
        lambda: ClassGradients(net, rule, **options).accumulate(cross_entropy(net(x), y), y, total=8),
    )


def test_rescale_needs_full_batch_gradients(net):
    x, y = batch()
    grads = ClassGradients(net, Rescale())
    refuses(
        "The rule needs full-batch class gradients and there are none yet; call `refresh(loss_fn, batches)` first.",
        lambda: grads.backward(cross_entropy(net(x), y), y),
    )
    kept = y != 1
    grads.refresh(lambda x, y: cross_entropy(net(x), y), [(x[kept], y[kept])])
    refuses(
        "The full-batch class gradients should cover all classes of the batch. Class 1 is not among them;",
        lambda: grads.backward(cross_entropy(net(x), y), y),
    )
