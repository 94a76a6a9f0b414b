"""What to do about a port that costs too much: template lines that change it, ready to paste."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import fx

from qtune.analysis.ablation import OUTPUT, WEIGHT, CastPort, Port, all_ports, recorded
from qtune.analysis.sensitivity import sensitivity_tables
from qtune.capture.inputs import Inputs
from qtune.dtype import QuantDType, qint8, qint16
from qtune.march import as_march
from qtune.nn.float_mode import all_float
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import operand_quantizer, value_quantizers
from qtune.nn.qat.op import QATOp
from qtune.ops.spec import FuseRole, Rule
from qtune.profiler.observe import run_model
from qtune.profiler.undisturbed import undisturbed
from qtune.qconfig.config import MODULE
from qtune.qconfig.march_check import WEIGHT_DTYPES
from qtune.testing.limits import Limit

_VARIANTS = ("round", "clip", "qint16")
Template = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Costs:
    """Worst scores of a port over the outputs: only rounding, only clipping, and as int16."""

    round: float | None
    clip: float | None
    qint16: float | None


def port_advice(
    model: PreparedModel, name: str, limit: Limit, item: Inputs, output: str | None
) -> str:
    """What to do about the port ``name`` (``head output``), judged on ``item``.

    Where clipping costs more than rounding, the range is wrong; else int16 helps, with the lines
    of the templates that bring it about.
    """
    port = next(port for port in all_ports(model) if port.name == name)
    if isinstance(port, CastPort):
        return (
            f"{name} rounds to float16, which has 11 bits: keep {port.op.name} in torch.float32, "
            "or give it an integer dtype with a scale that fits its range."
        )
    costs = _costs(model, port, limit, item, output)
    shown = f"(rounding alone {_text(costs.round)}, clipping alone {_text(costs.clip)})"
    badness = limit.metric.badness
    if badness(costs.clip) > badness(costs.round) and not limit.holds(costs.qint16):
        return _range_advice(model, port, item, shown)
    return _dtype_advice(model, port, costs, limit, shown)


def _costs(
    model: PreparedModel, port: Port, limit: Limit, item: Inputs, output: str | None
) -> Costs:
    names = None if output is None else (output,)
    metric = limit.metric
    tables = sensitivity_tables(
        model,
        item,
        metric,
        "",
        prefixes=(port.op.name,),
        output_names=names,
        variants=_VARIANTS,
        shown=False,
    )
    rows = [
        row
        for table in tables.values()
        for row in table.records()
        if (row["op_name"], row["fake_stub_type"]) == (port.op.name, port.kind)
    ]
    values = (
        max((row[f"{kind}_{metric.name}"] for row in rows), key=metric.badness)
        for kind in _VARIANTS
    )
    return Costs(*values)


def _range_advice(model: PreparedModel, port: Port, item: Inputs, shown: str) -> str:
    own = port.fake_quantize
    text = f"{port.name} is mostly clipped {shown}: its range is wrong, and int16 does not help."
    if own.scale.numel() > 1:
        return f"{text} Calibrate again."
    with undisturbed(model), all_float(model), recorded([port]) as recording:
        run_model(model, item)
    absmax = max(float(x.detach().abs().max()) for x in recording.values[port.name])
    top = float(own.scale.detach()) * own.dtype.qmax
    kind = port.kind.partition("-")[0]
    value = f"{absmax:.4g}" if kind == OUTPUT else f'{{"{kind}": {absmax:.4g}}}'
    return (
        f"{text} It covers {top:.4g}, these inputs reach {absmax:.4g}. Calibrate with data like "
        "them, or set the range, behind the other templates:\n"
        f'  ModuleNameTemplate({{"{port.op.name}": {{"threshold": {value}}}}})'
    )


def _dtype_advice(model: PreparedModel, port: Port, costs: Costs, limit: Limit, shown: str) -> str:
    if port.fake_quantize.dtype == qint16:
        return f"{port.name} is qint16 already {shown}; keep it float, or narrow its range."
    reason = _no_int16(model, port)
    if reason:
        return f"{reason} {shown}; narrow the range of {port.name}, or keep the operator float."
    enough = "" if limit.holds(costs.qint16) else ", which is still beyond the limit"
    rule = _module_rule(model, port)
    if rule:
        return (
            f"Raise {port.name} to qint16 {shown}; as int16 it scores {_text(costs.qint16)}"
            f"{enough}. Its dtype is that of {rule}, which beats every template: change it there."
        )
    return (
        f"Raise {port.name} to qint16 {shown}; as int16 it scores {_text(costs.qint16)}{enough}. "
        "Put this after the other templates:\n"
        f"  {template_line(model, port)}"
    )


def _no_int16(model: PreparedModel, port: Port) -> str:
    """Why the march takes no int16 here."""
    if not model.march:
        return ""
    march = as_march(model.march)
    if port.kind == WEIGHT and qint16 not in WEIGHT_DTYPES[march.series]:
        return f"{march} takes no int16 weight"
    if not march.limits.int16_activations:
        return f"{march} takes no int16 activation"
    return ""


def _module_rule(model: PreparedModel, port: Port) -> str:
    decisions = model.resolution.explanation if model.resolution else ()
    rules = [d.rule for d in decisions if (d.name, d.port) == (port.op.name, port.kind)]
    return next((rule for rule in rules if rule.startswith(MODULE)), "")


def template_line(model: PreparedModel, port: Port) -> str:
    """The ``ModuleNameTemplate`` that makes ``port`` int16, all the way into its consumers.

    A GEMM's inputs have a dtype of their own (``ConvDtypeTemplate``, ``MatmulDtypeTemplate``):
    they are named too, else they would round to int8 again.
    """
    wanted: Template = {}
    if port.kind.startswith("input-"):
        _add_producer(model, port, wanted)
    else:
        wanted[port.op.name] = {port.kind: "qint16"}
    if port.kind != WEIGHT:
        for op, index in _gemm_inputs(model, port):
            wanted.setdefault(op.name, {})["input"] = _input_value(model, op, index)
    if port.kind.startswith("input-"):
        index = int(port.kind.partition("-")[2])
        wanted.setdefault(port.op.name, {})["input"] = _input_value(model, port.op, index)
    entries = ", ".join(f'"{name}": {_value(ports)}' for name, ports in wanted.items())
    return f"ModuleNameTemplate({{{entries}}})"


def _add_producer(model: PreparedModel, port: Port, wanted: Template) -> None:
    """An int8 producer of an operand: int16 behind it would only copy its codes."""
    index = int(port.kind.partition("-")[2])
    known = value_quantizers(model)
    for node, op in model.operators():
        source = node.args[index] if op is port.op else None
        producer = known.get(source) if isinstance(source, fx.Node) else None
        if producer is None or producer.dtype != qint8:
            continue
        for owner in (o for _, o in model.operators() if o.activation_post_process is producer):
            wanted[owner.name] = {OUTPUT: "qint16"}


def _gemm_inputs(model: PreparedModel, port: Port) -> Iterator[tuple[QATOp, int]]:
    """The operands of GEMMs that the port's result reaches unchanged."""
    if port.kind != OUTPUT:
        return
    operators = dict(model.operators())
    reached = {node for node, op in operators.items() if op is port.op}
    for node in model.graph.nodes:
        if not any(source in reached for source in node.all_input_nodes):
            continue
        op = operators.get(node)
        if op is None or op.spec.rule is Rule.INPUT_SCALE:  # an item of a tuple, a pool, a reshape
            reached.add(node)
        elif op.spec.fuse is FuseRole.GEMM or op.spec.family == "gemm":
            yield from ((op, i) for i, a in enumerate(node.args) if a in reached)


def _input_value(model: PreparedModel, op: QATOp, index: int) -> str:
    """``qint16`` for a single operand, else one dtype per operand, the others as they are."""
    known = value_quantizers(model)
    node = next(node for node, other in model.operators() if other is op)
    roles = op.roles(len(node.args))
    count = sum(
        isinstance(arg, fx.Node) and role != op.spec.weight_role
        for arg, role in zip(node.args, roles, strict=True)
    )
    if count < 2 or op.weight_fake_quant is not None:
        return "qint16"
    found = [operand_quantizer(op, node, i, known) for i in range(len(node.args))]
    dtypes: list[QuantDType] = [qint8 if q is None else q.dtype for q in found]
    dtypes[index] = qint16
    return f"[{', '.join(map(str, dtypes))}]"


def _value(ports_of_op: Mapping[str, str]) -> str:
    if set(ports_of_op) == {OUTPUT}:
        return ports_of_op[OUTPUT]
    return "{" + ", ".join(f'"{port}": {dtype}' for port, dtype in ports_of_op.items()) + "}"


def _text(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"
