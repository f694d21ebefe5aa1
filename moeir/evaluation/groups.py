"""Result tables of an evaluation: means over groups of queries, and output as text for people, JSON, or one line per mean or query.

Input of the tables is run → label → measure → query or group → value, as `group_samples` returns it; a label is `all`, or a group,
`macro` (mean of the groups' means) and `micro` (mean over all queries).
"""

from collections.abc import Mapping

from moeir.errors import DataError
from moeir.evaluation import measures

MeasureValues = Mapping[str, Mapping[str, float]]

MACRO, MICRO = "macro", "micro"


def group_samples(values: MeasureValues, groups: Mapping[str, str], field: str) -> dict[str, MeasureValues]:
    """Values that each mean averages: the queries of every group, the groups' means for macro, all queries for micro.

    values: measure → query → value; groups: query → value of `field` -> label → measure → query or group → value.

    >>> values = group_samples({"RR": {"a": 1.0, "b": 0.0, "c": 1.0}}, {"a": "x", "b": "x", "c": "y"}, "set")
    >>> {label: measures.aggregate_values(one)["RR"] for label, one in values.items()}
    {'set=x': 0.5, 'set=y': 1.0, 'macro': 0.75, 'micro': 0.6667}
    """
    missing = [query for by_query in values.values() for query in by_query if query not in groups]
    if missing:
        raise DataError(f"query {missing[0]!r} is judged but not among the queries with the field {field}")
    within: dict[str, dict[str, dict[str, float]]] = {}
    for measure, by_query in values.items():
        for query, value in by_query.items():
            within.setdefault(f"{field}={groups[query]}", {}).setdefault(measure, {})[query] = value
    by_group: dict[str, MeasureValues] = {label: within[label] for label in sorted(within)}
    means = {label: measures.aggregate_values(group_values) for label, group_values in by_group.items()}
    return by_group | {MACRO: {measure: {label: means[label][measure] for label in means} for measure in values}, MICRO: values}
