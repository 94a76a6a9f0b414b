"""``install`` and ``uninstall``: what they leave, who wins, what changes in torch."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from qtune.compat import install, uninstall
from qtune.compat.alias import AliasModule
from qtune.compat.install import ACTIVE, PREFER, finder
from qtune.compat.roots import TOPS
from qtune.errors import ArgumentError

IMPORT = "import horizon_plugin_pytorch"


def state() -> tuple[object, ...]:
    aliases = [name for name, module in sys.modules.items() if isinstance(module, AliasModule)]
    functions = (dist.init_process_group, dist.new_group, torch.cuda.set_device)
    torchs = vars(torch.quantization).get("__getattr__")
    return (list(sys.meta_path), list(sys.path), aliases, functions, torchs, dict(os.environ))


def test_all_is_as_before_at_the_end() -> None:
    before = state()
    with install():
        exec(IMPORT, {})
        assert state() != before
    assert state() == before
    with pytest.raises(ModuleNotFoundError):
        exec(IMPORT, {})


def test_a_second_call_neither_installs_nor_ends() -> None:
    with install():
        with install() as second:
            assert not second.is_first
        exec(IMPORT, {})
        assert sum(type(entry) is type(finder()) for entry in sys.meta_path) == 1
    uninstall()  # once more does nothing


def test_without_a_block_until_uninstall() -> None:
    install()
    exec(IMPORT, {})
    uninstall()
    assert finder() is None


def test_a_path_of_the_user_stays_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ":/a:/b"  # the empty entry is the working directory
    monkeypatch.setenv("PYTHONPATH", path)
    with install():
        assert os.environ["PYTHONPATH"].endswith(f":{path}")
        assert os.environ[ACTIVE] == "qtune"
    assert os.environ["PYTHONPATH"] == path


@pytest.mark.parametrize("value", [None, ""])
def test_no_path_of_the_user_is_none_at_the_end(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", value)
    with install():
        assert Path(os.environ["PYTHONPATH"]).name == "child"  # one entry, and no empty one
    assert not os.environ.get("PYTHONPATH")


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the real toolchain, as if it were installed."""
    folder = tmp_path / "site" / "horizon_plugin_pytorch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_an_installed_toolchain_is_named_when_qtune_stands_for_it(
    real: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), install():
        module = importlib.import_module("horizon_plugin_pytorch")
    assert isinstance(module, AliasModule)
    (message,) = caplog.messages
    assert f"horizon_plugin_pytorch ({real / '__init__.py'})" in message
    assert f"{PREFER}=installed" in message


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_an_installed_toolchain_wins_if_asked_to(
    by: str, real: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if by == "variable":
        monkeypatch.setenv(PREFER, "installed")
    with install("installed" if by == "argument" else None):
        assert importlib.import_module("horizon_plugin_pytorch").REAL
        assert isinstance(importlib.import_module("horizon_plugin_profiler"), AliasModule)
    assert not caplog.messages
    assert sys.modules.pop("horizon_plugin_pytorch").REAL


def test_an_imported_toolchain_is_not_mixed_with_qtune(real: Path) -> None:
    importlib.import_module("horizon_plugin_pytorch")
    with pytest.raises(ArgumentError, match="imported already, from .*prefer='installed'"):
        install()
    del sys.modules["horizon_plugin_pytorch"]


def test_what_is_imported_stays_itself_though_no_path_leads_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        package = ModuleType("hmct")
        package.__path__ = []
        patch.setitem(sys.modules, "hmct", package)
        with pytest.raises(ArgumentError, match="hmct is imported already, from an unknown place"):
            install()
        with install("installed"):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module("hmct.api")
            assert isinstance(importlib.import_module("hbdk4"), AliasModule)


def test_a_process_that_forbids_torch_gets_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with install():
        exec(IMPORT, {})


def test_a_folder_with_code_of_the_toolchain_is_one_though_it_has_none_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = tmp_path / "horizon_nn" / "debug.py"
    module.parent.mkdir()
    module.write_text("REAL = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with install():
        assert [f"horizon_nn ({module})" in text for text in caplog.messages] == [True]
    monkeypatch.setenv(ACTIVE, "qtune")  # a child process: its parent has said so
    with install():
        assert len(caplog.messages) == 1
    with install("installed"):
        assert importlib.import_module("horizon_nn.debug").REAL
    for name in ("horizon_nn.debug", "horizon_nn"):
        del sys.modules[name]


def test_an_empty_folder_of_that_name_is_no_toolchain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for top in TOPS:
        (tmp_path / top).mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with install():
        exec(IMPORT, {})
    assert not caplog.messages


def test_an_unknown_preference_is_refused() -> None:
    with pytest.raises(ArgumentError, match="prefer is 'real'"):
        install("real")


def test_names_that_torch_lacks_come_from_qtune() -> None:
    import qtune.quantization as ours

    with install():
        from torch.ao.quantization import QuantStub
        from torch.quantization import FloatFunctional

        assert FloatFunctional is ours.FloatFunctional
        assert QuantStub is torch.ao.quantization.stubs.QuantStub  # torch's own stand
        with pytest.raises(AttributeError, match="'torch.quantization' has no attribute 'nothing'"):
            _ = torch.quantization.nothing
    assert not hasattr(torch.quantization, "FloatFunctional")


def test_what_a_module_of_torch_serves_itself_it_serves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import qtune.quantization as ours

    def own(name: str) -> str:
        if name == "FloatFunctional":
            raise AttributeError(name)
        return f"torch's {name}"

    monkeypatch.setattr(torch.quantization, "__getattr__", own, raising=False)
    with install():
        assert torch.quantization.FloatFunctional is ours.FloatFunctional
        assert torch.quantization.other == "torch's other"
    assert torch.quantization.__getattr__ is own


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_nccl_is_gloo_without_a_gpu(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    store = f"file://{tmp_path}/store"
    with install():
        dist.init_process_group(backend, store, rank=0, world_size=1)
        try:
            assert dist.get_backend() == "gloo"
            assert dist.get_backend(dist.new_group([0], backend="nccl")) == "gloo"
        finally:
            dist.destroy_process_group()
        torch.cuda.set_device(1)  # the other processes of a run say nothing
        torch.cuda.set_device("cuda:0")
    assert [message.partition("GPU: ")[2] for message in caplog.messages] == [
        f"init_process_group('{backend}') uses gloo",
        "new_group('nccl') uses gloo",
        "torch.cuda.set_device('cuda:0') has no effect",
    ]


@pytest.mark.parametrize(
    ("rank", "variable", "lines"), [(0, "3", 1), (2, "0", 0), (-1, "0", 1), (-1, "1", 0)]
)
def test_the_first_process_says_that_gloo_is_taken_and_no_device_is_given(
    rank: int,
    variable: str,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[object] = []

    def init_process_group(backend: str = "", rank: int = -1, device_id: object = None) -> None:
        seen.append((backend, rank, device_id))

    monkeypatch.setenv("RANK", variable)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    with install():
        dist.init_process_group(backend="NCCL", rank=rank, device_id=torch.device("cuda:0"))
        dist.init_process_group()
        dist.init_process_group("gloo", device_id="kept")
    assert seen == [("gloo", rank, None), ("", -1, None), ("gloo", -1, "kept")]
    assert len(caplog.messages) == lines


def test_nothing_changes_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []

    def init_process_group(backend: str, rank: int) -> None:
        seen.append((backend, rank))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    with install():
        torch.cuda.set_device(3)
        dist.init_process_group("nccl", rank=0)
    assert seen == [3, ("nccl", 0)]
    assert not caplog.messages


def test_a_child_process_has_the_names_and_its_own_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.OWN = True\n")
    head = "import horizon_plugin_pytorch as h, sys; "
    code = f"{head}print(h.March.NASH_E, OWN, 'torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with install():
        environment["PYTHONPATH"] = f"{os.environ['PYTHONPATH'].split(':')[0]}:{tmp_path}"
        environment[ACTIVE] = os.environ[ACTIVE]
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("nash-e True False\n", "")


def test_torch_is_adapted_when_it_is_imported_later() -> None:
    code = """
import sys
from qtune.compat import install

with install():
    assert "torch" not in sys.modules
    import torch
    from torch.quantization import FloatFunctional

    assert FloatFunctional.__module__.startswith("qtune")
    functions = (torch.distributed.init_process_group, torch.cuda.set_device)
    assert all(hasattr(function, "__wrapped__") for function in functions)
functions = (torch.distributed.init_process_group, torch.cuda.set_device)
print([function.__module__ for function in functions], hasattr(functions[1], "__wrapped__"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    modules = ["torch.distributed.distributed_c10d", "torch.cuda"]
    assert (done.stdout, done.stderr) == (f"{modules} False\n", "")


def test_qtunes_names_stand_where_torch_has_no_such_module(monkeypatch: pytest.MonkeyPatch) -> None:
    import qtune.quantization as ours

    class NoQuantization(PathFinder):
        @classmethod
        def find_spec(cls, name: str, *rest: object) -> ModuleSpec | None:  # type: ignore[override]
            found = PathFinder.find_spec(name, *rest)  # type: ignore[arg-type]
            return None if name == "torch.ao.quantization" else found

    with install(), monkeypatch.context() as patch:
        patch.setattr("qtune.compat.alias.PathFinder", NoQuantization)
        patch.setattr(torch.ao, "quantization", torch.ao.quantization)  # the import sets another
        patch.delitem(sys.modules, "torch.ao.quantization")
        from torch.ao.quantization import QuantStub, fuse_modules

        assert (QuantStub, fuse_modules) == (ours.QuantStub, ours.fuse_modules)
        with pytest.raises(ImportError, match="prepare"):
            exec("from torch.ao.quantization import prepare", {})
        with pytest.raises(ModuleNotFoundError):
            exec("import torch.ao.nothing", {})
    assert torch.ao.quantization.QuantStub is not ours.QuantStub


def test_a_package_of_the_users_own_wins_over_one_that_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hat.py").write_text("OWN = True\n")
    with install():
        with pytest.raises(ImportError, match="a training script of your own"):
            importlib.import_module("hat")
        monkeypatch.syspath_prepend(str(tmp_path))
        assert importlib.import_module("hat").OWN
    del sys.modules["hat"]
