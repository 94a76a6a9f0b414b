"""How a standard ONNX node of any tool becomes the form that HBIR holds.

Most nodes are taken as they are. An operator whose attributes or inputs have other forms than ours
(``auto_pad``, more operands, missing optional inputs) registers a rewrite here, in a file of
``qtune/hbir/onnx_import/rewrites``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from qtune.dtype import qint4, qint8, qint16
from qtune.errors import OnnxImportError, RegistryError
from qtune.ops.kernel import Attrs, Builder, Value

Array = np.ndarray[Any, Any]

WEIGHT_LIMITS = tuple((dtype.qmin, dtype.qmax) for dtype in (qint4, qint8, qint16))
"""Smallest and largest code of the dtypes that a weight may have."""


@dataclass(frozen=True, slots=True, eq=False)
class OnnxWeight:
    """A constant behind a DequantizeLinear or a calibration node: float32 values and their grid.

    ``scale``: one per element of ``axis`` (-1: one for all); ``limits``: smallest, largest code;
    ``half_up``: how the grid rounds, else ties to even.
    """

    data: Array
    scale: Array
    axis: int
    limits: tuple[int, int]
    half_up: bool = False

    def transposed(self) -> OnnxWeight:
        """The matrix with both axes exchanged."""
        return self.with_data(self.data.T, self.axis if self.axis < 0 else 1 - self.axis)

    def with_data(self, data: Array, axis: int) -> OnnxWeight:
        """The same grid with its elements elsewhere."""
        return replace(self, data=data, axis=axis)

    def codes(self) -> Array:
        """The codes, as float32."""
        ratio = self.data / self._along(self.scale)
        rounded = np.floor(ratio + np.float32(0.5)) if self.half_up else np.rint(ratio)
        return np.clip(rounded, np.float32(self.limits[0]), np.float32(self.limits[1]))

    def values(self) -> Array:
        """The float32 values on the grid."""
        return np.asarray(self.codes() * self._along(self.scale), dtype=np.float32)

    def times(self, factor: float) -> OnnxWeight | None:
        """The same codes on a grid ``factor`` times as wide; ``None`` where there is none."""
        codes, scale = self.codes(), self.scale * np.float32(abs(factor))
        if factor < 0:
            codes = -codes
        fits = (scale > 0).all() and np.isfinite(scale).all() and codes.max() <= self.limits[1]
        if not fits:
            return None
        return replace(self, data=np.asarray(codes * self._along(scale), np.float32), scale=scale)

    def _along(self, scale: Array) -> Array:
        rest = [1] * (self.data.ndim - self.axis - 1)
        return scale.reshape(() if self.axis < 0 else (*[1] * self.axis, -1, *rest))

    def emit(self, b: Builder) -> Value:
        """The values behind a FakeQuant that gives the same codes again."""
        operands = [b.constant(self.data, "weight"), b.constant(self._along(self.scale), "scale")]
        attrs = {"axis": self.axis, "qmin": self.limits[0], "qmax": self.limits[1]}
        op_type = "FakeQuant" if self.half_up else "FakeQuantHalfEven"
        return b.add(op_type, operands, attrs, domain="qtune")


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node of an imported graph, its inputs already values of the graph under construction.

    ``attrs``: plain values, defaults filled in. ``constants``: the arrays of inputs that are
    constant; ``weights``: those that lie on a grid. ``outputs``: how many are used. ``shapes``,
    ``dtypes`` (NumPy's names) of the inputs; ``None`` for absent inputs. ``alone``: whether an
    input is used by nothing else.
    """

    name: str
    op_type: str
    attrs: Attrs
    inputs: tuple[Value | None, ...]
    constants: tuple[Array | None, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[str | None, ...]
    output_shapes: tuple[tuple[int, ...] | None, ...]
    outputs: int = 1
    weights: tuple[OnnxWeight | None, ...] = ()
    alone: tuple[bool, ...] = ()

    def input(self, index: int) -> Value | None:
        """Input ``index``; ``None`` where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The static shape of input ``index``."""
        shape = self.shapes[index] if index < len(self.shapes) else None
        if shape is None:
            raise self.refusal(f"the shape of input {index} is not static")
        return shape

    def constant(self, index: int, what: str) -> Array | None:
        """The array of input ``index``, ``None`` where the input is absent."""
        if self.input(index) is None:
            return None
        array = self.constants[index]
        if array is None:
            raise self.refusal(f"its {what} are computed while the model runs; make them constant")
        return array

    def refusal(self, reason: str) -> OnnxImportError:
        """The error that names this node and why it can't be taken."""
        return OnnxImportError(f"{self.name}: {self.op_type}: {reason}")

    def weight(self, axis: int | None = None) -> OnnxWeight | None:
        """The quantized weight (input 1), if it is one.

        Refused: a zero point, and more than one scale along another axis than ``axis``.
        """
        weight = self.weights[1] if len(self.weights) > 1 else None
        if weight is None:
            return None
        if weight.limits not in WEIGHT_LIMITS:
            low, high = weight.limits
            raise self.refusal(
                f"its weight has a zero point (codes {low} .. {high}); quantize weights as "
                "symmetric int8"
            )
        if axis is not None and weight.axis not in (-1, axis):
            raise self.refusal(
                f"its weight has {weight.scale.size} scales along axis {weight.axis}; the BPU "
                f"takes one scale, or one per output channel along axis {axis}"
            )
        return weight

    def only(self, **allowed: Any) -> None:
        """Refuse attributes that differ from the one value that has a form here."""
        for key, value in allowed.items():
            got = self.attrs.get(key, value)
            if got != value:
                raise self.refusal(f"{key}={got!r} has no form here, only {value!r}")


Rewrite = Callable[[Builder, OnnxNode], Any]
"""``rewrite(builder, node)``: emit the node in our form; its value, or a tuple of values."""

_rewrites: dict[str, Rewrite] = {}
_composed: set[str] = set()


def register_rewrite(op_type: str, rewrite: Rewrite, *, is_composed: bool = False) -> Rewrite:
    """Enter how a standard ONNX operator of imported files becomes our form of it.

    ``is_composed``: several operators with a scale of their own, for which no file has a grid.
    """
    if op_type in _rewrites:
        raise RegistryError(f"ONNX {op_type} has two rewrites; one file must own it")
    _rewrites[op_type] = rewrite
    if is_composed:
        _composed.add(op_type)
    return rewrite


@cache
def rewrites() -> Mapping[str, Rewrite]:
    """Rewrites of standard ONNX operators by name."""
    package = importlib.import_module("qtune.hbir.onnx_import.rewrites")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return MappingProxyType(_rewrites)


def is_composed(op_type: str) -> bool:
    """Whether the operator becomes several, with results between them that need a scale."""
    return op_type in rewrites() and op_type in _composed


def emit(b: Builder, node: OnnxNode, attrs: Mapping[str, Any] | None = None) -> Any:
    """The node as it is, with other attributes where given."""
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    given = node.attrs if attrs is None else attrs
    return b.add(node.op_type, inputs, given, outputs=node.outputs)


def single(node: OnnxNode, used: str) -> None:
    """Refuse nodes that are asked for more than their first result."""
    if node.outputs > 1:
        raise node.refusal(f"only {used} has a form here, not its further results")
