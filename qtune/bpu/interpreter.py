"""Programs: a plan, a mode, and the way between plain tensors and what the plan's slots hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import onnx_ir as ir
import torch

from qtune.arith_fast.capability import guard
from qtune.bpu.plan import Plan, ResultInfo, Strategy, build_plan, execute
from qtune.bpu.strategies import FastStrategy, FloatStrategy, ReferenceStrategy
from qtune.errors import ArgumentError
from qtune.hbir.builder import META_STAGE
from qtune.hbir.result import Observer, OpResult

_log = logging.getLogger("qtune.bpu")


class Borders(Strategy, Protocol):
    """A strategy that also converts at the borders of the graph."""

    def enter(self, value: ir.Value, tensor: torch.Tensor) -> Any:
        """Slot form of a plain tensor."""

    def leave(self, value: ir.Value, slot: Any) -> torch.Tensor:
        """Plain tensor of a slot."""


class Program:
    """Runs nodes from ``inputs`` to ``outputs``; safe to call from several threads at once."""

    def __init__(
        self,
        nodes: Sequence[ir.Node],
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        strategy: Borders,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.strategy = strategy
        self.saturation: dict[str, int] = {}
        self.plan: Plan = build_plan(nodes, inputs, outputs, strategy)
        self._by_op = {
            step.result.op: tuple(node.outputs)
            for step, node in zip(self.plan.steps, nodes, strict=True)
            if step.result is not None
        }

    def run(
        self, tensors: Sequence[torch.Tensor], observe: Observer | None = None
    ) -> dict[str, torch.Tensor]:
        """Run on plain tensors in the order of the inputs; return plain tensors by output name."""
        watch = None if observe is None else self._watcher(observe)
        saturated: dict[str, int] = {}
        with guard(), torch.no_grad():
            slots = [
                self.strategy.enter(value, tensor)
                for value, tensor in zip(self.inputs, tensors, strict=True)
            ]
            results = execute(self.plan, slots, watch, saturated)
            outputs = {
                value.name or "": self.strategy.leave(value, slot)
                for value, slot in zip(self.outputs, results, strict=True)
            }
        self.saturation = saturated
        for op, elements in saturated.items():
            _log.warning("%s: %d accumulator elements left int32 and were clamped", op, elements)
        return outputs

    def _watcher(self, observe: Observer) -> Callable[[ResultInfo, Sequence[Any]], None]:
        def watch(info: ResultInfo, slots: Sequence[Any]) -> None:
            values = self._by_op[info.op]
            for index, (value, slot) in enumerate(zip(values, slots, strict=True)):
                name = info.op if index == 0 else f"{info.op}:{index}"  # as producer_key has it
                result = op_result(replace(info, op=name), self.strategy.leave(value, slot))
                observe(name, result)

        return watch


def op_result(info: ResultInfo, tensor: torch.Tensor) -> OpResult:
    """The public record of an operator's result; what it holds is a copy."""
    if info.is_codes and info.scale is not None:
        values = tensor.to(torch.float32) * torch.tensor(info.scale, dtype=torch.float32)
        return OpResult(info.op, values, tensor, info.scale, info.dtype or "")
    dtype = info.dtype or str(tensor.dtype)
    return OpResult(info.op, tensor.clone(), None, info.scale, dtype)


def strategy_for(stage: str, mode: str) -> Borders:
    """The strategy for a stage and a mode."""
    if stage == "qat":
        if mode == "reference":
            raise ArgumentError(
                "a qat module is float and has no reference mode; convert it first, or use "
                "mode='fast'"
            )
        return FloatStrategy()
    return FastStrategy() if mode == "fast" else ReferenceStrategy()


def program_of(model: ir.Model, mode: str) -> Program:
    """The program of a whole model."""
    graph = model.graph
    strategy = strategy_for(model.metadata_props.get(META_STAGE, ""), mode)
    return Program(list(graph), graph.inputs, graph.outputs, strategy)
