"""Stubs, identities and dropout."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.dtype import qint8
from qtune.errors import ArgumentError, ConvertError, ExportError
from qtune.ops import registry
from qtune.ops.kernel import FloatValue, Pending, QValue
from qtune.ops.quant.stubs import DeQuantStub, QuantStub, torch_stubs
from qtune.ops.spec import Rule
from tests.ops.gemm.eager import (
    EagerContext,
    convert_node,
    lower,
    quantized,
    run_ort,
)


def test_stubs_pass_data_and_survive_copies() -> None:
    stub = QuantStub(scale=1 / 128)
    x = torch.randn(2, 3)
    assert stub(x) is x
    assert DeQuantStub()(x) is x
    assert copy.deepcopy(stub).scale == 1 / 128
    assert pickle.loads(pickle.dumps(stub)).scale == 1 / 128
    assert "scale=0.0078125" in repr(stub)
    assert not hasattr(QuantStub(), "qconfig")
    assert QuantStub(qconfig="mine").qconfig == "mine"
    assert list(stub.state_dict()) == []


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scale_must_be_a_positive_number(scale: float) -> None:
    with pytest.raises(ArgumentError, match="scale must be a positive number"):
        QuantStub(scale)


def test_zero_point_must_be_zero() -> None:
    assert QuantStub(0.1, 0).zero_point == 0
    with pytest.raises(ArgumentError, match="zero_point must be 0, got 3"):
        QuantStub(0.1, 3)


@pytest.mark.parametrize(
    ("classes", "name"),
    [((QuantStub, *torch_stubs()[0]), "quant_stub"), ((DeQuantStub, *torch_stubs()[1]),
     "dequant_stub")],
)  # fmt: skip
def test_own_and_torchs_stubs_are_one_operator(classes: tuple[Any, ...], name: str) -> None:
    for cls in classes:
        found = registry.find_module(cls)
        assert found is not None
        assert found[0].name == name


def test_fixed_scale_reaches_the_canonical_call() -> None:
    found = registry.find_module(QuantStub)
    assert found is not None
    assert found[1].bind(QuantStub(0.5), "x").attrs == {"scale": 0.5}
    assert found[1].bind(QuantStub(), "x").attrs == {"scale": None}


def test_barrier_dequantizes_codes_and_pending_results() -> None:
    class Exact(Pending):
        def dequantize(self, ctx: Any) -> FloatValue:
            return FloatValue("exact")

    node = lower(registry.spec("dequant_stub"), [torch.ones(2)], {})
    assert (node.domain, node.op_type) == ("qtune", "Barrier")
    ctx = EagerContext()
    result = convert_node(ctx, node, [quantized(np.array([1.0, 2.0]), 0.5, qint8)])
    assert result.value.array.tolist() == [1.0, 2.0]
    assert convert_node(ctx, node, [Exact()]).value == "exact"
    already = FloatValue("float")
    assert convert_node(ctx, node, [already]) is already
    with pytest.raises(ConvertError, match="neither an output scale"):
        convert_node(ctx, node, [Pending()])
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(run_ort("Barrier", [x], {}), x)


def test_identity_passes_codes_and_pending_operators_on() -> None:
    node = lower(registry.spec("identity"), [torch.ones(2)], {"kind": "identity"})
    codes = quantized(np.ones(2), 0.5, qint8)
    pending = Pending()
    assert convert_node(EagerContext(), node, [codes]) is codes
    assert convert_node(EagerContext(), node, [pending]) is pending
    assert isinstance(codes, QValue)


@pytest.mark.parametrize(
    ("key", "kind"),
    [("clone", "clone"), ("contiguous", "contiguous"), ("detach", "detach"),
     (torch.clone, "clone"), (torch.detach, "detach")],
)  # fmt: skip
def test_spellings_of_identity(key: Any, kind: str) -> None:
    found = registry.find_method(key) if isinstance(key, str) else registry.find_function(key)
    assert found is not None
    entry, target = found
    assert entry.name == "identity"
    assert entry.rule is Rule.INPUT_SCALE
    x = torch.randn(2, 3, 4, 4, requires_grad=True).transpose(1, 2)
    bound = target.bind(x)
    assert bound.attrs["kind"] == kind
    result = entry.float_kernel(x, **bound.attrs)  # type: ignore[misc]
    assert torch.equal(result, x)
    assert result.requires_grad == (kind != "detach")
    assert result.is_contiguous() == (kind == "contiguous")


def test_memory_format_is_kept() -> None:
    found = registry.find_method("contiguous")
    assert found is not None
    entry, target = found
    x = torch.randn(1, 2, 3, 3)
    bound = target.bind(x, memory_format=torch.channels_last)
    result = entry.float_kernel(x, **bound.attrs)  # type: ignore[misc]
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_identity_node_of_codes_runs_on_both_kernels() -> None:
    kernel = registry.kernel("", "Identity")
    assert kernel is not None
    assert kernel.reference is not None
    assert kernel.reference({}, np.arange(3)).tolist() == [0, 1, 2]
    assert kernel.fast is not None


@pytest.mark.parametrize(
    "module", [nn.Dropout(0.4), nn.Dropout1d(0.4), nn.Dropout2d(0.4), nn.Dropout3d(0.4),
               nn.AlphaDropout(0.4), nn.FeatureAlphaDropout(0.4)], ids=str,
)  # fmt: skip
def test_dropout_is_torchs_own_in_training_and_nothing_in_eval(module: nn.Module) -> None:
    found = registry.find_module(type(module))
    assert found is not None
    entry, target = found
    ranks: dict[type, int] = {nn.Dropout1d: 3, nn.Dropout3d: 5}
    rank = ranks.get(type(module), 4)
    x = torch.randn([2, 3, 4, 4, 4][:rank])
    attrs = dict(target.bind(module, x).attrs)
    assert attrs["training"] is None
    torch.manual_seed(0)
    expected = module(x)
    torch.manual_seed(0)
    kernel: Any = entry.float_kernel
    assert torch.equal(kernel(x, **{**attrs, "training": True}), expected)
    assert kernel(x, **{**attrs, "training": False}) is x
    assert lower(entry, [x], attrs).op_type == "Identity"


def test_functional_dropout_keeps_the_flag_of_the_call() -> None:
    found = registry.find_function(F.dropout)
    assert found is not None
    entry, target = found
    assert target.bind("x").attrs["training"] is True
    assert target.bind("x", training=False).attrs["training"] is False
    with pytest.raises(ExportError, match="always on"):
        lower(entry, [torch.ones(3)], {"kind": "dropout", "p": 0.5, "training": True})
