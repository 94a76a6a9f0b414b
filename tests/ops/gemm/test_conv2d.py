"""conv2d and conv1d: spellings, padding, bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ArgumentError, ExportError
from qtune.ops import registry
from qtune.ops.gemm import convolution
from qtune.ops.gemm.geometry import padding_pairs
from qtune.ops.kernel import LowerCall
from qtune.ops.spec import OpSpec
from tests.ops.gemm.eager import Emitted, LowerBuilder, lower, run_lowered


def bound_module(module: nn.Module, x: torch.Tensor) -> tuple[OpSpec, list[Any], dict[str, Any]]:
    found = registry.find_module(type(module))
    assert found is not None
    entry, target = found
    bound = target.bind(module, x)
    tensors = list(bound.tensors)
    for role, attribute in target.params.items():
        tensors[entry.roles.index(role)] = getattr(module, attribute)
    return entry, tensors, dict(bound.attrs)


# torch itself warns once that "same" with an even kernel copies the input.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        nn.Conv2d(4, 6, (3, 2), padding="same", dilation=(1, 2), bias=False),
        nn.Conv2d(4, 6, (4, 2), padding="same"),
        nn.Conv2d(4, 6, 3, padding="valid"),
        nn.Conv2d(4, 4, 3, padding=(1, 0), groups=4),
        nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=1),
        nn.Conv1d(4, 6, 4, padding="same"),
    ],
    ids=str,
)
def test_module_and_lowered_node_give_the_modules_own_bits(module: nn.Module) -> None:
    rank = 1 if isinstance(module, nn.Conv1d) else 2
    x = torch.randn(2, 4, *[9, 8][:rank])
    expected = module(x)
    entry, tensors, attrs = bound_module(module, x)
    assert torch.equal(entry.float_kernel(*tensors, **attrs), expected)  # type: ignore[misc]
    assert torch.equal(run_lowered(lower(entry, tensors, attrs)), expected)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_other_padding_modes_pad_first(mode: Any) -> None:
    module = nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode=mode)
    x = torch.randn(1, 2, 6, 7)
    entry, tensors, attrs = bound_module(module, x)
    assert torch.equal(entry.float_kernel(*tensors, **attrs), module(x))  # type: ignore[misc]
    node = lower(entry, tensors, attrs)
    assert node.op_type == "Conv"
    assert node.attrs["pads"] == (0, 0, 0, 0)
    pad = node.inputs[0]
    assert isinstance(pad, Emitted)
    assert pad.op_type == "Pad"
    assert pad.inputs[1].tolist() == [0, 0, 2, 1, 0, 0, 2, 1]


def test_functional_with_keywords_only_is_the_same_operator() -> None:
    """A13: fx gives ``args == ()`` for such a call."""
    found = registry.find_function(F.conv2d)
    assert found is not None
    entry, target = found
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    bound = target.bind(input=x, weight=w, bias=None, padding=1)
    assert entry.name == "conv2d"
    assert bound.tensors == (x, w, None)
    assert bound.attrs["padding"] == (1, 1)
    assert entry.weight_role == "weight"
    assert entry.weight_axis is not None
    assert entry.weight_axis(bound.attrs) == 0


def test_subclass_is_found_as_its_base() -> None:
    class Mine(nn.Conv2d):
        pass

    found = registry.find_module(Mine)
    assert found is not None
    assert found[0].name == "conv2d"


def test_same_padding_puts_the_odd_one_behind() -> None:
    assert padding_pairs("same", (4, 3), (1, 2)) == ((1, 2), (2, 2))


def test_unknown_padding_word_is_quoted() -> None:
    with pytest.raises(ArgumentError, match="padding='full'"):
        padding_pairs("full", (3, 3), (1, 1))


def test_input_without_batch_axis_has_no_hbir_form() -> None:
    entry = registry.spec("conv2d")
    attrs = convolution.canonical_attrs(2, 1, 0, 1, 1)
    call = LowerCall("c", (None, None, None), attrs, ((2, 5, 5), (3, 2, 1, 1), None), (3, 5, 5))
    with pytest.raises(ExportError, match="batch"):
        entry.lower(LowerBuilder(), call)  # type: ignore[misc]


def test_flops_count_one_per_multiply_add() -> None:
    """The documented 5184 of a 1x1 convolution 3 -> 3 on 24 x 24."""
    entry = registry.spec("conv2d")
    assert entry.flops is not None
    shapes = ((1, 3, 24, 24), (3, 3, 1, 1), (3,))
    assert entry.flops({}, shapes, (1, 3, 24, 24)) == 5184
    depthwise = ((1, 8, 10, 10), (8, 1, 3, 3), None)
    assert entry.flops({}, depthwise, (1, 8, 8, 8)) == 8 * 64 * 9


@pytest.mark.parametrize(
    ("march", "attrs", "weight", "words"),
    [
        ("nash", {"stride": 2, "dilation": 2}, (4, 3, 3, 3), "stride 2 together with dilation 2"),
        ("nash", {}, (4, 3, 40, 3), "kernel size is 40, at most 31"),
        ("bayes", {"dilation": 17}, (4, 3, 3, 3), "dilation is 17, at most 16"),
        ("nash", {}, (4, 8000, 3, 3), "summed per output is 72000"),
    ],
)
def test_march_limits_refuse_with_numbers(
    march: str, attrs: dict[str, Any], weight: tuple[int, ...], words: str
) -> None:
    entry = registry.spec("conv2d")
    full = convolution.canonical_attrs(2, attrs.get("stride", 1), 0, attrs.get("dilation", 1), 1)
    (rule,) = (rule for rule in entry.march if march in rule.series)
    assert rule.check is not None
    shapes = ((1, weight[1], 64, 64), weight, None)
    assert words in (rule.check(full, shapes, (1, 4, 60, 60)) or "")  # type: ignore[arg-type]
    usual = convolution.canonical_attrs(2, 1, 1, 1, 1)
    shapes = ((1, 3, 64, 64), (4, 3, 3, 3), None)
    assert rule.check(usual, shapes, (1, 4, 64, 64)) is None  # type: ignore[arg-type]


def test_conv_sum_is_exact_where_int8_pairs_saturate() -> None:
    """Codes and weights at their extremes: 16-bit pair sums would saturate (numerics.md 7)."""
    from tests.ops.gemm.eager import run_all

    x = np.full((1, 64, 5, 5), 127, np.int8)
    w = np.full((4, 64, 3, 3), 127, np.int8)
    w[1], w[2] = -128, 1
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    acc = run_all("QConvAcc", [x, w, np.zeros((4, 1, 1), np.int32)], attrs, [1, 2])
    assert acc[0, :, 2, 2].tolist() == [576 * 127 * 127, -576 * 127 * 128, 576 * 127, 576 * 16129]
