"""``install`` and ``uninstall``: what they leave, who wins, what changes in torch."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
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
        patch.setitem(sys.modules, "hmct", ModuleType("hmct"))
        with install("installed"):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module("hmct.api")
            assert isinstance(importlib.import_module("hbdk4"), AliasModule)


def test_a_process_that_forbids_torch_gets_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with install():
        exec(IMPORT, {})


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
    assert not hasattr(torch.quantization, "FloatFunctional")


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
