"""convert: from fake-quantized floats to integers (numerics.md sections 1 to 3).

Walks the nodes of a qat module once. What an operator becomes is its kernel's business
(``HbirKernel.convert``); here lie the order, the borders between float and integer, and the list
of everything that can't be done.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import onnx_ir as ir

from qtune.bpu.advice import Violation, converted_items, refused_items, violation_lines
from qtune.bpu.context import Conversion
from qtune.bpu.march_check import MarchCheck
from qtune.bpu.walk import BORDER, Walk
from qtune.errors import ArgumentError, ConvertError
from qtune.hbir.attributes import dump_facts
from qtune.hbir.builder import META_IMPORTED, META_MARCH, META_STAGE
from qtune.hbir.module import META_REPORT, HbirModule
from qtune.hbir.precision import PrecisionConfig
from qtune.hbir.verify import verify
from qtune.march import March, as_march, get_march
from qtune.modes import CONSISTENCY_MARCHES, level_on
from qtune.report.files import write_text
from qtune.report.screen import show

_log = logging.getLogger(__name__)


def convert(
    module: HbirModule,
    march: March | str | None = None,
    advice: bool = False,
    advice_path: str = "",
    **options: Any,
) -> HbirModule:
    """Return the integer module for ``march`` (default: the one set); ``module`` stays as it is.

    ``advice`` prints, and ``advice_path`` writes as JSON, where each operator runs and why; also
    where the conversion is refused. ``result.report`` lists what stays float and whatever else was
    noted. Raises ``ConvertError`` with one line for everything that can't be converted: operator,
    reason, remedy.
    """
    if options:
        raise ArgumentError(f"convert takes no option {', '.join(sorted(options))}")
    if not isinstance(advice, bool):
        raise ArgumentError(
            f"convert: advice must be True or False, got {advice!r}; advice_path is the file to "
            "write to, and a share of the time is an option of compile"
        )
    target = get_march() if march is None else as_march(march)
    _check_source(module)
    verify(module.model, "qat")
    source = module.model
    ctx, violations = _walk(module, target)
    if violations:
        _advise(refused_items(source, violations, ctx.notes), advice, advice_path)
        _raise_violations(violations, target, source)
    model = _finish(source, ctx, target)
    verify(model, "quantized")
    result = HbirModule(model)
    _log_report(result)
    _advise(advice_items(result), advice, advice_path)
    return result


def check_conversion(
    module: HbirModule, march: March | str | None = None
) -> tuple[list[str], list[dict[str, Any]]]:
    """What stands against converting ``module``, one line each, and the advice records."""
    target = get_march() if march is None else as_march(march)
    _check_source(module)
    ctx, violations = _walk(module, target)
    if violations:
        items = refused_items(module.model, violations, ctx.notes)
        return violation_lines(violations, module.model), items
    model = _finish(module.model, ctx, target)
    return [], converted_items(model, [note.to_dict() for note in ctx.notes], target)


def advice_items(module: HbirModule) -> list[dict[str, Any]]:
    """Where each operator of a converted module runs and why: the documented advice records."""
    return converted_items(module.model, module.report, as_march(module.march or ""))


def _walk(module: HbirModule, target: March) -> tuple[Conversion, list[Violation]]:
    source = module.model
    level = level_on(module.consistency_level, target, "convert")
    separate = module._high_precision_qpp and target in CONSISTENCY_MARCHES
    imported = source.metadata_props.get(META_IMPORTED) == "1"
    ctx = Conversion(source.graph.name or "forward", target.value, separate, level, imported)
    walk = Walk(source, ctx)
    walk.precise = _precise_groups(module, target)
    walk.run()
    MarchCheck(target).run(walk)
    return ctx, walk.violations


def _precise_groups(module: HbirModule, target: March) -> frozenset[str]:
    found = module.precision_config.groups(PrecisionConfig.HIGH_PRECISION_QPP)
    if not found or target in CONSISTENCY_MARCHES:
        return found
    _log.warning(
        "convert: precision_config HIGH_PRECISION_QPP of %s has no effect on %s, only on %s",
        ", ".join(sorted(found)),
        target.value,
        " and ".join(march.value for march in CONSISTENCY_MARCHES),
    )
    return frozenset()


def _check_source(module: HbirModule) -> None:
    if not isinstance(module, HbirModule):
        raise ArgumentError(
            f"convert takes an HbirModule, got {type(module).__name__}; export first"
        )
    if module.stage != "qat":
        raise ConvertError(
            f"convert takes the module that export returned (stage 'qat'), got stage "
            f"{module.stage!r}"
        )


def _raise_violations(violations: list[Violation], march: March, source: ir.Model) -> None:
    lines = "".join(f"\n  - {line}" for line in violation_lines(violations, source))
    raise ConvertError(f"{len(violations)} operator(s) can't be converted for {march}:{lines}")


def _finish(source: ir.Model, ctx: Conversion, march: March) -> ir.Model:
    metadata = dict(source.metadata_props)
    metadata[META_STAGE] = "quantized"
    metadata[META_MARCH] = march.value
    metadata[META_REPORT] = dump_facts([note.to_dict() for note in ctx.notes])
    ctx.remove_dead_nodes()
    model = ctx.finish(metadata)
    model.doc_string = source.doc_string
    return model


def _log_report(module: HbirModule) -> None:
    for note in module.report:
        level = logging.INFO if note["kind"] == BORDER else logging.WARNING
        _log.log(level, "convert: %s: %s: %s", note["op"], note["kind"], note["message"])


def _advise(items: list[dict[str, Any]], advice: bool, advice_path: str) -> None:
    if advice:
        show(json.dumps(items, indent=1))
    if advice_path:
        write_text(advice_path, json.dumps(items, indent=1))
