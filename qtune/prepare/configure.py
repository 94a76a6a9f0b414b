"""Asks ``resolve`` what every operator gets, and puts the fake-quantizes in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from qtune.capture.branches import is_aside, users_that_count
from qtune.nn.qat import QATOp
from qtune.ops.spec import Rule
from qtune.prepare.decompose import BOUNDS, FORCED_DTYPE, ORIGIN
from qtune.prepare.fuse import GROUP
from qtune.prepare.operators import Operators, has_float_result, is_structural
from qtune.prepare.region import Kind, Region, parameter_roles
from qtune.qconfig.plan import OpQuantPlan, OpView, PortPlan
from qtune.qconfig.setter import find_qconfig, modules_around


@dataclass(slots=True)
class _Entry:
    """What is known of one operator before its view is made (calls of a shared one merged)."""

    node: fx.Node
    op: QATOp | None
    later: list[fx.Node] = field(default_factory=list)
    consumers: dict[str, None] = field(default_factory=dict)
    is_output: bool = False


def operator_views(ops: Operators, region: Region, float_model: nn.Module) -> list[OpView]:
    """Every operator on floating data as ``resolve`` sees it, in order of execution."""
    entries: dict[str, _Entry] = {}
    for node in ops.graph.nodes:
        name = node.meta.get("name")
        is_known = node in region.quantized or name in region.reasons
        if name is None or is_aside(node) or not is_known:
            continue
        entry = entries.setdefault(name, _Entry(node, ops.op(node)))
        if entry.node is not node:
            entry.later.append(node)
        for user in users_of(node):
            entry.is_output |= user.op == "output"
            if user.op != "output" and "name" in user.meta:
                entry.consumers[user.meta["name"]] = None
    return [_view(name, entry, ops, region, float_model) for name, entry in entries.items()]


def _view(
    name: str, entry: _Entry, ops: Operators, region: Region, float_model: nn.Module
) -> OpView:
    node, op = entry.node, entry.op
    qconfig, path = nearest_qconfig(float_model, node)
    common: dict[str, Any] = {
        "name": name,
        "scope": node.meta.get("scope", ""),
        "group": node.meta.get(GROUP, ""),
        "consumers": tuple(entry.consumers),
        "is_model_output": entry.is_output,
        "module_qconfig": qconfig,
        "module_qconfig_path": path,
        "modules": _modules(float_model, node),
        "float_reason": region.reasons.get(name),
        "forced_dtype": node.meta.get(FORCED_DTYPE),
        "is_part": ORIGIN in node.meta,
        "bounds": node.meta.get(BOUNDS),
        "output_shape": _shape(node.meta.get("shape")),
        "several_results": isinstance(node.meta.get("dtype"), (tuple, list)),
    }
    if op is None:
        return OpView(op=node.meta["op"], rule=Rule.OWN_SCALE, **common)
    roles = op.roles(len(node.args))
    if not has_float_result(node):
        common["rule"] = Rule.NO_SCALE
    elif op.spec.rule is Rule.DECOMPOSED:  # only float ones are left whole
        common["rule"] = Rule.OWN_SCALE
    return OpView.from_spec(
        op.spec,
        producers=_producers(op, node, region),
        later_producers=tuple(_producers(op, call, region) for call in entry.later),
        constants=constant_operands(op, node, region),
        attrs=op.attrs,
        input_shapes=tuple(_operand_shape(op, role, node.args[i]) for i, role in enumerate(roles)),
        **common,
    )


def nearest_qconfig(float_model: nn.Module, node: fx.Node) -> tuple[Any, str]:
    """``module.qconfig`` for an operator: its own module's, or that of the modules around it."""
    return find_qconfig(float_model, _path(float_model, node))


def _path(float_model: nn.Module, node: fx.Node) -> str:
    """The path of an operator's own module, or of the module whose forward calls it."""
    name = str(node.meta.get(ORIGIN, node.meta["name"]))
    is_module = float_model._modules.get(name.split(".")[0]) is not None
    return name if is_module else str(node.meta.get("scope", ""))


