"""Runs every architecture of the zoos that are installed: ``python -m tests.zoo [names]``.

``--zoo timm`` takes one zoo; ``--log FILE`` keeps the results of finished architectures, so that
a second call goes on where the first stopped; ``--page FILE`` writes what the log holds as a page.
"""

from __future__ import annotations

import argparse
import json
import traceback
from pathlib import Path

import torch

from qtune import March, set_march

from .page import page
from .runner import Result, run
from .zoos import ZOOS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="only architectures whose name holds one of these")
    parser.add_argument("--zoo", choices=ZOOS, action="append", help="only this zoo")
    parser.add_argument("--log", type=Path, help="append results as lines of JSON")
    parser.add_argument("--page", type=Path, help="write the table of all results of --log")
    parser.add_argument("--trace", action="store_true", help="print the traceback of a failure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_march(March.NASH_E)
    known = _done(options.log)
    for zoo in options.zoo or ZOOS:
        for architecture in ZOOS[zoo]():
            if options.names and not any(name in architecture.name for name in options.names):
                continue
            if (zoo, architecture.name) in known:
                continue
            result = run(architecture)
            print(_line(zoo, result), flush=True)
            if options.trace and result.error is not None:
                traceback.print_exception(result.error)
            if options.log:
                with options.log.open("a") as file:
                    file.write(json.dumps({"zoo": zoo, **result.to_dict()}) + "\n")
    if options.page:
        options.page.write_text(page([json.loads(x) for x in options.log.read_text().splitlines()]))


def _line(zoo: str, result: Result) -> str:
    word = "ok" if result.passed else "refused" if result.is_refusal else "FAIL"
    return (
        f"{word:7} {zoo:12} {result.name:34} {result.equal:8} sizes {result.sizes} refused "
        f"{len(result.refused)} ops {result.operators} float {len(result.floats)} "
        f"capture {result.capture_s:.1f} prepare {result.prepare_s:.1f} "
        f"total {result.total_s:.1f} {result.step}: {result.problem[:300]}"
    )


def _done(log: Path | None) -> set[tuple[str, str]]:
    if log is None or not log.exists():
        return set()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {(line["zoo"], line["name"]) for line in lines}


if __name__ == "__main__":
    main()
