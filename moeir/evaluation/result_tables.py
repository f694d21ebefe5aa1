"""Result tables of an evaluation: means over groups of queries, and output as text for people, JSON, or one line per mean or query.

Input of the tables is run → label → measure → query or group → value, as `group_samples` returns it; a label is `all`, or a group,
`macro` (mean of the groups' means) and `micro` (mean over all queries).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeir.errors import DataError, UsageError
from moeir.evaluation import measures, significance, tables
from moeir.parsing import dump_json, escape_controls

ALL_QUERIES, MACRO, MICRO = "all", "macro", "micro"
MeasureValues = Mapping[str, Mapping[str, float]]
LabelledValues = Mapping[str, MeasureValues]
TieRanges = Mapping[str, Mapping[str, tuple[float, float]]]  # run → measure → (least, most)
PairValues = dict[tuple[str, str, str, str], float]  # (label, run, baseline, measure) → p
TEST_NAMES = {"t": "paired t-test", "randomisation": "randomisation test", "bootstrap": "bootstrap test"}
SIGNIFICANT = 0.05  # a mark stands for a p below


def group_samples(values: MeasureValues, groups: Mapping[str, str], field: str) -> dict[str, MeasureValues]:
    """Values that each mean averages: the queries of every group, the groups' means for macro, all queries for micro.

    values: measure → query → value; groups: query → value of `field` -> label → measure → query or group → value.

    >>> values = group_samples({"RR": {"a": 1.0, "b": 0.0, "c": 1.0}}, {"a": "x", "b": "x", "c": "y"}, "set")
    >>> {label: measures.aggregate_values(one)["RR"] for label, one in values.items()}
    {'set=x': 0.5, 'set=y': 1.0, 'macro': 0.75, 'micro': 0.6667}
    """
    for by_query in values.values():
        require_groups(by_query, groups, field)
    within: dict[str, dict[str, dict[str, float]]] = {}
    for measure, by_query in values.items():
        for query, value in by_query.items():
            within.setdefault(f"{field}={groups[query]}", {}).setdefault(measure, {})[query] = value
    by_group: dict[str, MeasureValues] = {label: within[label] for label in sorted(within)}
    means = {label: measures.aggregate_values(group_values) for label, group_values in by_group.items()}
    return by_group | {MACRO: {measure: {label: means[label][measure] for label in means} for measure in values}, MICRO: values}


def require_groups(judged: Iterable[str], groups: Mapping[str, str], field: str) -> None:
    """DataError for a judged query of which no group is known."""
    if missing := next((query for query in judged if query not in groups), None):
        raise DataError(f"query {missing!r} is judged but not among the queries with the field {field}")


@dataclass(frozen=True)
class Comparison:
    """How runs are compared: significance test, correction for multiple comparisons, and additional columns.

    Each run has p-values against the first, or with the names of `against` a mark for each of these baselines that it is better than.
    """

    test: str = "t"
    correction: str = "holm"
    effect: bool = False
    intervals: bool = False
    against: tuple[str, ...] = ()

    def check(self) -> None:
        """UsageError for an unknown test or correction, or baselines without a test."""
        tests, corrections = (*significance.TESTS, "none"), tuple(significance.CORRECTIONS)
        for flag, value, known in (("--test", self.test, tests), ("--correction", self.correction, corrections)):
            if value not in known:
                raise UsageError(f"{flag} {value}: expected {', '.join(known[:-1])} or {known[-1]}")
        if self.against and self.test == "none":
            raise UsageError(f"--against {self.against[0]}: needs a test; expected --test {', '.join(tests[:-2])} or {tests[-2]}")
        if len(self.against) > len(tables.MARKS):
            raise UsageError(f"--against: expected at most {len(tables.MARKS)} baselines, found {len(self.against)}")

    @property
    def p_header(self) -> str:
        """The head of a column of p-values."""
        return f"p ({significance.CORRECTIONS[self.correction]})"

    @property
    def p_columns(self) -> list[str]:
        """The head of the column of p-values against the first run, if there is one."""
        return [] if self.test == "none" or self.against else [self.p_header]

    def p_values(self, systems: Mapping[str, LabelledValues]) -> dict[tuple[str, str, str], float]:
        """p-value of every run but the first, by (label, run, measure), corrected over the runs and measures of a label."""
        first, *others = systems
        pairs = self._corrected_values(systems, [(name, first) for name in others])
        return {(label, name, measure): p for (label, name, _, measure), p in pairs.items()}

    def baseline_p_values(self, systems: Mapping[str, LabelledValues]) -> PairValues:
        """p-value of every run against every baseline but itself, corrected over all these comparisons of a label, each counted once."""
        all_pairs = [(name, baseline) for baseline in self.against for name in systems if name != baseline]
        p_values = self._corrected_values(systems, list({frozenset(pair): pair for pair in all_pairs}.values()))
        return p_values | {(label, baseline, name, measure): p for (label, name, baseline, measure), p in p_values.items()}

    def _corrected_values(self, systems: Mapping[str, LabelledValues], pairs: Sequence[tuple[str, str]]) -> PairValues:
        adjusted: PairValues = {}
        for label, values in next(iter(systems.values())).items() if self.test != "none" else ():
            keys = [(label, name, baseline, measure) for name, baseline in pairs for measure in values]
            samples = [(systems[name][label][measure], systems[baseline][label][measure]) for _, name, baseline, measure in keys]
            raw = [significance.TESTS[self.test](*pair) for pair in samples]
            adjusted |= dict(zip(keys, significance.correct_p_values(raw, self.correction), strict=True))
        return adjusted

    def select_p_values(self, p_values: PairValues, label: str, name: str, measure: str) -> dict[str, float | None]:
        """The p-value of one mean against each baseline; None for the baseline itself."""
        return {baseline: p_values.get((label, name, baseline, measure)) for baseline in self.against}

    def mark_better(self, systems: Mapping[str, LabelledValues]) -> dict[tuple[str, str, str], str]:
        """The marks of the baselines that a run is significantly better than, by (label, run, measure)."""
        means = {name: {label: measures.aggregate_values(values) for label, values in labels.items()} for name, labels in systems.items()}
        p_values, marks = self.baseline_p_values(systems), dict[tuple[str, str, str], str]()
        for mark, baseline in zip(tables.MARKS, self.against, strict=False):
            for (label, name, other, measure), p in p_values.items():
                if other == baseline and p < SIGNIFICANT and means[name][label][measure] > means[baseline][label][measure]:
                    marks[label, name, measure] = marks.get((label, name, measure), "") + mark
        return marks

    def legend(self) -> str:
        """What the marks mean, as a line below a table."""
        baselines = ", ".join(f"{mark} {name}" for mark, name in zip(tables.MARKS, self.against, strict=False))
        correction = significance.CORRECTIONS[self.correction]
        return f"significantly better than {baselines} (p < {SIGNIFICANT:g}, two-sided {TEST_NAMES[self.test]}, {correction})"


DEFAULT_COMPARISON = Comparison()


def to_table(
    systems: Mapping[str, LabelledValues], form: str = "table", comparison: Comparison = DEFAULT_COMPARISON, ranges: TieRanges | None = None
) -> str:
    """A row for each label and run: means and, against the first run, the two-sided p-value, as text, Markdown or LaTeX.

    With baselines, means have their marks instead of p-values, and the legend stands below. In Markdown and LaTeX the best means of several
    runs, to four digits, are bold. `effect` adds the difference to the first run
    and Cohen's d, `intervals` the 95 % interval of the mean, `ranges` the smallest and largest mean over all orders of tied documents:
    run → measure → (least, most).

    >>> print(to_table({"bm25": {ALL_QUERIES: {"RR": {"q1": 1.0, "q2": 0.5}}}}))
    run       RR
    ----  ------
    bm25  0.7500
    """
    first = next(iter(systems.values()))
    grouped, several = ALL_QUERIES not in first, len(systems) > 1
    p_values = {} if comparison.against else comparison.p_values(systems)
    marks = comparison.mark_better(systems)
    width = max(map(len, marks.values()), default=0) if form == "table" else 0
    best = _find_best_means(systems) if several else {}
    header, rows = ["group", "n", "run"] if grouped else ["run"], []
    for measure in next(iter(first.values())):
        header += [measure, *_extra_columns(comparison, several, ranges is not None)]
    for label in first:
        for name, samples in systems.items():
            size = len(next(iter(samples[label].values())))
            row: list[object] = [label, size, name] if grouped else [name]
            means = measures.aggregate_values(samples[label])
            for measure, by_query in samples[label].items():
                mean = f"{means[measure]:.4f}"
                cell = f"{mean}{marks.get((label, name, measure), ''):{width}}"
                row.append(tables.Bold(cell) if mean == best.get((label, measure)) else cell)
                if comparison.intervals:
                    row.append("{:.4f}-{:.4f}".format(*significance.confidence_interval(list(by_query.values()), is_measure=True)))
                if ranges is not None:
                    row.append("{:.4f}-{:.4f}".format(*ranges[name][measure]) if label == ALL_QUERIES else "")
                if several and samples is first:
                    row += [""] * (2 * comparison.effect + bool(comparison.p_columns))
                elif several:
                    row += _comparison_cells(comparison, by_query, first[label][measure], p_values.get((label, name, measure)))
            rows.append(row)
    table = tables.TABLE_FORMATS[form](header, rows)
    return table if not comparison.against else f"{table}\n\n{tables.format_note(comparison.legend(), form)}"


def _find_best_means(systems: Mapping[str, LabelledValues]) -> dict[tuple[str, str], str]:
    """The largest mean of the runs by (label, measure), as tables print it; counts have no best."""
    best = dict[tuple[str, str], float]()
    for samples in systems.values():
        for label, values in samples.items():
            for measure, mean in measures.aggregate_values(values).items():
                if not measure.startswith("Num"):
                    best[label, measure] = max(mean, best.get((label, measure), mean))
    return {key: f"{mean:.4f}" for key, mean in best.items()}


def _extra_columns(comparison: Comparison, several: bool, ranges: bool) -> list[str]:
    besides = (["95 %"] if comparison.intervals else []) + (["ties"] if ranges else [])
    if several:
        besides += (["diff", "d"] if comparison.effect else []) + comparison.p_columns
    return besides


def _comparison_cells(comparison: Comparison, values: Mapping[str, float], first: Mapping[str, float], p: float | None) -> list[object]:
    cells: list[object] = []
    if comparison.effect:
        differences = [values[query] - first[query] for query in first]
        cells += [f"{sum(differences) / max(len(differences), 1):+.4f}", f"{significance.effect_size(first, values):+.2f}"]
    if p is not None:
        cells.append(format_p(p))
    return cells


def format_p(p: float) -> str:
    """A p-value as tables show it: three digits, never 0.

    >>> format_p(0.0312), format_p(0.0)
    ('0.031', '<0.001')
    """
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def to_json(systems: Mapping[str, LabelledValues], comparison: Comparison = DEFAULT_COMPARISON) -> str:
    """One JSON object: run → label → measure → mean, queries, 95 % interval and, against the first run, p, difference and effect size.

    With baselines, `p_against` has the p-value against each instead of p.
    """
    first, p_values = next(iter(systems.values())), {} if comparison.against else comparison.p_values(systems)
    baseline_p_values = comparison.baseline_p_values(systems)
    report: dict[str, Any] = {}
    for name, samples in systems.items():
        for label, values in samples.items():
            means = measures.aggregate_values(values)
            for measure, by_query in values.items():
                low, high = significance.confidence_interval(list(by_query.values()), is_measure=True)
                entry: dict[str, Any] = {"mean": means[measure], "queries": len(by_query), "interval": [low, high]}
                if samples is not first:
                    entry |= {"difference": means[measure] - measures.aggregate_values(first[label])[measure]}
                    entry |= {"effect_size": significance.effect_size(first[label][measure], by_query)}
                    entry |= {"p": p_values[label, name, measure]} if comparison.p_columns else {}
                if comparison.against:
                    entry |= {"p_against": comparison.select_p_values(baseline_p_values, label, name, measure)}
                report.setdefault(name, {}).setdefault(label, {})[measure] = entry
    settings: dict[str, Any] = {"test": comparison.test, "correction": comparison.correction}
    settings |= {"against": comparison.against} if comparison.against else {}
    return dump_json({**settings, "runs": report}, indent=1)


def to_lines(
    systems: Mapping[str, LabelledValues], form: str, *, per_query: bool = False, comparison: Comparison = DEFAULT_COMPARISON
) -> Iterator[str]:
    """`measure⇥query⇥value` (tsv) or an object (jsonl) for each mean, with the name of the run first if there are several.

    The mean over all queries is called `all`, that over groups `macro`, that of a group FIELD=VALUE. With baselines, a mean ends with its
    p-value against each: columns in their order, empty for the baseline itself and for a query, or the object's `p_against`.

    >>> list(to_lines({"bm25": {ALL_QUERIES: {"RR": {"q1": 1.0, "q2": 0.5}}}}, "tsv"))
    ['RR\\tall\\t0.750000']
    """
    p_values, first = comparison.baseline_p_values(systems), next(iter(systems.values()))
    queries = next(iter([*first.values()][-1].values()))
    if clash := next((label for label in (ALL_QUERIES, *first) if per_query and label in queries), None):
        raise DataError(f"query {clash!r} has the name of a mean; leave out --per-query, or give the query another name")
    for name, samples in systems.items():
        *_, whole = samples.values()
        means = {label: measures.aggregate_values(values) for label, values in samples.items()}
        for measure, by_query in whole.items():
            rows = [(query, value, "") for query, value in sorted(by_query.items())] if per_query else []
            rows += [(ALL_QUERIES if label == MICRO else label, by_measure[measure], label) for label, by_measure in means.items()]
            for query, value, label in rows:
                against = comparison.select_p_values(p_values, label, name, measure)
                if form == "tsv":
                    p_cells = ["" if p is None else f"{p:.6g}" for p in against.values()]
                    names = map(escape_controls, [*([name] if len(systems) > 1 else []), measure, query])
                    yield "\t".join([*names, f"{value:.6f}", *p_cells])
                else:
                    line = ({"run": name} if len(systems) > 1 else {}) | {"measure": measure, "query": query, "value": value}
                    yield json.dumps(line | ({"p_against": against} if label and against else {}))
