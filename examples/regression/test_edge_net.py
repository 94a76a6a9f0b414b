"""What a change of the model must not make worse, against the numbers in ``__qtune__``."""

from __future__ import annotations

from pathlib import Path

import edge_net
import pytest
from ship_edge_net import SHIPPED

from pytest_qtune import assert_consistency, assert_latency_below
from qtune.bpu import compiler
from qtune.testing import Baseline, BatchedModule

STORED = Path(__file__).parent / "__qtune__" / "test_edge_net.json"


@pytest.fixture(scope="session")
def stages(qtune_stages):
    return qtune_stages(edge_net.EdgeNet, edge_net.calibration, march="nash-e")


def edge_share(stages):
    """How well the integers find edges."""
    return edge_net.edge_share(BatchedModule(stages.quantized_bc)(edge_net.holdout()))


def test_quality(stages, qtune_baseline):
    quality = assert_consistency(
        stages.float, stages.quantized_bc, inputs=edge_net.holdout(), min_sqnr_db=15
    )
    sqnr_db = quality.metrics["sqnr_db"]
    qtune_baseline.check("sqnr_db", sqnr_db, max_drop=0.5, identity=stages)
    qtune_baseline.check("edge_share", edge_share(stages), max_drop=0.01, identity=stages)


def test_cost(stages, qtune_baseline):
    cost = assert_latency_below(stages.quantized_bc, max_us=100)
    qtune_baseline.check("latency_us", cost.metrics["latency_us"], max_rise=0, identity=stages)


def test_shipped_module_computes_what_the_source_does(stages):
    """Fails when the model changes and nobody writes the file again."""
    assert_consistency(
        stages.qat_bc,
        compiler.load(SHIPPED),
        inputs=edge_net.holdout(),
        max_qscale_diff=1,
        min_sqnr_db=40,  # calibration on another CPU may move the last digit of a scale
        name=SHIPPED.name,
    )


def test_shipped_module_gives_the_same_bits_on_every_machine(qtune_baseline):
    shipped = compiler.load(SHIPPED)
    qtune_baseline.outputs("edges", shipped, edge_net.holdout(), model=SHIPPED.name)


def test_a_worse_model_is_caught(qtune_stages):
    """Both filters look for vertical edges: the integers still follow the float model."""

    def slip():
        net = edge_net.EdgeNet()
        net.dy = edge_net.fixed(edge_net.SOBEL)
        return net

    changed = qtune_stages(slip, edge_net.calibration, march="nash-e", name="with a slip")
    stored = Baseline(STORED, "test_quality")
    with pytest.raises(AssertionError, match=r"^baseline: edge_share: got 0\.\d+, limit >= 0\.\d+"):
        stored.check("edge_share", edge_share(changed), max_drop=0.01, identity=changed)


def test_other_calibration_data_are_no_comparison(qtune_stages):
    """The number may well be better, but it is another one."""
    changed = qtune_stages(
        edge_net.EdgeNet, edge_net.calibration()[:2], march="nash-e", name="other calibration"
    )
    stored = Baseline(STORED, "test_quality")
    with pytest.raises(AssertionError, match=r"^baseline: .*got calibration \w+, limit"):
        stored.check("edge_share", edge_share(changed), max_drop=0.01, identity=changed)
