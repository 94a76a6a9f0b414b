"""``QuantAnalysis``: the toolchain's class, over the functions of this package."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qtune.analysis import files
from qtune.analysis.badcase import BadCaseSearch
from qtune.analysis.cases import BadCases, CaseStore
from qtune.analysis.compare import LayerComparison, compare, selected
from qtune.analysis.deprecated import accept_old
from qtune.analysis.devices import device_of, inputs_on, refuse_processes
from qtune.analysis.facts import facts_of
from qtune.analysis.op_info import save_op_infos
from qtune.analysis.outputs import PostProcess, scores
from qtune.analysis.pairs import check_pair
from qtune.analysis.sensitivity import Row, sensitivity_lists, sensitivity_tables
from qtune.analysis.tune import TuneGoal, tune
from qtune.capture.inputs import Inputs, batch_to_inputs
from qtune.errors import AnalysisError
from qtune.nn.prepared import PreparedModel
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.float_reference import observe_baseline
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.observe import Model, Observation, observe, require_torch, run_model
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.profiler.undisturbed import refuse_observing, same_randomness, undisturbed
from qtune.report.progress import expected_length, progress

DEFAULT_METRICS = ("L1", "COSINE", "ATOL")
DEFAULT_METRIC = "ATOL"
DEFAULT_DIR = "./horizon_quant_analysis"
FAKE_QUANT = "fake_quant"
ABLATION = "ablation"


class QuantAnalysis:
    """Compare two models of one net, find the worst input, and the operator to blame.

    ``analysis_model_type``: ``fake_quant``, ``pre_export``, ``export`` or ``convert``.
    ``device_ids``: one GPU; without a GPU the CPU is used. ``post_process`` is applied to the
    outputs of both models before they are compared. ``metric_list`` defaults to L1, COSINE and
    ATOL. Files go to ``out_dir`` (default ``./horizon_quant_analysis``).

    The models are left as they were by every method: modes, states, scales, hooks, device and the
    random state, also after an error. Source: the tuning tool document, "QuantAnalysis".
    """

    def __init__(
        self,
        baseline_model: Model,
        analysis_model: Model,
        analysis_model_type: str,
        device_ids: int | None = None,
        post_process: PostProcess | None = None,
        out_dir: str | None = None,
        metric_list: Sequence[str | MetricInfo] | None = None,
    ) -> None:
        refuse_processes()
        self.kinds = check_pair(baseline_model, analysis_model, analysis_model_type)
        self.baseline_model = baseline_model
        self.analysis_model = analysis_model
        self.analysis_model_type = analysis_model_type
        self.device = device_of(device_ids)
        self.post_process = post_process
        self.out_dir = Path(out_dir or DEFAULT_DIR)
        self.metric_list = [Metric.get_metric(m) for m in metric_list or DEFAULT_METRICS]
        self._cases = BadCases(CaseStore(self.out_dir / files.CASES))
        self._case: tuple[int, Inputs] | None = None
        self._runs: dict[str, Observation] = {}
        self._tables: set[tuple[str, int]] = set()

    @property
    def badcase_report(self) -> BadCaseReport | None:
        """What ``auto_find_bad_case`` or ``load_bad_case`` found."""
        return self._cases.report

    @property
    def _models(self) -> tuple[Model, Model]:
        return self.baseline_model, self.analysis_model

    def auto_find_bad_case(
        self,
        data_generator: Iterable[Any],
        num_steps: int = sys.maxsize,
        cached_attrs: tuple[str, ...] | None = None,
        dump_in_run: bool = False,
        topk: int = 1,
        **old: Any,
    ) -> BadCaseReport:
        """Run both models over the data and keep the ``topk`` worst cases per output and metric.

        ``dump_in_run`` writes inputs at once and keeps none in memory. Writes
        ``badcase_report.html``, ``all_badcase_info.pt`` and ``badcase/<index>.pt``.
        """
        accept_old("auto_find_bad_case", old)
        if cached_attrs is not None:
            raise NotImplementedError("auto_find_bad_case: cached_attrs is not done yet")
        self._check_states("auto_find_bad_case")
        store = CaseStore(self.out_dir / files.CASES, dump_in_run)
        search = BadCaseSearch(self.metric_list, topk, store, self.post_process)
        with undisturbed(*self._models, device=self._run_device()):
            total = expected_length(data_generator, None if num_steps == sys.maxsize else num_steps)
            report = search.run(self._run_both, self._calls(data_generator), num_steps, total)
        files.write_report(self.out_dir, report)
        self._take_cases(BadCases(store, report))
        return report

    def _calls(self, data: Iterable[Any]) -> Iterator[Inputs]:
        for index, item in enumerate(data):
            yield batch_to_inputs(item, self._module, index, "auto_find_bad_case", AnalysisError)

    @property
    def _module(self) -> Model:
        """The model whose forward says what a batch means: one of torch, if there is one."""
        return next((m for m in self._models if isinstance(m, nn.Module)), self.analysis_model)

    def set_bad_case(
        self,
        data: Any,
        baseline_model_cached_attr: dict[str, Any] | None = None,
        analysis_model_cached_attr: dict[str, Any] | None = None,
    ) -> None:
        """Take ``data`` as the bad case, under index 0."""
        if baseline_model_cached_attr or analysis_model_cached_attr:
            raise NotImplementedError("set_bad_case: cached attributes are not done yet")
        inputs = batch_to_inputs(data, self._module, 0, "set_bad_case", AnalysisError)
        store = CaseStore(self.out_dir / files.CASES)
        store.keep(0, inputs, {0})
        store.flush()
        self._take_cases(BadCases(store, by_hand=inputs))

    def load_bad_case(self, path: str | None = None) -> None:
        """Read the report of an earlier search from ``path`` (a folder; default ``out_dir``)."""
        if str(path or "").startswith(("http://", "https://")):
            raise NotImplementedError("load_bad_case: links are not done yet; pass a folder")
        folder = Path(path) if path is not None else self.out_dir
        report = files.read_report(folder)
        store = CaseStore(self.out_dir / files.CASES)
        if folder.resolve() != self.out_dir.resolve():
            store.take_from(folder / files.CASES)
            files.write_report(self.out_dir, report)
        self._take_cases(BadCases(store, report, loaded=True))

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
        ``out_name`` if given. Export and convert always run on the CPU. Writes ``op_infos``.
        """
        accept_old("run", {} if device is None else {"device": device})
        if index is not None and metric is not None:
            raise AnalysisError("run: give index or metric, not both")
        self._check_states("run")
        self._case = self._cases.choose(
            index, Metric.get_metric(metric or DEFAULT_METRIC), out_name
        )
        on = torch.device("cpu") if run_on_cpu else self._run_device()
        inputs = inputs_on(self._case[1], on)
        runs = {
            "baseline": lambda: observe_baseline(*self._models, inputs),
            "analysis": lambda: observe(self.analysis_model, inputs, keep_inputs=True),
        }
        wanted = {"baseline": run_baseline_model, "analysis": run_analysis_model}
        sides = [side for side, is_wanted in wanted.items() if is_wanted]
        with undisturbed(*self._models, device=on):
            for side in progress(sides, "run", unit="model"):
                with same_randomness():
                    self._keep_run(side, runs[side]())

    def compare_per_layer(
        self, prefixes: tuple[str, ...] | None = None, types: tuple[Any, ...] | None = None
    ) -> LayerComparison:
        """Compare the two runs operator by operator; ``prefixes`` and ``types`` mean both.

        Writes ``compare_per_layer_out_0.txt`` and ``.csv`` and ``compare_per_layer_report_0.html``.
        """
        if set(self._runs) != {"baseline", "analysis"} or self._case is None:
            raise AnalysisError("compare_per_layer: both models must have run; call run() first")
        baseline, analysed = self._runs["baseline"], self._runs["analysis"]
        facts = facts_of(*self._models, self.analysis_model_type, self._case[1], baseline)
        found = compare(baseline, analysed, self.metric_list, facts)
        found = found.only(selected(baseline, prefixes, types))
        files.write_comparison(self.out_dir, found, self.metric_list)
        return found

    def sensitivity(
        self,
        metric: str | MetricInfo = DEFAULT_METRIC,
        prefixes: tuple[str, ...] | None = None,
        types: tuple[Any, ...] | None = None,
        output_names: tuple[str, ...] | None = None,
        use_sensitivity_v2: bool = False,
        sensitivity_method: str = ABLATION,
        **old: Any,
    ) -> dict[str, list[Any]]:
        """Rank every fake-quantize by what it costs alone, and (v2) by what int16 would gain.

        v2 returns output name -> one ``SensitivityTable`` per bad case and writes
        ``output_<name>_case_<index>_sensitive_ops.txt/.csv/.pt``, the mean and worst over several
        cases, and ``sensitivity_v2_report.html``. The old form returns output name -> rows
        ``[op_name, sensitive_type, op_type, value, dtype, flops]`` of the worst case and writes
        ``output_<name>_case_<index>_<metric>_sensitive_ops.txt`` for every case.
        """
        accept_old("sensitivity", old)
        if sensitivity_method != ABLATION:
            raise NotImplementedError(
                f"sensitivity: method {sensitivity_method!r} is not done yet; use {ABLATION!r}"
            )
        if use_sensitivity_v2 and self.analysis_model_type != FAKE_QUANT:
            raise AnalysisError(
                f"sensitivity v2 works on analysis type {FAKE_QUANT!r} only, this analysis is "
                f"{self.analysis_model_type!r}; leave use_sensitivity_v2 out"
            )
        chosen = Metric.get_metric(metric)
        options = {
            "prefixes": prefixes,
            "types": types,
            "output_names": output_names,
            "post_process": self.post_process,
        }
        if use_sensitivity_v2:
            return dict(self._sensitivity_v2(chosen, options))
        return dict(self._sensitivity_v1(chosen, options))

    def tune_bad_case(
        self,
        outputs_config: Mapping[str, Mapping[str, Any]],
        skip_prefix: Mapping[str, Sequence[str]] | None = None,
    ) -> dict[str, list[SensitivityTable]]:
        """Try int16 for the stubs with the largest gain until the goal of an output is reached.

        Needs the tables of ``sensitivity(use_sensitivity_v2=True)``; returns output name -> one
        table per bad case that has one. The model is restored. Writes
        ``output_<name>_tuned_case_<index>_sensitive_ops.txt/.csv/.pt``.
        """
        if self.analysis_model_type != FAKE_QUANT:
            raise AnalysisError(f"tune_bad_case works on analysis type {FAKE_QUANT!r} only")
        model = require_torch(self.analysis_model, "tune_bad_case")
        self._check_states("tune_bad_case")
        goals = {o: TuneGoal.of(config, skip_prefix) for o, config in outputs_config.items()}
        tuned: dict[str, list[SensitivityTable]] = {}
        for output, goal in goals.items():
            for index, table in self._tables_of(output):
                result = self._tuned(model, index, table, goal)
                result.save(files.tuned_stem(self.out_dir, output, index))
                tuned.setdefault(output, []).append(result)
        return tuned

    def clean(self) -> None:
        """Remove intermediate results (``op_infos``); tables, reports and bad cases stay."""
        shutil.rmtree(self.out_dir / files.OP_INFOS, ignore_errors=True)
        self._runs.clear()

    def set_model_profiler_dir(
        self, baseline_model_profiler_path: str, analysis_model_profiler_path: str
    ) -> None:
        """Not done yet."""
        raise NotImplementedError("QuantAnalysis.set_model_profiler_dir is not done yet")

    def _sensitivity_v2(
        self, metric: MetricInfo, options: Mapping[str, Any]
    ) -> dict[str, list[SensitivityTable]]:
        model = self._torch_model()
        tables: dict[str, list[SensitivityTable]] = {}
        for index in self._cases.indices(metric):
            inputs = self._cases.load(index)
            found = sensitivity_tables(model, inputs, metric, str(index), **options)
            for output, table in found.items():
                if index in self._cases.indices(metric, output):
                    tables.setdefault(output, []).append(table)
                    self._tables.add((output, index))
        files.write_tables(self.out_dir, tables)
        return tables

    def _sensitivity_v1(
        self, metric: MetricInfo, options: Mapping[str, Any]
    ) -> dict[str, list[Row]]:
        model = self._torch_model()
        lists: dict[str, dict[int, list[Row]]] = {}
        for index in self._cases.indices(metric):
            found = sensitivity_lists(model, self._cases.load(index), metric, **options)
            for output, rows in found.items():
                if index in self._cases.indices(metric, output):
                    lists.setdefault(output, {})[index] = rows
                    files.write_list(self.out_dir, output, index, metric.name, rows)
        return {
            output: cases[self._cases.indices(metric, output)[0]] for output, cases in lists.items()
        }

    def _tuned(
        self, model: PreparedModel, index: int, table: SensitivityTable, goal: TuneGoal
    ) -> SensitivityTable:
        inputs = self._cases.load(index)

        def score() -> float:
            with same_randomness():
                found = scores(goal.metric, baseline, run_model(model, inputs), self.post_process)
            value = found.get(table.output_name)
            if value is None:
                raise AnalysisError(
                    f"tune_bad_case: {goal.metric} has no value for output {table.output_name!r} "
                    f"on this bad case; it has: {sorted(n for n in found if found[n] is not None)}"
                )
            return value

        with undisturbed(self.baseline_model, model, device=self._run_device()):
            with same_randomness():
                baseline = run_model(self.baseline_model, inputs)
            return tune(model, table, goal, score)

    def _tables_of(self, output: str) -> list[tuple[int, SensitivityTable]]:
        """The v2 tables of the present bad cases, ``FileNotFoundError`` if there is none."""
        indices = self._cases.indices_of(output)
        known = [i for i in indices if self._cases.loaded or (output, i) in self._tables]
        found, missing = [], None
        for index in known or indices[:1]:
            try:
                found.append((index, files.read_table(self.out_dir, output, index)))
            except FileNotFoundError as error:
                missing = error
        if not known and found:
            raise FileNotFoundError(
                f"the sensitivity tables in {self.out_dir} belong to earlier bad cases; call "
                "sensitivity(use_sensitivity_v2=True) again"
            )
        if missing is not None and not found:
            raise missing
        return found

    def _torch_model(self) -> PreparedModel:
        """The torch model whose stubs are ranked: the analysed one, else the baseline."""
        for model in reversed(self._models):
            if isinstance(model, PreparedModel):
                return model
        raise AnalysisError(
            f"sensitivity needs a torch model, this analysis has {self.kinds[0]} and "
            f"{self.kinds[1]}; pass the model of pre_export as baseline, and load_bad_case()"
        )

    def _keep_run(self, side: str, run: Observation) -> None:
        self._runs[side] = run
        save_op_infos(self.out_dir / files.OP_INFOS / side, run)

    def _run_both(self, inputs: Inputs) -> tuple[Any, Any]:
        here = inputs_on(inputs, self._run_device())
        with same_randomness():
            baseline = run_model(self.baseline_model, here)
        with same_randomness():
            return baseline, run_model(self.analysis_model, here)

    def _run_device(self) -> torch.device:
        on_cpu = self.analysis_model_type in ("export", "convert")
        return torch.device("cpu") if on_cpu else self.device

    def _check_states(self, where: str) -> None:
        for model in self._models:
            refuse_observing(model, where)

    def _take_cases(self, cases: BadCases) -> None:
        self._cases = cases
        self._tables.clear()
        self._runs.clear()
        self._case = None
