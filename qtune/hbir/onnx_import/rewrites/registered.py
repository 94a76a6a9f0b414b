"""Standard operators that are operators of the registry: lowered as those are at export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from qtune.errors import ExportError
from qtune.hbir.onnx_import.form import OnnxNode
from qtune.ops.kernel import Builder, LowerCall, Value
from qtune.ops.registry import spec
from qtune.ops.spec import OpSpec


@runtime_checkable
class TakesOperators(Protocol):
    """A builder that wants to know which operators of the registry nodes are."""

    def take_operator(self, entry: OpSpec, call: LowerCall) -> Any:
        """Emit a call of ``entry``; its value(s)."""


def lowered(
    b: Builder,
    node: OnnxNode,
    operator: str,
    operands: Sequence[int | None],
    attrs: Mapping[str, Any],
) -> Value:
    """``node`` as the registry's ``operator``.

    ``operands``: the input of each of its roles, ``None`` for roles that the node has not.
    """
    entry = spec(operator)
    places = [None if i is None or node.input(i) is None else i for i in operands]
    call = LowerCall(
        node.name,
        tuple(None if i is None else node.inputs[i] for i in places),
        attrs,
        tuple(None if i is None else node.shape(i) for i in places),
        node.output_shapes[0] or (),
        tuple(None if i is None else node.dtypes[i] for i in places),
    )
    if entry.lower is None:
        raise node.refusal(f"{operator} has no lowering")
    try:
        if isinstance(b, TakesOperators):
            return b.take_operator(entry, call)
        made: Value = entry.lower(b, call)
    except (ExportError, NotImplementedError) as error:
        raise node.refusal(str(error)) from None
    return made
