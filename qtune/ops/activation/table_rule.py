"""Table operators: element-wise functions that become look-up tables (numerics.md section 3).

An operator is declared from torch's function in a few lines (see ``sigmoid.py``). Its table holds
that function in float64, so VALIDATION and table evaluate the same mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.arith.table import RealFunction, int8_table, segment_table
from qtune.dtype import QuantDType
from qtune.ops.activation.lookup import emit_lut8, emit_lut16, report_table_error
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements, sample_unary, unary, unary_module
from qtune.ops.elementwise.fast import run_everywhere
from qtune.ops.elementwise.operands import Deferred, codes, copy_node, is_plain
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FloatNode,
    HbirKernel,
    LowerCall,
    Operand,
    QValue,
    Value,
)
from qtune.ops.spec import (
    Bound,
    FunctionTarget,
    MarchRule,
    MethodTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Target,
)


def _same(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(attrs)


@dataclass(frozen=True, slots=True)
class FloatForm:
    """The float HBIR operator of a table operator.

    ``to_onnx(attrs)``: its attributes from the canonical ones, ``from_onnx`` the way back.
    """

    op_type: str
    domain: str = ""
    to_onnx: Callable[[Mapping[str, Any]], dict[str, Any]] = _same
    from_onnx: Callable[[Mapping[str, Any]], dict[str, Any]] = _same


@dataclass(frozen=True, slots=True)
class Spellings:
    """torch's names of a function, and how calls of them bind.

    ``methods`` include in-place ones, which torch mostly has as functions as well (``torch.exp_``).
    """

    modules: Sequence[type[nn.Module]] = ()
    functions: Sequence[Callable[..., Any]] = ()
    methods: Sequence[str] = ()
    bind: Callable[..., Bound] = unary
    bind_module: Callable[..., Bound] = unary_module

    def targets(self) -> tuple[Target, ...]:
        """As the registry wants them."""
        in_place = [getattr(torch, name, None) for name in self.methods if name.endswith("_")]
        functions = [*self.functions, *(f for f in in_place if f is not None)]
        return (
            *(ModuleTarget(cls, self.bind_module) for cls in self.modules),
            *(FunctionTarget(function, self.bind) for function in functions),
            *(MethodTarget(name, self.bind) for name in self.methods),
        )


def table_operator(
    name: str,
    function: Callable[..., torch.Tensor],
    form: FloatForm,
    spellings: Spellings,
    *,
    doc: str,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    march: tuple[MarchRule, ...] = limits.NOT_BERNOULLI,
) -> OpSpec:
    """The operator ``function(input, **attrs)``, made an int8 or int16 table.

    ``defaults``: the canonical attrs of a call without arguments, for samples. ``march``:
    bernoulli2 has the tables of few functions only.
    """

    def table(attrs: Mapping[str, Any]) -> RealFunction:
        return table_function(function, attrs)

    def lower(b: Builder, call: LowerCall) -> Any:
        attrs = form.to_onnx(call.attrs)
        return b.add(form.op_type, [call.operands[0]], attrs, domain=form.domain)

    def run_float(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
        return function(x, **form.from_onnx(attrs))

    def convert(ctx: ConvertContext, node: FloatNode) -> Operand:
        if is_plain(node):
            return copy_node(ctx, node, domain=form.domain)
        attrs = form.from_onnx(node.attrs)
        return deferred_table(codes(ctx, node, 0), table_function(function, attrs))

    return OpSpec(
        name=name,
        family="activation",
        rule=Rule.TABLE,
        roles=("input",),
        targets=spellings.targets(),
        float_kernel=function,
        lower=lower,
        table=table,
        kernels=(float_kernel(form, run_float, convert),),
        march=march,
        flops=output_elements,
        sample=lambda rng: replace(sample_unary(rng), attrs=defaults),
        doc=doc,
    )


def float_kernel(
    form: FloatForm, run_float: Callable[..., Any], convert: Callable[..., Operand]
) -> HbirKernel:
    """The kernel of a float form; those of our domain also run in what stays float."""
    kernel = HbirKernel(form.op_type, form.domain, run_float=run_float, convert=convert)
    return run_everywhere(kernel) if form.domain else kernel


def table_function(function: Callable[..., torch.Tensor], attrs: Mapping[str, Any]) -> RealFunction:
    """``function`` as a map from float64 arrays to float64 arrays."""

    def evaluate(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        argument = torch.from_numpy(np.array(x, dtype=np.float64))
        with torch.no_grad():
            return np.asarray(function(argument, **attrs).numpy())

    return evaluate


def deferred_table(x: QValue, function: RealFunction) -> Deferred:
    """The table of ``function`` on the codes ``x``, without the calibrated range of the stub.

    An int16 table then covers the codes that ``x`` can have. Files made after ``pre_export`` hold
    their tables already (``FakeLut8``, ``FakeLut16``) and don't come here.
    """

    def emit(ctx: ConvertContext, scale: float, dtype: QuantDType, attrs: dict[str, int]) -> Value:
        if x.dtype.bits <= 8:
            table = int8_table(function, x.scale, scale, dtype).clip(attrs["lo"], attrs["hi"])
            return emit_lut8(ctx, x.value, table, dtype)
        lo = x.dtype.qmin if x.code_min is None else x.code_min
        hi = x.dtype.qmax if x.code_max is None else x.code_max
        segments = segment_table(function, x.scale, scale, lo, hi, dtype)
        report_table_error(ctx, segments)
        return emit_lut16(ctx, x.value, segments, attrs)

    return Deferred(emit)
