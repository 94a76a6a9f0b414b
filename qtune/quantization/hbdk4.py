"""Export for nash: ``pre_export`` (look-up tables in torch), ``export`` and ``convert``."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn

from qtune.capture.inputs import as_inputs
from qtune.capture.members import find_submodule
from qtune.errors import ArgumentError, ExportError
from qtune.hbir.module import HbirModule
from qtune.march import March
from qtune.nn.eager import as_graph, eager_facts
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat import QATOp, iter_stubs
from qtune.nn.table import TableOp, TableSource, make_table, noted_source, table_source
from qtune.ops.spec import Rule
from qtune.prepare.absorb import absorb_for_export
from qtune.quantization.pytree import get_hbir_input_flattener, get_hbir_output_unflattener
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.scope import not_calibrated
from qtune.quantizers.state import FakeQuantState

__all__ = [
    "convert",
    "export",
    "get_hbir_input_flattener",
    "get_hbir_output_unflattener",
    "pre_export",
]


def pre_export(model: nn.Module, inplace: bool = False, example_inputs: Any = None) -> Any:
    """Return ``model`` with its element-wise functions as integer look-up tables, still in torch.

    A table maps the codes of its input to the codes of its output (numerics.md section 3): 256
    entries for qint8, segments over the observed range for qint16. ``inplace`` changes ``model``
    itself. A model that is pre-exported already stays as it is. Batch norms that the QAT mode kept
    are absorbed by their GEMM (``qtune.prepare.absorb``).

    ``model`` may be one sub-module of a prepared model, to find the table that costs accuracy:
    ``model.head = pre_export(model.head)``; the rest of the model runs and exports as before.

    ``example_inputs``: needed for a model prepared in eager mode only, of which the graph form is
    returned.

    Raises ``ExportError`` in training mode or while observers are active, ``NotCalibratedError``
    for fake-quantizes without a scale, ``ArgumentError`` for an ``inplace`` that is no bool.
    """
    if not isinstance(inplace, bool):
        raise ArgumentError(
            f"pre_export: inplace is True or False, got {type(inplace).__name__}; example inputs "
            "go to example_inputs="
        )
    if eager_facts(model) is not None:
        if example_inputs is None:
            raise ExportError(
                "pre_export: a model prepared in eager mode has no graph; give example_inputs, on "
                "which it is recorded"
            )
        model = as_graph(model, example_inputs)
    if not isinstance(model, PreparedModel):
        return _pre_export_part(model, inplace)
    check_state(model)
    result = model if inplace else copy.deepcopy(model)
    absorb_for_export(result)
    known = value_quantizers(result)
    for node, op in list(result.operators()):
        if _to_be_table(op):
            _replace(result, node, op, table_source(result, op, node, known))
    result.recompile()
    return result


def _pre_export_part(module: Any, inplace: bool) -> nn.Module:
    """``pre_export`` of operators taken out of their model, which is where their graph is."""
    operators = module.modules() if isinstance(module, nn.Module) else ()
    if not any(isinstance(item, QATOp) for item in operators):
        raise ExportError(
            f"pre_export: expected a model made by prepare, got {type(module).__name__}; call "
            "prepare, calibrate the result, and pass that or a sub-module of it"
        )
    check_state(module)
    result: nn.Module = module if inplace else copy.deepcopy(module)
    for path, op in list(result.named_modules()):
        if not isinstance(op, QATOp) or not _to_be_table(op):
            continue
        source = noted_source(op)
        if source is None or not isinstance(op.activation_post_process, FakeQuantize):
            continue
        if not bool(source.quantizer.observed):
            raise not_calibrated([source.quantizer.name])
        table = make_table(op, source)
        if not path:
            return table
        result.set_submodule(path, table)
    return result


def _to_be_table(op: QATOp) -> bool:
    return op.spec.rule is Rule.TABLE and not isinstance(op, TableOp)


def export(
    model: nn.Module,
    example_inputs: Any,
    *,
    name: str = "forward",
    input_names: Any = None,
    output_names: Any = None,
    input_descs: Any = None,
    output_descs: Any = None,
    native_pytree: bool = True,
) -> HbirModule:
    """Return the fake-quant HBIR module (qat.bc) of a prepared model, which stays as it is.

    Applies :func:`pre_export` first. Arguments as in ``qtune.hbir.export.export``; of a model with
    several branches the one is exported that ``example_inputs`` take, and only that one has to be
    calibrated. A model prepared in eager mode is recorded on ``example_inputs`` first.
    """
    from qtune.hbir.export import export as export_graph

    model = as_graph(model, example_inputs)
    if isinstance(model, PreparedModel):
        model = model.select_branch(as_inputs(example_inputs, "export", ExportError))
    return export_graph(
        pre_export(model),
        example_inputs,
        name=name,
        input_names=input_names,
        output_names=output_names,
        input_descs=input_descs,
        output_descs=output_descs,
        native_pytree=native_pytree,
    )


def convert(
    m: HbirModule, march: March | str | None = None, advice: bool = False, advice_path: str = ""
) -> HbirModule:
    """Return the integer module (quantized.bc); see ``qtune.bpu.compiler.convert``."""
    from qtune.bpu.compiler import convert as convert_module

    return convert_module(m, march, advice, advice_path)


def check_state(model: nn.Module, where: str = "pre_export", partly: bool = False) -> list[str]:
    """Raise where ``model`` is in training mode, does not quantize now, or has no scales.

    ``partly``: enough if some observed scale is there. Returns the names of those without one.
    """
    stubs = list(iter_stubs(model))
    if model.training or any(quantizer.training for _, _, quantizer in stubs):
        raise ExportError(f"{where}: the model is in training mode; call model.eval() first")
    for state in (FakeQuantState.CALIBRATION, FakeQuantState._FLOAT):
        names = [f"{name} {kind}" for name, kind, q in stubs if q.state is state]
        if names:
            raise ExportError(
                f"{where}: {len(names)} fake-quantizes are in {state} (first: {names[0]}), so "
                "the model does not quantize; call set_fake_quantize(model, "
                "FakeQuantState.VALIDATION) first"
            )
    unobserved = [q.uncalibrated_name for _, _, q in stubs if not bool(q.observed)]
    observed = any(bool(q.observed) and not q.is_fixed for _, _, q in stubs)
    if unobserved and not (partly and observed):
        raise not_calibrated(unobserved)
    return unobserved


def _replace(model: PreparedModel, node: fx.Node, op: QATOp, source: TableSource | None) -> None:
    """Put the table in place of ``op``; one without quantized input and output stays float.

    A shared operator whose calls get inputs on several grids has one table for each.
    """
    if not isinstance(op.activation_post_process, FakeQuantize) or source is None:
        return
    if node.kwargs:
        raise ExportError(
            f"{op.name}: {op.op} takes numbers computed while the model runs "
            f"({', '.join(node.kwargs)}), so it has no table; make them constants"
        )
    path, number = op.name, 0
    while isinstance(present := find_submodule(model, path), TableOp):
        grid = source.quantizer
        if torch.equal(present.input_scale, grid.scale) and present.in_dtype == grid.dtype:
            node.target = path
            return
        number += 1
        path = f"{op.name}_{number}"
    model.set_submodule(path, make_table(op, source))
    node.target = path
