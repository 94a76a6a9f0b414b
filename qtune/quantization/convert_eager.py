"""``convert`` of models prepared in eager mode: operators are replaced one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from qtune.errors import ConvertError
from qtune.nn.eager import eager_facts
from qtune.nn.qat import QATOp, iter_stubs
from qtune.nn.qat.functional import FloatFunctional, is_functional
from qtune.nn.quantized import PreservedOp, QuantizedFunctional, quantized_class
from qtune.nn.quantized.preserved import is_preserved
from qtune.nn.quantized.unreached import Unreached, UnreachedFunctional
from qtune.nn.quantized.wiring import Wiring
from qtune.prepare.eager_layer import EagerComposite


def convert_eager(module: nn.Module, mapping: Mapping[type, type]) -> nn.Module:
    """Replace every prepared operator of a model that was prepared in eager mode.

    Those without a scale become :class:`~qtune.nn.quantized.unreached.Unreached`.
    """
    facts: Any = eager_facts(module)
    for composite in list(module.modules()):
        if isinstance(composite, EagerComposite):
            composite.keep_plan()
    preserved = _preserved_groups(module)
    made: dict[QATOp, nn.Module] = {}
    for path, op in list(module.named_modules(remove_duplicate=False)):
        if not isinstance(op, QATOp) or isinstance(_parent(module, path), QATOp):
            continue
        if op not in made and any(not bool(stub.observed) for _, _, stub in iter_stubs(op)):
            made[op] = (UnreachedFunctional if is_functional(op) else Unreached)(op.name)
        if op not in made:
            kept = is_preserved([op]) or (op.group and op.group in preserved)
            made[op] = _functional_or_op(op, facts.march, mapping, bool(kept))
        module.set_submodule(path, made[op])
    return module


def _parent(module: nn.Module, path: str) -> nn.Module:
    return module.get_submodule(path.rpartition(".")[0])


def _preserved_groups(module: nn.Module) -> set[str]:
    """Fused groups of which ``set_preserve_qat_mode`` chose a member."""
    ops = (item for item in module.modules() if isinstance(item, QATOp))
    return {op.group for op in ops if op.group and is_preserved([op])}


def _functional_or_op(op: QATOp, march: str, mapping: Mapping[type, type], kept: bool) -> nn.Module:
    if isinstance(op, FloatFunctional) and type(op) not in mapping:
        if kept:
            raise ConvertError(
                f"set_preserve_qat_mode: {op.name} is a FloatFunctional, which can't stay in QAT "
                "form in an eager model; choose other modules"
            )
        if not op.is_called:
            raise ConvertError(
                f"convert: {op.name}: which operator this FloatFunctional is shows its first call; "
                "run the model once before convert, or remove the FloatFunctional"
            )
        level = op.consistency_level
        return QuantizedFunctional(op, group=op.group, march=march, consistency_level=level)
    return replacement([op], None, march, op.consistency_level, (), mapping, kept)


def replacement(
    ops: Sequence[QATOp],
    wiring: Wiring | None,
    march: str,
    level: int | None,
    constants: Iterable[int],
    mapping: Mapping[type, type],
    kept: bool = False,
) -> nn.Module:
    """The module that stands for ``ops``: the user's class, an integer one, or the QAT form."""
    chosen = mapping.get(type(ops[-1]))
    if chosen is not None:
        made: nn.Module = chosen.from_float(ops[-1])  # type: ignore[attr-defined]
        return made
    if kept or is_preserved(ops):
        return PreservedOp(ops, wiring)
    facts: dict[str, Any] = {"march": march, "consistency_level": level, "constants": constants}
    group = ops[0].group if wiring is None else ""
    result = quantized_class(ops)(ops, wiring, group=group, **facts)
    result.qconfig = ops[-1].qconfig
    return result
