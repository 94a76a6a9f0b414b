"""From the nodes of a prepared model's graph to HBIR nodes: each operator asks the registry."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import fx, nn
from torch.fx.node import map_arg

from qtune.capture.handlers import HOOKED
from qtune.capture.source import call_site
from qtune.errors import ExportError, QtuneError
from qtune.hbir.attributes import dump_facts
from qtune.hbir.builder import (
    META_ATTRS,
    META_DTYPE,
    META_FLOPS,
    META_REASON,
    META_SHAPES,
    META_SOURCE,
    META_TYPE,
    GraphBuilder,
    mark_codes,
    mark_result,
)
from qtune.hbir.constants import Constant, constant_of, dtype_of, real_data, shape_of
from qtune.hbir.example import TRAINING, Example, TensorFacts
from qtune.hbir.inherit import inherit_float16, inherit_grid
from qtune.hbir.naming import unique_name
from qtune.nn.qat.grids import exact_scale
from qtune.ops import registry
from qtune.ops.kernel import LowerCall
from qtune.ops.quant.cast import emit_float16
from qtune.ops.quant.fake_quant import emit_fake_quant
from qtune.ops.spec import ModuleTarget, OpSpec, Rule
from qtune.quantizers.fake_cast import FakeCast

NO_FLOAT_FORM = (
    "hybrid=True and stubs keep it float, but a module holds operators of the registry only. "
)
_CALLS = ("call_module", "call_function", "call_method")


@dataclass(frozen=True, slots=True)
class Call:
    """One operator in canonical form: its entry in the registry, operands by role, attributes."""

    name: str
    group: str
    spec: OpSpec
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any]
    module: Any = None


class Lowering:
    """Lowers ``model.graph`` into ``builder``.

    ``problems`` holds a line for each failure, ``fixed`` names what was computed from sizes of the
    example and is a constant of the module now.
    """

    def __init__(self, model: nn.Module, example: Example, builder: GraphBuilder) -> None:
        self.model = model
        self.example = example
        self.builder = builder
        self.problems: list[str] = []
        self.fixed: list[str] = []
        self._env: dict[fx.Node, Any] = {}
        self._taken: set[str] = set()
        floats: Any = getattr(model, "float_ops", ())
        self._float_reasons = {op.name: op.reason for op in floats}

    def run(self, inputs: Mapping[fx.Node, ir.Value]) -> list[Any]:
        """Lower every node; return what the graph's flat output holds (values, constants, ...)."""
        self._env.update(inputs)
        for node in self.model.graph.nodes:  # type: ignore[union-attr]
            if node.op == "output":
                return list(map_arg(node.args[0], self._env.__getitem__))
            if node not in self._env:
                self._env[node] = self._lower(node)
        raise ExportError("the model's graph has no output node; prepare the model again")

    def _lower(self, node: fx.Node) -> Any:
        fact = self.example.facts[node]
        if not self._is_operator(node):
            constant = constant_of(fact)
            if constant is not None:
                self._note_sizes(node)
                return constant
        if not _holds_tensor(fact):
            return fact
        if node.target is operator.getitem and isinstance(self._value(node.args[0]), (tuple, dict)):
            return self._value(node.args[0])[node.args[1]]
        call = self._call(node)
        if isinstance(call, str):
            self.problems.append(call)
            return self._stand_in(fact)
        with self.builder.emitting_for(call.name, call.group):
            return self._operator(node, call)

    def _note_sizes(self, node: fx.Node) -> None:
        """Note a constant that was made from sizes of the example (a grid, zeros_like)."""
        if self.example.follows_inputs(node):
            name = str(node.meta.get("name") or node.name)
            self.fixed.append(f"{name}{call_site(node.meta)}")

    def _is_operator(self, node: fx.Node) -> bool:
        return node.op == "call_module" and hasattr(
            self.model.get_submodule(str(node.target)), "compute"
        )

    def _value(self, argument: Any) -> Any:
        return self._env[argument] if isinstance(argument, fx.Node) else argument

    def _resolve(self, argument: Any) -> Any:
        return map_arg(argument, self._env.__getitem__)

    def _call(self, node: fx.Node) -> Call | str:
        """The canonical call of a node, or why there is none."""
        name = str(node.meta.get("name") or node.name)
        if self._is_operator(node):
            return self._prepared(node, name)
        try:
            return self._float_call(node, name)
        except (QtuneError, TypeError, NotImplementedError) as error:
            return f"{name}{call_site(node.meta)}: {error}"

    def _prepared(self, node: fx.Node, name: str) -> Call:
        op: Any = self.model.get_submodule(str(node.target))
        attrs = {**op.attrs, **self._resolve(dict(node.kwargs))}
        if op.follows_training:
            attrs[TRAINING] = False
        given = tuple(_plain(v) for v in self._resolve(tuple(node.args)))
        operands = tuple(self._own(v) for v in op.fill(given))
        group = str(node.meta.get("group") or name)
        unique = self._unique(name)
        return Call(unique, unique if group == name else group, op.spec, operands, attrs, op)

    def _float_call(self, node: fx.Node, name: str) -> Call | str:
        module = self.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        found: Any
        if module is not None:
            found = registry.find_module(type(module))
        elif node.op == "call_method":
            found = registry.find_method(str(node.target))
        else:
            found = registry.find_function(node.target)
        if found is None or node.meta.get(HOOKED):
            kind = type(module).__name__ if module is not None else _called(node)
            reason = node.meta.get("float_reason") or "the registry has no operator for it"
            where = call_site(node.meta)
            hint = "" if found else NO_FLOAT_FORM
            return (
                f"{name} ({kind}){where}: {reason}. {hint}Replace it, or move it out of the model"
            )
        spec, target = found
        own = () if module is None else (module,)
        bound = target.bind(*own, *self._resolve(node.args), **self._resolve(dict(node.kwargs)))
        operands = [self._own(value) for value in bound.tensors]
        if isinstance(target, ModuleTarget):
            for role, attribute in target.filled(module, spec.roles).items():
                operands[place_of(spec, role)] = self._own(operator.attrgetter(attribute)(module))
        attrs = {k: (False if k == TRAINING else v) for k, v in bound.attrs.items()}
        return Call(self._unique(name), name, spec, tuple(operands), attrs)

    def _unique(self, name: str) -> str:
        """A second call of a shared module gets a number."""
        new = unique_name(name, self._taken)
        self._taken.add(new)
        return new

    @staticmethod
    def _own(value: Any) -> Any:
        return Constant(value.detach()) if isinstance(value, torch.Tensor) else value

    def _stand_in(self, fact: Any) -> Any:
        """Something of the right kind for an operator that failed, to find further problems."""
        if isinstance(fact, TensorFacts):
            return Constant(torch.zeros(fact.shape, dtype=fact.dtype))
        if isinstance(fact, tuple | list):
            return tuple(self._stand_in(item) for item in fact)
        if isinstance(fact, Mapping):
            return {key: self._stand_in(item) for key, item in fact.items()}
        return fact

    def _operator(self, node: fx.Node, call: Call) -> Any:
        if call.spec.lower is None:
            self.problems.append(
                f"{call.name} ({call.spec.name}){call_site(node.meta)}: it has no lowering. "
                "Replace it, or keep it out of the exported model"
            )
            return self._stand_in(self.example.facts[node])
        operands = self._quantized_operands(call)
        output = None if call.module is None else call.module.activation_post_process
        fact = self.example.facts[node]
        if isinstance(fact, TensorFacts) and fact.data is not None:
            return Constant(_folded(call, operands), output)
        if isinstance(constants := constant_of(fact), tuple):
            return constants
        before = len(self.builder.graph)
        try:
            result = self._emit(call, operands, fact)
        except (ExportError, NotImplementedError) as error:
            reason = str(error).removeprefix(f"{call.name}: ")
            self.problems.append(f"{call.name}{call_site(node.meta)}: {reason}")
            return self._stand_in(fact)
        self._note_facts(call, operands, fact, before, call_site(node.meta))
        return self._finish(call, operands, _describe(result, fact), output)

    def _quantized_operands(self, call: Call) -> list[Any]:
        operands = list(call.operands)
        if call.module is None:
            return operands
        for key, quantizer in call.module.input_fake_quants.items():
            operands[int(key)] = self._quantize(call, operands[int(key)], quantizer)
        if call.module.weight_fake_quant is not None:
            place = call.module.weight_index
            operands[place] = self._quantize(call, operands[place], call.module.weight_fake_quant)
        return operands

    def _quantize(self, call: Call, operand: Any, quantizer: Any) -> Any:
        if isinstance(operand, Constant):
            return Constant(real_data(operand), quantizer)
        groups = 1
        return self._fake_quant(operand, quantizer, groups)

    def _fake_quant(self, value: ir.Value, quantizer: Any, groups: int, rank: int = 0) -> ir.Value:
        if isinstance(quantizer, FakeCast):
            return self._fake_cast(value, quantizer)
        scale = quantizer.scale.detach().cpu().numpy()
        result: ir.Value = emit_fake_quant(
            self.builder,
            value,
            scale,
            quantizer.dtype,
            axis=quantizer.ch_axis,
            rank=rank,
            groups=groups,
        )
        result.shape, result.type = value.shape, value.type
        if scale.size == 1:
            mark_codes(result, str(quantizer.dtype), float(scale.reshape(-1)[0]))
        return result

    def _fake_cast(self, value: ir.Value, quantizer: FakeCast) -> ir.Value:
        result: ir.Value = emit_float16(self.builder, value)
        result.shape, result.type = value.shape, value.type
        result.metadata_props[META_DTYPE] = str(quantizer.dtype)
        return result

    def _emit(self, call: Call, operands: Sequence[Any], fact: Any) -> Any:
        values = [
            self._materialize(call, role, operand)
            for role, operand in zip(_roles(call.spec, len(operands)), operands, strict=True)
        ]
        table = getattr(call.module, "emit_table", None)
        if table is not None:
            return table(self.builder, values[0])
        first = fact[0] if isinstance(fact, tuple) else fact
        plain = LowerCall(
            call.name,
            tuple(values),
            call.attrs,
            tuple(shape_of(operand) for operand in operands),
            first.shape,
            tuple(dtype_of(operand) for operand in operands),
        )
        scale = None if call.module is None else exact_scale(call.module)
        if scale is not None and call.spec.exact is not None:
            return call.spec.exact.lower(self.builder, plain, scale)
        lower: Any = call.spec.lower
        return lower(self.builder, plain)

    def _materialize(self, call: Call, role: str, operand: Any) -> Any:
        if not isinstance(operand, Constant):
            return operand
        array = operand.data.cpu().numpy()
        value = self.builder.constant(array, role)
        if operand.quantizer is None:
            return value
        is_weight = role == call.spec.weight_role
        groups = call.spec.weight_groups
        count = groups(call.attrs) if is_weight and groups is not None else 1
        return self._fake_quant(value, operand.quantizer, count, array.ndim)

    def _note_facts(
        self, call: Call, operands: Sequence[Any], fact: Any, before: int, place: str
    ) -> None:
        nodes = list(self.builder.graph)[before:]
        if not nodes:
            return
        first = fact[0] if isinstance(fact, tuple) else fact
        shapes = [shape_of(operand) for operand in operands]
        props = nodes[0].metadata_props
        props[META_TYPE] = call.spec.name
        props[META_ATTRS] = dump_facts(call.attrs)
        props[META_SHAPES] = dump_facts([shapes, first.shape])
        if place:
            props[META_SOURCE] = place
        if call.name in self._float_reasons:
            props[META_REASON] = self._float_reasons[call.name]
        if call.spec.flops is not None:
            props[META_FLOPS] = str(call.spec.flops(call.attrs, shapes, first.shape))

    def _finish(self, call: Call, operands: Sequence[Any], result: Any, output: Any) -> Any:
        if isinstance(result, (tuple, list)):
            mark_result(result[0], call.name, call.group)
            if call.spec.rule is Rule.INPUT_SCALE:
                inherit_float16(result, operands)
            return tuple(result)
        if hasattr(call.module, "emit_table"):
            mark_codes(result, str(output.dtype), float(output.scale.detach()))
        elif output is not None:
            result = self._fake_quant(result, output, 1)
        elif call.spec.rule is Rule.INPUT_SCALE:
            inherit_grid(result, operands)
        mark_result(result, call.name, call.group)
        return result


