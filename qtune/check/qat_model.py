"""``check_qat_model``: the five sections of ``model_check_result.txt`` (tuning tool document)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import fx, nn

from qtune.capture.inputs import Inputs, as_example_list
from qtune.capture.view import without_aside
from qtune.check.calls import call_counts, countable, uncalled
from qtune.check.misconceptions import NOT_CENTRED, uncentred_images
from qtune.errors import ArgumentError
from qtune.nn.eager import as_graph
from qtune.nn.prepared import ORIGIN_CALL, PreparedModel, UnfusedOps
from qtune.nn.propagate import Port, operand_port, value_ports
from qtune.nn.qat.op import QATOp, iter_ops
from qtune.ops.spec import FuseRole
from qtune.qconfig.explain import explain
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.report.files import write_text
from qtune.report.screen import show
from qtune.report.table import text_table

if TYPE_CHECKING:
    import pandas as pd

FLOAT32 = "torch.float32"
NO_QCONFIG = "qconfig = None"
_FLOAT_RESULT = "activation is None. Maybe output layer?"
"""Of a GEMM without output fake-quantize; normal where it is the model's high-precision output."""
OUTPUT_COLUMNS = ("Module Name", "Module Type", "Input dtype", "out dtype", "ch_axis", "observer")
WEIGHT_COLUMNS = ("Module Name", "Module Type", "weight dtype", "ch_axis", "observer")
MESSAGE_COLUMNS = ("Module Name", "Module Type", "Msg")


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """How one operator's result is quantized."""

    name: str
    type: str
    input_dtypes: tuple[str, ...]
    out_dtype: str
    ch_axis: str
    observer: str


@dataclass(frozen=True, slots=True)
class WeightConfig:
    """How one operator's weight is quantized."""

    name: str
    type: str
    dtype: str
    ch_axis: int
    observer: str


