"""Which calls of functions and methods are one and the same in the model's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import fx

from qtune.capture.branches import BLOCK, CALL, slots


def name_calls(nodes: Sequence[fx.Node]) -> None:
    """Give every call of a function or method among ``nodes`` its identity, if it has none.

    The n-th call of one line of the model's code is one operator in all branches and all runs of a
    dynamic block.
    """
    used: set[tuple[Any, tuple[int, int]]] = set()
    for node in nodes:
        if CALL in node.meta:
            used.update((node.meta[CALL], slot) for slot in slots(node))
    for node in nodes:
        if CALL in node.meta or not _is_call(node):
            continue
        base = (*(str(node.meta.get(k, "")) for k in ("scope", "source")), target_name(node.target))
        base = (*base, node.meta[BLOCK][0] if BLOCK in node.meta else "")
        own, number = list(slots(node)), 0
        while any(((*base, number), slot) in used for slot in own):
            number += 1
        node.meta[CALL] = (*base, number)
        used.update((node.meta[CALL], slot) for slot in own)


def call_order(nodes: Iterable[fx.Node]) -> tuple[Any, ...]:
    """The identities of the calls among ``nodes``; ``None`` where one has none."""
    return tuple(node.meta.get(CALL) for node in nodes if _is_call(node))


def give_calls(nodes: Iterable[fx.Node], calls: Sequence[Any]) -> None:
    """Give the nodes of another recording of the same path the identities of ``calls``."""
    found = [node for node in nodes if _is_call(node)]
    if len(found) == len(calls):
        for node, call in zip(found, calls, strict=True):
            node.meta[CALL] = call


def _is_call(node: fx.Node) -> bool:
    is_function = node.op in ("call_function", "call_method")
    return is_function and node.meta.get("kind") == "op"


def target_name(target: Callable[..., Any] | str) -> str:
    """The target of a node as text."""
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None) or str(target)
    return f"{getattr(target, '__module__', '')}.{name}"
