"""Runs the node cases of the ``onnx`` package on our float kernels: the table of docs/onnx.md.

A case counts for the operators that have a form here (``qtune.ops.registry``). What real files have
as constants (sizes, axes, scales) is a graph input in many cases; such inputs are made constants.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qtune.errors import HbirError, QtuneError
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx
from qtune.hbir.onnx_import.load import own_operators

PASSED, REFUSED, FAILED = "passed", "refused", "failed"

_NUMBERS = ("scales", "roi", "depth", "values")
"""Inputs of float cases that real files have as constants."""

_OTHER_TYPES = ("FLOAT16", "BFLOAT16", "DOUBLE", "UINT16", "UINT32", "UINT64", "FLOAT8", "INT4")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case; ``reason`` says why it was refused or how it failed."""

    case: str
    operators: str
    result: str
    reason: str = ""


@cache
def outcomes() -> tuple[Outcome, ...]:
    """Every node case whose operators all have a form here."""
    own = own_operators()
    found = []
    for case in _cases():
        nodes = case.model.graph.node
        kinds = {node.op_type for node in nodes} - {"Constant"}
        if all(not node.domain for node in nodes) and kinds and kinds <= own:
            found.append(_outcome(case, " + ".join(sorted(kinds))))
    return tuple(found)


def page() -> str:
    """docs/onnx.md's table: operator, cases, passed, refused and why."""
    lines = ["| operators of the case | cases | passed | refused, by reason |", "|---|---|---|---|"]
    groups: dict[str, list[Outcome]] = {}
    for item in outcomes():
        groups.setdefault(item.operators, []).append(item)
    for name, items in sorted(groups.items()):
        passed = sum(item.result == PASSED for item in items)
        reasons: dict[str, int] = {}
        for item in items:
            if item.result == REFUSED:
                reasons[item.reason] = reasons.get(item.reason, 0) + 1
        text = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "–"
        lines.append(f"| {name} | {len(items)} | {passed} | {text} |")
    total = len(outcomes())
    passed = sum(item.result == PASSED for item in outcomes())
    lines.append(f"| **all** | **{total}** | **{passed}** | {total - passed} |")
    return "\n".join(lines) + "\n"


def _cases() -> Iterator[Any]:
    from onnx.backend.test import loader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own reference code overflows on purpose
        yield from loader.load_model_tests(kind="node")


def _outcome(case: Any, operators: str) -> Outcome:
    try:
        module = _imported(case)
    except HbirError as error:
        return Outcome(case.name, operators, REFUSED, _short(str(error)))
    try:
        for inputs, outputs in case.data_sets:
            difference = _difference(case, module, inputs, outputs)
            if difference:
                return Outcome(case.name, operators, FAILED, difference)
    except (QtuneError, RuntimeError, ValueError, KeyError, TypeError) as error:
        return Outcome(case.name, operators, FAILED, f"{type(error).__name__}: {error}")
    return Outcome(case.name, operators, PASSED)


def _imported(case: Any) -> HbirModule:
    try:
        return import_onnx(case.model)
    except HbirError:
        changed = _with_constants(case)
        if changed is None:
            raise
        return import_onnx(changed)


def _with_constants(case: Any) -> onnx.ModelProto | None:
    """The model with its sizes, axes and scales as initializers; ``None`` without any."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    if len(case.data_sets) != 1:
        return None
    pairs = list(zip(model.graph.input, case.data_sets[0][0], strict=False))
    moved = 0
    for info, data in pairs[1:]:
        is_number = isinstance(data, (np.ndarray, np.generic))
        if is_number and (data.dtype.kind in "iu" or info.name in _NUMBERS):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(data), info.name))
            model.graph.input.remove(info)
            moved += 1
    return model if moved else None


def _difference(case: Any, module: HbirModule, inputs: Any, outputs: Any) -> str:
    function = module[0]
    names = [info.name for info in case.model.graph.input]
    data = {name: np.asarray(item) for name, item in zip(names, inputs, strict=False)}
    results = function.feed({item.name: data[item.name] for item in function.inputs})
    for argument, expected in zip(function.outputs, outputs, strict=False):
        got, wanted = np.asarray(results[argument.name]), np.asarray(expected)
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return f"{got.dtype}{list(got.shape)} for {wanted.dtype}{list(wanted.shape)}"
        # beside the case's own tolerance: float32 sums of terms of the largest result's size
        largest = np.abs(np.nan_to_num(wanted, posinf=0, neginf=0)).max(initial=0)
        near = max(case.atol, 1e-7 * float(largest))
        if not np.allclose(got, wanted, rtol=case.rtol, atol=near, equal_nan=True):
            return "other values"
    return ""


def _short(message: str) -> str:
    """The reason without names of nodes and values, so that equal ones count together."""
    line = message.splitlines()[-1]
    if any(kind in line for kind in _OTHER_TYPES):
        return "other element types"
    if "is not static" in line or "no tensor of known rank" in line:
        return "sizes computed while it runs, sequences"
    return line.rpartition(f"{line.split(': ')[1]}: ")[2] if line.count(": ") > 1 else line
