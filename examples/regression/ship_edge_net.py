"""Write ``edge_net.bc``, the integer module that is shipped: ``python ship_edge_net.py``."""

from __future__ import annotations

from pathlib import Path

import edge_net

from qtune.bpu import compiler
from qtune.testing import Stages

SHIPPED = Path(__file__).with_name("edge_net.bc")

if __name__ == "__main__":
    stages = Stages(edge_net.EdgeNet, edge_net.calibration, march="nash-e")
    compiler.save(stages.quantized_bc, SHIPPED)
