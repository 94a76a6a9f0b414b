"""Modules of prepared and converted models, and layers for float ones that torch lacks.

``LayerNorm`` is torch's, under the toolchain's path.
"""

from torch.nn import LayerNorm

from qtune.nn.segment_lut import SegmentLUT
from qtune.ops.gemm.deform_layer import DeformConv2d
from qtune.ops.resize.layers import GridSample

__all__ = ["DeformConv2d", "GridSample", "LayerNorm", "SegmentLUT"]
