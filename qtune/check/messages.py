"""The messages of ``check_qat_model`` about unusual configurations (its fifth section)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import fx

from qtune.check.misconceptions import NOT_CENTRED, uncentred_images
from qtune.check.report import (
    AVERAGING,
    FLOAT32,
    NO_QCONFIG,
    Message,
    OutputConfig,
    WeightConfig,
    unusual_averaging,
)
from qtune.nn.prepared import ORIGIN_CALL, PreparedModel
from qtune.nn.propagate import operand_port, value_ports
from qtune.nn.qat.op import QATOp
from qtune.ops.spec import FuseRole
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize

_FLOAT_RESULT = "activation is None. Maybe output layer?"
"""Of a GEMM without output fake-quantize; normal where it is the model's high-precision output."""
_FLOAT_INPUT = (
    "float input, and no stub: put a QuantStub before it, or check the qconfig of what makes it"
)
_WEIGHT_DTYPE = "qint8"


def messages(
    model: PreparedModel, outputs: Mapping[str, OutputConfig], weights: Mapping[str, WeightConfig]
) -> tuple[Message, ...]:
    """All messages, operator by operator in order of execution; then those about images."""
    calls: dict[str, list[fx.Node]] = {}
    ops: dict[str, QATOp] = {}
    for node, op in model.operators():
        calls.setdefault(op.name, []).append(node)
        ops[op.name] = op
    groups = {name: str(nodes[0].meta.get("group") or name) for name, nodes in calls.items()}
    high_precision = _high_precision(model, groups)
    float_inputs = set(_with_float_input(model))
    found = []
    for name, op in ops.items():
        texts = list(_weight_texts(weights.get(name)))
        if ORIGIN_CALL not in calls[name][0].meta:  # what parts give is prepare's rule
            texts += _texts(op, outputs[name], outputs[groups[name]])
            texts += [_FLOAT_INPUT] if name in float_inputs else []
        for text in texts:
            normal = text == _FLOAT_RESULT and name in high_precision
            found.append(Message(name, outputs[name].type, text, normal))
    images = uncentred_images(model)  # inputs whose data show that they are no centred images
    found += [Message(n, outputs[n].type, f"{NOT_CENTRED}: {t}") for n, t in images.items()]
    return tuple(found)


def _high_precision(model: PreparedModel, groups: Mapping[str, str]) -> set[str]:
    """Operators whose group gives an output of the model in high precision."""
    plans = {} if model.resolution is None else model.resolution.plans
    planned = {name for name, plan in plans.items() if plan.high_precision}
    return planned | {name for name, group in groups.items() if group in planned}


def _weight_texts(config: WeightConfig | None) -> Iterator[str]:
    if config is None:
        return
    if config.dtype != _WEIGHT_DTYPE:
        yield f"{config.dtype} weight!!!"
    if unusual_averaging(config):
        yield f"weight {_averaging_text(config)}"


def _averaging_text(config: OutputConfig | WeightConfig) -> str:
    constant = config.averaging_constant
    text = f"averaging_constant = {constant} is not the default {AVERAGING}"
    return f"{text}: data do not move the scale" if constant == 0 else text


def _texts(op: QATOp, config: OutputConfig, last: OutputConfig) -> Iterator[str]:
    """Messages about the result of ``op``; ``last`` is the last member of its fused group."""
    own = op.activation_post_process
    if isinstance(own, FakeQuantize) and own.activation_post_process.is_fixed:
        yield f"Fixed scale {float(own.scale.detach().reshape(-1)[0])}"
    quantized = [dtype for dtype in config.input_dtypes if not dtype.startswith("torch.")]
    casts = isinstance(own, FakeCast) and op.spec.fuse is FuseRole.GEMM  # its operands are integers
    if own is not None and quantized and set(quantized) != {config.out_dtype} and not casts:
        listed = list(config.input_dtypes)
        yield f"input dtype {listed} is not same with out dtype {config.out_dtype}"
    if op.spec.fuse is FuseRole.GEMM and quantized and last.ch_axis == NO_QCONFIG:
        yield _FLOAT_RESULT
    if unusual_averaging(config):
        yield _averaging_text(config)


def _with_float_input(model: PreparedModel) -> Iterator[str]:
    """Operators that take a float number from outside of their fused group and are no stubs.

    Within a group, as from a convolution to its relu, numbers are float.
    """
    known = value_ports(model)
    floats = {op.name for op in model.float_ops}
    for node, op in model.operators():
        if op.name in floats or op.spec.family == "quant":
            continue
        for index, role in enumerate(op.roles(len(node.args))):
            source = node.args[index]
            if role in (op.spec.weight_role, "bias") or not isinstance(source, fx.Node):
                continue
            inside = node.meta.get("group") and source.meta.get("group") == node.meta["group"]
            number = operand_port(op, node, index, known) is None and is_number(source)
            if number and not inside and source.op != "get_attr":
                yield op.name


def is_number(node: fx.Node) -> bool:
    """Whether a value without fake-quantize is a float32 tensor, and no index or mask."""
    return float_name(node) == FLOAT32


def float_name(node: fx.Node) -> str:
    """The dtype of a value without fake-quantize: ``torch.float32``, ``torch.int64``, ..."""
    dtype = node.meta.get("dtype")
    return str(dtype[0] if isinstance(dtype, (tuple, list)) and dtype else dtype or FLOAT32)
