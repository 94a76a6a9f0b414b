"""The templates of ``QconfigSetter``: which dtype and threshold each port gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qtune.dtype import qint8
from qtune.errors import QconfigError
from qtune.qconfig.dtypes import Float, PortDType, is_dtype, port_dtype
from qtune.qconfig.plan import OpView
from qtune.qconfig.rules import Level, Setting, input_ports, match, why_unmatched

_PORTS = ("output", "weight", "input")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One value of a ``ModuleNameTemplate``: port -> one value, or one per operand (inputs)."""

    key: str
    dtypes: Mapping[str, tuple[PortDType, ...]]
    thresholds: Mapping[str, tuple[float, ...]]

    def values(self, kind: str) -> Mapping[str, tuple[Any, ...]]:
        return self.dtypes if kind == "dtype" else self.thresholds

    def rule(self, port: str) -> str:
        return f"ModuleNameTemplate {self.key!r} {port}"


@dataclass(frozen=True)
class ModuleNameTemplate:
    """Names or prefixes of operators and modules -> dtype, threshold; ``""`` is everything.

    A value is one of: a dtype (of the output); a threshold (a number, of the output);
    ``{"dtype": ..., "threshold": ...}``, each of them one value or one per port; or one dtype per
    port ``{"output": ..., "weight": ..., "input": ...}`` (beside a ``threshold``), where ``input``
    may be a sequence with one value per operand. ``torch.float32`` keeps a port float: the output
    of a GEMM is then its high-precision result, any other operator stays float. ``None`` keeps
    the operator float.
    The most specific name wins. ``freeze`` protects these settings from later templates.
    """

    config_mapping: Mapping[str, Any]
    freeze: bool = False
    _entries: tuple[_Entry, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.config_mapping, Mapping):
            raise QconfigError(
                "ModuleNameTemplate: expected a mapping of names to dtypes but got "
                f"{self.config_mapping!r}"
            )
        entries = tuple(_read(key, value) for key, value in self.config_mapping.items())
        object.__setattr__(self, "_entries", entries)

    @property
    def is_global(self) -> bool:
        """Whether it has the key ``""``."""
        return "" in self.config_mapping

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """The most specific setting of each port; the output's is searched over the group."""
        yield from self._best(group[-1].name, "output", group)
        for view in group:
            if view.weight:
                yield from self._best(view.name, "weight", [view])
            for index in input_ports(view):
                yield from self._best(view.name, "input", [view], index)

    def _best(
        self, name: str, port: str, places: Sequence[OpView], index: int | None = None
    ) -> Iterator[Setting]:
        full_port = port if index is None else f"{port}-{index}"
        for kind in ("dtype", "threshold"):
            fits = [
                (fit, order, entry)
                for order, view in enumerate(places)
                for entry in self._entries
                if port in entry.values(kind) and (fit := match(entry.key, view))
            ]
            if not fits:
                continue
            (level, _), _, entry = max(fits, key=lambda found: found[:2])
            value = {kind: _pick(entry.values(kind)[port], index or 0)}
            yield Setting(name, full_port, entry.rule(port), level, frozen=self.freeze, **value)

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Names (and ports) that decided nothing, each with the reason."""
        return [
            f"{entry.rule(port)}: {why_unmatched(entry.key, views)}"
            for entry in self._entries
            for port in _PORTS
            if (port in entry.dtypes or port in entry.thresholds) and entry.rule(port) not in used
        ]


@dataclass(frozen=True)
class ConvDtypeTemplate:
    """Input and weight dtype of every GEMM with a weight: conv, transposed conv, linear.

    ``None`` leaves that port as it was.
    """

    input_dtype: Any = qint8
    weight_dtype: Any = qint8

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """The dtypes for each member that is such a GEMM."""
        for view in group:
            if not (view.is_gemm and view.weight):
                continue
            if self.input_dtype is not None:
                dtype = port_dtype(self.input_dtype, "ConvDtypeTemplate: input_dtype")
                yield from _inputs(view, (dtype,), "ConvDtypeTemplate")
            if self.weight_dtype is not None:
                dtype = port_dtype(self.weight_dtype, "ConvDtypeTemplate: weight_dtype")
                yield Setting(view.name, "weight", "ConvDtypeTemplate", Level.GLOBAL, dtype)

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Nothing: a rule for a kind may find none of it."""
        return []


@dataclass(frozen=True)
class MatmulDtypeTemplate:
    """Operand dtypes of every GEMM of two activations: one dtype, or a pair.

    ``None`` leaves that operand as it was.
    """

    input_dtypes: Any = qint8

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """The dtypes for each member that is such a GEMM."""
        given = (self.input_dtypes,) if is_dtype(self.input_dtypes) else tuple(self.input_dtypes)
        if len(given) not in {1, 2}:
            raise QconfigError(f"MatmulDtypeTemplate: expected one dtype or a pair, got {given!r}")
        dtypes = [d if d is None else port_dtype(d, "MatmulDtypeTemplate") for d in given]
        for view in group:
            if view.is_gemm and not view.weight:
                yield from _inputs(view, dtypes, "MatmulDtypeTemplate")

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Nothing: a rule for a kind may find none of it."""
        return []


def _inputs(view: OpView, dtypes: Sequence[PortDType | None], rule: str) -> Iterator[Setting]:
    for index in input_ports(view):
        dtype = _pick(dtypes, index)
        if dtype is not None:
            yield Setting(view.name, f"input-{index}", rule, Level.GLOBAL, dtype)


def _pick(values: Sequence[Any], index: int) -> Any:
    return values[0] if len(values) == 1 else values[index] if index < len(values) else None


def _read(key: str, value: Any) -> _Entry:
    where = f"ModuleNameTemplate {key!r}"
    if not isinstance(key, str):
        raise QconfigError(f"{where}: a name must be a string, got {type(key).__name__}")
    if value is None:
        return _Entry(key, {"output": (Float.OPERATOR,)}, {})
    if isinstance(value, Mapping):
        named = {kind: given for kind, given in value.items() if kind not in _PORTS}
        ports = {port: given for port, given in value.items() if port in _PORTS}
        if ports:
            named = {"dtype": ports} | named
    else:
        named = {"dtype" if is_dtype(value) else "threshold": value}
    mixed = isinstance(value, Mapping) and "dtype" in value and not set(value).isdisjoint(_PORTS)
    if mixed or not named or not set(named) <= {"dtype", "threshold"}:
        raise QconfigError(
            f"{where}: expected a dtype, a threshold, 'dtype' and 'threshold', or the ports "
            f"{', '.join(_PORTS)}, but got {value!r}"
        )
    return _Entry(
        key,
        {p: tuple(port_dtype(d, where) for d in v) for p, v in _ports(named, "dtype", where)},
        {p: tuple(_threshold(t, where) for t in v) for p, v in _ports(named, "threshold", where)},
    )


def _ports(
    named: Mapping[str, Any], kind: str, where: str
) -> Iterable[tuple[str, tuple[Any, ...]]]:
    if kind not in named:
        return
    value = named[kind]
    by_port = value if isinstance(value, Mapping) else {"output": value}
    for port, given in by_port.items():
        if port not in _PORTS:
            raise QconfigError(f"{where}: {port!r} is no port; choose of {', '.join(_PORTS)}")
        many = isinstance(given, (list, tuple))
        if many and (port != "input" or not given):
            raise QconfigError(f"{where}: {port} takes one {kind}, got {given!r}")
        yield port, tuple(given) if many else (given,)


def _threshold(value: Any, where: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise QconfigError(f"{where}: a threshold is a positive number, got {value!r}")
    return float(value)
