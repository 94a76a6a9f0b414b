"""``qtune check``: structure, configuration, and what the march says to the model."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtune.bpu.convert import check_conversion
from qtune.check.march import on_the_cpu
from qtune.check.qat_model import report_on
from qtune.check.report import CheckReport
from qtune.cli.models import Session, session
from qtune.cli.outcome import Gate, Outcome
from qtune.errors import MarchError, QtuneError
from qtune.hbir.module import HbirModule
from qtune.march import March
from qtune.nn.prepared import OUTSIDE_STUBS, PreparedModel
from qtune.report.files import write_text
from qtune.testing.arguments import check_prepared

MARCH_FILE = "march_check.json"
_ITEM = "  - "


@dataclass(frozen=True, slots=True)
class MarchReport:
    """What stands against running the model on the march, and where each operator would run.

    ``violations``: one line each. ``on_cpu``: operators that the march leaves to the CPU.
    ``items``: the advice records of ``convert``.
    """

    violations: tuple[str, ...]
    on_cpu: tuple[str, ...] = ()
    items: tuple[Mapping[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return not self.violations

    def places(self) -> dict[str, int]:
        """How many nodes run where."""
        return dict(Counter(str(item["backend"]) for item in self.items))

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return {
            "violations": list(self.violations),
            "on_cpu": list(self.on_cpu),
            "backends": self.places(),
        }


def run(args: argparse.Namespace) -> Outcome:
    """Check the model that the options describe."""
    with session(args) as found:
        example = found.stages.batches[0]
        try:
            model: Any = found.calib
            on_march = _march_report(found)
        except MarchError:  # prepare takes no operator that the march lacks
            model = found.prepared(found.setter, hybrid=True)  # not calibrated
            on_march = MarchReport(tuple(_refused(model, found.march)))
        model = check_prepared("check", model)
        report = report_on(model.select_branch(example), model, example)
        folder = Path(args.out_dir)
        report.write(folder)
        records = [dict(item) for item in on_march.items]
        write_text(folder / MARCH_FILE, json.dumps({**on_march.to_dict(), "items": records}))
        findings = _findings(report, on_march)
        return Outcome(
            found.facts,
            {"findings": findings, "march": on_march.to_dict()},
            _text(report, on_march),
            [_gate(kind, findings[kind]) for kind in args.fail_on],
            [folder / "model_check_result.txt", folder / MARCH_FILE],
        )


def _march_report(found: Session) -> MarchReport:
    """Violations at export count like those at conversion: each says what is in the way."""
    try:
        lines, items = check_conversion(_qat(found), found.march)
    except QtuneError as error:
        return MarchReport(tuple(_lines(str(error))))
    return MarchReport(tuple(lines), () if lines else tuple(on_the_cpu(items)), tuple(items))


def _refused(model: PreparedModel, march: March) -> Iterator[str]:
    return (
        f"{op.name} ({op.op}){op.call_site}: {op.reason}"
        for op in model.float_ops
        if op.reason.startswith(str(march))
    )


def _lines(message: str) -> list[str]:
    """The items of a message that lists several; else the message."""
    items = [line.removeprefix(_ITEM) for line in message.splitlines() if line.startswith(_ITEM)]
    return items or [message]


def _qat(found: Session) -> HbirModule:
    found.stage("calib")  # a state that does not fit is found here
    return found.stages.qat_bc


def _findings(report: CheckReport, on_march: MarchReport) -> dict[str, list[str]]:
    """One line per finding, by kind."""
    floats = {name: f"{op}: {why}" for name, op, why in report.float_ops}
    inside = [f"{n}: {w}" for n, w in floats.items() if OUTSIDE_STUBS not in w]
    cpu = [line for line in on_march.on_cpu if line.partition(":")[0] not in floats]
    return {
        "unfused": [f"{' + '.join(item.names)}: {item.reason}" for item in report.unfused],
        "shared": [f"{name}: {count} calls" for name, count in report.shared.items()],
        "unused": [name for name, count in report.call_counts.items() if count == 0],
        "float": inside + cpu,
        "march": list(on_march.violations),
        "config": [f"{m.name}: {m.text}" for m in report.messages if not m.normal],
    }


def _gate(kind: str, lines: Sequence[str]) -> Gate:
    where = {"first": lines[0]} if lines else {}
    return Gate(f"--fail-on {kind}", not lines, len(lines), "0", where)


def _text(report: CheckReport, on_march: MarchReport) -> str:
    """The report without what is as it should be, then the march."""
    parts = [report.abnormal() or "The structure is as it should be."]
    if report.float_ops:
        lines = [f"  {name} ({op}): {why}" for name, op, why in report.float_ops]
        parts.append("\n".join(["These operators stay float:", *lines]))
    if on_march.violations:
        lines = [f"  {line}" for line in on_march.violations]
        parts.append("\n".join(["The march can't run these:", *lines]))
    else:
        places = ", ".join(f"{count} on {name}" for name, count in on_march.places().items())
        lines = [f"  {line}" for line in on_march.on_cpu]
        parts.append("\n".join([f"The march runs all of it ({places}).", *lines]))
    return "\n\n".join(parts)
