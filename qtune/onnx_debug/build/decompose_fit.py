"""Which composed operators run on the march in parts, and what the configuration means for those.

An operator of which the march refuses a part stays whole, in float, with one reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import onnx

from qtune.errors import ArgumentError
from qtune.march import March
from qtune.onnx_debug.build.decompose import Decomposed, Part, decomposed
from qtune.onnx_debug.build.facts import Kind, NodeFacts, facts_of
from qtune.onnx_debug.build.kept import Kept
from qtune.onnx_debug.build.march import Fitted, fitted
from qtune.onnx_debug.build.place import CONFIGURED, NO_OUTPUT_SCALE, Wishes
from qtune.onnx_debug.build.wiring import Slot, wiring_of

_OF_THE_WHOLE = (CONFIGURED, NO_OUTPUT_SCALE)
"""Reasons that are as true of the operator as of its part."""

_log = logging.getLogger(__name__)
Facts = Mapping[str, NodeFacts]


def fitted_in_parts(
    proto: onnx.ModelProto,
    asked: Callable[[Facts], Wishes],
    march: March,
    kept: Kept,
    named: Collection[str],
    known: Mapping[str, str],
) -> Fitted:
    """Where calibration nodes go in the optimized model ``proto``, its composed operators in parts.

    ``asked(facts)``: what the configuration asks of the nodes with these facts, those of ``proto``
    and of all parts that it can have. ``named``: nodes that it names; for other parts their
    operator's entries hold. ``known``: operators that stay whole in any case, and why.
    """
    facts = kept.facts(facts_of(proto))
    work = _Fitting(proto, facts, march, kept)
    apart, of_parts = work.apart(())
    wishes = asked({**facts, **{name: of_parts[name] for name in apart.parts}})
    out = {name for name, bits in wishes.bits.items() if bits == 32 and name in facts}
    whole = dict(known)
    while True:
        if out or whole:
            apart, of_parts = work.apart({*out, *whole})
        spread = _spread(proto, wishes, apart, named)
        fit = work.fit(apart, of_parts, spread, whole)
        lost = _lost(fit, apart.parts)
        if not lost:
            _warn_of_unused(named, facts, apart)
            return replace(fit, parts=apart.parts)
        of_norms = {part.origin for part in apart.parts.values() if part.is_written}
        out |= lost.keys() & of_norms
        whole |= {origin: reason for origin, reason in lost.items() if origin not in of_norms}


class _Fitting:
    """What stays the same from one try to the next."""

    def __init__(self, proto: onnx.ModelProto, facts: Facts, march: March, kept: Kept) -> None:
        self.proto, self.facts, self.march, self.kept = proto, facts, march, kept
        self.settled = kept.settled(proto, facts)
        self.candidates = {name for name, fact in facts.items() if fact.kind is Kind.FLOAT}

    def apart(self, whole: Collection[str]) -> tuple[Decomposed, Facts]:
        """The model in parts, but for ``whole``, and the facts of its nodes."""
        apart = decomposed(self.proto, self.candidates, {*whole, *self.settled})
        if not apart.parts:
            return apart, self.facts
        return apart, self.kept.facts(facts_of(apart.proto, apart.parts))

    def fit(
        self, apart: Decomposed, facts: Facts, wishes: Wishes, whole: Mapping[str, str]
    ) -> Fitted:
        """A placement that the march runs, parts of some operators left out of it."""
        lacking = {
            name: reason
            for name, reason in apart.refused.items()
            if name in self.facts and self.facts[name].kind is Kind.FLOAT
        }
        return fitted(apart.proto, facts, wishes, self.march, self.kept, {**lacking, **whole})


def _lost(fit: Fitted, parts: Mapping[str, Part]) -> dict[str, str]:
    """Operators of which a part stays float, each with the reason of the first."""
    found: dict[str, str] = {}
    for name, part in parts.items():
        reason = fit.placement.floats.get(name)
        if reason is not None:
            whole = reason if reason in _OF_THE_WHOLE else f"its part {name}: {reason}"
            found.setdefault(part.origin, whole)
    return found


def _spread(
    proto: onnx.ModelProto, wishes: Wishes, apart: Decomposed, named: Collection[str]
) -> Wishes:
    """What is asked of an operator is asked of its parts, but for those that are named."""
    there = {node.name for node in apart.proto.graph.node}
    bits = {name: width for name, width in wishes.bits.items() if name in there}
    inputs = {slot: width for slot, width in wishes.inputs.items() if slot[0] in there}
    nodes = {node.name: node for node in proto.graph.node}
    for name, part in apart.parts.items():
        if not (part.is_written or name in named):
            bits[name] = wishes.bits.get(part.origin, 8)
    for (origin, index), width in wishes.inputs.items():
        if origin in nodes and origin not in there:
            own = _slots(nodes[origin], index, apart)
            inputs |= {slot: width for slot in own if slot not in wishes.inputs}
    return replace(wishes, bits=bits, inputs=inputs)


def _slots(node: onnx.NodeProto, index: int, apart: Decomposed) -> list[Slot]:
    """The inputs of parts that read input ``index`` of the operator ``node``.

    Where none does (a mask that is peeled off the scores), those that read what comes from outside.
    """
    if index >= len(node.input):
        raise ArgumentError(
            f"node_config: {node.name}: there is no input{index}, {node.op_type} has "
            f"{len(node.input)} here"
        )
    wiring = wiring_of(apart.proto.graph)
    parts = set(apart.of(node.name))
    read = [slot for slot in wiring.slots.get(node.input[index], ()) if slot[0] in parts]
    return read or [
        (name, position)
        for name in parts
        for position, tensor in enumerate(wiring.nodes[name].input)
        if wiring.maker.get(tensor, "") not in parts and tensor not in wiring.constants
    ]


def _warn_of_unused(named: Collection[str], facts: Facts, apart: Decomposed) -> None:
    """Parts that the configuration names, of operators that stay whole."""
    for name in named:
        if name not in facts and name not in apart.parts:
            _log.warning(
                "node_config: %s is no node of the calibrated model, its operator stays whole; the "
                "entry has no effect",
                name,
            )
