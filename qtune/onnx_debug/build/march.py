"""What the march runs: the calibrated model is converted with stand-in scales and asked."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from qtune.bpu.advice import CPU, is_border
from qtune.bpu.convert import check_conversion
from qtune.check.march import is_outside
from qtune.hbir.onnx_import import import_onnx
from qtune.march import March
from qtune.onnx_debug.build.decompose import Part
from qtune.onnx_debug.build.facts import Kind, NodeFacts
from qtune.onnx_debug.build.insert import grid_of, with_calibrations
from qtune.onnx_debug.build.kept import Kept
from qtune.onnx_debug.build.place import Placement, Wishes, placed

_TORCH_ADVICE = re.compile(r"[.;] Give (it|the operator[^.;]*) a qconfig.*$", re.DOTALL)
"""What helps on the torch side; an ONNX file has no qconfigs."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A placement that the march runs, in ``proto``: the optimized model, its operators in parts.

    ``lowered``: nodes that asked for int16 and got int8. ``kept``: the grids that the file brought.
    ``parts``: nodes of ``proto`` that are parts of operators of the optimized model. ``fixed``:
    tensor (``Place.root``) -> threshold that the configuration fixes.
    """

    proto: onnx.ModelProto
    placement: Placement
    wishes: Wishes
    lowered: Mapping[str, str]
    kept: Kept
    parts: Mapping[str, Part] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)

    def part_that_makes(self, tensor: str) -> str | None:
        """The part of a composed operator whose inner result ``tensor`` is."""
        for node in self.proto.graph.node:
            part = self.parts.get(node.name)
            if tensor in node.output and part is not None and not part.is_written:
                return str(node.name)
        return None


def fitted(
    proto: onnx.ModelProto,
    facts: Mapping[str, NodeFacts],
    wishes: Wishes,
    march: March,
    kept: Kept,
    known: Mapping[str, str],
) -> Fitted:
    """Place calibration nodes so that the march runs every node that is fed by them.

    A node that it refuses in int16 is tried in int8, and stays float where that is refused too.
    ``known``: nodes that stay float in any case, and why.
    """
    refused: dict[str, str] = {**kept.refused(facts), **known}
    lowered: dict[str, str] = {}
    while True:
        placement = kept.adapted(proto, facts, placed(proto, facts, wishes, refused))
        if bare := kept.without_grid(proto, facts, placement):
            refused |= bare
            continue
        found = {
            name: reason
            for name, reason in _refusals(proto, placement, march, kept).items()
            if name in facts and name not in placement.floats
        }
        new = {n: r for n, r in found.items() if facts[n].kind in (Kind.INTEGER, Kind.PASSING)}
        if not new:
            return Fitted(proto, placement, wishes, lowered, kept)
        wide = {
            node: reason
            for name, reason in new.items()
            for node in _wide_around(proto, placement, wishes, name)
        }
        if wide:
            lowered |= wide
            wishes = _narrowed(wishes, wide)
        else:
            refused |= new


def _wide_around(
    proto: onnx.ModelProto, placement: Placement, wishes: Wishes, name: str
) -> set[str]:
    """The nodes that asked for the int16 which ``name`` takes or gives."""
    if _is_wide(name, wishes):
        return {name}
    node = next(item for item in proto.graph.node if item.name == name)
    touched = {*node.input, *node.output}
    roots = {place.root for place in placement.places if place.tensor in touched}
    users = {
        user
        for place in placement.places
        if place.root in roots and place.bits == 16
        for user, _ in place.slots
    }
    return {user for user in users if _is_wide(user, wishes)}


def _is_wide(name: str, wishes: Wishes) -> bool:
    return wishes.bits.get(name) == 16 or any(
        slot[0] == name and bits == 16 for slot, bits in wishes.inputs.items()
    )


def _narrowed(wishes: Wishes, names: Mapping[str, str]) -> Wishes:
    bits = {name: 8 if name in names else bits for name, bits in wishes.bits.items()}
    inputs = {slot: 8 if slot[0] in names else bits for slot, bits in wishes.inputs.items()}
    return replace(wishes, bits=bits, inputs=inputs)


def _refusals(
    proto: onnx.ModelProto, placement: Placement, march: March, kept: Kept
) -> dict[str, str]:
    """Node -> why the march does not run it as it is placed."""
    one = np.ones(1, np.float32)
    trial = with_calibrations(proto, placement, lambda place: grid_of(one, place.bits)).proto
    kept.restored(trial, placement.moved)
    lines, items = check_conversion(import_onnx(trial), march)
    found: dict[str, str] = {}
    for item in items:
        on_cpu = item["backend"] == CPU and not is_border(item["op"])
        if on_cpu and not is_outside(item["choice_reason"]):
            found.setdefault(item["loc"], _TORCH_ADVICE.sub("", item["choice_reason"]))
    _log.debug("trial conversion: %d refusals", len(lines))
    return found
