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

from qtune.bpu.context import STAYS_FLOAT, Conversion
from qtune.bpu.march_check import MarchCheck
from qtune.bpu.walk import Walk
from qtune.errors import ArgumentError, ConvertError
from qtune.hbir.attributes import dump_facts
from qtune.hbir.builder import META_MARCH, META_OP, META_SOURCE, META_STAGE
from qtune.hbir.module import META_REPORT, HbirModule
from qtune.hbir.verify import verify
from qtune.march import March, as_march, get_march
from qtune.report.files import write_text

_log = logging.getLogger(__name__)


def convert(
    module: HbirModule,
    march: March | str | None = None,
    advice: bool = False,
    advice_path: str = "",
    **options: Any,
) -> HbirModule:
    """Return the integer module for ``march`` (default: the one set); ``module`` stays as it is.

    ``advice`` logs, and ``advice_path`` writes as JSON, where each operator runs and why.
    ``result.report`` lists what stays float and whatever else was noted. Raises ``ConvertError``
    with one line for every operator that can't be converted: operator, reason, remedy.
    """
    if options:
        raise ArgumentError(f"convert takes no option {', '.join(sorted(options))}")
    target = get_march() if march is None else as_march(march)
    _check_source(module)
    verify(module.model, "qat")
    source = module.model
    ctx = Conversion(source.graph.name or "forward", target.value)
    walk = Walk(source, ctx)
    walk.run()
    MarchCheck(target).run(walk)
    _raise_violations(walk.violations, target, _call_sites(source))
    model = _finish(source, ctx, target)
    verify(model, "quantized")
    result = HbirModule(model)
    _publish(result, advice, advice_path)
    return result


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
    if module._high_precision_qpp:
        raise NotImplementedError("convert: high-precision requantize (31 bits) is not done yet")


def _call_sites(source: ir.Model) -> dict[str, str]:
    """Where in the float model each operator is called, by its name: `` (model.py:12)``."""
    props = [node.metadata_props for node in source.graph]
    return {p[META_OP]: p[META_SOURCE] for p in props if META_OP in p and META_SOURCE in p}


def _raise_violations(violations: list[str], march: March, call_sites: dict[str, str]) -> None:
    if violations:
        named = ((line.partition(":")[0], line) for line in violations)
        lines = "\n".join(
            f"  - {op}{call_sites.get(op, '')}{line.removeprefix(op)}" for op, line in named
        )
        raise ConvertError(
            f"{len(violations)} operator(s) can't be converted for {march}:\n{lines}"
        )


def _finish(source: ir.Model, ctx: Conversion, march: March) -> ir.Model:
    metadata = dict(source.metadata_props)
    metadata[META_STAGE] = "quantized"
    metadata[META_MARCH] = march.value
    metadata[META_REPORT] = dump_facts([note.to_dict() for note in ctx.notes])
    ctx.remove_dead_nodes()
    model = ctx.finish(metadata)
    model.doc_string = source.doc_string
    return model


def _publish(module: HbirModule, advice: bool, advice_path: str) -> None:
    for note in module.report:
        _log.warning("convert: %s: %s: %s", note["op"], note["kind"], note["message"])
    if not advice and not advice_path:
        return
    items = advice_items(module)
    if advice:
        _log.info("convert advice: %s", json.dumps(items, indent=1))
    if advice_path:
        write_text(advice_path, json.dumps(items, indent=1))


def advice_items(module: HbirModule) -> list[dict[str, Any]]:
    """Where each operator of a converted module runs and why: the documented advice records."""
    reasons = {note["op"]: note["message"] for note in module.report if note["kind"] == STAYS_FLOAT}
    return [
        {
            "backend": "external_cpu" if node.metadata_props.get(META_OP) in reasons else "bpu",
            "choice_reason": reasons.get(node.metadata_props.get(META_OP, ""), "integer kernel"),
            "loc": node.metadata_props.get(META_OP, node.name),
            "op": f"{node.domain or 'onnx'}::{node.op_type}",
            "tensor_names": [value.name for value in node.outputs],
        }
        for node in module.model.graph
    ]