def _modules(float_model: nn.Module, node: fx.Node) -> tuple[tuple[str, type], ...]:
    """Path and class of the modules around an operator, the nearest first."""
    around = modules_around(float_model, _path(float_model, node))
    return tuple((path, type(module)) for path, module in reversed(around))


def constant_operands(op: QATOp, node: fx.Node, region: Region) -> frozenset[int]:
    """Operands, other than the operator's own parameters, that are float constants.

    Where the result keeps the scale of the first operand, that one counts as well if it is a
    parameter: the table of an embedding.
    """
    fixed = parameter_roles(op.spec) | {op.spec.weight_role}
    if op.spec.rule is Rule.INPUT_SCALE:
        fixed -= {op.spec.roles[0]}
    roles = op.roles(len(node.args))
    return frozenset(
        index
        for index, (role, value) in enumerate(zip(roles, node.args, strict=True))
        if role not in fixed and _is_constant(op, role, value, region)
    )


def _is_constant(op: QATOp, role: str, value: Any, region: Region) -> bool:
    if isinstance(value, fx.Node):
        return region.kinds[value] is Kind.CONSTANT
    return value is None and role in op.params


def attach(ops: Operators, plans: dict[str, OpQuantPlan]) -> None:
    """Give every operator the fake-quantizes of its plan, on the model's device."""
    device = _device(ops.model)
    done: set[str] = set()
    for node in ops.graph.nodes:
        op = ops.op(node)
        if op is None or is_aside(node) or op.name in done or op.name not in plans:
            continue
        done.add(op.name)
        _attach(op, node, plans[op.name], device)


def _attach(op: QATOp, node: fx.Node, plan: OpQuantPlan, device: torch.device) -> None:
    if plan.output is not None:
        op.activation_post_process = plan.output.make(name=op.name).to(device)
    for index, port in plan.inputs.items():
        op.quantize_input(index, port.make(name=f"{op.name} input {index}").to(device))
    if plan.weight is not None:
        op.weight_fake_quant = _weight_fake_quant(op, node, plan.weight).to(device)
        _print_last(op, "activation_post_process")
    op.train(op.training)


def _print_last(op: QATOp, name: str) -> None:
    if name in op._modules:
        op._modules[name] = op._modules.pop(name)


def _weight_fake_quant(op: QATOp, node: fx.Node, port: PortPlan) -> Any:
    name = f"{op.name} weight"
    axis = -1 if op.spec.weight_axis is None else op.spec.weight_axis(op.attrs)
    if axis == -1:
        return port.make(name=name)
    shape = _operand_shape(op, str(op.spec.weight_role), node.args[op.weight_index])
    channels = (shape or ())[axis] * op.weight_groups(op.attrs)
    return port.make(channels, axis, name=name)


def users_of(node: fx.Node) -> Iterator[fx.Node]:
    """Users of a result that count, through the items of a tuple."""
    for user in users_that_count(node):
        if is_structural(user):
            yield from users_of(user)
        else:
            yield user


def _producers(op: QATOp, node: fx.Node, region: Region) -> tuple[str | None, ...]:
    """Who makes each operand of one call."""
    return tuple(
        None if role == op.spec.weight_role else _producer(value, region)
        for role, value in zip(op.roles(len(node.args)), node.args, strict=True)
    )


def _producer(value: Any, region: Region) -> str | None:
    """Name of the operator that makes a floating value from data."""
    while isinstance(value, fx.Node) and is_structural(value):
        value = value.args[0]
    if not isinstance(value, fx.Node) or region.kinds[value] in (Kind.PLAIN, Kind.CONSTANT):
        return None
    return value.meta.get("name") if value.op != "placeholder" else None


def _operand_shape(op: QATOp, role: str, value: Any) -> tuple[int, ...] | None:
    if isinstance(value, fx.Node):
        return _shape(value.meta.get("shape"))
    if value is None and role in op.params:
        own = op.param(role)
        return None if own is None else tuple(own.shape)
    return None


def _shape(shape: Any) -> tuple[int, ...]:
    """The example's shape; of several results the first one's."""
    if not shape:
        return ()
    first = shape[0]
    return tuple(first) if isinstance(first, (tuple, list)) else tuple(shape)


def _device(model: nn.Module) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")
