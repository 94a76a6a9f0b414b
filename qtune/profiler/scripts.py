"""``script_profile`` and ``compare_script_models``: traced converted models, operator by operator.

A traced model runs each operator (or fused group) as an integer program of its own, on the fast
kernels. What it is compared with is the module that a compiler makes of the whole, run on the NumPy
reference kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.hbir.result import OpResult
from qtune.march import March, refuse_other_march
from qtune.nn.quantized.program import OPERATOR, Signature
from qtune.nn.quantized.recording import Recording
from qtune.profiler.undisturbed import undisturbed
from qtune.quantization.deploy import recording_of
from qtune.quantization.jit import undeprecated
from qtune.report.files import write_with
from qtune.report.screen import show
from qtune.report.table import text_table

FILE = "horizon_script_result.pt"
COLUMNS = ("name", "if equal")
SAME_AS_PARSED = "Torch run pt output is same with hbdk parser."
SAME_SCRIPTS = "All ops in two ScriptModules are same."

MarkNode = Callable[[Any], bool]
"""Gets a node of the traced graph (``torch._C.Node``) that runs an operator; true: keep it."""


@dataclass(frozen=True, slots=True)
class ScriptComparison:
    """Operator -> whether its result is equal in every bit; true if all are."""

    equal: Mapping[str, bool]

    def __bool__(self) -> bool:
        return all(self.equal.values())

    @property
    def different(self) -> list[str]:
        """Operators whose results differ, in order of execution."""
        return [name for name, equal in self.equal.items() if not equal]

    def __str__(self) -> str:
        return text_table(list(self.equal.items()), COLUMNS, style="plain")

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {"equal": dict(self.equal)}


def script_profile(
    model: nn.Module,
    example_inputs: Any,
    out_dir: str | os.PathLike[str] | None = None,
    march: March | str | None = None,
    mark_node_func: MarkNode | None = None,
    compare_with_hbdk_parser: bool = True,
) -> dict[str, Tensor]:
    """The result of every operator of a converted model or of ``torch.jit.trace`` of one.

    Returns operator name -> its codes (or its plain tensor), written to
    ``horizon_script_result.pt`` in ``out_dir``, too (default: the current directory). The names are
    those in the model that ``export_hbir`` and ``compile_model`` make of it.

    ``march``: the one the model was converted for; default: that of ``set_march``.
    ``mark_node_func(node)``: which operators to keep; default all. ``compare_with_hbdk_parser``:
    compare them with the whole model read as HBIR, and show a table; this needs a model without
    torch operators between its own and with a DeQuantStub before each output.
    """
    with undisturbed(model):
        recording = _recording(model, example_inputs, "script_profile", march)
        results = recording.results()
        if compare_with_hbdk_parser:
            parsed = _as_parsed(recording.module(), recording.call)
            comparison = _compare(results, parsed)
            _show(comparison, SAME_AS_PARSED, "Torch and the HBIR reference differ")
        if mark_node_func is not None:
            results = _marked(_traced(model, recording), results, mark_node_func)
    write_with(Path(out_dir or ".") / FILE, lambda path: torch.save(results, path))
    return results


def compare_script_models(
    model1: nn.Module, model2: nn.Module, example_inputs: Any, march: March | str | None = None
) -> ScriptComparison:
    """Compare two traced models of one converted model, of two versions, operator by operator.

    Shows the table. Operators that only one of them has count as different. ``march``: as in
    :func:`script_profile`.
    """
    found = []
    for model in (model1, model2):
        with undisturbed(model):
            recording = _recording(model, example_inputs, "compare_script_models", march)
            found.append(recording.results())
    comparison = _compare(*found)
    _show(comparison, SAME_SCRIPTS, "The two ScriptModules differ")
    return comparison


def _recording(
    model: nn.Module, example_inputs: Any, where: str, march: March | str | None
) -> Recording:
    recording = recording_of(model, example_inputs, where)
    for found in recording.marches:
        refuse_other_march(found, f"{where}: the model", march)
    return recording


def _traced(model: nn.Module, recording: Recording) -> torch.jit.ScriptModule:
    if isinstance(model, torch.jit.ScriptModule):
        return model
    inputs, names = recording.call["args"], recording.call["kwargs"]
    with undeprecated():
        traced: torch.jit.ScriptModule = torch.jit.trace(  # type: ignore[no-untyped-call]
            model, inputs, example_kwarg_inputs=names or None, check_trace=False
        )
    return traced


def _as_parsed(module: HbirModule, call: Mapping[str, Any]) -> dict[str, Tensor]:
    """The results of the joined module on the reference kernels, codes as they are."""
    found: dict[str, Tensor] = {}

    def note(name: str, result: OpResult) -> None:
        found[name] = result.values if result.codes is None else result.codes

    function = module[0]
    function.run(bind_call(function, call["args"], call["kwargs"]), "reference", observe=note)
    return found


def _compare(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> ScriptComparison:
    names = [*first, *(name for name in second if name not in first)]
    return ScriptComparison({name: _same(first.get(name), second.get(name)) for name in names})


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape:
        return False
    return torch.equal(a.cpu(), b.cpu().to(a.dtype))


def _marked(
    model: torch.jit.ScriptModule, results: Mapping[str, Tensor], mark: MarkNode
) -> dict[str, Tensor]:
    """Results of the nodes that ``mark`` chooses; a signature tells how many a node has."""
    graph: Any = model.inlined_graph  # the nodes live as long as it does
    names = iter(results)
    kept: dict[str, Tensor] = {}
    for node in graph.findAllNodes(OPERATOR):
        signature = Signature.read(list(node.inputs())[2].toIValue())
        own = [next(names) for _ in signature.outputs]
        if mark(node):
            kept |= {name: results[name] for name in own}
    return kept


def _show(comparison: ScriptComparison, same: str, other: str) -> None:
    end = same if comparison else f"{other}: {', '.join(comparison.different)}."
    show(f"{comparison}\n{end}")
