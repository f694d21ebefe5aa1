"""An evaluation written out: a table for people, or a line for every mean and, where wanted, for every query.

What is written: run → label → measure → query or group → value, as `groups.samples` gives it; a label is `all`, or a group, `macro`
and `micro`.
"""

import json
from collections.abc import Iterator, Mapping

from moeir.evaluation import groups, measures, significance, tables
from moeir.evaluation.groups import Values

ALL = "all"
Samples = Mapping[str, Values]


def table(systems: Mapping[str, Samples]) -> str:
    """A row for each label and run: means, and the two-sided paired t-test's p-value against the first run.

    >>> print(table({"bm25": {ALL: {"RR": {"q1": 1.0, "q2": 0.5}}}}))
    run       RR
    ----  ------
    bm25  0.7500
    """
    first = next(iter(systems.values()))
    grouped = ALL not in first
    header = ["group", "n", "run"] if grouped else ["run"]
    for measure in next(iter(first.values())):
        header += [measure, "p"] if len(systems) > 1 else [measure]
    rows = []
    for label in first:
        for name, samples in systems.items():
            size = len(next(iter(samples[label].values())))
            row: list[object] = [label, size, name] if grouped else [name]
            means = measures.overall(samples[label])
            for measure, by_query in samples[label].items():
                row.append(means[measure])
                if len(systems) > 1:
                    row.append("" if samples is first else _p(significance.paired_t(by_query, first[label][measure])))
            rows.append(row)
    return tables.text(header, rows)


def lines(systems: Mapping[str, Samples], form: str, *, per_query: bool = False) -> Iterator[str]:
    """`measure⇥query⇥value` (tsv) or an object (jsonl) for each mean, the name of the run first where there are several.

    The mean over all queries is called `all`, that over groups `macro`, that of a group FIELD=VALUE.

    >>> list(lines({"bm25": {ALL: {"RR": {"q1": 1.0, "q2": 0.5}}}}, "tsv"))
    ['RR\\tall\\t0.750000']
    """
    for name, samples in systems.items():
        *_, whole = samples.values()
        means = {ALL if label == groups.MICRO else label: measures.overall(one) for label, one in samples.items()}
        for measure, by_query in whole.items():
            rows = sorted(by_query.items()) if per_query else []
            for query, value in [*rows, *((label, found[measure]) for label, found in means.items())]:
                if form == "tsv":
                    yield "\t".join([*([name] if len(systems) > 1 else []), measure, query, f"{value:.6f}"])
                else:
                    yield json.dumps(({"run": name} if len(systems) > 1 else {}) | {"measure": measure, "query": query, "value": value})


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
