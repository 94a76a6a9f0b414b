"""export: from a pre-export model to the float HBIR module with FakeQuant nodes (stage "qat")."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import fx, nn

from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs, as_inputs
from qtune.capture.structure import unflatten
from qtune.errors import ArgumentError, ExportError, NotCalibratedError, QtuneError
from qtune.hbir.batch import batch_is_free, may_vary, resized
from qtune.hbir.builder import META_BATCH, META_STAGE, GraphBuilder
from qtune.hbir.constants import Constant, real_data
from qtune.hbir.example import Example
from qtune.hbir.lowering import Lowering, onnx_type
from qtune.hbir.module import (
    META_CONSISTENCY,
    META_DESCS,
    META_HIGH_PRECISION,
    META_INPUTS,
    META_NATIVE,
    META_OUTPUTS,
    HbirModule,
)
from qtune.hbir.ports import Ports, bind_inputs, descriptions, texts
from qtune.hbir.structure import describe
from qtune.hbir.verify import verify
from qtune.nn.qat import iter_ops, iter_stubs
from qtune.quantizers.scope import uncalibrated_text

_log = logging.getLogger(__name__)


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
    """Return the HBIR module of a prepared (and pre-exported) model; ``model`` stays as it is.

    ``example_inputs``: a tensor, a tuple of the positional arguments, or ``qtune.Inputs``; their
    shapes become the module's (another batch size runs too where nothing in the graph depends on
    it). ``input_names``, ``output_names``, ``input_descs``, ``output_descs``: texts in the
    structure of the inputs and outputs; the default names are ``_input_<n>`` and ``_output_<n>``.
    ``native_pytree``: whether calls take and give the model's own containers, else flat lists.

    Raises ``NotCalibratedError`` naming every fake-quantize without a scale, and ``ExportError``
    naming every operator that has no lowering.
    """
    inputs = as_inputs(example_inputs, "export", ExportError)
    model = _graph_for(model, inputs)
    _check_absorbed(model)
    _check_scales(model)
    ports = bind_inputs(model, inputs, input_names, input_descs)
    draft = _lower(model, name, ports, ports.tensors)
    draft.tell_what_is_fixed()
    metadata = {
        META_STAGE: "qat",
        META_NATIVE: "1" if native_pytree else "0",
        META_BATCH: "open" if _batch_is_open(model, name, ports, draft) else "fixed",
        META_INPUTS: json.dumps(ports.structure),
        META_OUTPUTS: _output_structure(model, draft.results),
    }
    metadata.update(level_facts(getattr(model, "consistency_level", None)))
    results = _emit_outputs(draft, output_names)
    descs = {"inputs": ports.descs, "outputs": descriptions(output_descs, results)}
    metadata[META_DESCS] = json.dumps(descs)
    result = draft.builder.finish(metadata)
    verify(result, "qat")
    return HbirModule(result)


def level_facts(level: int | None) -> dict[str, str]:
    """The consistency level as metadata; level 0 asks convert for a requantize of 31 bits apart."""
    if level is None:
        return {}
    return {META_CONSISTENCY: str(level), META_HIGH_PRECISION: "1" if level == 0 else "0"}


@dataclass(frozen=True, slots=True)
class _Draft:
    """A lowered graph without outputs, and what the flat output of the model holds."""

    builder: GraphBuilder
    example: Example
    results: list[Any]
    fixed: list[str]

    def tell_what_is_fixed(self) -> None:
        """Log what the module has from the example and can't check."""
        for text in self.example.unchecked_guards():
            _log.warning(
                "export: the module takes the example's path; it can't check that %s", text
            )
        if self.fixed:
            _log.info(
                "export: computed from sizes of the example, so constants of the module: %s",
                ", ".join(self.fixed),
            )


def _graph_for(model: nn.Module, inputs: Inputs) -> nn.Module:
    """The branch of the model that the example takes."""
    if isinstance(model, GraphModel):
        return model.select_branch(inputs)
    if not hasattr(model, "interface"):
        raise ExportError(
            f"export takes a prepared model, got {type(model).__name__} without a graph; call "
            "prepare first"
        )
    return model


def _check_absorbed(model: nn.Module) -> None:
    kept = [op.name for op in iter_ops(model) if op.kept is not None and op is op.kept.norm]
    if kept:
        raise ExportError(
            f"export: the QAT mode keeps {len(kept)} batch norms ({', '.join(kept)}) that their "
            "GEMMs must absorb first; call qtune.quantization.hbdk4.export or pre_export, or "
            "qtune.quantization.absorb_bn(model)"
        )


def _check_scales(model: nn.Module) -> None:
    missing = [f"{op} ({kind})" for op, kind, fq in iter_stubs(model) if not bool(fq.observed)]
    if missing:
        raise NotCalibratedError(
            uncalibrated_text(
                "export: ",
                missing,
                "Calibrate the prepared model (not the float one) on data that reaches them.",
            )
        )


def _lower(model: nn.Module, name: str, ports: Ports, tensors: Sequence[torch.Tensor]) -> _Draft:
    example = Example(model, tensors)
    builder = GraphBuilder(name)
    lowering = Lowering(model, example, builder)
    graph: fx.Graph = model.graph  # type: ignore[assignment]
    places = zip(graph.find_nodes(op="placeholder"), ports.names, tensors, strict=True)
    inputs = {n: builder.input(text, onnx_type(t.dtype), t.shape) for n, text, t in places}
    results = lowering.run(inputs)
    if lowering.problems:
        lines = "\n".join(f"  - {line}" for line in lowering.problems)
        raise ExportError(f"{len(lowering.problems)} operator(s) can't be exported:\n{lines}")
    return _Draft(builder, example, results, lowering.fixed)


def _batch_is_open(model: nn.Module, name: str, ports: Ports, draft: _Draft) -> bool:
    """Whether the graph is the same for another batch size, so that it may run any."""
    if not may_vary(ports.tensors):
        return False
    try:
        other = _lower(model, name, ports, resized(ports.tensors))
    except QtuneError:
        return False
    return batch_is_free(draft.builder.graph, draft.example, other.builder.graph, other.example)


def _output_structure(model: nn.Module, results: Sequence[Any]) -> str:
    spec: Any = model.out_spec
    value = unflatten(results, spec)
    return json.dumps(describe(value, _is_result)[0])


def _is_result(item: Any) -> bool:
    return isinstance(item, (ir.Value, Constant))


def _emit_outputs(draft: _Draft, output_names: Any) -> list[str]:
    builder = draft.builder
    values = [item for item in draft.results if _is_result(item)]
    names = texts(output_names, len(values), "_output_", "output_names")
    for value, name in zip(values, names, strict=True):
        if isinstance(value, Constant):
            value = builder.constant(real_data(value).cpu().numpy(), name)
        if builder.output(value, name).name != name:
            raise ArgumentError(
                f"export: the name {name!r} is given to an input and an output; choose another"
            )
    return names
