"""The static estimate: figures that can be worked out by hand, and what makes operators dearer."""

from __future__ import annotations

import numpy as np
import pytest

from qtune.bpu.estimate import estimate
from qtune.bpu.hardware import hardware
from qtune.march import March
from tests.bpu.networks import converted
from tests.hbir.passes.models import qat_module


def small():
    from qtune.bpu.compiler import convert

    return convert(qat_module(), "nash-e")


def by_op(result):
    return {item.op: item for item in result.operators}


def test_conv_costs_its_multiply_adds_bytes_and_requantize():
    result = estimate(small().model, "nash-e")
    machine, relu = hardware("nash-e"), by_op(result)["relu"]

    assert relu.type == "qtune::QConv"
    conv, relu_flops = 2 * 8 * 8 * 8 * (3 * 3 * 3), relu.macs - 2 * 8 * 8 * 8 * (3 * 3 * 3)
    assert conv + relu_flops == relu.macs
    assert 0 <= relu_flops <= 2 * 8 * 8 * 8  # one for each element, at most
    constants = 8 * 3 * 3 * 3 + 8 * 4 + 2 * 8 * 8  # weight, bias, m and n
    assert relu.bytes == 2 * 3 * 64 + 2 * 8 * 64 + constants
    transfer = relu.bytes / machine.bytes_per_cycle
    requantize = 2 * 8 * 64 / machine.vector_lanes
    # sums of float64 in another order
    assert relu.cycles == pytest.approx(transfer + requantize, rel=1e-12)
    assert relu.bound == "memory"
    assert relu.latency_us == pytest.approx(relu.cycles / 1000)  # at 1 GHz


def test_views_cost_nothing():
    costs = by_op(estimate(small().model, "nash-e"))

    assert (costs["deq0"].bytes, costs["deq0"].cycles) == (
        2 * 8 * 4 * 5 + 4,
        # float64 sums; pytest's own 1e-6
        pytest.approx(324 / 50 + 64 / 625),
    )
    only = [item for item in costs.values() if item.type == "onnx::Identity"]
    assert [item.op for item in only] == ["deq1"]
    assert only[0].cycles == 0


def test_shares_add_up():
    result = estimate(converted("resnet").model, "nash-e")

    # shares are float64 quotients; pytest's own 1e-6
    assert sum(item.share for item in result.operators) == pytest.approx(1)
    assert sum(item.latency_us for item in result.operators) == pytest.approx(result.latency_us)
    assert result.macs == sum(item.macs for item in result.operators)


def test_int16_is_dearer():
    int8, int16 = (estimate(converted("resnet", wide).model, "nash-e") for wide in (False, True))

    assert int16.cycles > 1.2 * int8.cycles
    assert int16.bytes > int8.bytes


@pytest.mark.parametrize(("multiplier", "cheaper"), [(1 << 14, True), (1 << 30, False)])
def test_multipliers_decide_the_cost_of_a_requantize(multiplier, cheaper):
    """Powers of two are shifts; 31-bit multipliers take two passes."""
    import onnx_ir as ir

    module = small()
    before = by_op(estimate(module.model, "nash-e"))["relu"]
    node = next(node for node in module.model.graph if node.op_type == "QConv")
    m = node.inputs[3]
    values = np.full(m.const_value.shape.numpy(), multiplier + (not cheaper), dtype=np.int64)
    m.const_value = ir.Tensor(values, name=m.name)

    after = by_op(estimate(module.model, "nash-e"))["relu"]

    passes = 2 * 8 * 64 / hardware("nash-e").vector_lanes
    expected = -0.5 * passes if cheaper else passes
    # a difference of two float64 sums
    assert after.cycles - before.cycles == pytest.approx(expected, rel=1e-9)
    assert after.bytes == before.bytes


def test_balance_trades_cycles_against_traffic(monkeypatch):
    from qtune.bpu import hardware as figures

    # so little working memory that every layer has to be cut into parts
    monkeypatch.setattr(figures, "ON_CHIP_BYTES", 2048)
    model = converted("resnet").model
    monkeypatch.setattr(
        "qtune.bpu.estimate.hardware", lambda march: shrunk(figures.hardware(march))
    )

    traffic, cycles = (estimate(model, "nash-e", balance) for balance in (0, 100))

    assert traffic.bytes < cycles.bytes
    assert traffic.cycles > cycles.cycles


def shrunk(machine):
    from dataclasses import replace

    return replace(machine, on_chip_bytes=4096, macs_per_cycle=100.0)


def test_l2m_keeps_activations_out_of_ddr():
    model = converted("resnet").model
    plain = estimate(model, "nash-p")
    some, all_of_it = (estimate(model, "nash-p", l2m_bytes=size) for size in (16384, 8 << 20))

    assert all_of_it.bytes < some.bytes < plain.bytes
    assert all_of_it.cycles < plain.cycles
    assert all_of_it.bytes > 0  # constants, inputs and outputs still move


def test_function_calls_keep_the_time_limit():
    model = converted("resnet").model
    whole = estimate(model, "nash-e")
    limit = whole.latency_us / 4

    cut = estimate(model, "nash-e", max_time_per_fc=limit)

    assert len(whole.function_calls) == 1
    assert len(cut.function_calls) >= 3
    assert all(call.latency_us <= limit or call.operators == 1 for call in cut.function_calls)
    assert sum(call.operators for call in cut.function_calls) == len(cut.operators)
    assert cut.function_calls[0].first == cut.operators[0].op


@pytest.mark.parametrize("march", list(March))
def test_every_march_has_figures_and_says_what_is_assumed(march):
    machine = hardware(march)

    assert machine.macs_per_cycle == machine.tops * 500
    assert "clock_hz" in machine.assumed
    assert ("tops" in machine.assumed) == (march.limits.tops is None)
    assert (machine.l2m_bytes > 0) == (march.value in ("nash-p", "nash-h"))


def test_larger_marches_are_faster():
    model = converted("resnet").model
    times = [estimate(model, name).latency_us for name in ("nash-b", "nash-e", "nash-p")]

    assert times[0] > times[1] > times[2]
