"""``Tracer.dynamic_block`` under the plugin's import path (plugin guide, method of prepare)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import nn

from qtune.capture.blocks import dynamic_block

__all__ = ["Tracer"]


class Tracer:
    """Marks parts of a forward for ``prepare`` with ``PrepareMethod.JIT`` and ``JIT_STRIP``."""

    @staticmethod
    def dynamic_block(module: nn.Module, name: str) -> AbstractContextManager[None]:
        """Say that the code in the ``with`` block runs a varying number of times.

        ``with Tracer.dynamic_block(self, "refine"):`` in the forward of ``module`` stands inside
        the loop, around its body. Each run of the block is the same operators: functions get the
        names ``_generated_<module>_<block>_<op>_<n>``, the same in every run, and share their
        fake-quantize; what the block holds is fused, though its modules run several times. Another
        number of runs than recorded is another branch: give an example of each number that occurs
        (``example_inputs=[...]``); none of them brings new operators.

        The block does nothing while the float model runs. ``name``: an identifier, else
        ``ArgumentError``.
        """
        return dynamic_block(module, name)
