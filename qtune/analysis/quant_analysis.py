"""``QuantAnalysis``: the toolchain's class, over the functions of this package."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qtune.analysis import badcase, pages
from qtune.analysis.compare import Facts, LayerComparison, compare
from qtune.analysis.facts import facts_of
from qtune.analysis.observe import Model, Observation, observe, require_torch, run_model
from qtune.analysis.op_info import save_op_infos
from qtune.analysis.pairs import check_pair
from qtune.analysis.sensitivity import sensitivity_tables
from qtune.analysis.summary import summarize
from qtune.analysis.tune import TuneGoal, tune
from qtune.capture.inputs import Inputs, as_inputs
from qtune.errors import AnalysisError
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.report.files import write_text, write_with
from qtune.report.table import text_table

_log = logging.getLogger("qtune.analysis")
DEFAULT_METRICS = ("L1", "COSINE", "ATOL")
DEFAULT_DIR = "./horizon_quant_analysis"


class QuantAnalysis:
    """Compare two models of one net, find the worst input, and the operator to blame.

    ``analysis_model_type``: ``fake_quant``, ``pre_export``, ``export`` or ``convert``.
    ``device_ids``: one GPU; without a GPU the CPU is used. ``metric_list`` defaults to L1, COSINE
    and ATOL. Files go to ``out_dir`` (default ``./horizon_quant_analysis``). Source: the tuning
    tool document, "QuantAnalysis".
    """

    def __init__(
        self,
        baseline_model: Model,
        analysis_model: Model,
        analysis_model_type: str,
        device_ids: int | None = None,
        post_process: Callable[[Any], Any] | None = None,
        out_dir: str | None = None,
        metric_list: Sequence[str | MetricInfo] | None = None,
    ) -> None:
        if post_process is not None:
            raise NotImplementedError("QuantAnalysis: post_process is not implemented yet")
        self.kinds = check_pair(baseline_model, analysis_model, analysis_model_type)
        self.baseline_model = baseline_model
        self.analysis_model = analysis_model
        self.analysis_model_type = analysis_model_type
        self.device = _device(device_ids)
        self.out_dir = Path(out_dir or DEFAULT_DIR)
        self.metric_list = [Metric.get_metric(m) for m in metric_list or DEFAULT_METRICS]
        self.badcase_report: BadCaseReport | None = None
        self._set_case: Inputs | None = None
        self._case: tuple[int, Inputs] | None = None
        self._runs: dict[str, Observation] = {}

    @property
    def badcase_dir(self) -> Path:
        """Where the inputs of bad cases lie."""
        return self.out_dir / "badcase"

    def auto_find_bad_case(
        self,
        data_generator: Iterable[Any],
        num_steps: int = sys.maxsize,
        cached_attrs: tuple[str, ...] | None = None,
        dump_in_run: bool = False,
        topk: int = 1,
    ) -> BadCaseReport:
        """Run both models over the data and keep the ``topk`` worst cases per output and metric.

        Writes ``badcase_report.html``, ``all_badcase_info.pt`` and ``badcase/<index>.pt``.
        """
        if cached_attrs is not None:
            raise NotImplementedError("auto_find_bad_case: cached_attrs is not implemented yet")
        search = badcase.BadCaseSearch(self.metric_list, topk, self.badcase_dir, dump_in_run)
        report = search.run(self.baseline_model, self.analysis_model, data_generator, num_steps)
        write_text(self.out_dir / "badcase_report.html", pages.badcase_page(report))
        write_with(self.out_dir / "all_badcase_info.pt", lambda path: torch.save(report, path))
        self.badcase_report = report
        self._set_case = None
        return report

    def set_bad_case(
        self,
        data: Any,
        baseline_model_cached_attr: dict[str, Any] | None = None,
        analysis_model_cached_attr: dict[str, Any] | None = None,
    ) -> None:
        """Take ``data`` as the bad case, under index 0."""
        if baseline_model_cached_attr or analysis_model_cached_attr:
            raise NotImplementedError("set_bad_case: cached attributes are not implemented yet")
        self._set_case = as_inputs(data)
        self.badcase_report = None
        badcase.save_case(self.badcase_dir, 0, self._set_case)

    def load_bad_case(self, path: str | None = None) -> None:
        """Read the report of an earlier search from ``path`` (a folder; default ``out_dir``)."""
        folder = Path(path) if path is not None else self.out_dir
        if str(path or "").startswith(("http://", "https://")):
            raise NotImplementedError("load_bad_case: links are not implemented yet")
        info = folder / "all_badcase_info.pt"
        if not info.exists():
            raise AnalysisError(f"{info} does not exist; run auto_find_bad_case first")
        self.badcase_report = torch.load(info, weights_only=True)
        if folder.resolve() != self.out_dir.resolve():
            for name in ("all_badcase_info.pt", "badcase_report.html"):
                write_with(self.out_dir / name, lambda p, n=name: shutil.copy(folder / n, p))
            shutil.copytree(folder / "badcase", self.badcase_dir, dirs_exist_ok=True)

    def run(
        self,
        device: Any = None,
        index: int | None = None,
        run_baseline_model: bool = True,
        run_analysis_model: bool = True,
        metric: str | MetricInfo | None = None,
        run_on_cpu: bool = False,
        out_name: str | None = None,
    ) -> None:
        """Run the models on a bad case and keep the result of every operator.

        The case is that of ``index``, else the worst under ``metric`` (default ATOL), on output
        ``out_name`` if given. Writes ``op_infos``. ``device`` is deprecated and has no effect.
        """
        if device is not None:
            _log.warning(
                "QuantAnalysis.run: device is deprecated; pass device_ids to QuantAnalysis"
            )
        if index is not None and metric is not None:
            raise AnalysisError("run: give index or metric, not both")
        self._case = self._choose(index, metric, out_name)
        cpu = torch.device("cpu")
        on = cpu if run_on_cpu or self.analysis_model_type in ("export", "convert") else self.device
        sides = {"baseline": run_baseline_model, "analysis": run_analysis_model}
        for side, wanted in sides.items():
            if wanted:
                model = self.baseline_model if side == "baseline" else self.analysis_model
                observation = observe(
                    _on(model, on), _inputs_on(self._case[1], on), keep_inputs=True
                )
                self._runs[side] = observation
                save_op_infos(self.out_dir / "op_infos" / side, observation)

    def compare_per_layer(
        self, prefixes: tuple[str, ...] | None = None, types: tuple[type, ...] | None = None
    ) -> LayerComparison:
        """Compare the two runs operator by operator; ``prefixes`` and ``types`` mean both.

        Writes ``compare_per_layer_out_0.txt`` and ``.csv`` and ``compare_per_layer_report_0.html``.
        """
        if set(self._runs) != {"baseline", "analysis"} or self._case is None:
            raise AnalysisError("compare_per_layer: both models must have run; call run() first")
        facts = facts_of(self, self._case[1], self._runs["baseline"])
        metrics = self.metric_list
        found = compare(self._runs["baseline"], self._runs["analysis"], metrics, facts)
        found = _filtered(found, facts, prefixes, types)
        text = text_table(found.rows, found.columns, index=True)
        write_text(self.out_dir / "compare_per_layer_out_0.txt", text + "\n")
        frame = found.to_pandas().reset_index(drop=True)
        write_text(self.out_dir / "compare_per_layer_out_0.csv", frame.to_csv())
        page = pages.compare_page(found, metrics)
        write_text(self.out_dir / "compare_per_layer_report_0.html", page)
        return found

    def sensitivity(
        self,
        metric: str | MetricInfo = "ATOL",
        prefixes: tuple[str, ...] | None = None,
        types: tuple[type, ...] | None = None,
        output_names: tuple[str, ...] | None = None,
        use_sensitivity_v2: bool = False,
        sensitivity_method: str = "ablation",
    ) -> dict[str, list[SensitivityTable]]:
        """Rank every fake-quantize by what it costs alone, and by what int16 would gain.

        Returns output name -> one table per bad case. Writes per output and case
        ``output_<name>_case_<index>_sensitive_ops.txt/.csv/.pt``, the mean and worst over several
        cases, and ``sensitivity_v2_report.html``.
        """
        if not use_sensitivity_v2:
            raise NotImplementedError(
                "sensitivity: the old table is not implemented yet; pass use_sensitivity_v2=True"
            )
        if sensitivity_method != "ablation":
            raise NotImplementedError(
                f"sensitivity: method {sensitivity_method!r} is not implemented yet; use 'ablation'"
            )
        if self.analysis_model_type != "fake_quant":
            raise AnalysisError(
                "sensitivity v2 works on analysis type 'fake_quant' only, this analysis is "
                f"{self.analysis_model_type!r}"
            )
        model = require_torch(self.analysis_model, "sensitivity")
        chosen = Metric.get_metric(metric)
        tables: dict[str, list[SensitivityTable]] = {}
        options = {"prefixes": prefixes, "types": types, "output_names": output_names}
        for index, inputs in self._cases(chosen):
            found = sensitivity_tables(model, inputs, chosen, str(index), **options)  # type: ignore[arg-type]
            for output, table in found.items():
                tables.setdefault(output, []).append(table)
        self._save_tables(tables)
        return tables

    def tune_bad_case(
        self,
        outputs_config: Mapping[str, Mapping[str, Any]],
        skip_prefix: Mapping[str, Sequence[str]] | None = None,
    ) -> dict[str, SensitivityTable]:
        """Try int16 for the stubs with the largest gain until the goal of an output is reached.

        Needs the tables of ``sensitivity(use_sensitivity_v2=True)``. The model is restored. Writes
        ``output_<name>_tuned_case_<index>_sensitive_ops.txt/.csv/.pt``.
        """
        if self.analysis_model_type != "fake_quant":
            raise AnalysisError("tune_bad_case works on analysis type 'fake_quant' only")
        model = require_torch(self.analysis_model, "tune_bad_case")
        tuned = {}
        for output, config in outputs_config.items():
            goal = TuneGoal(
                Metric.get_metric(config["metric"]),
                float(config["threshold"]),
                int(config["max_tuned_stubs"]),
                skip_prefix or {},
            )
            for index, inputs in self._cases(goal.metric, output):
                table = self._load_table(output, index)
                baseline = run_model(self.baseline_model, inputs)
                tuned[output] = tune(baseline, model, inputs, table, goal)
                tuned[output].save(
                    self.out_dir / f"output_{output}_tuned_case_{index}_sensitive_ops"
                )
        return tuned

    def clean(self) -> None:
        """Remove intermediate results (``op_infos``); tables and reports stay."""
        shutil.rmtree(self.out_dir / "op_infos", ignore_errors=True)
        self._runs.clear()

    def set_model_profiler_dir(self, baseline_path: str, analysis_path: str) -> None:
        """Not done yet."""
        raise NotImplementedError("QuantAnalysis.set_model_profiler_dir is not implemented yet")

    def _choose(
        self, index: int | None, metric: str | MetricInfo | None, out_name: str | None
    ) -> tuple[int, Inputs]:
        if self._set_case is not None:
            if index not in (None, 0):
                raise AnalysisError(f"run: index {index} is unknown; the case set by hand is 0")
            return 0, self._set_case
        report = self._report()
        if index is None:
            index = report.worst(Metric.get_metric(metric or "ATOL"), out_name)
        elif index not in report.indices:
            raise AnalysisError(
                f"run: index {index} is not in the bad case report; it has {report.indices}"
            )
        return index, badcase.load_case(self.badcase_dir, index)

    def _cases(self, metric: MetricInfo, output: str | None = None) -> list[tuple[int, Inputs]]:
        if self._set_case is not None:
            return [(0, self._set_case)]
        report = self._report()
        outputs = report.output_names if output is None else [output]
        wanted = {i for name in outputs for i in report.cases_of(name, metric)}
        if not wanted:  # searched with other metrics: take their worst cases
            wanted = set(report.indices)
        return [(i, badcase.load_case(self.badcase_dir, i)) for i in sorted(wanted)]

    def _report(self) -> BadCaseReport:
        if self.badcase_report is None:
            raise AnalysisError(
                "no bad case: call auto_find_bad_case, set_bad_case or load_bad_case"
            )
        return self.badcase_report

    def _save_tables(self, tables: Mapping[str, Sequence[SensitivityTable]]) -> None:
        shown = {output: list(cases) for output, cases in tables.items()}
        for output, cases in tables.items():
            if len(cases) > 1:
                shown[output] += [summarize(cases, "mean"), summarize(cases, "worst")]
            for table in shown[output]:
                table.save(self.out_dir / f"output_{output}_case_{table.case}_sensitive_ops")
        write_text(self.out_dir / "sensitivity_v2_report.html", pages.sensitivity_page(shown))

    def _load_table(self, output: str, index: int) -> SensitivityTable:
        path = self.out_dir / f"output_{output}_case_{index}_sensitive_ops.pt"
        if not path.exists():
            raise FileNotFoundError(
                f"{path} does not exist; call sensitivity(use_sensitivity_v2=True) first"
            )
        table: SensitivityTable = torch.load(path, weights_only=True)
        return table


def _device(device_ids: int | None) -> torch.device:
    if device_ids is None or not torch.cuda.is_available():
        if device_ids is not None:
            _log.info("device_ids=%s: no GPU here, the CPU is used", device_ids)
        return torch.device("cpu")
    return torch.device("cuda", device_ids)


def _on(model: Model, device: torch.device) -> Model:
    return model.to(device) if isinstance(model, torch.nn.Module) else model


def _inputs_on(inputs: Inputs, device: torch.device) -> Inputs:
    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return Inputs(*map(move, inputs.args), **{k: move(v) for k, v in inputs.kwargs.items()})


def _filtered(
    found: LayerComparison,
    facts: Facts,
    prefixes: tuple[str, ...] | None,
    types: tuple[type, ...] | None,
) -> LayerComparison:
    if prefixes is None and types is None:
        return found
    names = {t.__qualname__ for t in types or ()}
    kept = [
        i
        for i, name in enumerate(found.names)
        if (prefixes is None or name.startswith(tuple(prefixes)))
        and (types is None or found.rows[i]["base_op_type"].rsplit(".", 1)[-1] in names)
    ]
    rows = tuple(found.rows[i] for i in kept)
    return LayerComparison(found.columns, rows, tuple(found.names[i] for i in kept))
