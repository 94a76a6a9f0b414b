"""compile: programs of equal bits, and every option does what it says or is refused."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import Tensor

from qtune import march, set_march
from qtune.bpu import compiler
from qtune.bpu.compiler import Hbm, Hbo, compile, convert
from qtune.errors import ArgumentError, HbirError, MarchError
from qtune.hbir.export import export
from qtune.hbir.module import HbirModule
from tests.bpu.networks import NETWORKS, converted, example
from tests.hbir.prepared import small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def module() -> HbirModule:
    return convert(export(small_cnn(X), X), "nash-e")


def leaves(value) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return [leaf for item in items for leaf in leaves(item)]


INT16 = ("resnet", "mobilenet")
"""The others have a resize, which takes int8 only."""


@pytest.mark.parametrize(
    ("name", "int16"), [*((name, False) for name in NETWORKS), *((name, True) for name in INT16)]
)
def test_program_gives_the_bits_and_containers_of_the_module(name, int16, tmp_path):
    bc, x = converted(name, int16), example()
    compile(bc, tmp_path / "m.hbm", "nash-e")

    expected, got = bc[0](x), Hbm(tmp_path / "m.hbm")[0](x)

    assert type(got) is type(expected)
    pairs = list(zip(leaves(got), leaves(expected), strict=True))
    assert pairs
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    if name == "neck":
        assert list(got) == ["maps"]
        assert len(got["maps"]) == 3


def test_compiled_program_runs_by_index_name_and_feed(module, tmp_path):
    compile(module, tmp_path / "m.hbm", "nash-e")
    hbm = Hbm(tmp_path / "m.hbm")

    assert torch.equal(hbm[0](X), module[0](X))
    assert torch.equal(hbm["forward"].feed({"_input_0": X})["_output_0"], module[0](X))
    assert hbm.march == "nash-e"
    assert hbm.toolkit_version
    assert hbm.estimate["latency_us"] > 0
    assert hbm.memory["constant_bytes"] > 0
    assert len(hbm) == len(hbm.graphs) == len(hbm.functions) == len(list(hbm)) == 1
    with pytest.raises(ArgumentError, match="no function 'other'; it has: forward"):
        hbm["other"]
    with pytest.raises(ArgumentError, match="no function 1"):
        hbm[1]


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


def test_program_of_another_march_is_refused_at_load(module, tmp_path):
    compile(module, tmp_path / "m.hbm", "nash-e")
    with march.march("nash-p"), pytest.raises(MarchError, match=r"the march nash-e, but nash-p is"):
        Hbm(tmp_path / "m.hbm")
    with march.march("nash-p"):
        assert Hbm(tmp_path / "m.hbm", march="nash-e").march == "nash-e"
        compile(module, tmp_path / "again.hbm", "nash-e")  # the march that is passed counts
    with march.march("nash-e"), pytest.raises(MarchError, match=r"but nash-p is asked for"):
        Hbm(tmp_path / "m.hbm", "nash-p")
    set_march("nash-e")
    assert Hbm(tmp_path / "m.hbm").march == "nash-e"


def test_compile_checks_stage_march_and_suffix(module, tmp_path):
    with pytest.raises(ArgumentError, match="converted module, got stage 'qat'"):
        compile(export(small_cnn(X), X), tmp_path / "m.hbm", "nash-e")
    with pytest.raises(ArgumentError, match="converted module, got str"):
        compile("model.bc", tmp_path / "m.hbm", "nash-e")
    with pytest.raises(ArgumentError, match="converted for nash-e, not for nash-m"):
        compile(module, tmp_path / "m.hbm", "nash-m")
    with pytest.raises(ArgumentError, match=r"suffix \.hbm"):
        compile(module, tmp_path / "m.bin", "nash-e")
    (tmp_path / "folder.hbm").mkdir()
    with pytest.raises(ArgumentError, match=r"folder\.hbm is a folder"):
        compile(module, tmp_path / "folder.hbm", "nash-e")
    with pytest.raises(ArgumentError, match="path must be a text or a Path, got None"):
        compile(module, None, "nash-e")


def test_other_things_than_modules_are_refused():
    for function in (compiler.statistics, compiler.visualize):
        with pytest.raises(ArgumentError, match="takes a module or a program, got 'net'"):
            function("net")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("speed", 1, "no option 'speed'"),
        ("opt", 3, "opt must be a whole number from 0 to 2, got 3"),
        ("opt", True, "opt must be a whole number"),
        ("jobs", 0, "jobs must be a whole number from 1"),
        ("balance", 101, "balance must be a whole number from 0 to 100"),
        ("max_time_per_fc", 999, "0 .no limit. or 1000 to 10000000 microseconds"),
        ("max_time_per_fc", "1", "max_time_per_fc must be a number"),
        ("advice", 1.5, "advice must be a share"),
        ("debug", 1, "debug must be True or False, got 1"),
        ("cache_mode", "on", "one of disable, enable, force_overwrite"),
        ("cache_mode", "enable", "needs cache_path"),
        ("cache_path", "folder", "no effect with cache_mode='disable'"),
        ("max_l2m_size", 4096, "nash-e has no L2M cache"),
        ("max_l2m_size", -1, "max_l2m_size must be 0"),
    ],
)
def test_wrong_options_are_refused_by_name(module, tmp_path, option, value, message):
    with pytest.raises(ArgumentError, match=message):
        compile(module, tmp_path / "m.hbm", "nash-e", **{option: value})
    assert not list(tmp_path.glob("*.hbm"))


def test_opt_decides_how_memory_is_shared(module, tmp_path):
    sizes = [
        compile(module, tmp_path / "m.hbm", "nash-e", opt=opt).memory["arena_bytes"]
        for opt in (0, 1, 2)
    ]

    assert sizes[0] > sizes[1] >= sizes[2]


def test_padding_decides_the_strides_of_arguments(tmp_path):
    bc = converted("resnet")
    options = [{}, {"output_no_padding": True}]
    strides = [
        compile(bc, tmp_path / "m.hbm", "nash-e", **given).memory["ports"][1]["strides"]
        for given in options
    ]

    assert strides == [[64, 4], [40, 4]]  # rows of 40 bytes at multiples of 32


def test_debug_keeps_the_facts_of_the_float_operators(module, tmp_path):
    plain, debug = (
        compile(module, tmp_path / f"{flag}.hbm", "nash-e", debug=flag) for flag in (False, True)
    )
    keys = [
        {key for node in hbm[0].model.graph for key in node.metadata_props}
        for hbm in (plain, debug)
    ]

    assert keys[1] - keys[0] == {"qtune.attrs", "qtune.shapes"}
    assert plain[0].operator_names() == debug[0].operator_names() == module[0].operator_names()
    assert torch.equal(plain[0](X), debug[0](X))


def test_advice_lists_operators_above_the_share(module, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        hbm = compile(module, tmp_path / "m.hbm", "nash-e", advice=0.2)
    shares = {item["op"]: item["share"] for item in hbm.estimate["operators"]}

    assert [item["op"] for item in hbm.advice] == sorted(
        (op for op, share in shares.items() if share > 0.2), key=lambda op: -shares[op]
    )
    assert hbm.advice
    assert f"{hbm.advice[0]['op']} (" in caplog.text
    assert compile(module, tmp_path / "m.hbm", "nash-e").advice == []


def test_progress_is_shown_on_standard_error(module, tmp_path, capsys):
    compile(module, tmp_path / "m.hbm", "nash-e", progress_bar=True)
    assert "3/3" in (shown := capsys.readouterr().err)
    assert all(word in shown for word in ("compile", "program"))
    compile(module, tmp_path / "m.hbm", "nash-e")
    assert capsys.readouterr().err == ""


def test_options_and_jobs_are_recorded(module, tmp_path):
    hbm = compile(module, tmp_path / "m.hbm", "nash-e", jobs=7, balance=30)

    assert (hbm.options["jobs"], hbm.options["balance"], hbm.options["opt"]) == (7, 30, 2)


def test_time_per_call_and_l2m_reach_the_estimate(tmp_path):
    with march.march("nash-p"):
        bc = convert(export(small_cnn(X), X), "nash-p")
        plain = compile(bc, tmp_path / "a.hbm", "nash-p", max_time_per_fc=1000)
        cached = compile(bc, tmp_path / "b.hbm", "nash-p", max_l2m_size=None)

    assert len(plain.estimate["function_calls"]) == 1
    assert cached.estimate["l2m_bytes"] == 8 << 20
    assert cached.estimate["bytes"] < plain.estimate["bytes"]


def test_cache_serves_equal_content_and_options_only(module, tmp_path, caplog):
    cache = tmp_path / "cache"

    def build(name, **options):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            compile(
                module,
                tmp_path / name,
                "nash-e",
                cache_path=cache,
                **{"cache_mode": "enable", **options},
            )
        return "taken from the cache" in caplog.text

    assert not build("a.hbm")
    assert build("b.hbm")
    assert build("c.hbm", jobs=1)  # jobs decide nothing
    assert not build("d.hbm", opt=1)
    assert not build("e.hbm", cache_mode="force_overwrite")
    assert len(list(cache.iterdir())) == 2
    assert (tmp_path / "b.hbm").read_bytes() == (tmp_path / "a.hbm").read_bytes()
    for file in cache.iterdir():
        file.write_bytes(b"damaged")
    assert not build("f.hbm")
    assert build("g.hbm")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="is a file; give a folder"):
        compile(
            module,
            tmp_path / "m.hbm",
            "nash-e",
            cache_mode="enable",
            cache_path=tmp_path / "file",
        )


@pytest.mark.parametrize("mode", ["enable", "force_overwrite"])
def test_a_cache_that_can_not_be_written_is_refused_before_the_work(module, tmp_path, mode):
    (tmp_path / "file").write_text("")
    folder, target = tmp_path / "file" / "cache", tmp_path / "m.hbm"
    with pytest.raises(ArgumentError, match=r"cache_path='.*file/cache' can't be written to \(Not"):
        compile(module, target, "nash-e", cache_mode=mode, cache_path=folder)
    assert not target.exists()
    with pytest.raises(ArgumentError, match="cache_path='/proc/cache' can't be written to"):
        compile(module, target, "nash-e", cache_mode=mode, cache_path="/proc/cache")


def test_statistics_counts_operators_or_nodes(module, capsys):
    operators = dict(compiler.statistics(module))
    shown = capsys.readouterr().out
    nodes = dict(compiler.statistics(module, expand_fusion=False))

    assert (operators["conv2d"], operators["relu"], operators["linear"]) == (2, 1, 1)
    assert "conv2d" in shown
    assert nodes["qtune::QConv"] == 2
    assert sum(nodes.values()) == len(module.model.graph)
    assert dict(compiler.statistics(export(small_cnn(X), X)))["relu"] == 1


def test_compiled_functions_can_not_be_changed(module, tmp_path):
    hbm = compile(module, tmp_path / "m.hbm", "nash-e")

    for change in (
        lambda: hbm[0].remove_io_op(["Quantize"]),
        lambda: hbm[0].inputs[0].insert_transpose([0, 2, 3, 1]),
        lambda: setattr(hbm[0], "desc", "x"),
        lambda: setattr(hbm[0].inputs[0], "name", "x"),
    ):
        with pytest.raises(ArgumentError, match=r"is compiled and can't be changed.*staged_name"):
            change()


def test_objects_are_opened_as_such(module, tmp_path):
    hbo = compile(module, tmp_path / "m.hbo", "nash-e")

    assert isinstance(hbo, Hbo)
    assert np.array_equal(hbo[0](X), module[0](X))
    with pytest.raises(ArgumentError, match=r"expected a file with the suffix \.hbm"):
        Hbm(tmp_path / "m.hbo")


def test_onnx_is_a_member_that_star_imports_leave_alone():
    assert compiler.onnx.export.__doc__
    assert "onnx" not in compiler.__all__
