"""Every torch spelling of a movement operator is that operator, with torch's own result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops import registry

from .spelling import operator_of, operator_of_module

Call = Callable[[torch.Tensor], Any]
INDEX = torch.tensor([1, 0, -1])
ROWS = torch.tensor([1, 0, 3, 1])
COLUMN = ROWS.reshape(1, 4, 1, 1)
LAST = ROWS.reshape(1, 1, 1, 4)
UP = torch.tensor([0, 1])
ROW = torch.ones(2, 4, 6)
THREE = torch.tensor([3, 0, 1])
MASK = torch.arange(6) > 3
PAGE = torch.ones(2, 3, 4, 6)


def _set(x: torch.Tensor, index: Any, value: Any) -> None:
    x[index] = value


FUNCTIONS: list[tuple[str, Call]] = [
    ("reshape", lambda x: x.view(2, -1)),
    ("reshape", lambda x: x.view((2, 4, -1))),
    ("reshape", lambda x: x.reshape(shape=(2, -1))),
    ("reshape", lambda x: torch.reshape(x, (2, -1))),
    ("reshape", lambda x: x.ravel()),
    ("flatten", lambda x: x.flatten(1)),
    ("flatten", lambda x: torch.flatten(x, start_dim=1, end_dim=2)),
    ("unflatten", lambda x: x.unflatten(1, (2, 2))),
    ("unflatten", lambda x: torch.unflatten(x, 1, (2, -1))),
    ("squeeze", lambda x: x.squeeze()),
    ("squeeze", lambda x: torch.squeeze(x, 0)),
    ("squeeze", lambda x: x.squeeze_(1)),
    ("unsqueeze", lambda x: x.unsqueeze(-1)),
    ("unsqueeze", lambda x: torch.unsqueeze(x, dim=0)),
    ("permute", lambda x: x.permute(0, 2, 3, 1)),
    ("permute", lambda x: torch.permute(x, (0, 2, 3, 1))),
    ("permute", lambda x: x.permute(dims=(3, 2, 1, 0))),
    ("transpose", lambda x: x.transpose(1, -1)),
    ("transpose", lambda x: torch.transpose(x, dim0=0, dim1=1)),
    ("transpose", lambda x: x.swapaxes(1, 2)),
    ("transpose", lambda x: torch.swapdims(x, 1, 2)),
    ("transpose", lambda x: torch.swapaxes(x, 1, 2)),
    ("movedim", lambda x: x.movedim(1, -1)),
    ("movedim", lambda x: torch.moveaxis(x, (0, 1), (1, 0))),
    ("getitem", lambda x: x[:, 0]),
    ("getitem", lambda x: x[..., 1:, None]),
    ("getitem", lambda x: x[-1]),
    ("getitem", lambda x: x[0, :, 1:3, -1]),
    ("getitem", lambda x: x[:, [0, 2]]),
    ("getitem", lambda x: x[:, INDEX]),
    ("getitem", lambda x: x.select(1, 0)),
    ("getitem", lambda x: torch.select(x, -2, 1)),
    ("getitem", lambda x: x[:, INDEX, [0, 1, 2]]),
    ("narrow", lambda x: x.narrow(1, 0, 2)),
    ("narrow", lambda x: torch.narrow(x, -1, -3, 3)),
    ("setitem", lambda x: _set(x, (..., MASK), 2.0)),
    ("setitem", lambda x: _set(x, (slice(None), [0, -1]), torch.ones(6))),
    ("setitem", lambda x: x.index_copy(1, THREE, PAGE)),
    ("setitem", lambda x: torch.index_fill(x, 1, ROWS, 0.5)),
    ("setitem", lambda x: x.index_put_((UP,), torch.tensor(2.0))),
    ("gather", lambda x: x.gather(1, COLUMN)),
    ("gather", lambda x: torch.gather(x, dim=-1, index=LAST)),
    ("take_along_dim", lambda x: x.take_along_dim(COLUMN, 1)),
    ("take_along_dim", lambda x: torch.take_along_dim(x, ROWS)),
    ("tril", lambda x: x.tril()),
    ("tril", lambda x: torch.tril(x, diagonal=1)),
    ("triu", lambda x: x.triu_(-1)),
    ("triu", lambda x: torch.triu(x, 2)),
    ("reshape_as", lambda x: x.reshape_as(torch.ones(8, 24))),
    ("reshape_as", lambda x: x.view_as(torch.ones(8, 24))),
    ("expand_as", lambda x: x.expand_as(torch.ones(3, 2, 4, 4, 6))),
    ("cat", lambda x: torch.hstack([x, x])),
    ("cat", lambda x: torch.vstack([x, x])),
    ("cat", lambda x: torch.dstack([x, x])),
    ("cat", lambda x: torch.column_stack([x, x])),
    ("tensor_split", lambda x: torch.tensor_split(x, 3, dim=1)),
    ("tensor_split", lambda x: x.tensor_split((1, 3), -1)),
    ("tensor_split", lambda x: x.hsplit(2)),
    ("tensor_split", lambda x: torch.vsplit(x, 2)),
    ("tensor_split", lambda x: torch.dsplit(x, [1, 2])),
    ("rot90", lambda x: torch.rot90(x)),
    ("rot90", lambda x: x.rot90(-1, (2, 3))),
    ("atleast", lambda x: torch.atleast_3d(x)),
    ("diagonal", lambda x: x.diagonal(1, 2, 3)),
    ("diagonal", lambda x: torch.diagonal(x, dim1=1, dim2=2)),
    ("broadcast_tensors", lambda x: torch.broadcast_tensors(x, torch.ones(6))),
    ("roll", lambda x: torch.roll(x, 5)),
    ("repeat_interleave", lambda x: x.repeat_interleave(2)),
    ("setitem", lambda x: _set(x, (slice(None), 0), 2.0)),
    ("setitem", lambda x: _set(x, (..., slice(1, None)), torch.ones(5))),
    ("index_select", lambda x: x.index_select(1, ROWS)),
    ("take", lambda x: x.take(ROWS)),
    ("setitem", lambda x: x.slice_scatter(PAGE, 1, 1)),
    ("setitem", lambda x: torch.select_scatter(x, ROW, 1, -1)),
    ("diagonal", lambda x: torch.linalg.diagonal(x, offset=1)),
    ("split", lambda x: x.unsafe_split(2, 1)),
    ("chunk", lambda x: torch.unsafe_chunk(x, 2)),
    ("transpose", lambda x: x.adjoint()),
    ("index_select", lambda x: torch.index_select(x, -1, ROWS)),
    ("pad", lambda x: F.pad(x, (1, 2))),
    ("pad", lambda x: F.pad(x, [1, 1, 2, 0], mode="reflect")),
    ("pad", lambda x: F.pad(x, (1, 1, 2, 0), value=-1.5)),
    ("pad", lambda x: torch.constant_pad_nd(x, (1, 1), 3.0)),
    ("cat", lambda x: torch.cat([x, x], 1)),
    ("cat", lambda x: torch.cat((x, x), dim=-1)),
    ("cat", lambda x: torch.concat([x, x, x])),
    ("cat", lambda x: torch.concatenate([x, x], axis=1)),
    ("stack", lambda x: torch.stack([x, x], dim=1)),
    ("split", lambda x: x.split(3, 1)),
    ("split", lambda x: torch.split(x, [1, 3], dim=1)),
    ("split", lambda x: torch.split_with_sizes(x, [1, 3], 1)),
    ("chunk", lambda x: x.chunk(3, dim=1)),
    ("chunk", lambda x: torch.chunk(x, 2)),
    ("unbind", lambda x: x.unbind(1)),
    ("unbind", lambda x: torch.unbind(x)),
    ("expand", lambda x: x.expand(3, -1, -1, -1, -1)),
    ("expand", lambda x: torch.broadcast_to(x, (3, 2, 4, 4, 6))),
    ("repeat", lambda x: x.repeat(1, 2, 1, 1)),
    ("repeat", lambda x: x.tile((2, 1))),
    ("repeat", lambda x: torch.tile(x, (2, 1, 1, 1, 1))),
    ("repeat_interleave", lambda x: x.repeat_interleave(2, 1)),
    ("repeat_interleave", lambda x: torch.repeat_interleave(x, 2, dim=-1)),
    ("flip", lambda x: x.flip(2, 3)),
    ("flip", lambda x: torch.flip(x, [-1])),
    ("flip", lambda x: torch.fliplr(x)),
    ("roll", lambda x: torch.roll(x, (1, -2), (2, 3))),
    ("roll", lambda x: x.roll(3, 1)),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2)),
    ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2)),
    ("channel_shuffle", lambda x: torch.channel_shuffle(x, 2)),
]

MODULES: list[tuple[str, nn.Module]] = [
    ("flatten", nn.Flatten()),
    ("flatten", nn.Flatten(2, 3)),
    ("unflatten", nn.Unflatten(1, (2, 2))),
    ("pad", nn.ZeroPad2d(1)),
    ("pad", nn.ConstantPad2d((1, 2, 0, 1), 0.5)),
    ("pad", nn.ReflectionPad2d(2)),
    ("pad", nn.ReplicationPad2d((1, 0, 2, 1))),
    ("pad", nn.CircularPad2d(1)),
    ("pixel_shuffle", nn.PixelShuffle(2)),
    ("pixel_unshuffle", nn.PixelUnshuffle(2)),
    ("channel_shuffle", nn.ChannelShuffle(2)),
]


def example() -> torch.Tensor:
    return torch.arange(2 * 4 * 4 * 6, dtype=torch.float32).reshape(2, 4, 4, 6)


@pytest.mark.parametrize(("name", "call"), FUNCTIONS)
def test_functions_and_methods_are_the_operator(name: str, call: Call) -> None:
    x = example()
    assert operator_of(lambda: call(x)) == name


@pytest.mark.parametrize(("name", "module"), MODULES, ids=str)
def test_modules_are_the_operator(name: str, module: nn.Module) -> None:
    assert operator_of_module(module, example()) == name


def test_the_attributes_t_and_mt_are_transposes() -> None:
    found = registry.find_function(getattr)
    assert found is not None
    x = example()
    for name, expected in (("T", x[0, 0].T), ("mT", x[0, 0].mT)):
        bound = found[1].bind(x[0, 0], name)
        assert torch.equal(found[0].float_kernel(*bound.tensors, **bound.attrs), expected)  # type: ignore[misc]
    with pytest.raises(NotImplementedError, match="grad"):
        found[1].bind(x, "grad")
    with pytest.raises(NotImplementedError, match="permute"):
        found[1].bind(x, "T")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x[x > 0], "mask"),
        (lambda x: _set(x, x > 0, x[x > 0]), "mask"),
        (lambda x: _set(x, (0, [1, 2]), 1.0), "two steps"),
        (lambda x: torch.vstack([x[0, 0, 0], x[0, 0, 0]]), "torch.stack"),
        (lambda x: x.index_put((UP,), PAGE, accumulate=True), "accumulate"),
        (lambda x: torch.atleast_2d(x, x), "several tensors"),
        (lambda x: _set(x, (None, 0), 1.0), "assigned"),
        (lambda x: x.view(torch.int32), "dtype"),
        (lambda x: torch.repeat_interleave(x, INDEX.abs(), 1), "repeat_interleave"),
    ],
)
def test_what_has_no_integer_form_says_why(call: Call, text: str) -> None:
    with pytest.raises(NotImplementedError, match=text):
        operator_of(lambda: call(example()))
