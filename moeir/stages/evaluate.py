"""`moeir evaluate`: runs and judgements become numbers."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moeir.errors import DataError, UsageError
from moeir.settings import option, product, source
from moeir.stages.base import STREAM, Counts, Stage

log = logging.getLogger(__name__)
Values = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Evaluate(Stage):
    """Measure runs against judgements, side by side, with p-values against the first. A judged query that a run lacks counts 0."""

    run: tuple[Path, ...] = source("run", "A ranked list; repeat the flag to compare.", names=("--runs",))
    qrels: Path = source("qrels", "Judgements: TREC or BEIR form.")
    measure: tuple[str, ...] = option(
        "nDCG@10, RR@10, R@100, AP, … or trec_eval's names; repeat the flag.", ("nDCG@10", "RR@10", "R@100"), names=("--metric", "-m")
    )
    per_query: bool = option("Every query's value too.", False, names=("-q",))
    form: str = option("table, tsv (measure, query, value), jsonl, or auto: by --output and --per-query.", "auto", names=("--format",))
    output: Path = product("evaluation", "Where to write; - is stdout.", STREAM)

    def check(self) -> None:
        if self.form not in ("auto", "table", "tsv", "jsonl"):
            raise UsageError(f"--form {self.form}: expected auto, table, tsv or jsonl")
        if self.form == "table" and self.per_query:
            raise UsageError("--per-query: a table has no room for queries; add --form tsv or --form jsonl")
        if not self.run:
            raise UsageError("evaluate: expected at least one --run")

    def work(self) -> Counts:
        from moeir.evaluation import measures
        from moeir.records import lines, qrels, runs

        wanted = [measures.parse(text) for text in self.measure]
        judged = qrels.read(self.qrels)
        values: dict[str, Values] = {}
        notes = []
        for name, path in named_runs(self.run).items():
            run = runs.read(path)
            try:
                values[name] = measures.per_query(run, judged, wanted)
            except DataError as problem:
                raise DataError(f"{path}: {problem}") from None
            notes.append((name, measures.coverage(run, judged)))
        with lines.writer(self.output) as output:
            output.writelines(f"{line}\n" for line in self._lines(values))
        for name, note in notes:
            log.info(
                "%s: %d of %d judged queries, %d without hits, %d not judged; %.1f %% of the top %d unjudged",
                *(name, note.returned, note.judged, note.missing, note.extra, 100 * note.unjudged_at_depth, note.depth),
            )
        return {"queries": len(judged), "runs": len(values)}

    def _form(self) -> str:
        if self.form != "auto":
            return self.form
        if self.output == STREAM:
            return "tsv" if self.per_query else "table"
        return "jsonl" if ".jsonl" in self.output.suffixes else "tsv"

    def _lines(self, values: dict[str, Values]) -> Iterator[str]:
        if self._form() == "table":
            yield _table(values)
            return
        from moeir.evaluation import measures

        several = len(values) > 1
        for name, by_measure in values.items():
            means = measures.overall(by_measure)
            for measure, by_query in by_measure.items():
                rows = [*(sorted(by_query.items()) if self.per_query else ()), ("all", means[measure])]
                for query, value in rows:
                    if self._form() == "tsv":
                        yield "\t".join([*([name] if several else []), measure, query, f"{value:.6f}"])
                    else:
                        yield json.dumps(({"run": name} if several else {}) | {"measure": measure, "query": query, "value": value})


def named_runs(paths: tuple[Path, ...]) -> dict[str, Path]:
    """Runs by their file names without suffixes, or by their paths where those are the same."""
    from moeir.records import lines

    short = ["stdin" if path == STREAM else lines.stem(path).stem for path in paths]
    names = short if len(set(short)) == len(short) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise UsageError("--run: the same run is given twice")
    return dict(zip(names, paths, strict=True))


def _table(values: dict[str, Values]) -> str:
    """A row for each run: means, and the two-sided paired t-test's p-value against the first run."""
    from moeir.evaluation import measures, significance, tables

    first = next(iter(values.values()))
    header, rows = ["run"], []
    for measure in first:
        header += [measure, "p"] if len(values) > 1 else [measure]
    for by_measure in values.values():
        row: list[object] = []
        means = measures.overall(by_measure)
        for measure, by_query in by_measure.items():
            row.append(means[measure])
            if len(values) > 1:
                row.append("" if by_measure is first else _p(significance.paired_t(by_query, first[measure])))
        rows.append(row)
    return tables.text(header, [[name, *row] for name, row in zip(values, rows, strict=True)])


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
