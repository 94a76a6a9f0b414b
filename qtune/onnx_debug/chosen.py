"""Which nodes somebody asked for: a name or a list of names, checked against the model."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from qtune.errors import ArgumentError, kind_of
from qtune.onnx_debug.calibrated import CalibratedModel

NODE, CALIBRATION = "ordinary node", "calibration node"


def chosen_nodes(
    model: CalibratedModel, names: Any, argument: str, kinds: Sequence[str] = (NODE, CALIBRATION)
) -> list[str]:
    """``names``, one or a list, as a list without repetitions.

    Raises ``ArgumentError`` in the name of ``argument`` for anything that is no name of a node of
    ``kinds``, with close matches.
    """
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, Sequence) or not all(isinstance(name, str) for name in listed):
        got = "None" if names is None else f"{kind_of(names)} ({names!r})"
        raise ArgumentError(
            f"{argument}: expected the name of a node, or a list of names; got {got}"
        )
    if not listed:
        raise ArgumentError(f"{argument}: the list is empty; name at least one node")
    known = _known(model)
    for name in listed:
        if known.get(name) not in kinds:
            raise _wrong(model, name, known, argument, kinds)
    return list(dict.fromkeys(listed))


def _known(model: CalibratedModel) -> dict[str, str]:
    return dict.fromkeys((node.name for node in model.nodes), NODE) | dict.fromkeys(
        model.calibrations, CALIBRATION
    )


def _wrong(
    model: CalibratedModel, name: str, known: dict[str, str], argument: str, kinds: Sequence[str]
) -> ArgumentError:
    allowed = [item for item, kind in known.items() if kind in kinds]
    wanted = " or ".join(kinds)
    near = get_close_matches(name, allowed, n=3)
    hint = f"close matches: {', '.join(near)}" if near else f"there are {_some(allowed)}"
    if name in known:
        return ArgumentError(f"{argument}: {name} is an {known[name]}, expected a {wanted}; {hint}")
    at = next((item for item in _at_tensor(model, name) if item[0] in allowed), None)
    if at is not None:
        hint = f"it is the name of a tensor, which {at[0]} {at[1]}"
    return ArgumentError(f"{argument}: the model has no {wanted} {name!r}; {hint}")


def _at_tensor(model: CalibratedModel, tensor: str) -> list[tuple[str, str]]:
    """What makes the tensor, and what calibrates it."""
    items = model.calibrations.values()
    return [
        *((node.name, "makes") for node in model.nodes if tensor in node.outputs),
        *((item.name, "makes") for item in items if tensor == item.output),
        *((item.name, "reads") for item in items if tensor == item.source),
    ]


def _some(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"
