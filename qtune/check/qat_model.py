"""``check_qat_model``: the five sections of ``model_check_result.txt`` (tuning tool document)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from torch import fx, nn

from qtune.capture.inputs import Inputs, as_example_list
from qtune.capture.view import without_aside
from qtune.check.border import stub_kind
from qtune.check.calls import call_counts, countable, uncalled
from qtune.check.messages import float_name, messages
from qtune.check.report import NO_QCONFIG, CheckReport, OutputConfig, WeightConfig
from qtune.errors import ArgumentError
from qtune.nn.eager import as_graph
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import Port, operand_port, value_ports
from qtune.nn.qat.op import QATOp
from qtune.qconfig.explain import explain
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.report.screen import show


def check_qat_model(
    model: nn.Module,
    example_inputs: Any,
    save_results: bool = False,
    out_dir: str | os.PathLike[str] | None = None,
) -> CheckReport:
    """Check a calibration or QAT model for what harms quantization.

    ``example_inputs``: as for ``prepare``; the model runs once on them, in float, and is left as it
    was. Of a model with several branches the one that they take is checked; a list of examples
    means all branches, an operator's call count being that of the branch which calls it most.

    What is abnormal is shown on the screen. ``save_results`` writes ``model_check_result.txt`` into
    ``out_dir`` (default ``.model_check_results``). Raises ``ArgumentError`` for a model that
    ``prepare`` did not make.
    """
    model = as_graph(model, example_inputs)
    if not isinstance(model, PreparedModel):
        raise ArgumentError(
            "check_qat_model: expected a model made by prepare but got "
            f"{type(model).__module__}.{type(model).__qualname__}"
        )
    report = _report(model, example_inputs)
    abnormal = report.abnormal()
    if abnormal:
        show(abnormal)
    if save_results:
        report.write(".model_check_results" if out_dir is None else out_dir)
    return report


def check_prepared(
    model: PreparedModel, example_inputs: Any, out_dir: str | os.PathLike[str]
) -> None:
    """The check that ``prepare`` makes: the report is written, the structure shown.

    How the operators are configured is in the file only: that much the user asked for, or a rule
    decided, and the log says what was corrected.
    """
    report = _report(model, example_inputs)
    text = report.structure()
    if text:
        show(text)
    report.write(out_dir)


def _report(model: PreparedModel, example_inputs: Any) -> CheckReport:
    examples = as_example_list(example_inputs, "check_qat_model", ArgumentError)
    is_one = not isinstance(example_inputs, list)
    branch = model.select_branch(examples[0]) if is_one else without_aside(model)
    return report_on(branch, model, examples[0])


def report_on(model: PreparedModel, whole: PreparedModel, inputs: Inputs) -> CheckReport:
    """The report on ``model``, a branch of ``whole`` or all of it, which runs once on ``inputs``.

    A branch has the layers that it calls; those that no branch calls are in the report, too.
    """
    unused = uncalled(whole)
    layers = {**dict(countable(model)), **unused}
    counts = {**call_counts(model, inputs), **dict.fromkeys(unused, 0)}
    outputs = {row.name: row for row in _outputs(model)}
    weights = {row.name: row for row in _weights(model)}
    quantizers = [(n, m) for n, m in model.named_modules() if isinstance(m, FakeQuantize)]
    return CheckReport(
        unfused=model.unfused,
        call_counts=counts,
        types={name: str(type(module)) for name, module in layers.items()},
        outputs=tuple(outputs.values()),
        weights=tuple(weights.values()),
        messages=messages(model, outputs, weights),
        float_ops=tuple((op.name, op.op, op.reason + op.call_site) for op in model.float_ops),
        unobserved=tuple(m.name or name for name, m in quantizers if not bool(m.observed)),
        calibrated=any(bool(m.observed) for _, m in quantizers),
        explanation=str(explain(model)) if model.resolution is not None else "",
    )


def _outputs(model: PreparedModel) -> Iterator[OutputConfig]:
    known = value_ports(model)
    seen: set[str] = set()
    for node, op in model.operators():
        if op.name in seen:
            continue
        seen.add(op.name)
        quantizer, own = known[node], op.activation_post_process
        yield OutputConfig(
            op.name,
            str(type(op)),
            tuple(_input_dtypes(op, node, known)),
            float_name(node) if quantizer is None else str(quantizer.dtype),
            NO_QCONFIG if own is None else str(getattr(own, "ch_axis", -1)),
            _observer(own),
            _averaging(own),
            stub_kind(op),
        )


def _input_dtypes(op: QATOp, node: fx.Node, known: Mapping[fx.Node, Port | None]) -> Iterator[str]:
    weight = op.spec.weight_role
    for index, role in enumerate(op.roles(len(node.args))):
        source = node.args[index]
        if role in (weight, "bias") or not isinstance(source, fx.Node):
            continue
        quantizer = operand_port(op, node, index, known)
        yield float_name(source) if quantizer is None else str(quantizer.dtype)


def _observer(port: Port | None) -> str:
    """Name of what finds the scale; a cast has none and gives its own."""
    if isinstance(port, FakeQuantize):
        return type(port.activation_post_process).__name__
    return "" if port is None else type(port).__name__


def _averaging(port: Port | None) -> float | None:
    """How fast the observer's statistics move; ``None`` where nothing moves the scale."""
    if not isinstance(port, FakeQuantize) or port.activation_post_process.is_fixed:
        return None
    return float(port.activation_post_process.averaging_constant)


def _weights(model: PreparedModel) -> Iterator[WeightConfig]:
    for op in {op.name: op for _, op in model.operators()}.values():
        own = op.weight_fake_quant
        if own is not None:
            axis, observer = own.ch_axis, _observer(own)
            yield WeightConfig(
                op.name, str(type(op)), str(own.dtype), axis, observer, _averaging(own)
            )
