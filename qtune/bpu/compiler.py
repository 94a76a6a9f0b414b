"""``hbdk4.compiler`` under our roof: load, save, convert, compile, statistics, ``Hbm``."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

from qtune.bpu.convert import convert
from qtune.bpu.hbm import SUFFIX, Hbm, pack
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.hbir.serialize import load, save
from qtune.march import March, as_march
from qtune.report.files import write_with

__all__ = [
    "Hbm",
    "compile",
    "convert",
    "hbm_perf",
    "link",
    "load",
    "save",
    "statistics",
    "visualize",
]

_log = logging.getLogger(__name__)

_OPTIONS = {
    "opt": 2,
    "jobs": 4,
    "max_time_per_fc": 0.0,
    "debug": False,
    "progress_bar": False,
    "advice": 0.0,
    "balance": 100,
    "input_no_padding": False,
    "output_no_padding": False,
    "cache_mode": "disable",
    "cache_path": "",
    "max_l2m_size": 0,
}
"""Documented options of compile and their defaults, the only values that are done so far."""


def compile(  # noqa: A001
    m: HbirModule, path: str | Path, march: March | str, **options: Any
) -> Hbm:
    """Write the packed program of a quantized module to ``path`` (``.hbm``) and open it.

    The documented options (``opt``, ``jobs``, ...) are accepted at their defaults; another value
    raises ``NotImplementedError``.
    """
    target = as_march(march)
    for name, value in options.items():
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise ArgumentError(f"compile takes no option {name!r}; it takes: {known}")
        if value != _OPTIONS[name]:
            raise NotImplementedError(
                f"compile(..., {name}={value!r}) is not implemented yet; only "
                f"{name}={_OPTIONS[name]!r} is"
            )
    if m.stage != "quantized":
        raise ArgumentError(f"compile takes a converted module, got stage {m.stage!r}")
    if m.march != target.value:
        raise ArgumentError(f"the module was converted for {m.march}, not for {target}")
    if Path(path).suffix == ".hbo":
        raise NotImplementedError("compile to .hbo objects is not implemented yet; use .hbm")
    if Path(path).suffix != SUFFIX:
        raise ArgumentError(f"{path}: a compiled program is saved under the suffix {SUFFIX}")
    data = pack(m, target.value, m[0].desc)
    write_with(path, lambda partial: partial.write_bytes(data))
    return Hbm(path)


def statistics(m: HbirModule) -> list[tuple[str, int]]:
    """Operators of a module and how often each occurs, most frequent first; also logged."""
    counts = Counter(f"{node.domain or 'onnx'}::{node.op_type}" for node in m.model.graph)
    rows = counts.most_common()
    for name, count in rows:
        _log.info("%-32s %d", name, count)
    return rows


def link(*args: Any, **kwargs: Any) -> Hbm:
    """Not done yet."""
    raise NotImplementedError("link is not implemented yet; compile to one .hbm file")


def hbm_perf(*args: Any, **kwargs: Any) -> None:
    """Not done yet; ``Hbm(path).estimate`` holds the static estimate."""
    raise NotImplementedError("hbm_perf is not implemented yet; see Hbm(path).estimate")


def visualize(*args: Any, **kwargs: Any) -> None:
    """Not done yet; a ``.bc`` file opens in Netron as an ONNX file."""
    raise NotImplementedError("visualize is not implemented yet; open the .bc file in Netron")
