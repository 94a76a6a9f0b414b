"""compile, Hbm, statistics and what is not done yet."""

from __future__ import annotations

import pytest
import torch

from qtune.bpu import compiler
from qtune.bpu.compiler import Hbm, compile, convert
from qtune.bpu.memory import plan_memory
from qtune.errors import ArgumentError, HbirError
from qtune.hbir.export import export
from qtune.hbir.module import HbirModule
from tests.hbir.prepared import small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def module() -> HbirModule:
    return convert(export(small_cnn(X), X), "nash-e")


def test_compiled_program_gives_the_bits_of_the_module(module, tmp_path):
    compile(module, tmp_path / "m.hbm", "nash-e")
    hbm = Hbm(tmp_path / "m.hbm")

    assert torch.equal(hbm[0](X), module[0](X))
    assert torch.equal(hbm["forward"].feed({"_input_0": X})["_output_0"], module[0](X))
    assert hbm.march == "nash-e"
    assert hbm.estimate["latency_us"] > 0
    assert hbm.memory["constant_bytes"] > 0
    assert len(hbm) == len(hbm.graphs) == len(hbm.functions) == 1


def test_equal_modules_give_equal_files(module, tmp_path):
    for name in ("a.hbm", "b.hbm"):
        compile(module, tmp_path / name, "nash-e")

    assert (tmp_path / "a.hbm").read_bytes() == (tmp_path / "b.hbm").read_bytes()


def test_truncated_and_foreign_files_are_named(module, tmp_path):
    compile(module, tmp_path / "m.hbm", "nash-e")
    data = (tmp_path / "m.hbm").read_bytes()
    for content in (data[:-30], data[:100], b"", b"no zip"):
        (tmp_path / "cut.hbm").write_bytes(content)
        with pytest.raises(HbirError, match=r"cut\.hbm.*compile the module again"):
            Hbm(tmp_path / "cut.hbm")


def test_buffers_that_live_at_the_same_time_do_not_overlap(module):
    plan = plan_memory(module.model.graph)
    for a in plan.buffers:
        for b in plan.buffers:
            together = a is not b and a.first <= b.last and b.first <= a.last
            apart = a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
            assert not together or apart
    assert plan.arena_bytes < sum(buffer.size for buffer in plan.buffers)


def test_compile_checks_stage_march_and_suffix(module, tmp_path):
    with pytest.raises(ArgumentError, match="converted module, got stage 'qat'"):
        compile(export(small_cnn(X), X), tmp_path / "m.hbm", "nash-e")
    with pytest.raises(ArgumentError, match="converted for nash-e, not for nash-m"):
        compile(module, tmp_path / "m.hbm", "nash-m")
    with pytest.raises(ArgumentError, match=r"suffix \.hbm"):
        compile(module, tmp_path / "m.bin", "nash-e")


def test_options_are_never_ignored(module, tmp_path):
    compile(module, tmp_path / "m.hbm", "nash-e", opt=2, jobs=4)
    with pytest.raises(NotImplementedError, match="balance=3"):
        compile(module, tmp_path / "m.hbm", "nash-e", balance=3)
    with pytest.raises(ArgumentError, match="no option 'speed'"):
        compile(module, tmp_path / "m.hbm", "nash-e", speed=1)


def test_statistics_counts_operators(module):
    counts = dict(compiler.statistics(module))

    assert counts["qtune::QConv"] == 2
    assert sum(counts.values()) == len(module.model.graph)


@pytest.mark.parametrize("name", ["hbm_perf", "link", "visualize"])
def test_what_is_not_done_says_so(name):
    with pytest.raises(NotImplementedError, match=name):
        getattr(compiler, name)()
