"""From frozen operators and the operands of a call to the integer program of one group.

A model of that group alone is put together, exported and converted as a whole model is; the
quantize in front of it and the dequantize behind are cut off. So every rule is the converter's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx, nn
from torch.utils._python_dispatch import _disable_current_modes

from qtune.bpu.convert import convert
from qtune.errors import ExportError
from qtune.hbir.builder import META_BATCH, META_OP, META_STAGE, GraphBuilder
from qtune.hbir.constants import Constant, real_data
from qtune.hbir.example import Example
from qtune.hbir.export import level_facts
from qtune.hbir.lowering import Lowering, onnx_type
from qtune.hbir.module import META_INPUTS, META_OUTPUTS, HbirModule
from qtune.hbir.passes.extract import cut_out
from qtune.nn.qat.op import QATOp
from qtune.nn.quantized.call import OpCall
from qtune.nn.quantized.frozen import Grid
from qtune.nn.quantized.program import PackedProgram, pack
from qtune.nn.quantized.qtensor import QTensor

_OPERAND, _RESULT = "_operand_", "_result_"


def program_of_call(
    call: OpCall, constants: frozenset[int], march: str, level: int | None
) -> PackedProgram:
    """The program for operands of these shapes, dtypes and scales.

    ``constants``: places among the operands whose tensors no input of the model decides; they
    become constants of the program. ``march`` and ``level`` are those of the model.
    """
    with _disable_current_modes():
        return _Draft(call, constants, march, level).program()


def lowered_call(call: OpCall) -> HbirModule:
    """The float module of a call, before ``convert``; plain operands are its inputs."""
    with _disable_current_modes():
        draft = _Draft(call, frozenset(), "", None)
        draft.build()
        return draft.lowered()


def without_border(module: HbirModule, sources: Sequence[str], march: str) -> HbirModule:
    """The integers of a lowered module, from the values ``sources`` on.

    The dequantize behind is cut off.
    """
    integer = convert(module, march)
    outputs = [_before_dequantize(value) for value in integer.model.graph.outputs]
    cut_out(integer.model, sources, outputs)
    return HbirModule(integer.model)


def fed_tensors(operands: Sequence[Any], constants: frozenset[int]) -> Iterator[torch.Tensor]:
    """What a program is fed: the codes and plain tensors among the operands, in order."""
    for place, operand in enumerate(operands):
        if place in constants:
            continue
        if isinstance(operand, QTensor):
            yield operand.int_repr()
        elif isinstance(operand, torch.Tensor):
            yield operand


class _Draft:
    """The small model of one group."""

    def __init__(
        self, call: OpCall, constants: frozenset[int], march: str, level: int | None
    ) -> None:
        self.call = call
        self.name = call.members[-1].name
        self.constants = constants
        self.march, self.level = march, level
        self.root: Any = nn.Module()
        self.graph = fx.Graph()
        self.leaves: list[torch.Tensor] = []
        self.sources: list[str] = []
        """Names of what the program is fed: stubs of codes, inputs of plain tensors."""

    def program(self) -> PackedProgram:
        """Build, lower, convert, cut."""
        self.build()
        return pack(without_border(self.lowered(), self.sources, self.march), self.name)

    def build(self) -> None:
        """Fill the graph."""
        values = [self._operand(place, value) for place, value in enumerate(self.call.operands)]
        self.graph.output((self._members(values),))
        self.root.graph = self.graph

    def _operand(self, place: int, value: Any) -> Any:
        """The mini model's node for an operand, or the plain value."""
        if not isinstance(value, torch.Tensor):
            return value
        name = f"{_OPERAND}{place}"
        is_constant = place in self.constants
        real = value.dequantize() if isinstance(value, QTensor) else value.detach()
        if is_constant:
            self.root.register_buffer(f"constant_{place}", real)
            node = self.graph.get_attr(f"constant_{place}")
        else:
            node = self.graph.placeholder(f"leaf_{place}")
            self.leaves.append(real.contiguous().cpu())
            self.sources.append(name if isinstance(value, QTensor) else node.name)
        if not isinstance(value, QTensor):
            return node
        stub = QATOp("quant_stub", name, {"scale": None})
        stub.activation_post_process = Grid(  # type: ignore[assignment]
            value.q_per_channel_scales(), value.dtype, value.ch_axis
        )
        self.root.add_module(name, stub.eval())
        return self._call(name, name, name, (node,), {})

    def _members(self, operands: Sequence[Any]) -> fx.Node:
        made: list[Any] = []
        for index, member in enumerate(self.call.members):
            path = f"member_{index}"
            self.root.add_module(path, member)
            args, kwargs = self.call.wiring.resolve(index, operands, made)
            made.append(self._call(path, member.name, self.name, args, kwargs))
        last: fx.Node = made[-1]
        return last

    def _call(self, path: str, name: str, group: str, args: Any, kwargs: Any) -> fx.Node:
        node = self.graph.call_module(path, args, kwargs)
        node.meta.update({"name": name, "group": group})
        return node

    def lowered(self) -> HbirModule:
        """The float module."""
        example = Example(self.root, self.leaves)
        builder = GraphBuilder("operator")
        lowering = Lowering(self.root, example, builder)
        places = zip(self.graph.find_nodes(op="placeholder"), self.leaves, strict=True)
        inputs = {n: builder.input(n.name, onnx_type(t.dtype), t.shape) for n, t in places}
        (result,) = lowering.run(inputs)
        if lowering.problems:
            raise ExportError("; ".join(lowering.problems))
        results = result if isinstance(result, tuple) else (result,)
        for index, value in enumerate(results):
            if isinstance(value, Constant):
                value = builder.constant(real_data(value).cpu().numpy(), "constant")
            builder.output(value, f"{_RESULT}{index}")
        metadata = {META_STAGE: "qat", META_BATCH: "fixed", META_INPUTS: "{}", META_OUTPUTS: "{}"}
        metadata.update(level_facts(self.level))
        return HbirModule(builder.finish(metadata))


def _before_dequantize(value: ir.Value) -> str:
    """The value that convert dequantized to make an output, else the output itself."""
    node = value.producer()
    if node is not None and node.metadata_props.get(META_OP, "").startswith(_RESULT):
        source = node.inputs[0]
        return (source.name if source is not None else value.name) or ""
    return value.name or ""
