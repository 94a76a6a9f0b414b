"""``qtune compat-report``: the toolchain names of scripts, and which of them qtune has."""

from __future__ import annotations

import argparse

from qtune.cli.outcome import Gate, InputError, Outcome
from qtune.compat.report import CompatReport, NameUse, compat_report, lines_of
from qtune.errors import ArgumentError
from qtune.report.table import text_table


def run(args: argparse.Namespace) -> Outcome:
    """Read the scripts; a name without counterpart fails."""
    try:
        report = compat_report(args.scripts)
    except ArgumentError as error:
        raise InputError(str(error)) from None
    gates = [
        Gate(use.name, False, None, "a counterpart", {}, got=_instead(use))
        for use in report.missing
    ]
    result = {
        "names": [use.to_dict() for use in report.names],
        "found": len(report.names) - len(report.missing),
        "missing": len(report.missing),
    }
    return Outcome({"scripts": ", ".join(report.files)}, result, _text(report), gates)


def _text(report: CompatReport) -> str:
    if not report.names:
        return "no name of the toolchain is used"
    several = len(report.files) > 1
    rows = [
        [use.name, use.counterpart or f"MISSING, {_instead(use)}", lines_of(use.places, several)]
        for use in report.names
    ]
    have = len(report.names) - len(report.missing)
    table = text_table(rows, ["toolchain", "qtune", "lines"])
    return f"{table}\n\n{have} of {len(report.names)} names exist"


def _instead(use: NameUse) -> str:
    near = f"nearest: {use.nearest}" if use.nearest else "nothing alike"
    return f"{near} ({use.reason})" if use.reason else near
