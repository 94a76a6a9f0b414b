"""Which compiled kernels this machine runs, and how they get compiled and called."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

SWITCH = "QTUNE_NATIVE"
"""Environment variable: ``off`` keeps every kernel on torch's own operators."""

_PIECES = 4
"""Pieces of work for each thread."""

LONG = 50_000
"""Nanoseconds of work from which on waking another thread pays."""

MOST_SHAPES = 32
"""Prepared calls that a kernel keeps, one for each shape of its input."""

_LEVELS = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE")
"""Values of ONEDNN_MAX_CPU_ISA that exclude AVX512-VNNI; AVX2_VNNI excludes AVX512."""


@dataclass(frozen=True, slots=True)
class Isa:
    """What the code is written for: ``lanes`` of 32 bits, ``registers`` of them.

    ``vnni``: four byte products add up in 32 bits; ``x86``: the 16-bit pair products of x86.
    """

    lanes: int
    registers: int
    vnni: bool
    x86: bool
    shuffles: bool


def available() -> bool:
    """Return whether compiled kernels run here; ``QTUNE_NATIVE=off`` answers False."""
    return os.environ.get(SWITCH, "").lower() != "off" and _llvm() is not None


def describe() -> str:
    """Return what reports say of the compiled kernels: the vector length and VNNI, or ``off``."""
    if not available():
        return "off"
    found = isa()
    return f"llvm-{32 * found.lanes}{'-vnni' if found.vnni else ''}"


def isa() -> Isa:
    """Return the instruction set in use; ONEDNN_MAX_CPU_ISA and QTUNE_INT8 limit it too."""
    without_int8 = os.environ.get("QTUNE_INT8", "").lower() == "off"
    return _isa(os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper(), without_int8)


@functools.cache
def _isa(limit: str, without_int8: bool) -> Isa:
    modules = _llvm()
    has = {} if modules is None else dict(modules[1].get_host_cpu_features())
    small = limit in _LEVELS[:4]
    wide = all(has.get(name) for name in ("avx512f", "avx512bw", "avx512vl", "avx512dq"))
    wide = wide and not small
    wide_vnni = wide and bool(has.get("avx512vnni")) and limit not in _LEVELS
    small_vnni = not wide and bool(has.get("avxvnni")) and limit not in _LEVELS[:3]
    return Isa(
        lanes=16 if wide else 8,
        registers=32 if wide else 16,
        vnni=(wide_vnni or small_vnni) and not without_int8,
        x86=bool(has.get("avx2")),
        shuffles=wide and bool(has.get("avx512vbmi")),
    )


@functools.cache
def _llvm() -> tuple[Any, Any] | None:
    """llvmlite's ``ir`` and ``binding``, or ``None`` without a usable llvmlite."""
    try:
        ir = importlib.import_module("llvmlite.ir")
        binding = importlib.import_module("llvmlite.binding")
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
    except (ImportError, OSError, RuntimeError, AttributeError):
        return None
    return (ir, binding) if hasattr(binding, "create_pass_builder") else None


def ir_module() -> Any:
    """Return llvmlite's ``ir``; only called where :func:`available`."""
    modules = _llvm()
    if modules is None:
        raise RuntimeError("llvmlite is not installed: pip install qtune[fast]")
    return modules[0]


def compiled(module: Any, name: str, flags: Isa) -> Native:
    """Compile ``void name(i64* parameters, i64 first, i64 stop)`` of ``module``."""
    modules = _llvm()
    if modules is None:
        raise RuntimeError("llvmlite is not installed: pip install qtune[fast]")
    binding = modules[1]
    machine = _machine(binding, flags)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    passes = binding.create_pass_builder(machine, _tuning(binding))
    passes.getModulePassManager().run(parsed, passes)
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    address = engine.get_function_address(name)
    return Native(address, engine)


class Native:
    """``native(parameters, units)``: run all units of work on the addresses and sizes given."""

    def __init__(self, address: int, engine: Any) -> None:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.function = kind(address)
        self._engine = engine  # the code lives as long as it does

    def __call__(self, parameters: Sequence[int], units: int) -> None:
        """Run once."""
        self.ready(parameters, units)()

    def ready(
        self, parameters: Sequence[int], units: int, keep: object = None, cost: float = LONG
    ) -> Launch:
        """Prepare calls of which only some parameters differ.

        ``keep`` is what others point to; ``cost``: about how many nanoseconds one thread takes.
        """
        return Launch(self, parameters, units if cost >= LONG else 1, units, keep)


class Launch:
    """``launch((place, value), ...)``: run with these parameters in place of the prepared ones."""

    def __init__(
        self, native: Native, parameters: Sequence[int], shares: int, units: int, keep: object
    ) -> None:
        self._native, self._shares, self._units, self._keep = native, shares, units, keep
        self._kind = ctypes.c_int64 * len(parameters)
        self._parameters = self._kind(*parameters)

    def __call__(self, *changes: tuple[int, int]) -> None:
        """Run on as many threads as torch may use; threads may call it at the same time."""
        values = self._kind.from_buffer_copy(self._parameters)
        for place, value in changes:
            values[place] = value
        function = self._native.function
        if self._shares < 2 or torch.get_num_threads() < 2:
            function(values, 0, self._units)
        else:
            _in_threads(lambda first, stop: function(values, first, stop), self._units)


def _tuning(binding: Any) -> Any:
    options = binding.create_pipeline_tuning_options(speed_level=1)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    return options


def _machine(binding: Any, flags: Isa) -> Any:
    """The host, less what the limit excludes."""
    features = dict(binding.get_host_cpu_features())
    for name in features:
        drop = flags.lanes < 16 and name.startswith("avx512")
        drop = drop or (not flags.vnni and name in ("avxvnni", "avx512vnni"))
        features[name] = features[name] and not drop
    text = ",".join(("+" if on else "-") + name for name, on in features.items())
    target = binding.Target.from_default_triple()
    return target.create_target_machine(binding.get_host_cpu_name(), text, 3, jit=True)


def _in_threads(run: Callable[[int, int], None], units: int) -> None:
    """Run ``run(first, stop)`` over all units, on as many threads as torch may use.

    Whoever is free takes the next piece: a thread that the system holds back delays no other.
    """
    threads = min(torch.get_num_threads(), units)
    pieces = min(units, _PIECES * threads)
    turns = itertools.count()

    def work() -> None:
        while (turn := next(turns)) < pieces:
            run(units * turn // pieces, units * (turn + 1) // pieces)

    waiting: list[Future[None]] = []
    try:
        # at the interpreter's end a pool takes no work: then this thread does all of it
        with contextlib.suppress(RuntimeError):
            pool = _pool(os.getpid(), threads - 1)
            waiting.extend(pool.submit(work) for _ in range(threads - 1))
        work()
    finally:  # whatever interrupts this thread: the others still use the caller's memory
        for future in waiting:
            if not future.cancel():
                future.result()


@functools.cache
def _pool(process: int, workers: int) -> ThreadPoolExecutor:
    """Threads of this process (a forked child has none of its parent's)."""
    return ThreadPoolExecutor(workers, thread_name_prefix="qtune-native")
