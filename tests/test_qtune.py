"""The root package: the toolchain's names, and nothing heavy until it is used."""

from __future__ import annotations

import subprocess
import sys

import qtune
from qtune.errors import kind_of


def test_names_of_the_root() -> None:
    assert qtune.March("nash-e") is qtune.March.NASH_E
    assert (qtune.qint8.qmin, qtune.qint16.qmax) == (-128, 32767)
    assert qtune.Inputs(1, a=2).kwargs == {"a": 2}
    assert qtune.quantization.prepare is not None
    assert qtune.bpu.__name__ == "qtune.bpu"
    assert qtune.fx.__name__ == "qtune.fx"


def test_import_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, qtune; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_engine_loads_no_compiler_and_no_other_runtime() -> None:
    code = (
        "import sys, qtune.quantization, qtune.bpu.compiler\n"
        "print([n for n in ('numba', 'llvmlite', 'onnxruntime') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_messages_call_values_in_plain_english() -> None:
    assert [kind_of(value) for value in (3, [], None, object(), {})] == [
        "an int",
        "a list",
        "None",
        "an object",
        "a dict",
    ]
