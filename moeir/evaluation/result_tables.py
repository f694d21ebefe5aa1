"""Result tables of an evaluation: means over groups of queries, and output as text for people, JSON, or one line per mean or query.

Input of the tables is run → label → measure → query or group → value, as `group_samples` returns it; a label is `all`, or a group,
`macro` (mean of the groups' means) and `micro` (mean over all queries).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moeir.errors import DataError, UsageError
from moeir.evaluation import significance, tables
from moeir.evaluation.measures import aggregate_values
from moeir.parsing import dump_json, escape_controls

ALL_QUERIES, MACRO, MICRO = "all", "macro", "micro"
MeasureValues = Mapping[str, Mapping[str, float]]
LabelledValues = Mapping[str, MeasureValues]
Summary = dict[str, dict[str, dict[str, dict[str, Any]]]]  # run → label → measure → facts
PairValues = dict[tuple[str, str, str, str], float]  # (label, run, baseline, measure) → p
TEST_NAMES = {"t": "paired t-test", "randomisation": "randomisation test"}
SIGNIFICANT = 0.05  # a mark stands for a p below


def group_samples(values: MeasureValues, groups: Mapping[str, str], field: str) -> dict[str, MeasureValues]:
    """Values that each mean averages: the queries of every group, the groups' means for macro, all queries for micro.

    values: measure → query → value; groups: query → value of `field` -> label → measure → query or group → value.

    >>> values = group_samples({"RR": {"a": 1.0, "b": 0.0, "c": 1.0}}, {"a": "x", "b": "x", "c": "y"}, "set")
    >>> {label: aggregate_values(one)["RR"] for label, one in values.items()}
    {'set=x': 0.5, 'set=y': 1.0, 'macro': 0.75, 'micro': 0.6667}
    """
    within: dict[str, dict[str, dict[str, float]]] = {}
    for measure, by_query in values.items():
        require_groups(by_query, groups, field)
        for query, value in by_query.items():
            within.setdefault(f"{field}={groups[query]}", {}).setdefault(measure, {})[query] = value
    means = {label: aggregate_values(within[label]) for label in sorted(within)}
    macro = {measure: {label: means[label][measure] for label in means} for measure in values}
    return {**{label: within[label] for label in means}, MACRO: macro, MICRO: values}


def require_groups(judged: Iterable[str], groups: Mapping[str, str], field: str) -> None:
    """DataError for a judged query of which no group is known."""
    if missing := next((query for query in judged if query not in groups), None):
        raise DataError(f"query {missing!r} is judged but not among the queries with the field {field}")


@dataclass(frozen=True)
class Comparison:
    """How runs are compared: significance test, correction for multiple comparisons, and whether tables have confidence intervals.

    Each run has p-values against the first, or with the names of `against` a mark for each of these baselines that it is better than.
    """

    test: str = "t"
    correction: str = "holm"
    intervals: bool = False
    against: tuple[str, ...] = ()

    def check(self) -> None:
        """UsageError for baselines without a test, or too many for their marks."""
        if self.against and self.test == "none":
            raise UsageError(f"--against {self.against[0]}: needs a test; expected --test {' or '.join(significance.TESTS)}")
        if len(self.against) > len(tables.MARKS):
            raise UsageError(f"--against: expected at most {len(tables.MARKS)} baselines, found {len(self.against)}")

    @property
    def p_header(self) -> str:
        """The head of a column of p-values."""
        return f"p ({significance.CORRECTIONS[self.correction]})"

    @property
    def has_p_column(self) -> bool:
        """Whether tables have p-values against the first run."""
        return self.test != "none" and not self.against

    def p_values(self, systems: Mapping[str, LabelledValues]) -> PairValues:
        """p-value of every run against every baseline but itself (the first run, if none is named), corrected over the comparisons of a
        label, each counted once."""
        baselines, p_values = self.against or tuple(systems)[:1], PairValues()
        pairs = {frozenset((name, baseline)): (name, baseline) for baseline in baselines for name in systems if name != baseline}
        for label, values in next(iter(systems.values())).items() if self.test != "none" else ():
            keys = [(*pair, measure) for pair in pairs.values() for measure in values]
            samples = [(systems[name][label][measure], systems[baseline][label][measure]) for name, baseline, measure in keys]
            corrected = significance.correct_p_values([significance.TESTS[self.test](*pair) for pair in samples], self.correction)
            for (name, baseline, measure), p in zip(keys, corrected, strict=True):
                p_values[label, name, baseline, measure] = p_values[label, baseline, name, measure] = p
        return p_values

    def legend(self) -> str:
        """What the marks mean, as a line below a table."""
        baselines = ", ".join(f"{mark} {name}" for mark, name in zip(tables.MARKS, self.against, strict=False))
        correction = significance.CORRECTIONS[self.correction]
        return f"significantly better than {baselines} (p < {SIGNIFICANT:g}, two-sided {TEST_NAMES[self.test]}, {correction})"


DEFAULT_COMPARISON = Comparison()


def compare_runs(systems: Mapping[str, LabelledValues], comparison: Comparison = DEFAULT_COMPARISON) -> Summary:
    """run → label → measure → mean, queries, 95 % interval and, against the first run, p.

    With baselines, `p_against` has the p-value against each (None for the baseline itself) instead of p.
    """
    first_name, p_values = next(iter(systems)), comparison.p_values(systems)
    summary: Summary = {name: {label: {} for label in samples} for name, samples in systems.items()}
    for name, samples in systems.items():
        means = {label: aggregate_values(values) for label, values in samples.items()}
        for label, measure in _iter_means(samples):
            by_query = samples[label][measure]
            interval = list(significance.confidence_interval(list(by_query.values())))
            entry: dict[str, Any] = {"mean": means[label][measure], "queries": len(by_query), "interval": interval}
            if comparison.against:
                entry["p_against"] = {baseline: p_values.get((label, name, baseline, measure)) for baseline in comparison.against}
            elif comparison.has_p_column and name != first_name:
                entry["p"] = p_values[label, name, first_name, measure]
            summary[name][label][measure] = entry
    return summary


def _iter_means(samples: LabelledValues) -> Iterator[tuple[str, str]]:
    """The label and the measure of each mean."""
    return ((label, measure) for label, values in samples.items() for measure in values)


def to_json(systems: Mapping[str, LabelledValues], comparison: Comparison = DEFAULT_COMPARISON) -> str:
    """The settings of the comparison and the `compare_runs` result as one JSON object."""
    settings: dict[str, Any] = {"test": comparison.test, "correction": comparison.correction}
    settings |= {"against": comparison.against} if comparison.against else {}
    return dump_json({**settings, "runs": compare_runs(systems, comparison)}, indent=1)


def to_table(systems: Mapping[str, LabelledValues], form: str = "table", comparison: Comparison = DEFAULT_COMPARISON) -> str:
    """A row for each label and run: means and, against the first run, the two-sided p-value, as text, Markdown or LaTeX.

    With baselines, means have their marks instead of p-values, and the legend stands below. In Markdown and LaTeX the best means of several
    runs, to four digits, are bold. `intervals` adds the 95 % interval of the mean.

    >>> print(to_table({"bm25": {ALL_QUERIES: {"RR": {"q1": 1.0, "q2": 0.5}}}}))
    run       RR
    ----  ------
    bm25  0.7500
    """
    summary, first = compare_runs(systems, comparison), next(iter(systems.values()))
    grouped, several = ALL_QUERIES not in first, len(systems) > 1
    columns = ["95 %"] * comparison.intervals + [comparison.p_header] * (comparison.has_p_column and several)
    marks = {(name, *key): _find_marks(summary, name, *key) for name, samples in systems.items() for key in _iter_means(samples)}
    width = max(map(len, marks.values())) if form == "table" else 0
    header = [*(["group", "n", "run"] if grouped else ["run"]), *(cell for one in next(iter(first.values())) for cell in (one, *columns))]
    rows = []
    for label, name in ((label, name) for label in first for name in systems):
        row: list[object] = [label, len(next(iter(systems[name][label].values()))), name] if grouped else [name]
        for measure, entry in summary[name][label].items():
            mean, best = (f"{one:.4f}" for one in (entry["mean"], max(of_run[label][measure]["mean"] for of_run in summary.values())))
            cell = mean + marks[name, label, measure].ljust(width)
            row.append(tables.Bold(cell) if several and mean == best and not measure.startswith("Num") else cell)
            row += [_format_column(entry, column) for column in columns]
        rows.append(row)
    table = tables.TABLE_FORMATS[form](header, rows)
    return table if not comparison.against else f"{table}\n\n{tables.format_note(comparison.legend(), form)}"


def _find_marks(summary: Summary, name: str, label: str, measure: str) -> str:
    """The marks of the baselines that a run is significantly better than."""
    mean, p_against = (summary[name][label][measure].get(key, {}) for key in ("mean", "p_against"))
    better = (p is not None and p < SIGNIFICANT and mean > summary[one][label][measure]["mean"] for one, p in p_against.items())
    return "".join(mark for mark, is_better in zip(tables.MARKS, better, strict=False) if is_better)


def _format_column(entry: Mapping[str, Any], column: str) -> str:
    """The cell of a column beside a mean: its interval, or its p-value, which the first run has not."""
    if column == "95 %":
        return "{:.4f}-{:.4f}".format(*entry["interval"])
    return significance.format_p(entry["p"]) if "p" in entry else ""


def to_lines(systems: Mapping[str, LabelledValues], form: str, *, per_query: bool = False) -> Iterator[str]:
    """`measure⇥query⇥value` (tsv) or an object (jsonl) for each mean, with the name of the run first if there are several.

    The mean over all queries is called `all`, that over groups `macro`, that of a group FIELD=VALUE.

    >>> list(to_lines({"bm25": {ALL_QUERIES: {"RR": {"q1": 1.0, "q2": 0.5}}}}, "tsv"))
    ['RR\\tall\\t0.750000']
    """
    first = next(iter(systems.values()))
    queries = next(iter([*first.values()][-1].values()))
    if clash := next((label for label in (ALL_QUERIES, *first) if per_query and label in queries), None):
        raise DataError(f"query {clash!r} has the name of a mean; leave out --per-query, or give the query another name")
    for name, labels in systems.items():
        means = {ALL_QUERIES if label == MICRO else label: aggregate_values(values) for label, values in labels.items()}
        *_, whole = labels.values()
        for measure, by_query in whole.items():
            rows = sorted(by_query.items()) if per_query else []
            for query, value in [*rows, *((label, of_label[measure]) for label, of_label in means.items())]:
                if form == "tsv":
                    names = map(escape_controls, [*([name] if len(systems) > 1 else []), measure, query])
                    yield "\t".join([*names, f"{value:.6f}"])
                else:
                    line = {"run": name} if len(systems) > 1 else {}
                    yield json.dumps(line | {"measure": measure, "query": query, "value": value})
