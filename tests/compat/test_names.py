"""A served module is a view of qtune's: the same objects, and one error for what is lacking."""

from __future__ import annotations

import importlib

import pytest

import qtune.nn.qat
import qtune.quantization.qconfig
from qtune import March
from qtune.compat import install
from qtune.compat.alias import AliasModule
from qtune.compat.roots import LEFT_OUT, PAGE, ROOTS
from qtune.errors import MissingNameError


@pytest.mark.parametrize("name", ROOTS)
def test_every_root_can_be_imported_and_read(name: str) -> None:
    with install():
        module = importlib.import_module(name)
        for inside in dir(module):
            getattr(module, inside)


def test_classes_are_the_same_objects() -> None:
    with install():
        import horizon_plugin_pytorch as horizon
        from hbdk4.compiler import Hbm, convert, hbm_perf, load
        from hbdk4.compiler.hbm_tools import hbm_perf as in_tools
        from horizon_plugin_profiler.utils.entities import Metric
        from horizon_plugin_pytorch.quantization import qconfig
        from horizon_plugin_pytorch.quantization.qconfig import QConfig

        import qtune.bpu.compiler as compiler
        from qtune.profiler import Metric as ours

        assert QConfig is qtune.quantization.qconfig.QConfig is qconfig.QConfig
        assert horizon.March is horizon.march.March is March
        assert Metric is ours
        assert (load, convert, Hbm) == (compiler.load, compiler.convert, compiler.Hbm)
        assert in_tools is hbm_perf
        assert horizon.__version__ == qtune.__version__


def test_a_view_looks_like_a_module() -> None:
    with install():
        import hbdk4
        import horizon_plugin_pytorch as horizon

        assert horizon.__doc__ == f"horizon_plugin_pytorch, served by qtune: {qtune.__doc__}"
        assert hbdk4.__doc__ is None
        for name in ("__file__", "__wrapped__", "_private"):  # what inspect and doctest ask for
            assert not hasattr(horizon, name)
    with pytest.raises(AttributeError, match="module 'm' has no attribute 'anything'"):
        _ = AliasModule("m").anything


def test_star_import_brings_the_public_names_only() -> None:
    names: dict[str, object] = {}
    with install():
        exec("from horizon_plugin_pytorch.quantization.qconfig_setter import *", names)
    assert {"QconfigSetter", "ModuleNameTemplate", "LoadFromFileTemplate"} <= names.keys()
    assert "annotations" not in names


def test_star_import_brings_what_is_made_on_demand_too() -> None:
    names: dict[str, object] = {}
    with install():
        exec("from horizon_plugin_pytorch.nn.qat import *", names)
    assert {"Conv2d", "ReLU", "QuantStub", "Linear"} <= names.keys()
    assert names["Conv2d"] is qtune.nn.qat.Conv2d


def test_classes_are_found_at_the_path_that_their_printed_types_show() -> None:
    with install():
        from horizon_plugin_pytorch.nn import qat
        from horizon_plugin_pytorch.nn.qat.conv2d import Conv2d
        from horizon_plugin_pytorch.nn.qat.relu import ReLU
        from horizon_plugin_pytorch.nn.qat.stubs import DeQuantStub, QuantStub

        assert [Conv2d, ReLU] == [qat.Conv2d, qat.ReLU]
        assert [QuantStub, DeQuantStub] == [qat.QuantStub, qat.DeQuantStub]
        with pytest.raises(
            MissingNameError, match=r"Nearest: horizon_plugin_pytorch\.nn\.qat\.Lin"
        ):
            importlib.import_module("horizon_plugin_pytorch.nn.qat.linear")


def test_what_is_set_on_a_view_stays_there() -> None:
    with install():
        from horizon_plugin_pytorch.quantization import qconfig

        qconfig.QConfig = None
        assert qconfig.QConfig is None
    assert qtune.quantization.qconfig.QConfig is not None


MISSING = {
    "from horizon_plugin_pytorch.quantization import prepare_qatt": (
        "horizon_plugin_pytorch.quantization.prepare_qatt",
        "horizon_plugin_pytorch.quantization.prepare_qat.",
    ),
    "from horizon_plugin_pytorch.quantization import Metric": (
        "horizon_plugin_pytorch.quantization.Metric",
        "horizon_plugin_profiler.Metric",
    ),
    "import horizon_plugin_pytorch.quantisation": (
        "horizon_plugin_pytorch.quantisation",
        "horizon_plugin_pytorch.quantization",
    ),
    "from horizon_plugin_pytorch.quantization.qconfig_setter import PropagateTemplate": (
        "qconfig_setter.PropagateTemplate",
        "ModuleNameTemplate (its rule is in no public text",
    ),
    "from hmct.api import load_model": ("hmct.api.load_model", "onnx.load"),
    "import hmct.tools.simplify": ("hmct.tools", "qtune onnx build"),
    "from hbdk4.march import get_march_num_cores": ("hbdk4.march", "horizon_plugin_pytorch.March"),
    "import horizon_tc_ui.hb_runtime": ("horizon_tc_ui", "qtune onnx build"),
    "from horizon_plugin_pytorch.quantization import calibrate": (
        "horizon_plugin_pytorch.quantization.calibrate",  # a module of qtune that is not served
        "auto_calibrate",
    ),
    "import horizon_nn.zzz": ("horizon_nn.zzz", "nor anything of a similar name"),
}


@pytest.mark.parametrize("line", MISSING)
def test_a_missing_name_is_one_import_error_with_the_nearest(line: str) -> None:
    name, near = MISSING[line]
    with install(), pytest.raises(MissingNameError) as raised:
        exec(line, {})
    message = str(raised.value)
    assert isinstance(raised.value, ImportError)
    assert f"{name}. Nearest" in message or f"{name}, nor" in message
    assert near in message
    assert PAGE in message
    assert "\n" not in message


def test_a_missing_attribute_is_an_attribute_error() -> None:
    with install():
        import horizon_plugin_pytorch as horizon

        assert not hasattr(horizon.quantization, "prepare_qatt")
        with pytest.raises(AttributeError, match="nearest: .*quantization.prepare_qat$"):
            _ = horizon.quantization.prepare_qatt
        with pytest.raises(AttributeError, match="no counterpart of .*quantization.Any"):
            _ = horizon.quantization.Any  # what the module of qtune imports for itself


def test_an_optional_import_finds_nothing() -> None:
    with install():
        try:
            import horizon_plugin_pytorch.extensions as found
        except ImportError:
            found = None
    assert found is None


def test_what_is_left_out_is_really_missing() -> None:
    """A name that qtune has by now must leave the table."""
    with install():
        for name in LEFT_OUT:
            for root in (root for root in ROOTS if "." not in name):
                assert not hasattr(importlib.import_module(root), name), (root, name)
            if "." in name:
                with pytest.raises(ImportError):
                    exec(f"from {name.rpartition('.')[0]} import {name.rpartition('.')[2]}", {})
