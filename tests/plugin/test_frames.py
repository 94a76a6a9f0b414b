"""Errors that qtune raises on purpose are shown at the user's line."""

from __future__ import annotations

import pytest

MISTAKE = """
    import torch
    from torch import nn
    from qtune.testing import Stages

    class Net(nn.Module):
        def forward(self, x):
            return x if bool(x.sum() > 0) else -x

    def test_mistake():
        Stages(Net, 3.5, march="nash-e").quantized_bc
"""


def test_frames_of_the_library_are_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MISTAKE)
    result = pytester.runpytest()
    text = result.stdout.str()
    assert 'Stages(Net, 3.5, march="nash-e").quantized_bc' in text
    assert "stages.py" not in text
    assert "functools.py" not in text
    assert len(result.outlines) < 40


@pytest.mark.parametrize("flag", ["--full-trace", "--tb=native"])
def test_frames_of_the_library_are_shown_on_request(pytester: pytest.Pytester, flag: str) -> None:
    pytester.makepyfile(MISTAKE)
    assert "stages.py" in pytester.runpytest(flag).stdout.str()


def test_line_of_the_model_stays(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        from torch import nn
        from qtune.errors import PrepareError
        from qtune.testing.record import conclude

        class Net(nn.Module):
            def forward(self, x):
                raise PrepareError("my own")

        def test_model():
            from qtune.quantization import prepare
            from qtune.march import march
            with march("nash-e"):
                prepare(Net(), torch.ones(1))
        """
    )
    text = pytester.runpytest().stdout.str()
    assert "prepare(Net(), torch.ones(1))" in text
    assert 'raise PrepareError("my own")' in text
    assert "pipeline.py" not in text


def test_errors_of_others_keep_all_frames(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from qtune.testing import Stages

        def broken():
            raise LookupError("mine")

        def test_other():
            Stages(broken, 3, march="nash-e").float
        """
    )
    assert "stages.py" in pytester.runpytest().stdout.str()


def test_cause_is_shown_at_the_line_of_the_model(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        from torch import nn
        from qtune.testing import Stages

        class Net(nn.Module):
            def forward(self, x):
                return x @ x

        def test_shapes():
            Stages(Net, [torch.ones(2, 3)], march="nash-e").calib
        """
    )
    text = pytester.runpytest().stdout.str()
    assert "return x @ x" in text
    assert "direct cause" in text
    assert "capture/" not in text
    assert "site-packages" not in text
