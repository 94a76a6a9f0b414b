"""``hbdk4.compiler`` under our roof: load, save, convert, compile, link, ``Hbm``, ..."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from qtune.bpu import onnx as onnx  # a member by its own name, not one that * brings
from qtune.bpu.compile_cache import cache_file, fetch, store
from qtune.bpu.convert import convert
from qtune.bpu.estimate import Estimate, estimate
from qtune.bpu.hardware import hardware
from qtune.bpu.hbm import OBJECT_SUFFIX, SUFFIX, Hbm, Hbo, Piece, link, write_program
from qtune.bpu.memory import plan_memory
from qtune.bpu.options import OPTIONS, CompileOptions, check_options
from qtune.bpu.perf import hbm_perf
from qtune.bpu.visualize import visualize
from qtune.errors import ArgumentError
from qtune.hbir.builder import META_ATTRS, META_OP, META_SHAPES, META_TYPE
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx
from qtune.hbir.operation import META_MEMBER_TYPES
from qtune.hbir.precision import PrecisionConfig
from qtune.hbir.serialize import from_bytes, save
from qtune.hbir.serialize import load as load_file
from qtune.march import March, as_march, refuse_other_march
from qtune.report.progress import Bar, progress_bar
from qtune.report.screen import show

__all__ = [
    "Hbm",
    "Hbo",
    "PrecisionConfig",
    "compile",
    "convert",
    "hbm_perf",
    "link",
    "load",
    "save",
    "statistics",
    "visualize",
]

ONNX_SUFFIX = ".onnx"
_log = logging.getLogger(__name__)
_PROGRAMS: Mapping[str, type[Hbm] | type[Hbo]] = {SUFFIX: Hbm, OBJECT_SUFFIX: Hbo}
_DEBUG_FACTS = (META_ATTRS, META_SHAPES)


def compile(  # noqa: A001
    m: HbirModule,
    path: str | Path,
    march: March | str,
    opt: int = 2,
    jobs: int = 4,
    max_time_per_fc: float = 0.0,
    debug: bool = False,
    progress_bar: bool = False,
    advice: float = 0.0,
    balance: int = 100,
    input_no_padding: bool = False,
    output_no_padding: bool = False,
    cache_mode: str = "disable",
    cache_path: str | Path = "",
    max_l2m_size: int | None = 0,
    **unknown: Any,
) -> Hbm | Hbo:
    """Write the packed program of a quantized module to ``path`` and open it.

    ``.hbm`` is a program (``Hbm``), ``.hbo`` an object for ``link`` (``Hbo``). Either holds the
    module, which gives the same bits as before, a memory plan and a static estimate. Options:

    * ``opt``: the memory plan. 0: each activation has a place of its own, 1: memory is reused in
      order of execution, 2: the best of several orders.
    * ``balance``: 0 (least DDR traffic) to 100 (fewest cycles), how operators that exceed the
      working memory are estimated to use it (``qtune.bpu.estimate``).
    * ``max_time_per_fc``: 1000 to 10000000 microseconds; the estimate cuts the program into
      function calls of at most that time (a longer operator is alone). 0: one call.
    * ``max_l2m_size``: bytes of the L2M cache (nash-p, nash-h) that keep activations out of DDR;
      ``None``: all of it.
    * ``input_no_padding``, ``output_no_padding``: dense arguments; else each row starts at a
      multiple of the march's stride alignment. See ``hbm.memory["ports"]``.
    * ``debug``: keep attributes and shapes of the float model's operators in the program.
    * ``advice``: a share of the time, such as 0.1; operators above it are logged and listed in
      ``hbm.advice``. 0: none.
    * ``progress_bar``: show the steps on standard error.
    * ``cache_mode``, ``cache_path``: "enable" takes a program that was compiled from equal content
      with equal options from that folder, "force_overwrite" makes it anew, "disable" uses none.
    * ``jobs``: without effect in this emulator, whose compile is one pass; recorded in
      ``hbm.options``.

    Raises ``ArgumentError`` for a wrong option, stage, march or suffix.
    """
    given = {name: value for name, value in locals().items() if name in OPTIONS} | unknown
    target, file = as_march(march), _program_path(path)
    checked = check_options(target, given)
    _check_module(m, target)
    program: Callable[[Path], Hbm | Hbo] = partial(_program_for(file), march=target)
    if checked.cache_mode == "disable":
        _write(m, file, target, checked)
        return program(file)
    key = cache_file(
        checked.cache_path, m.to_bytes(), target.value, checked.deciding(), file.suffix
    )
    found = fetch(key, file, program) if checked.cache_mode == "enable" else None
    if found is None:
        _write(m, file, target, checked)
        store(file, key)
    return program(file)


def load(path: str | Path, march: March | str | None = None) -> HbirModule:
    """Open a file that :func:`save` wrote, or import an ``.onnx`` file of another tool.

    An ONNX file comes as ``qtune.hbir.onnx_import.import_onnx`` gives it. Raises ``MarchError`` for
    a converted module that was made for another march than ``march``, or than the one that is set;
    without either, any is opened.
    """
    if Path(path).suffix == ONNX_SUFFIX:
        return import_onnx(path)
    module = load_file(path)
    if module.march is not None:
        refuse_other_march(module.march, str(path), march)
    return module


def _program_path(path: str | Path) -> Path:
    if not isinstance(path, (str, Path)):
        raise ArgumentError(f"compile: path must be a text or a Path, got {path!r}")
    if Path(path).is_dir():
        raise ArgumentError(f"compile: {path} is a folder; give the path of a file")
    return Path(path)


def _program_for(path: Path) -> type[Hbm] | type[Hbo]:
    if path.suffix not in _PROGRAMS:
        raise ArgumentError(
            f"{path}: a compiled program is saved under the suffix {SUFFIX}, an object for link "
            f"under {OBJECT_SUFFIX}"
        )
    return _PROGRAMS[path.suffix]


def _check_module(m: HbirModule, march: March) -> None:
    if not isinstance(m, HbirModule):
        raise ArgumentError(f"compile takes a converted module, got {type(m).__name__}")
    if m.stage != "quantized":
        raise ArgumentError(f"compile takes a converted module, got stage {m.stage!r}")
    if m.march != march.value:
        raise ArgumentError(f"the module was converted for {m.march}, not for {march}")


def _write(m: HbirModule, path: Path, march: March, options: CompileOptions) -> None:
    with progress_bar(3, "compile", unit="step", shown=options.progress_bar) as bar:
        _write_steps(m, path, march, options, bar)


def _write_steps(
    m: HbirModule, path: Path, march: March, options: CompileOptions, bar: Bar
) -> None:
    machine = hardware(march)
    memory = plan_memory(
        m.model.graph,
        options.memory_strategy,
        machine.allocation,
        options.padding(machine),
    )
    bar.advance("memory plan")
    cost = estimate(
        m.model,
        march.value,
        options.balance,
        options.l2m_bytes(machine),
        options.max_time_per_fc,
    )
    bar.advance("estimate")
    module = m if options.debug else _without_debug_facts(m)
    advice = _advice(cost, options.advice)
    piece = Piece(module, memory.to_dict(), cost.to_dict())
    recorded = {**options.to_dict(), "cache_path": str(options.cache_path)}
    write_program(path, [piece], march.value, m[0].desc, recorded, advice)
    bar.advance("program")


def _without_debug_facts(m: HbirModule) -> HbirModule:
    copy = from_bytes(m.to_bytes())
    for node in copy.model.graph:
        for key in _DEBUG_FACTS:
            node.metadata_props.pop(key, None)
    return copy


def _advice(cost: Estimate, threshold: float) -> list[dict[str, Any]]:
    """Operators above a share of the estimated time, the longest first."""
    if not threshold:
        return []
    found = sorted(
        (item for item in cost.operators if item.share > threshold), key=lambda item: -item.share
    )
    for item in found:
        _log.warning(
            "compile: %s (%s) takes %.1f %% of the estimated time, most of it for %s",
            item.op,
            item.type,
            100 * item.share,
            item.bound,
        )
    return [
        {"op": i.op, "type": i.type, "share": i.share, "latency_us": i.latency_us, "bound": i.bound}
        for i in found
    ]


def statistics(m: HbirModule | Hbm | Hbo, expand_fusion: bool = True) -> list[tuple[str, int]]:
    """Operators of a module and how often each occurs, most frequent first; also printed.

    ``expand_fusion``: operators of the float model are counted (``conv2d``, ``relu``), each member
    of a fused group for itself, and nodes that belong to none by their HBIR name
    (``qtune::QPixels``); else every node counts once, by its HBIR name (``qtune::QConv``).
    """
    if not isinstance(m, (HbirModule, Hbm, Hbo)):
        raise ArgumentError(f"statistics takes a module or a program, got {m!r}")
    counts: Counter[str] = Counter()
    for function in m:
        nodes = list(function.model.graph)
        typed = {n.metadata_props.get(META_OP) for n in nodes if META_TYPE in n.metadata_props}
        for node in nodes:
            name = f"{node.domain or 'onnx'}::{node.op_type}"
            counts.update(_expanded(node.metadata_props, name, typed) if expand_fusion else [name])
    rows = counts.most_common()
    width = max((len(name) for name, _ in rows), default=0)
    show("\n".join(f"{name:<{width}}  {count}" for name, count in rows))
    return rows


def _expanded(props: Mapping[str, str], name: str, typed: Collection[str | None]) -> list[str]:
    """The operators that a node stands for; none where another node of its operator says it."""
    if META_MEMBER_TYPES in props:
        found: list[str] = json.loads(props[META_MEMBER_TYPES])
        return found
    if META_TYPE in props:
        return [props[META_TYPE]]
    return [] if props.get(META_OP) in typed else [name]
