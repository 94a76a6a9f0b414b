"""``SegmentLUT``: an element-wise function of the user's as a look-up table."""

from qtune.ops.activation.segment_module import SegmentLUT

__all__ = ["SegmentLUT"]
