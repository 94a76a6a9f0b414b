"""The error of one operator alone: it is fed what the baseline computed for its producers.

End to end no deep net stays within one step of another, so consistency in steps is a statement
about single operators on the same input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qtune.dtype import quant_dtype
from qtune.errors import AnalysisError
from qtune.hbir.module import HbirModule
from qtune.hbir.result import OpResult
from qtune.profiler.record import Observation


@dataclass(frozen=True, slots=True)
class OwnError:
    """Distance of one operator's result from the baseline's on the same input.

    ``steps``: largest difference in output scales (``None`` without a scale). ``differing`` and
    ``saturated``: shares of the codes. ``value``: the operator's result.
    """

    name: str
    value: Tensor
    reference: Tensor
    scale: float | None
    dtype: str
    steps: float | None
    differing: float | None
    saturated: float | None


def own_errors(
    baseline: Observation, inputs: Mapping[str, Tensor], module: HbirModule
) -> dict[str, OwnError]:
    """Every operator (fused group) of ``module`` on the baseline's values, in order of execution.

    ``inputs``: graph inputs by name. Operators whose producers the baseline does not know (a model
    of another structure) raise ``AnalysisError`` naming them.
    """
    return {
        name: _error(name, result.values, reference, result.scale, result.dtype)
        for name, result, reference in own_results(baseline, inputs, module)
    }


def own_results(
    baseline: Observation, inputs: Mapping[str, Tensor], module: HbirModule
) -> Iterator[tuple[str, OpResult, Tensor]]:
    """Operator, its result on the baseline's values, and the baseline's result; one at a time.

    As :func:`own_errors`.
    """
    function = module[0]
    groups = function.groups()
    for name in function.operator_names():
        reference = baseline.records.get(name)
        if reference is None or groups.get(name, name) != name:
            continue  # an operator inside a fused group has no result that can be had alone
        runner = function.extract_operator(name)
        feed = {key: _value(key, baseline, inputs, name) for key in runner.inputs}
        result = runner(feed)
        if result.values.shape != reference.value.shape:
            raise AnalysisError(
                f"{name}: results have shapes {tuple(reference.value.shape)} and "
                f"{tuple(result.values.shape)}; the two models are not the same net"
            )
        yield name, result, reference.value


def _value(key: str, baseline: Observation, inputs: Mapping[str, Tensor], name: str) -> Tensor:
    if key in inputs:
        return inputs[key]
    record = baseline.records.get(key)
    if record is None:
        raise AnalysisError(
            f"{name}: the baseline has no operator {key!r} whose result could be fed to it; "
            "compare stages of the same prepared model"
        )
    return record.value


def _error(
    name: str, value: Tensor, reference: Tensor, scale: float | None, dtype: str
) -> OwnError:
    if scale is None or value.numel() == 0:
        return OwnError(name, value, reference, None, dtype, None, None, None)
    difference = (value.double() - reference.double()).abs() / scale
    # Values are codes times a float32 scale; their distance in steps is a whole number but for the
    # last bits of that product.
    steps = torch.where(difference.isnan(), torch.inf, difference).round()
    grid = quant_dtype(dtype)
    codes = (value.double() / scale).round()
    saturated = ((codes <= grid.qmin) | (codes >= grid.qmax)).double().mean()
    differing = (steps > 0).double().mean()
    return OwnError(
        name, value, reference, scale, dtype, float(steps.max()), float(differing), float(saturated)
    )
