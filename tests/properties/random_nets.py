"""Random small nets: each layer is drawn for the shape that the net has so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_ELEMENTS = 20_000
Layer = Callable[..., Tensor]
Drawn = tuple[str, Layer]


@dataclass(frozen=True)
class Step:
    """A layer applied to earlier values by their index; ``text`` shows it in a failure."""

    text: str
    layer: Layer
    inputs: tuple[int, ...]


class Net(nn.Module):
    """Runs steps; the values that no step reads are the outputs."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(s.layer for s in steps if isinstance(s.layer, nn.Module))
        read = {index for step in steps for index in step.inputs}
        self.ends = [i for i in range(1, len(steps) + 1) if i not in read]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for step in self.steps:
            values.append(step.layer(*(values[i] for i in step.inputs)))
        return tuple(values[i] for i in self.ends)

    def __repr__(self) -> str:
        return "\n".join(f"{step.text} of {list(step.inputs)}" for step in self.steps)


def draw_net(seed: int) -> tuple[Net, Tensor]:
    """A net of up to nine layers in eval mode, and an input on which it is finite."""
    rng = Random(seed)
    torch.manual_seed(seed)
    x = torch.randn(rng.randint(1, 3), rng.choice([1, 3, 4, 8]), rng.randint(5, 12), 9)
    values, steps = [x], list[Step]()
    for _ in range(60):
        if len(steps) >= 9:
            break
        index = len(values) - 1 if rng.random() < 0.7 else rng.randrange(len(values))
        step = _draw_step(rng, values, index)
        result = _result(step, values)
        if result is not None:
            steps.append(step)
            values.append(result)
    return Net(steps).eval(), x


def _draw_step(rng: Random, values: list[Tensor], index: int) -> Step:
    if rng.random() < 0.25:
        text, binary = rng.choice(_BINARY)
        twins = [i for i, value in enumerate(values) if _fits(value, values[index])]
        return Step(text, binary, (index, rng.choice(twins)))
    maker = rng.choice(_MAPS if values[index].dim() == 4 else _ANY)
    text, layer = maker(rng, tuple(values[index].shape))
    return Step(text, layer, (index,))


