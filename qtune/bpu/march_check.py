"""Whether a march runs each operator: dtypes and limits that the operators carry as data."""

from __future__ import annotations

from collections.abc import Iterable

from qtune.bpu.walk import Traffic, Walk
from qtune.dtype import qint32
from qtune.hbir.attributes import load_facts
from qtune.hbir.builder import META_ATTRS, META_SHAPES, META_TYPE
from qtune.march import March
from qtune.ops.registry import spec
from qtune.ops.spec import MarchRule


class MarchCheck:
    """Appends a line to ``walk.violations`` for each operator that the march can't run."""

    def __init__(self, march: March) -> None:
        self.march = march

    def run(self, walk: Walk) -> None:
        """Check every operator that has quantized inputs or a quantized result."""
        for op, traffic in walk.traffic.items():
            if META_TYPE in traffic.facts and (traffic.inputs or traffic.output):
                walk.violations.extend(f"{op}: {line}" for line in self._lines(traffic))

    def _lines(self, traffic: Traffic) -> Iterable[str]:
        entry = spec(traffic.facts[META_TYPE])
        rules = [rule for rule in entry.march if self.march.series in rule.series]
        if not rules:
            yield f"{entry.name} does not run on {self.march}; keep it outside the stubs"
            return
        reasons = [self._refusal(rule, traffic) for rule in rules]
        if None not in reasons:
            yield f"{entry.name} on {self.march}: {reasons[0]}"

    def _refusal(self, rule: MarchRule, traffic: Traffic) -> str | None:
        wrong = sorted(traffic.inputs - set(rule.inputs))
        if wrong:
            return f"inputs may be {', '.join(rule.inputs)}, got {', '.join(wrong)}; set the dtype"
        # int32 leaves another operator (add, relu, a folded batch norm) only where it joined the
        # accumulator of a GEMM, whose own rule allows it
        entry = spec(traffic.facts[META_TYPE])
        fused = traffic.output == str(qint32) and entry.family != "gemm"
        if traffic.output is not None and traffic.output not in rule.outputs and not fused:
            return (
                f"the output may be {', '.join(rule.outputs)}, got {traffic.output}; set the dtype"
            )
        shapes = load_facts(traffic.facts[META_SHAPES])
        rank = max((len(shape) for shape in (*shapes[0], shapes[1]) if shape), default=0)
        if rank > self.march.limits.max_rank:
            limit = self.march.limits.max_rank
            return f"tensors may have {limit} dimensions, got {rank}; reshape before"
        if rule.check is None:
            return None
        return rule.check(load_facts(traffic.facts[META_ATTRS]), shapes[0], shapes[1])
