"""Execution plans: which callable runs when, on which slots, and what is freed after it.

A plan is made once from nodes and holds no state of a run, so that runs may overlap in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir

from qtune.errors import QtuneError, RunError
from qtune.hbir.builder import META_DTYPE, META_OP, META_RESULT, META_SCALE
from qtune.hbir.verify import describe_node
from qtune.ops.gemm.saturation import count_saturation


@dataclass(frozen=True, slots=True)
class ResultInfo:
    """The operator whose final result a step makes. ``dtype`` is ``None`` for unquantized ones."""

    op: str
    dtype: str | None
    scale: float | None
    is_codes: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One node: ``run(*slots)`` fills ``outputs``; the slots ``frees`` are dead afterwards."""

    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    where: str
    op: str
    result: ResultInfo | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order. Slots 0.. hold the inputs; ``outputs`` are the slots of the results."""

    steps: tuple[Step, ...]
    slots: int
    outputs: tuple[int, ...]


class Strategy(Protocol):
    """How one mode runs nodes and what its slots hold."""

    def callable_for(self, node: ir.Node) -> tuple[Callable[..., Any], tuple[ir.Value, ...]]:
        """A callable and the values it takes, in order; everything constant is inside it."""

    def constant(self, value: ir.Value) -> Any:
        """An initializer in the form of a slot."""


def build_plan(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    strategy: Strategy,
) -> Plan:
    """Plan ``nodes`` from ``inputs`` to ``outputs``; ``RunError`` names a node without kernel."""
    slots: dict[ir.Value, int] = {value: index for index, value in enumerate(inputs)}
    drafts: list[tuple[ir.Node, Callable[..., Any], tuple[int, ...]]] = []
    for node in nodes:
        run, takes = strategy.callable_for(node)
        missing = [value.name for value in takes if value not in slots]
        if missing:
            raise RunError(f"{describe_node(node)}: {missing} are made by no earlier node")
        drafts.append((node, run, tuple(slots[value] for value in takes)))
        for value in node.outputs:
            slots[value] = len(slots)
    results = tuple(slots[value] for value in outputs)
    frees = _last_uses(drafts, slots, results, len(inputs))
    steps = tuple(
        _step(node, run, takes, slots, frees[index])
        for index, (node, run, takes) in enumerate(drafts)
    )
    return Plan(steps, len(slots), results)


def _last_uses(
    drafts: Sequence[tuple[ir.Node, Callable[..., Any], tuple[int, ...]]],
    slots: Mapping[ir.Value, int],
    keep: Sequence[int],
    inputs: int,
) -> list[tuple[int, ...]]:
    """For each step the slots that no later step reads."""
    last: dict[int, int] = dict.fromkeys(range(inputs), -1)
    for index, (node, _, takes) in enumerate(drafts):
        for slot in takes:
            last[slot] = index
        for value in node.outputs:
            last[slots[value]] = index
    frees: list[list[int]] = [[] for _ in drafts]
    for slot, index in last.items():
        if index >= 0 and slot not in keep:
            frees[index].append(slot)
    return [tuple(items) for items in frees]


def _step(
    node: ir.Node,
    run: Callable[..., Any],
    takes: tuple[int, ...],
    slots: Mapping[ir.Value, int],
    frees: tuple[int, ...],
) -> Step:
    op = node.metadata_props.get(META_OP, node.name or node.op_type)
    result = result_info(node) if META_RESULT in node.metadata_props else None
    outputs = tuple(slots[value] for value in node.outputs)
    return Step(run, takes, outputs, frees, describe_node(node), op, result)


def result_info(node: ir.Node) -> ResultInfo:
    """What the metadata say about the first output of ``node``."""
    value = node.outputs[0]
    scale = value.metadata_props.get(META_SCALE)
    is_float = value.dtype is None or value.dtype.is_floating_point()
    dtype = value.metadata_props.get(META_DTYPE)
    return ResultInfo(
        node.metadata_props.get(META_OP, ""),
        dtype,
        None if scale is None else float(scale),
        dtype is not None and not is_float,
    )


def execute(
    plan: Plan,
    inputs: Sequence[Any],
    watch: Callable[[ResultInfo, Sequence[Any]], None] | None = None,
    saturated: dict[str, int] | None = None,
) -> list[Any]:
    """Run the steps on ``inputs`` (slot form); ``watch`` gets each operator's results.

    ``saturated`` collects, by operator, how many accumulator elements were clamped.
    """
    slots: list[Any] = [None] * plan.slots
    slots[: len(inputs)] = inputs
    counts = {} if saturated is None else saturated
    for step in plan.steps:
        with count_saturation() as count:
            results = _run_step(step, slots)
        if count.elements:
            counts[step.op] = counts.get(step.op, 0) + count.elements
        for slot, value in zip(step.outputs, results, strict=True):
            slots[slot] = value
        if watch is not None and step.result is not None:
            watch(step.result, results)
        for slot in step.frees:
            slots[slot] = None
    return [slots[slot] for slot in plan.outputs]


def _run_step(step: Step, slots: Sequence[Any]) -> Sequence[Any]:
    try:
        result = step.run(*[slots[slot] for slot in step.inputs])
    except QtuneError as error:
        raise type(error)(f"{step.op}: {error}") from error
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise RunError(f"{step.where} failed: {error}") from error
    return result if isinstance(result, (tuple, list)) else (result,)