@dataclass(frozen=True, slots=True)
class Message:
    """Something to look at. ``normal``: in the file only, not on the screen."""

    name: str
    type: str
    text: str
    normal: bool = False


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What ``check_qat_model`` found; true if nothing is shared, unused or left unfused.

    ``call_counts``: runs of every operator in one forward. ``types``: operator -> printed type.
    ``unobserved``: fake-quantizes that never saw data. ``calibrated``: whether any did.
    ``explanation``: how every dtype was decided.
    """

    unfused: tuple[UnfusedOps, ...]
    call_counts: Mapping[str, int]
    types: Mapping[str, str]
    outputs: tuple[OutputConfig, ...]
    weights: tuple[WeightConfig, ...]
    messages: tuple[Message, ...]
    float_ops: tuple[tuple[str, str, str], ...] = ()
    unobserved: tuple[str, ...] = ()
    calibrated: bool = False
    explanation: str = ""

    def __bool__(self) -> bool:
        return not self.unfused and all(count == 1 for count in self.call_counts.values())

    @property
    def shared(self) -> dict[str, int]:
        """Operators that run more than once."""
        return {name: count for name, count in self.call_counts.items() if count > 1}

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return asdict(self)

    def to_pandas(self) -> pd.DataFrame:
        """The output configuration as a data frame."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.outputs])

    def __str__(self) -> str:
        return "\n\n".join(self._sections()) + "\n"

    def structure(self) -> str:
        """What is odd in the structure: unfused patterns and call counts."""
        parts = list(self._unfused_text())
        if any(count != 1 for count in self.call_counts.values()):
            parts.append(self._calls_text())
        return "\n\n".join(parts)

    def abnormal(self) -> str:
        """Only what asks for a look: the odd structure, unexpected qconfigs."""
        odd = [message for message in self.messages if not message.normal]
        return "\n\n".join(filter(None, [self.structure(), *_messages_text(odd)]))

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model_check_result.txt`` into ``folder``."""
        write_text(Path(folder) / "model_check_result.txt", str(self))

    def _sections(self) -> Iterator[str]:
        yield from self._unfused_text()
        yield self._calls_text()
        rows = [
            (o.name, o.type, ", ".join(o.input_dtypes), o.out_dtype, o.ch_axis, o.observer)
            for o in self.outputs
        ]
        yield "Each layer out qconfig:\n" + text_table(rows, OUTPUT_COLUMNS)
        weights = [(w.name, w.type, w.dtype, w.ch_axis, w.observer) for w in self.weights]
        if weights:
            yield "Weight qconfig:\n" + text_table(weights, WEIGHT_COLUMNS)
        yield from _messages_text(self.messages)
        if self.float_ops:
            table = text_table(self.float_ops, ("name", "op", "reason"))
            yield f"These operators stay float:\n{table}"
        if self.unobserved and self.calibrated:
            yield "Never calibrated: " + ", ".join(self.unobserved)
        if self.explanation:
            yield self.explanation

    def _unfused_text(self) -> Iterator[str]:
        for item in self.unfused:
            rows = [(name, self.types.get(name, "")) for name in item.names]
            table = text_table(rows, ("name", "type"), style="plain")
            yield f"Fusable modules are listed below:\n{table}\n{item.reason}"

    def _calls_text(self) -> str:
        odd = {name: count for name, count in self.call_counts.items() if count != 1}
        if not odd:
            return "All modules in the model run exactly once."
        rows = [
            (name, self.types.get(name, ""), count, "not called" if count == 0 else "shared")
            for name, count in odd.items()
        ]
        head = "Modules that do not run exactly once:\n"
        return head + text_table(rows, ("name", "type", "called times", "Msg"), style="plain")


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
    ops = {op.name: op for op in iter_ops(model)}
    outputs = tuple(_outputs(model))
    configs = {row.name: row for row in outputs}
    quantizers = [(n, m) for n, m in model.named_modules() if isinstance(m, FakeQuantize)]
    return CheckReport(
        unfused=model.unfused,
        call_counts=counts,
        types={name: str(type(module)) for name, module in layers.items()},
        outputs=outputs,
        weights=tuple(_weights(ops)),
        messages=(*_messages(model, ops, configs), *_images(model, ops)),
        float_ops=tuple((op.name, op.op, op.reason + op.call_site) for op in model.float_ops),
        unobserved=tuple(m.name or name for name, m in quantizers if not bool(m.observed)),
        calibrated=any(bool(m.observed) for _, m in quantizers),
        explanation=str(explain(model)) if model.resolution is not None else "",
    )


def _messages_text(messages: Sequence[Message]) -> Iterator[str]:
    if messages:
        rows = [(m.name, m.type, m.text) for m in messages]
        head = "Please check if these OPs qconfigs are expected..\n"
        yield head + text_table(rows, MESSAGE_COLUMNS)


def _type(op: QATOp) -> str:
    return str(type(op))


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
            _type(op),
            tuple(_input_dtypes(op, node, known)),
            FLOAT32 if quantizer is None else str(quantizer.dtype),
            NO_QCONFIG if own is None else str(getattr(own, "ch_axis", -1)),
            _observer(own),
        )


def _input_dtypes(op: QATOp, node: fx.Node, known: Mapping[fx.Node, Port | None]) -> Iterator[str]:
    weight = op.spec.weight_role
    for index, role in enumerate(op.roles(len(node.args))):
        if role in (weight, "bias") or not isinstance(node.args[index], fx.Node):
            continue
        quantizer = operand_port(op, node, index, known)
        yield FLOAT32 if quantizer is None else str(quantizer.dtype)


def _observer(port: Port | None) -> str:
    """Name of what finds the scale; a cast has none and gives its own."""
    if isinstance(port, FakeQuantize):
        return type(port.activation_post_process).__name__
    return "" if port is None else type(port).__name__


def _weights(ops: Mapping[str, QATOp]) -> Iterator[WeightConfig]:
    for op in ops.values():
        quantizer = op.weight_fake_quant
        if quantizer is not None:
            observer = type(quantizer.activation_post_process).__name__
            yield WeightConfig(
                op.name, _type(op), str(quantizer.dtype), quantizer.ch_axis, observer
            )


def _messages(
    model: PreparedModel, ops: Mapping[str, QATOp], configs: Mapping[str, OutputConfig]
) -> Iterator[Message]:
    groups = {op.name: str(node.meta.get("group") or op.name) for node, op in model.operators()}
    plans = {} if model.resolution is None else model.resolution.plans
    high_precision = {name for name, plan in plans.items() if plan.high_precision}
    high_precision |= {name for name, group in groups.items() if group in high_precision}
    parts = {op.name for node, op in model.operators() if ORIGIN_CALL in node.meta}
    for name, op in ops.items():
        texts = list(_weight_texts(op))
        if name not in parts:  # what parts give is prepare's rule
            texts += _texts(op, configs[name], configs[groups[name]])
        for text in texts:
            normal = text == _FLOAT_RESULT and name in high_precision
            yield Message(name, _type(op), text, normal)


def _images(model: PreparedModel, ops: Mapping[str, QATOp]) -> Iterator[Message]:
    """Inputs whose data show that they are no centred images."""
    for name, text in uncentred_images(model).items():
        yield Message(name, _type(ops[name]), f"{NOT_CENTRED}: {text}")


def _weight_texts(op: QATOp) -> Iterator[str]:
    if op.weight_fake_quant is not None and str(op.weight_fake_quant.dtype) != "qint8":
        yield f"{op.weight_fake_quant.dtype} weight!!!"


def _texts(op: QATOp, config: OutputConfig, last: OutputConfig) -> Iterator[str]:
    """Messages about the result of ``op``; ``last`` is the last member of its fused group."""
    own = op.activation_post_process
    if isinstance(own, FakeQuantize) and own.activation_post_process.is_fixed:
        yield f"Fixed scale {float(own.scale.detach().reshape(-1)[0]):.7g}"
    inputs = {dtype for dtype in config.input_dtypes if dtype != FLOAT32}
    casts = isinstance(own, FakeCast) and op.spec.fuse is FuseRole.GEMM  # its operands are integers
    if own is not None and inputs and inputs != {config.out_dtype} and not casts:
        listed = ", ".join(sorted(inputs))
        yield f"input dtype [{listed}] is not same with out dtype {config.out_dtype}"
    if op.spec.fuse is FuseRole.GEMM and inputs and last.ch_axis == NO_QCONFIG:
        yield _FLOAT_RESULT
