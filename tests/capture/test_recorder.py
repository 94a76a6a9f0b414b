"""Recording small models, and running the graph on other sizes."""

from __future__ import annotations

import copy
import operator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture import Inputs, capture, capture_symbolic

from .replay import assert_equal, assert_replays, called_modules, targets


class MyConv(nn.Conv2d):
    """A subclass without an own forward."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)


class SamePadConv(nn.Conv2d):
    """A subclass with an own forward."""

    def forward(self, x: Tensor) -> Tensor:
        pad = (self.kernel_size[0] - 1) // 2
        return F.conv2d(F.pad(x, [pad] * 4), self.weight, self.bias, self.stride)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = MyConv(channels, channels)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.conv(x)), inplace=True)


class SmallNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList([Residual(8), Residual(8)])
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, 2, 1)
        self.deep = nn.Conv2d(6, 6, 3, 2, 1)
        self.up = nn.ConvTranspose2d(6, 6, 2, 2)
        self.out = nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down(x))
        b = F.interpolate(self.up(self.deep(a)), size=a.shape[2:], mode="nearest")
        y = self.out(torch.cat([a, b], dim=1))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class MtcnnLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.prelu = nn.PReLU(4)
        self.pool = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.dense = nn.Linear(36, 6)
        self.score = nn.Linear(6, 2)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool(self.prelu(self.conv(x)))
        x = x.permute(0, 3, 2, 1).contiguous()
        x = self.dense(x.view(x.shape[0], -1))
        return x, self.softmax(self.score(x))


class Attention(nn.Module):
    def __init__(self, dim: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * q.size(-1) ** -0.5).softmax(-1)
        return x + self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))


def image(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (SmallNet(), [(2, 3, 20, 20), (1, 3, 20, 20), (5, 3, 33, 17)]),
        (SmallNet().eval(), [(1, 3, 20, 20), (4, 3, 33, 17)]),
        (UNet(), [(1, 3, 16, 16), (3, 3, 22, 18), (2, 3, 17, 31)]),
        (MtcnnLike(), [(2, 3, 8, 8), (1, 3, 8, 8), (7, 3, 8, 8)]),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.GELU()), [(1, 3, 5, 5), (2, 3, 9, 4)]),
        (Attention(), [(1, 5, 8), (3, 5, 8), (2, 11, 8)]),
        (nn.Conv2d(3, 4, 3), [(1, 3, 5, 5), (2, 3, 9, 4)]),
    ],
    ids=["small-train", "small", "unet", "mtcnn", "sequential", "attention", "one-layer"],
)
def test_replays_other_batches_and_sizes(model: nn.Module, shapes: list[tuple[int, ...]]) -> None:
    assert_replays(model, *(image(*shape) for shape in shapes))


def test_state_dict_keys_and_tensors_are_the_models() -> None:
    model = SmallNet()
    recorded = capture(model, image(1, 3, 20, 20))
    assert list(recorded.state_dict()) == list(model.state_dict())
    assert recorded.get_parameter("blocks.1.conv.weight") is model.blocks[1].conv.weight
    assert [n for n, _ in recorded.named_modules()] == [n for n, _ in model.named_modules()]


def test_subclass_without_own_forward_is_one_call_and_with_one_a_functional_call() -> None:
    model = nn.Sequential(MyConv(3, 4), SamePadConv(4, 2, 3))
    recorded = assert_replays(model, image(1, 3, 6, 6), image(2, 3, 9, 7))
    assert called_modules(recorded) == ["0"]
    conv = next(n for n in recorded.graph.nodes if n.target is torch.conv2d)
    assert [str(a.target) for a in conv.args[1:3]] == ["1.weight", "1.bias"]
    assert conv.meta["scope"] == "1"
    assert conv.meta["source"].startswith("test_recorder.py:")


def test_forward_set_on_the_instance_is_entered() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    layer = model[0]
    layer.forward = lambda x: F.linear(x, layer.weight) * 2
    recorded = capture(model, image(2, 3))
    assert called_modules(recorded) == []
    x = image(4, 3)
    assert torch.equal(recorded(x), model(x))


def test_leaf_rule_of_the_caller_is_used() -> None:
    model = SmallNet()
    recorded = capture(
        model, image(2, 3, 20, 20), leaf=lambda module: isinstance(module, Residual | nn.Linear)
    )
    assert called_modules(recorded) == ["blocks.0", "blocks.1", "head"]
    x = image(3, 3, 24, 20)
    assert_equal(copy.deepcopy(recorded)(x), copy.deepcopy(model)(x))


def test_an_identity_of_several_tensors_is_no_call() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.neck = nn.Conv2d(3, 3, 1), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.neck((self.conv(x), self.neck(x)))
            named: dict[str, Tensor] = self.neck({"a": first})
            return named["a"] + second

    net, x = Net().eval(), torch.randn(2, 3, 4, 4)
    for graph in (capture(net, Inputs(x)), capture_symbolic(net)):
        assert called_modules(graph) == ["conv", "neck"]
        assert_equal(graph(x), net(x))


def test_module_called_twice_appears_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)
            self.same = self.conv

        def forward(self, x: Tensor) -> Tensor:
            return self.same(self.conv(x))

    recorded = assert_replays(Twice(), image(1, 3, 4, 4), image(2, 3, 5, 5))
    assert called_modules(recorded) == ["conv", "conv"]
    assert list(recorded.state_dict()) == ["conv.weight", "conv.bias", "same.weight", "same.bias"]


def test_result_with_a_second_user_has_two_users_in_the_graph() -> None:
    """A11"""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            c = self.conv(x)
            return F.relu(c) + c

    recorded = assert_replays(Both(), image(1, 3, 4, 4), image(2, 3, 5, 5))
    conv = next(n for n in recorded.graph.nodes if n.op == "call_module")
    assert [user.target for user in conv.users] == [F.relu, "add"]


def test_module_made_inside_forward_is_recorded_as_its_functions() -> None:
    class Inside(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.Softmax(dim=1)(x)

    recorded = assert_replays(Inside(), image(2, 3), image(4, 5))
    assert F.softmax in targets(recorded)


def test_functional_calls_by_keyword_only() -> None:
    """A13"""

    class Keywords(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(image(4, 3, 3, 3))
            self.b = nn.Parameter(image(4))
            self.w2 = nn.Parameter(image(2, 100))

        def forward(self, x: Tensor) -> Tensor:
            y = F.conv2d(input=x, weight=self.w, bias=self.b, padding=1)
            return F.linear(y.flatten(1), weight=self.w2)

    recorded = assert_replays(Keywords(), image(1, 3, 5, 5), image(4, 3, 5, 5))
    conv, linear = (n for n in recorded.graph.nodes if n.target in (torch.conv2d, F.linear))
    assert conv.kwargs["weight"].target == "w"
    assert linear.kwargs["weight"].target == "w2"


def test_scalar_as_first_operand() -> None:
    """A14"""

    class Scalars(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Parameter(image(1, 3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return 2 + x * 3 - (1 - x) / 4 + self.row - 2 / (x.abs() + 1) + 2**x + 7 // (x + 9)

    recorded = assert_replays(Scalars(), image(1, 3, 4, 4), image(2, 3, 7, 5))
    found = targets(recorded)
    assert {"add", "mul", "sub", "div", "__rsub__", "__rtruediv__", "__rpow__"} <= set(found)


def test_bool_and_integer_tensors() -> None:
    """A16"""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(10, 4)

        def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            e = self.emb(ids)
            m = x > 0
            return torch.where(m, e, x.masked_fill(m, 0.0)), ids + 1

    recorded = assert_replays(
        Masked(),
        (torch.tensor([1, 2, 3]), image(3, 4)),
        (torch.tensor([9, 0, 5, 7]), image(4, 4)),
    )
    nodes = {n.target: n for n in recorded.graph.nodes}
    assert nodes["gt"].meta["dtype"] is torch.bool
    assert nodes["ids"].meta["dtype"] is torch.int64


@pytest.mark.parametrize("view", ["chunk", "transpose", "step", "expand", "flip"])
def test_non_contiguous_inputs(view: str) -> None:
    """A19"""
    base = image(2, 8, 6, 6)
    x = {
        "chunk": base.chunk(2, 1)[1],
        "transpose": base.transpose(1, 3)[:, :4],
        "step": base[:, ::2],
        "expand": base[:1, :4].expand(4, 4, 6, 6),
        "flip": base.flip(0)[:, :4],
    }[view]
    model = nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()
    assert_replays(model, x, image(1, 4, 9, 9))


def test_keyword_arguments_and_defaults() -> None:
    class Keywords(nn.Module):
        def forward(
            self,
            x: Tensor,
            *rest: Tensor,
            scale: float = 2.0,
            mask: Tensor | None = None,
            **more: Any,
        ) -> Tensor:
            y = x * scale
            for other in rest:
                y = y + other
            if mask is not None:
                y = y.masked_fill(mask, 0)
            return y - more["bias"] if "bias" in more else y

    x = image(2, 3)
    assert_replays(Keywords(), x, image(4, 3))
    assert_replays(
        Keywords(),
        Inputs(x, x + 1, mask=x > 0, bias=x * 2),
        Inputs(image(4, 3), image(4, 3), mask=image(4, 3) > 1, bias=image(4, 1)),
    )
    recorded = capture(Keywords(), x, {"mask": x > 0})
    assert torch.equal(recorded(x, mask=x > 0), Keywords()(x, mask=x > 0))


def test_constants_become_buffers_and_are_listed() -> None:
    class Anchors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.anchors = image(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.anchors + torch.from_numpy(np.ones(3, dtype=np.float32))

    model = Anchors()
    recorded = assert_replays(model, image(2, 3), image(5, 3))
    assert [info.name for info in recorded.report.constants] == ["_constant_0", "_constant_1"]
    assert recorded.report.constants[0].shape == (1, 3)
    assert recorded.report.constants[0].source.startswith("test_recorder.py:")
    assert list(recorded.state_dict()) == []
    assert "_constant_0" not in vars(model)
    assert recorded.to(torch.float64)._constant_0.dtype is torch.float64


def test_factories_follow_the_sizes_they_were_given() -> None:
    class Factories(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            b, c, h, w = x.shape
            grid = torch.arange(h * w, dtype=x.dtype).view(h, w) + torch.zeros(h, w)
            out = x.new_zeros(b, c, h, w) + torch.full((w,), 2.0) + grid
            pos = torch.linspace(0, 1, steps=w) + torch.tensor([h, w]).sum()
            return F.pad(out + pos, (0, w % 4)).expand(b, c, h, -1)

    recorded = assert_replays(Factories(), image(1, 2, 3, 5), image(4, 2, 6, 6), image(2, 2, 5, 9))
    assert recorded.report.constants == ()


def test_sizes_reach_torch_functions_that_take_them_as_ints() -> None:
    class Sizes(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            n, c = x.size(0), x.size(dim=1)
            pooled = F.avg_pool2d(x, kernel_size=x.shape[2:])
            return (
                x.reshape(n, c, -1).narrow(2, 0, x.size(3)),
                x[:, : c // 2, x.shape[2] - 1],
                pooled.view(x.shape[:2]),
                x.flatten(1).unflatten(1, (c, -1)),
                x.repeat(1, 1, c - 1, 1),
                x.split([1, c - 1], dim=1)[1],
                torch.cat([x, torch.ones(n, 1, *x.shape[2:])], dim=1),
                x / n + n * x - n,
                x.roll(n, 0),
                x[:1].expand(torch.broadcast_shapes(x.shape, (1, c, 1, 1))),
                x.new_ones(len(x)),
                x.sum() / x.numel(),
            )

    assert_replays(Sizes(), image(2, 4, 3, 3), image(5, 6, 4, 7), image(1, 3, 2, 2))


def test_items_of_results_are_separate_nodes() -> None:
    class Items(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            out, (h, _) = self.rnn(x)
            values, where = out.max(dim=-1)
            return values, where, h

    recorded = assert_replays(Items(), image(2, 5, 3), image(3, 7, 3))
    lstm = next(n for n in recorded.graph.nodes if n.op == "call_module")
    assert operator.getitem in targets(recorded)
    assert lstm.meta["shape"] == ((2, 5, 4), None)
    largest = next(n for n in recorded.graph.nodes if n.target == "max")
    assert largest.meta["dtype"] == (torch.float32, torch.int64)


def test_node_meta_holds_shape_and_dtype_but_no_data() -> None:
    recorded = capture(SmallNet(), image(2, 3, 20, 20))
    for node in recorded.graph.nodes:
        assert not any(isinstance(value, Tensor) for value in node.meta.values())
        assert isinstance(node.meta["scope"], str)
        assert bool(node.meta["source"]) == (node.op != "placeholder")  # inputs have no line
    block = next(n for n in recorded.graph.nodes if n.target == "blocks.0.conv")
    assert block.meta["shape"] == (2, 8, 9, 9)
    assert block.meta["dtype"] is torch.float32
    assert block.meta["scope"] == "blocks.0"
