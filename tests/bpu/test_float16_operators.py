"""Every operator that takes float16, alone in a module: equal bits in every stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qtune.bpu.convert import convert
from qtune.dtype import qint16
from qtune.hbir.export import export
from qtune.march import March
from qtune.ops import registry
from qtune.ops.spec import Rule
from qtune.quantizers import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState
from tests.bpu.test_every_operator import NAMES, Case
from tests.hbir.prepared import Prepared

MARCH = March.NASH_P


def _takes_float16(name: str) -> bool:
    rules = [rule for rule in registry.spec(name).march if rule.covers(MARCH)]
    return any("float16" in rule.takes(MARCH) for rule in rules)


def _in_domain(case: Case) -> Case:
    """With operands between 0 and 1, or above 1, for a function that is not defined elsewhere."""
    for low in (0.05, 1.1):
        result = case.spec.float_kernel(*case.operands, **case.attrs)  # type: ignore[misc]
        if not isinstance(result, torch.Tensor) or bool(torch.isfinite(result).all()):
            break
        case.operands = [
            torch.rand(o.shape) * 0.9 + low if torch.is_tensor(o) and o.is_floating_point() else o
            for o in case.operands
        ]
    return case


def _in_float16(p: Prepared) -> Prepared:
    """The same model with a FakeCast wherever a result has a scale."""
    for node in p.graph.nodes:
        if node.op != "call_module":
            continue
        op: Any = p.get_submodule(node.target)
        keeps = op.spec.rule is Rule.INPUT_SCALE and op.name == "op"
        tuples = any(user.op == "call_function" for user in node.users)
        if isinstance(op.activation_post_process, FakeQuantize) or (keeps and not tuples):
            op.activation_post_process = FakeCast(name=op.name)
            op.activation_post_process.state = FakeQuantState.VALIDATION
    return p


@pytest.mark.parametrize("name", [name for name in NAMES if _takes_float16(name)])
def test_operator_has_the_same_bits_on_every_path(name: str) -> None:
    case = _in_domain(Case.draw(registry.spec(name), seed=NAMES.index(name)))
    p = _in_float16(case.prepared(qint16))
    expected = p(*case.inputs)
    qat = export(p, tuple(case.inputs))
    assert all(map(torch.equal, qat[0].run(_feed(qat, case)).values(), expected))
    module = convert(qat, MARCH)
    fast = module[0].run(_feed(module, case))
    reference = module[0].run(_feed(module, case), mode="reference")
    for result, (key, value) in zip(expected, fast.items(), strict=True):
        assert torch.equal(value, result), f"{name}: the fake-quant model differs"
        assert torch.equal(value, reference[key]), f"{name}: reference differs"
        if value.is_floating_point():
            assert torch.equal(value.half().float(), value), f"{name}: not held in float16"
    assert not [note for note in module.report if note["kind"] == "stays float"]


def _feed(module: Any, case: Case) -> dict[str, torch.Tensor]:
    return {item.name: x for item, x in zip(module[0].inputs, case.inputs, strict=True)}
