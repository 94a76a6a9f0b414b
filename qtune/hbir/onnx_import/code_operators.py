"""Operators on codes (onnxruntime's QOperator format) as pairs around the standard operators.

QLinearConv is DequantizeLinear of its operands, Conv and QuantizeLinear, by the standard's own
words; the others alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import.node_chain import DOMAIN, Form, NodeChain


def _real(chain: NodeChain, first: int, axis: int = 0) -> str:
    """The values of the codes at ``first``, whose scale and zero point follow."""
    inputs = [chain.needed(first), chain.needed(first + 1), chain.input(first + 2)]
    return chain.add("DequantizeLinear", [name for name in inputs if name], axis=axis)


def _codes(chain: NodeChain, value: str, first: int) -> None:
    """``value`` as the node's codes, whose scale and zero point are at ``first``."""
    inputs = [value, chain.needed(first), chain.input(first + 1)]
    chain.add("QuantizeLinear", [name for name in inputs if name], chain.node.output[0])


def _bias(chain: NodeChain, index: int, scales: Sequence[int]) -> list[str]:
    """The values of an int32 bias: its scale is that of the input times that of the weight."""
    arrays = [chain.array(place) for place in scales]
    if not chain.input(index):
        return []
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays):
        raise OnnxImportError(
            f"{chain.node.name}: {chain.node.op_type}: its scales are computed while the model "
            "runs; make them constant"
        )
    scale = np.asarray(np.prod(np.broadcast_arrays(*known), axis=0), dtype=np.float32)
    inputs = [chain.input(index), chain.constant(scale if scale.size > 1 else scale.reshape(()))]
    return [chain.add("DequantizeLinear", inputs, axis=0)]


def _conv(chain: NodeChain) -> None:
    operands = [_real(chain, 0), _real(chain, 3), *_bias(chain, 8, (1, 4))]
    _codes(chain, chain.add("Conv", operands, main=True, **chain.attrs), 6)


def _mat_mul(chain: NodeChain) -> None:
    operands = [_real(chain, 0), _real(chain, 3, axis=-1)]
    _codes(chain, chain.add("MatMul", operands, main=True), 6)


def _gemm(chain: NodeChain) -> None:
    """Without a scale of the result it is float."""
    weight = _real(chain, 3, axis=0 if chain.attrs.get("transB", 0) else 1)
    operands = [_real(chain, 0), weight, *_bias(chain, 6, (1, 4))]
    if chain.input(7):
        _codes(chain, chain.add("Gemm", operands, main=True, **chain.attrs), 7)
    else:
        chain.add("Gemm", operands, chain.node.output[0], **chain.attrs)


def _of_two(op_type: str) -> Form:
    def form(chain: NodeChain) -> None:
        _codes(chain, chain.add(op_type, [_real(chain, 0), _real(chain, 3)], main=True), 6)

    return form


def _of_one(op_type: str) -> Form:
    def form(chain: NodeChain) -> None:
        attrs: dict[str, Any] = {k: v for k, v in chain.attrs.items() if k not in _LAYOUTS}
        if any(chain.attrs.get(key, 0) for key in _LAYOUTS[:1]):
            raise OnnxImportError(
                f"{chain.node.name}: {chain.node.op_type}: channels_last=1 has no form here"
            )
        _codes(chain, chain.add(op_type, [_real(chain, 0)], main=True, **attrs), 3)

    return form


_LAYOUTS = ("channels_last", "opset")
"""Attributes that the standard operators have not."""


def _concat(chain: NodeChain) -> None:
    parts = [_real(chain, first) for first in range(2, len(chain.node.input), 3)]
    _codes(chain, chain.add("Concat", parts, main=True, **chain.attrs), 0)


CODE_FORMS: Mapping[tuple[str, str], Form] = MappingProxyType(
    {
        ("", "QLinearConv"): _conv,
        ("", "QLinearMatMul"): _mat_mul,
        (DOMAIN, "QGemm"): _gemm,
        (DOMAIN, "QLinearAdd"): _of_two("Add"),
        (DOMAIN, "QLinearMul"): _of_two("Mul"),
        (DOMAIN, "QLinearAveragePool"): _of_one("AveragePool"),
        (DOMAIN, "QLinearGlobalAveragePool"): _of_one("GlobalAveragePool"),
        (DOMAIN, "QLinearLeakyRelu"): _of_one("LeakyRelu"),
        (DOMAIN, "QLinearSigmoid"): _of_one("Sigmoid"),
        (DOMAIN, "QLinearSoftmax"): _of_one("Softmax"),
        (DOMAIN, "QLinearConcat"): _concat,
    }
)
"""By domain and operator."""