def _folded(call: Call, operands: Sequence[Any]) -> torch.Tensor:
    values = [real_data(item) if isinstance(item, Constant) else item for item in operands]
    kernel: Any = call.spec.float_kernel
    with torch.no_grad():
        result: torch.Tensor = kernel(*values, **call.attrs)
    return result


def _plain(value: Any) -> Any:
    """A tensor of the model as the tensor itself; the operator may bring it to a grid."""
    is_plain = isinstance(value, Constant) and value.quantizer is None
    return value.data if is_plain else value


def _describe(result: Any, fact: Any) -> Any:
    """Give the emitted value(s) the example's shape and dtype."""
    if isinstance(fact, tuple):
        return tuple(_describe(value, item) for value, item in zip(result, fact, strict=True))
    result.type = ir.TensorType(onnx_type(fact.dtype))
    result.shape = ir.Shape(list(fact.shape))
    return result


def onnx_type(dtype: torch.dtype) -> ir.DataType:
    """The element type of a tensor; HBIR is float32 besides integers and bool."""
    name = str(dtype).removeprefix("torch.").upper()
    known = ("FLOAT32", "BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64")
    if name not in known:
        raise ExportError(
            f"a tensor is {dtype}; HBIR holds float32, bool and integers. Call model.float(), take "
            "autocast out of forward, and pass float32 inputs"
        )
    return ir.DataType["FLOAT" if name == "FLOAT32" else name]


def place_of(spec: OpSpec, role: str) -> int:
    """The operand that a role names; ``*name.2`` is the third of the role ``*name``."""
    if role in spec.roles:
        return spec.roles.index(role)
    return len(spec.roles) - 1 + int(role.rpartition(".")[2])


def _called(node: fx.Node) -> str:
    return str(node.meta.get("op") or getattr(node.target, "__name__", node.target))


def _roles(spec: OpSpec, count: int) -> tuple[str, ...]:
    return (spec.roles + spec.roles[-1:] * (count - len(spec.roles)))[:count]


def _holds_tensor(fact: Any) -> bool:
    if isinstance(fact, (tuple, dict)):
        items = fact.values() if isinstance(fact, dict) else fact
        return any(_holds_tensor(item) for item in items)
    return isinstance(fact, TensorFacts)
