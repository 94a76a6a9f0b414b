"""The options of ``compile``: what each may be, checked once, and what it does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from qtune.bpu.hardware import Hardware, hardware
from qtune.bpu.memory import STRATEGIES, Padding
from qtune.errors import ArgumentError
from qtune.march import March

CACHE_MODES = ("disable", "enable", "force_overwrite")
FC_LIMITS = (1_000, 10_000_000)
"""Microseconds; the documented range of ``max_time_per_fc`` beside 0."""

_WITHOUT_EFFECT = ("jobs", "progress_bar", "cache_mode", "cache_path")
"""Options that do not change the program, so they are no part of the cache's key."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Checked options; ``qtune.bpu.compiler.compile`` says what each does."""

    opt: int = 2
    jobs: int = 4
    max_time_per_fc: float = 0.0
    debug: bool = False
    progress_bar: bool = False
    advice: float = 0.0
    balance: int = 100
    input_no_padding: bool = False
    output_no_padding: bool = False
    cache_mode: str = "disable"
    cache_path: str = ""
    max_l2m_size: int | None = 0

    def to_dict(self) -> dict[str, Any]:
        """All options as plain values."""
        return asdict(self)

    def deciding(self) -> dict[str, Any]:
        """The options that decide what the program holds."""
        return {k: v for k, v in asdict(self).items() if k not in _WITHOUT_EFFECT}

    @property
    def memory_strategy(self) -> str:
        """How activations share memory."""
        return STRATEGIES[self.opt]

    def padding(self, machine: Hardware) -> Padding:
        """How the rows of inputs and outputs are aligned."""
        row = machine.stride_alignment
        return Padding(1 if self.input_no_padding else row, 1 if self.output_no_padding else row)

    def l2m_bytes(self, machine: Hardware) -> int:
        """Bytes of the L2M cache that the program may use."""
        return machine.l2m_bytes if self.max_l2m_size is None else self.max_l2m_size


OPTIONS = tuple(CompileOptions.__dataclass_fields__)
"""Names of all options."""


def check_options(march: March, given: dict[str, Any]) -> CompileOptions:
    """The options of a call, or one error that names the wrong one."""
    for name in given:
        if name not in OPTIONS:
            raise ArgumentError(f"compile takes no option {name!r}; it takes: {', '.join(OPTIONS)}")
    options = CompileOptions(**given)
    _whole("opt", options.opt, 0, 2)
    _whole("jobs", options.jobs, 1, 1024)
    _whole("balance", options.balance, 0, 100)
    for name in ("debug", "progress_bar", "input_no_padding", "output_no_padding"):
        if not isinstance(getattr(options, name), bool):
            raise _wrong(name, getattr(options, name), "True or False")
    low, high = FC_LIMITS
    limit = _number("max_time_per_fc", options.max_time_per_fc)
    if limit != 0 and not low <= limit <= high:
        raise _wrong("max_time_per_fc", limit, f"0 (no limit) or {low} to {high} microseconds")
    share = _number("advice", options.advice)
    if not 0 <= share < 1:
        raise _wrong("advice", share, "a share of the time from 0 (off) to below 1")
    _check_cache(options)
    _check_l2m(options, march)
    return options


def _check_cache(options: CompileOptions) -> None:
    if options.cache_mode not in CACHE_MODES:
        raise _wrong("cache_mode", options.cache_mode, f"one of {', '.join(CACHE_MODES)}")
    has_path = bool(str(options.cache_path))
    if options.cache_mode == "disable" and has_path:
        raise ArgumentError(
            f"compile: cache_path={str(options.cache_path)!r} has no effect with "
            "cache_mode='disable'; set cache_mode='enable' or leave the path out"
        )
    if options.cache_mode != "disable" and not has_path:
        raise ArgumentError(
            f"compile: cache_mode={options.cache_mode!r} needs cache_path, the folder of the cache"
        )


def _check_l2m(options: CompileOptions, march: March) -> None:
    size = options.max_l2m_size
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
        raise _wrong("max_l2m_size", size, "0 (off), None (all of it) or a number of bytes")
    available = hardware(march).l2m_bytes
    if size and not available:
        raise ArgumentError(
            f"compile: max_l2m_size={size}, but {march} has no L2M cache; leave it 0 or None"
        )
    if size and size > available:
        raise _wrong("max_l2m_size", size, f"at most {available} bytes on {march}")


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(name, value, f"a whole number from {low} to {high}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(name, value, "a number")
    return float(value)


def _wrong(name: str, value: Any, expected: str) -> ArgumentError:
    return ArgumentError(
        f"compile: {name} must be {expected}, got {value!r} (type={type(value).__name__})"
    )
