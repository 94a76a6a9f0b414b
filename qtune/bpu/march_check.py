"""Whether a march runs each operator: dtypes and limits that the operators carry as data."""

from __future__ import annotations

from collections.abc import Iterator

from qtune.bpu.advice import Violation
from qtune.bpu.walk import Traffic, Walk
from qtune.dtype import qint32
from qtune.hbir.attributes import load_facts
from qtune.hbir.builder import META_ATTRS, META_SHAPES, META_TYPE
from qtune.march import March
from qtune.ops.registry import spec
from qtune.ops.spec import MarchRule, OpSpec


class MarchCheck:
    """Appends to ``walk.violations`` whatever the march can't run of each operator."""

    def __init__(self, march: March) -> None:
        self.march = march

    def run(self, walk: Walk) -> None:
        """Check every operator that has quantized inputs or a quantized result."""
        known = {violation.op for violation in walk.violations}
        # an imported file says itself what is float; elsewhere that is a violation or outside
        floats = walk.in_float if walk.ctx.is_imported else set()
        for op, traffic in walk.traffic.items():
            if op in floats:
                continue
            if META_TYPE in traffic.facts and (traffic.inputs or traffic.output):
                reasons = self._reasons(traffic, dtypes=op not in known)
                walk.violations.extend(Violation(op, reason) for reason in reasons)

    def _reasons(self, traffic: Traffic, dtypes: bool) -> list[str]:
        """All that is wrong by the rule that fits best; without ``dtypes`` the walk said those."""
        entry = spec(traffic.facts[META_TYPE])
        rules = [rule for rule in entry.march if rule.covers(self.march)]
        if not rules:
            return [f"{entry.name} does not run on {self.march}; keep it outside the stubs"]
        found = [list(self._broken(entry, rule, traffic, dtypes)) for rule in rules]
        return [f"{entry.name} on {self.march}: {text}" for text in min(found, key=len)]

    def _broken(
        self, entry: OpSpec, rule: MarchRule, traffic: Traffic, dtypes: bool
    ) -> Iterator[str]:
        if dtypes:
            yield from self._dtypes(entry, rule, traffic)
        operands, output = load_facts(traffic.facts[META_SHAPES])
        rank = max((len(shape) for shape in (*operands, output) if shape), default=0)
        limit = self.march.limits.max_rank
        if rank > limit:
            yield f"tensors may have {limit} dimensions, got {rank}; reshape before"
        if META_ATTRS not in traffic.facts:
            return  # imported operators that are no GEMM or pool: dtypes and rank only
        attrs = load_facts(traffic.facts[META_ATTRS])
        if rule.check is not None:
            yield from filter(None, [rule.check(attrs, operands, output)])
        if rule.check_dtypes is not None:
            given = frozenset(traffic.inputs)
            yield from filter(
                None, [rule.check_dtypes(attrs, operands, given, traffic.output or "")]
            )

    def _dtypes(self, entry: OpSpec, rule: MarchRule, traffic: Traffic) -> Iterator[str]:
        roles = ("", *rule.operands)
        taken = list(dict.fromkeys(name for r in roles for name in rule.takes(self.march, r)))
        wrong = sorted(traffic.inputs - set(taken))
        if wrong:
            yield f"inputs may be {', '.join(taken)}, got {', '.join(wrong)}; set the dtype"
        # int32 leaves another operator (add, relu, a folded batch norm) only where it joined the
        # accumulator of a GEMM, whose own rule allows it
        fused = traffic.output == str(qint32) and entry.family != "gemm"
        given = rule.gives(self.march)
        if traffic.output is not None and traffic.output not in given and not fused:
            yield (f"the output may be {', '.join(given)}, got {traffic.output}; set the dtype")