def _fits(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() and all(
        m == n or 1 in (m, n) for m, n in zip(a.shape, b.shape, strict=True)
    )


def _result(step: Step, values: list[Tensor]) -> Tensor | None:
    """What the step gives, ``None`` where it does not fit or is no use."""
    if isinstance(step.layer, nn.Module):
        step.layer.eval()
    try:
        with torch.no_grad():
            result = step.layer(*(values[i] for i in step.inputs))
    except (RuntimeError, ValueError, IndexError):
        return None
    is_small = result.dim() > 1 and 0 < result.numel() <= MAX_ELEMENTS
    is_fit = is_small and bool(torch.isfinite(result).all())
    return result if is_fit and result.abs().max() < 1e4 else None


def _module(layer: nn.Module) -> Drawn:
    return str(layer), layer


def _call(function: Callable[..., Tensor], **options: Any) -> Drawn:
    return f"{function.__name__}{options}", lambda x: function(x, **options)


def _conv(rng: Random, shape: tuple[int, ...]) -> Drawn:
    channels, groups = shape[1], rng.choice([1, 1, shape[1], 2])
    if channels % groups:
        groups = 1
    dilation = rng.choice([1, 1, 2])
    layer = nn.Conv2d(
        channels,
        groups * rng.randint(1, 4),
        (rng.randint(1, 4), rng.randint(1, 4)),
        stride=1 if dilation > 1 else rng.choice([1, 2, 3, (1, 2)]),
        padding=rng.choice([0, 1, 2, (2, 0)]),
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.7,
    )
    return _module(layer)


def _transposed(rng: Random, shape: tuple[int, ...]) -> Drawn:
    groups, stride = rng.choice([1, shape[1]]), rng.choice([1, 2])
    out = groups * rng.randint(1, 3)
    padding, extra = rng.randint(0, 1), rng.randint(0, stride - 1)
    return _module(nn.ConvTranspose2d(shape[1], out, 3, stride, padding, extra, groups))


def _batch_norm(rng: Random, shape: tuple[int, ...]) -> Drawn:
    layer = nn.BatchNorm2d(shape[1])
    for tensor, low, high in (
        (layer.running_mean, -0.5, 0.5),
        (layer.running_var, 0.5, 2.0),
        (layer.weight, -1.5, 1.5),
        (layer.bias, -0.5, 0.5),
    ):
        assert tensor is not None
        nn.init.uniform_(tensor, low, high)
    return _module(layer)


def _pool(rng: Random, shape: tuple[int, ...]) -> Drawn:
    size: dict[str, Any] = {"kernel_size": (rng.randint(1, 3), 2), "stride": rng.randint(1, 3)}
    size |= {"padding": (0, rng.randint(0, 1)), "ceil_mode": rng.random() < 0.5}
    if rng.random() < 0.5:
        return _call(F.max_pool2d, **size)
    return _call(F.avg_pool2d, **size, count_include_pad=rng.random() < 0.5)


def _resize(rng: Random, shape: tuple[int, ...]) -> Drawn:
    size = (rng.randint(2, 14), rng.randint(2, 14))
    return _call(F.interpolate, size=size, mode=rng.choice(["nearest", "bilinear"]))


def _adaptive(rng: Random, shape: tuple[int, ...]) -> Drawn:
    return _call(F.adaptive_avg_pool2d, output_size=rng.choice([1, 2, (3, 5)]))


def _prelu(rng: Random, shape: tuple[int, ...]) -> Drawn:
    return _module(nn.PReLU(rng.choice([1, shape[1]])))


def _linear(rng: Random, shape: tuple[int, ...]) -> Drawn:
    return _module(nn.Linear(shape[-1], rng.randint(1, 8), bias=rng.random() < 0.7))


def _activation(rng: Random, shape: tuple[int, ...]) -> Drawn:
    functions = (F.relu, F.relu6, F.leaky_relu, F.sigmoid, F.silu, F.hardswish, torch.tanh, F.gelu)
    return _call(rng.choice(functions))


def _scalar(rng: Random, shape: tuple[int, ...]) -> Drawn:
    number = rng.choice([2, 0.37, -1.5, 1e-3, 40.0])
    return _call(rng.choice([torch.add, torch.sub, torch.mul, torch.div]), other=number)


def _parameter(rng: Random, shape: tuple[int, ...]) -> Drawn:
    """Without the batch axis: a batch of one must not be taken for the same order in memory."""
    other = torch.randn([rng.choice([1, size, size]) for size in shape[1:]])
    return f"add of a constant {tuple(other.shape)}", lambda x: x + other


def _reduce(rng: Random, shape: tuple[int, ...]) -> Drawn:
    dims = tuple(rng.sample(range(1, len(shape)), rng.randint(1, len(shape) - 1)))
    return _call(rng.choice([torch.mean, torch.sum]), dim=dims, keepdim=rng.random() < 0.7)


def _move(rng: Random, shape: tuple[int, ...]) -> Drawn:
    axis = rng.randrange(1, len(shape))
    order = list(range(1, len(shape)))
    rng.shuffle(order)
    return rng.choice(
        [
            _call(torch.permute, dims=(0, *order)),
            _call(torch.flatten, start_dim=rng.choice([1, -2])),
            _call(torch.narrow, dim=axis, start=0, length=max(1, shape[axis] - 1)),
            _call(F.pad, pad=(1, 0, 0, 2), value=rng.choice([0.0, 0.5])),
            _call(torch.unsqueeze, dim=axis),
            _call(torch.flip, dims=(axis,)),
            _call(torch.roll, shifts=1, dims=axis),
        ]
    )


def _softmax(rng: Random, shape: tuple[int, ...]) -> Drawn:
    return _call(F.softmax, dim=rng.choice([1, -1]))


_ANY = (_linear, _activation, _activation, _scalar, _parameter, _reduce, _move, _move, _softmax)
_MAPS = (*_ANY, _conv, _conv, _conv, _transposed, _batch_norm, _prelu, _pool, _pool, _adaptive) + (
    _resize,
)
_BINARY: tuple[Drawn, ...] = (
    ("add", torch.add),
    ("sub", torch.sub),
    ("mul", torch.mul),
    ("maximum", torch.maximum),
    ("cat", lambda a, b: torch.cat([a, b], 1)),
)
