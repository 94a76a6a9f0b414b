"""One comparison of all operators, shared out: a result for each, and one for what is left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from qtune.testing.result import AssertionResult, LayerResult

_NUMBERS = 5
OTHERS = "[others]"
"""The name of the item for what no layer's item shows."""


@dataclass(frozen=True, slots=True)
class Layers:
    """``wholes``: the comparison by each limit; or the ``error`` that it ended with."""

    wholes: Sequence[AssertionResult] = ()
    error: Exception | None = None

    def of(self, layer: str) -> list[AssertionResult]:
        """The results of one operator, one for each limit; none where it was not compared."""
        return [
            _result(whole, found)
            for whole in self._found()
            for found in whole.layers
            if found.name == layer
        ]

    def others(self, known: Collection[str]) -> list[AssertionResult]:
        """What was found at operators that are not ``known``, so that nothing gets lost."""
        return [_rest(whole, known) for whole in self._found()]

    def _found(self) -> Sequence[AssertionResult]:
        if self.error is not None:
            raise self.error
        return self.wholes


def comparisons(compare: Callable[[], list[AssertionResult]]) -> Layers:
    """What ``compare`` gives; an error is kept, to be raised for each layer."""
    try:
        return Layers(compare())
    except Exception as error:  # noqa: BLE001 - the user's model may raise anything
        return Layers(error=error)


def _result(whole: AssertionResult, layer: LayerResult) -> AssertionResult:
    """The part of a comparison that is about one operator."""
    key = next(iter(whole.limits), "")
    return replace(
        whole,
        ok=layer.ok,
        where=layer.name,
        got=_got(whole, layer),
        metrics={key: layer.value} if key else {},
        layers=[layer],
        table="",
        advice="" if layer.ok else whole.advice,
    )


def _rest(whole: AssertionResult, known: Collection[str]) -> AssertionResult:
    """The operators that have no item; the whole where it is bad and no operator says so."""
    if not whole.ok and all(layer.ok for layer in whole.layers):
        return whole
    rest = [layer for layer in whole.layers if layer.name not in known]
    if not rest:
        return replace(
            whole,
            ok=True,
            where="",
            got="no other operator",
            metrics={},
            layers=(),
            advice="",
        )
    worst = max(rest, key=lambda layer: layer.badness)
    bad = [layer for layer in rest if not layer.ok]
    return replace(
        _result(whole, worst if not bad else max(bad, key=lambda layer: layer.badness)),
        ok=not bad,
        layers=rest,
        table=whole.table,
    )


def _got(whole: AssertionResult, layer: LayerResult) -> str:
    """As in the whole comparison: the metric, and the number found at this layer."""
    number = "n/a" if layer.value is None else f"{layer.value:.{_NUMBERS}g}"
    return f"{whole.measured.partition(' ')[0]} {number}"
