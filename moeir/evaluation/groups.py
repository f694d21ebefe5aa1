"""Means over groups of queries: each group's own, their mean (macro), and the mean over all queries (micro)."""

from collections.abc import Mapping

from moeir.errors import DataError
from moeir.evaluation import measures

Values = Mapping[str, Mapping[str, float]]

MACRO, MICRO = "macro", "micro"


def samples(values: Values, groups: Mapping[str, str], field: str) -> dict[str, Values]:
    """What each mean is taken over: the queries of every group, the groups' means for macro, all queries for micro.

    values: measure → query → value; groups: query → value of `field` -> label → measure → query or group → value.

    >>> found = samples({"RR": {"a": 1.0, "b": 0.0, "c": 1.0}}, {"a": "x", "b": "x", "c": "y"}, "set")
    >>> {label: measures.overall(one)["RR"] for label, one in found.items()}
    {'set=x': 0.5, 'set=y': 1.0, 'macro': 0.75, 'micro': 0.6667}
    """
    missing = [query for by_query in values.values() for query in by_query if query not in groups]
    if missing:
        raise DataError(f"query {missing[0]!r} is judged, but not among the queries that say their {field}")
    within: dict[str, dict[str, dict[str, float]]] = {}
    for measure, by_query in values.items():
        for query, value in by_query.items():
            within.setdefault(f"{field}={groups[query]}", {}).setdefault(measure, {})[query] = value
    by_group: dict[str, Values] = {label: within[label] for label in sorted(within)}
    means = {label: measures.overall(group_values) for label, group_values in by_group.items()}
    return by_group | {MACRO: {measure: {label: means[label][measure] for label in means} for measure in values}, MICRO: values}
