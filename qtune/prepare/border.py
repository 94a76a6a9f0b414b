"""The stubs at the border between float and quantized values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from qtune.capture.branches import is_aside
from qtune.ops.registry import spec as registry_spec
from qtune.ops.spec import ModuleTarget
from qtune.prepare.naming import flat
from qtune.prepare.operators import Call, Operators, has_tensor_result, is_structural
from qtune.prepare.region import (
    DEQUANT,
    FLOAT_KINDS,
    QUANT,
    Kind,
    Region,
    parameter_roles,
)


class Border:
    """Inserts stubs into the graph of ``ops`` and can take them out again."""

    def __init__(self, ops: Operators, region: Region) -> None:
        self.ops = ops
        self.region = region
        self.stubs: list[fx.Node] = []

    def insert(self) -> None:
        """Put a stub wherever a value crosses the border."""
        nodes = list(self.ops.graph.nodes)
        for node in nodes:
            op = self.ops.op(node)
            if node in self.region.quantized and op is not None and op.op not in (QUANT, DEQUANT):
                self._quantize_operands(node, op.roles(len(node.args)), parameter_roles(op.spec))
        for node in nodes:
            if node.op == "output":
                self._dequantize_outputs(node)
            elif node not in self.region.quantized and self._is_call(node) and not is_aside(node):
                self._dequantize_operands(node)

    def remove(self) -> None:
        """Undo :meth:`insert`."""
        for node in reversed(self.stubs):
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            self.ops.graph.erase_node(node)
            delattr(self.ops.model, str(node.target))
            self.ops.names.release(str(node.target))
        self.stubs.clear()

    def _quantize_operands(
        self, node: fx.Node, roles: tuple[str, ...], fixed: frozenset[str]
    ) -> None:
        for index, (role, value) in enumerate(zip(roles, node.args, strict=True)):
            if role not in fixed and self._kind(value) in FLOAT_KINDS:
                node.update_arg(index, self._quantized(value, node))  # type: ignore[arg-type]

    def _quantized(self, value: fx.Node, user: fx.Node) -> fx.Node:
        known = [other for other in value.users if other in self.stubs]
        if known:
            return known[0]
        return self._stub(QUANT, value, self._quant_name(value), user)

    def _quant_name(self, value: fx.Node) -> str:
        if value.op == "placeholder":
            inputs = [node for node in self.ops.graph.nodes if node.op == "placeholder"]
            return self.ops.names.unique(f"_input_{inputs.index(value)}_quant")
        maker = value.args[0] if is_structural(value) else value
        name = maker.meta.get("name", value.name) if isinstance(maker, fx.Node) else value.name
        return self.ops.names.unique(f"{flat(name)}_activation_post_process")

    def _dequantize_operands(self, node: fx.Node) -> None:
        for value in node.all_input_nodes:
            if self._kind(value) is Kind.QUANTIZED:
                name = self.ops.names.unique(f"{flat(node.meta['name'])}_input_dequant")
                stub = self._stub(DEQUANT, value, name, node)
                node.replace_input_with(value, stub)

    def _dequantize_outputs(self, output: fx.Node) -> None:
        leaves = list(output.args[0])  # type: ignore[arg-type]
        made: dict[fx.Node, fx.Node] = {}
        for index, value in enumerate(leaves):
            if not isinstance(value, fx.Node) or self._kind(value) is not Kind.QUANTIZED:
                continue
            if value not in made:
                name = self.ops.names.unique(f"_output_{index}_dequant")
                made[value] = self._stub(DEQUANT, value, name, output)
            leaves[index] = made[value]
        output.args = (tuple(leaves),)

    def _stub(self, op: str, value: fx.Node, name: str, before: fx.Node) -> fx.Node:
        spec = registry_spec(op)
        target = next(t for t in spec.targets if isinstance(t, ModuleTarget))
        module = target.cls().train(self.ops.training)
        bound = target.bind(module, value)
        kind = f"{target.cls.__module__}.{target.cls.__qualname__}"
        with self.ops.graph.inserting_before(before):
            call = Call(spec, bound, name, kind, module, {}, target.cls)
            stub = self.ops.insert(call, _stub_meta(value.meta))
        self.stubs.append(stub)
        self.region.kinds[stub] = Kind.QUANTIZED if op == QUANT else Kind.OUTSIDE
        self.region.quantized.add(stub)
        return stub

    def _is_call(self, node: fx.Node) -> bool:
        is_call = node.op in ("call_module", "call_function", "call_method")
        return is_call and has_tensor_result(node) and not is_structural(node)

    def _kind(self, value: Any) -> Kind:
        return self.region.kinds[value] if isinstance(value, fx.Node) else Kind.PLAIN


def _stub_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: meta[key] for key in ("shape", "dtype", "source") if key in meta}
    return {**kept, "scope": ""}
