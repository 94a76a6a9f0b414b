"""The decisions of ``resolve``: who decided what, and what did not come out as asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from qtune.dtype import float16
from qtune.errors import ArgumentError, QconfigError
from qtune.march import as_march
from qtune.nn.eager import eager_facts
from qtune.qconfig.plan import Decision, ModelOutput, Refusal, Resolution
from qtune.report.table import text_table

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("Module Name", "Port", "asked", "given", "rule", "reason")

MOST_NAMED = 5
"""How many rules or ports one warning names."""

_OUTPUT_HEAD = "output(s) of the model can't be high precision"


@dataclass(frozen=True, slots=True)
class Explanation:
    """How every dtype of a prepared model was decided.

    ``decisions``: per operator and port what was asked, what was given, by which rule and why; an
    operator that stays float has one of port ``operator``. ``corrections``: the decisions that gave
    something else than asked, by the march or by what the operator is. ``unmatched_rules``: rules
    that decided nothing, each with the reason. ``refused``: what the march can't run (hybrid).
    ``outputs``: results that leave the model quantized. ``advice``: what is worth a thought.
    True if every rule decided something and every dtype is the asked one.
    """

    decisions: tuple[Decision, ...]
    unmatched_rules: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    outputs: tuple[ModelOutput, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def corrections(self) -> tuple[Decision, ...]:
        """The decisions that gave something else than what was asked."""
        return tuple(decision for decision in self.decisions if decision.corrected)

    def of(self, name: str, port: str = "output") -> Decision:
        """The decision about one port; ``ArgumentError`` where there is none."""
        for decision in self.decisions:
            if (decision.name, decision.port) in {(name, port), (name, "operator")}:
                return decision
        ports = [decision.port for decision in self.decisions if decision.name == name]
        names = [decision.name for decision in self.decisions]
        close = get_close_matches(name, names) if not ports else ()
        raise ArgumentError(
            f"explain: nothing was decided about {port} of {name!r}"
            + (f"; decided were: {', '.join(ports)}" if ports else "")
            + (f"; close names: {', '.join(dict.fromkeys(close))}" if close else "")
            + "; print(explain(model)) shows all names and ports"
        )

    def __bool__(self) -> bool:
        return not (self.unmatched_rules or self.corrections)

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return asdict(self)

    def to_pandas(self) -> pd.DataFrame:
        """One row per decision: name, port, asked, given, rule, reason, corrected."""
        import pandas as pd

        return pd.DataFrame([asdict(decision) for decision in self.decisions])

    def __str__(self) -> str:
        rows = [(d.name, d.port, d.asked, d.given, d.rule, d.reason) for d in self.decisions]
        parts = [text_table(rows, COLUMNS)]
        for head, lines in self._lists():
            if lines:
                parts.append("\n".join([head, *(f"  {line}" for line in lines)]))
        return "\n\n".join(parts) + "\n"

    def _lists(self) -> Iterator[tuple[str, list[str]]]:
        yield "Given another dtype than asked:", [_correction(d) for d in self.corrections]
        yield "Rules that decided nothing:", list(self.unmatched_rules)
        yield "The march can't run:", [f"{r.name} ({r.op}): {r.reason}" for r in self.refused]
        outputs = [f"{o.name}: {o.reason}" for o in self.outputs]
        yield "Results that leave the quantized part, not in high precision:", outputs
        yield "Advice:", list(self.advice)


def explain(model: Any) -> Explanation:
    """How the dtypes of a model that ``prepare`` made were decided, also by its ``resolution``.

    Print it, or ask it: ``explain(model).of("head", "weight")``, ``.to_pandas()``.
    """
    holder = eager_facts(model) or model
    found = model if isinstance(model, Resolution) else getattr(holder, "resolution", None)
    if not isinstance(found, Resolution):
        raise ArgumentError(
            f"explain: expected a model made by prepare but got {type(model).__name__}"
        )
    advice = tuple(_advice(found, str(getattr(holder, "march", "") or "")))
    return Explanation(
        found.explanation, found.unmatched_rules, found.refused, found.outputs, advice
    )


def surprises(resolution: Resolution) -> list[str]:
    """What the user asked for and did not get, as warnings: one text for each kind.

    Rules that decided nothing (with close names), dtypes that the march does not take, and outputs
    that a setter of the older kind would have made high precision. All of them stand in
    :func:`explain`; a warning names the first few.
    """
    return [f"{len(lines)} {head}: {_first(lines)}" for head, lines in _surprises(resolution)]


def raise_surprises(resolution: Resolution) -> None:
    """Raise ``QconfigError`` with every rule that decided nothing, every dtype not given."""
    lines = [
        f"{len(found)} {head}: {'; '.join(found)}"
        for head, found in _surprises(resolution)
        if head != _OUTPUT_HEAD
    ]
    if lines:
        raise QconfigError(
            f"strict: {'. '.join(lines)}. Correct the rules, or leave strict out to go on"
        )


def _surprises(resolution: Resolution) -> Iterator[tuple[str, list[str]]]:
    if resolution.unmatched_rules:
        yield "rule(s) of the qconfig decided nothing", list(resolution.unmatched_rules)
    if resolution.corrections:
        yield "dtype(s) are not the asked ones", [_correction(d) for d in resolution.corrections]
    low = [f"{o.name}: {o.reason}" for o in resolution.outputs if not o.avoidable]
    if resolution.advise_outputs and low:
        yield _OUTPUT_HEAD, low


def _correction(decision: Decision) -> str:
    return (
        f"{decision.name} {decision.port}: asked {decision.asked}, given {decision.given}: "
        f"{decision.reason}"
    )


def _first(lines: list[str]) -> str:
    more = len(lines) - MOST_NAMED
    tail = f"; and {more} more (see model_check_result.txt)" if more > 0 else ""
    return "; ".join(lines[:MOST_NAMED]) + tail


def _advice(resolution: Resolution, march: str) -> Iterator[str]:
    """On a march with float16 that is what everything starts with (toolchain_facts 5.5)."""
    if not march or not as_march(march).limits.float16:
        return
    if not any(plan.dtype == float16 for plan in resolution.plans.values()):
        yield (
            f'{march} computes in float16: ModuleNameTemplate({{"": torch.float16}}) first, then '
            "ConvDtypeTemplate() and MatmulDtypeTemplate() for the GEMMs, is more accurate than "
            "qint8 everywhere"
        )
