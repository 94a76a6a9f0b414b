"""Memory plans: nothing alive overlaps, and real networks need little more than the bound."""

from __future__ import annotations

import pytest

from qtune.bpu.memory import Buffer, Padding, lower_bound, plan_memory
from tests.bpu.networks import NETWORKS, converted


def overlaps(plan):
    found = []
    for index, a in enumerate(plan.buffers):
        for b in plan.buffers[index + 1 :]:
            together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
            if together and not apart:
                found.append((a, b))
    return found


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("keep_float", [True, False], ids=["float-io", "codes"])
def test_peak_is_at_most_a_fifth_above_the_bound(name, keep_float):
    module = converted(name)
    if not keep_float:  # the float input is the largest tensor of these small networks
        module[0].remove_io_op(["Quantize", "Dequantize"])

    plan = plan_memory(module.model.graph)

    assert overlaps(plan) == []
    assert plan.lower_bound_bytes <= plan.arena_bytes <= 1.2 * plan.lower_bound_bytes
    assert all(buffer.offset % plan.alignment == 0 for buffer in plan.buffers)


@pytest.mark.parametrize("strategy", ["none", "order", "best"])
def test_every_strategy_is_a_plan_and_reuse_pays(strategy):
    graph = converted("unet").model.graph
    plan = plan_memory(graph, strategy)
    everything = sum(buffer.size for buffer in plan.buffers)

    assert overlaps(plan) == []
    if strategy == "none":
        assert plan.arena_bytes == everything
    else:
        assert plan.arena_bytes < everything / 2
    assert plan_memory(graph, "best").arena_bytes <= plan.arena_bytes


def test_views_share_the_bytes_of_what_they_name_anew():
    graph = converted("resnet").model.graph
    plan = plan_memory(graph)
    viewed = {name: buffer for buffer in plan.buffers for name in buffer.views}
    outputs = [value.name for value in graph.outputs]

    assert "_input_0_quant/Identity" in viewed
    assert viewed["_input_0_quant/Identity"].name == "_input_0"
    assert viewed["_input_0_quant/Identity"].last == 1  # until Quantize has read it
    assert not set(outputs) & set(viewed)
    values = {v.name for node in graph for v in node.outputs} | {v.name for v in graph.inputs}
    assert {b.name for b in plan.buffers} | set(viewed) == values


def test_bound_is_the_most_that_is_alive_at_once():
    lives = [(10, 0, 2), (20, 1, 3), (5, 3, 3), (40, 4, 4)]
    buffers = [Buffer(str(i), size, a, b, 0) for i, (size, a, b) in enumerate(lives)]

    assert lower_bound(buffers) == 40
    assert lower_bound(buffers[:3]) == 30
    assert lower_bound([]) == 0


def test_rows_of_arguments_are_padded_or_dense():
    graph = converted("resnet").model.graph  # input float32 [1, 3, 64, 64], output [1, 10]

    padded = plan_memory(graph, alignment=64, padding=Padding(inputs=64, outputs=64)).ports
    dense = plan_memory(graph, alignment=64).ports

    assert [port.strides for port in dense] == [(49152, 16384, 256, 4), (40, 4)]
    assert [port.strides for port in padded] == [(49152, 16384, 256, 4), (64, 4)]
    assert [port.bytes for port in padded] == [49152, 64]
    assert [(port.kind, port.dtype) for port in dense] == [
        ("input", "float32"),
        ("output", "float32"),
    ]
