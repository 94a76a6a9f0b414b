"""segment_lut: a function of the user's, made an int8 or int16 table (numerics.md section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from qtune.arith.segments import SegmentOptions
from qtune.arith.table import RealFunction
from qtune.errors import ExportError
from qtune.ops.activation.segment_module import TABLE_OPTIONS, Elementwise, SegmentLUT
from qtune.ops.activation.table_rule import table_function
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements, sample_unary
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import find_function, register
from qtune.ops.spec import Bound, ModuleTarget, OpSpec, Rule


def _bind_module(module: SegmentLUT, x: Any) -> Bound:
    attrs = {"simulated_func": module.simulated_func, TABLE_OPTIONS: module.table_options}
    return Bound((x,), attrs)


def _segment_lut(
    input: torch.Tensor, *, simulated_func: Elementwise, table_options: SegmentOptions
) -> torch.Tensor:
    return simulated_func(input)


def _table(attrs: Mapping[str, Any]) -> RealFunction:
    return table_function(_segment_lut, attrs)


def _lower(b: Builder, call: LowerCall) -> Any:
    """In float: torch's function, if it is one; another function has no form in a file."""
    function: Elementwise = call.attrs["simulated_func"]
    found = find_function(function.function)
    if found is None or found[0].rule is not Rule.TABLE or found[0].lower is None:
        raise ExportError(
            f"{call.name}: SegmentLUT of {function} is not quantized, and in float only functions "
            "of torch have a form in the file. Quantize its input and output"
        )
    entry, target = found
    attrs = target.bind(call.operands[0]).attrs
    return entry.lower(b, replace(call, attrs=attrs))  # type: ignore[misc]


register(
    OpSpec(
        name="segment_lut",
        family="activation",
        rule=Rule.TABLE,
        roles=("input",),
        targets=(ModuleTarget(SegmentLUT, _bind_module),),
        float_kernel=_segment_lut,
        lower=_lower,
        table=_table,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=lambda rng: replace(
            sample_unary(rng),
            attrs={"simulated_func": Elementwise(torch.tanh), TABLE_OPTIONS: SegmentOptions()},
        ),
        doc="a function given as simulated_func",
    )
)
