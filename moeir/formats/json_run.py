"""Runs of pytrec_eval, BEIR and ranx."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError
from moeir.formats import row_files
from moeir.formats.base import Conversion, Format
from moeir.records import lines, runs, texts
from moeir.records.runs import Run
from moeir.records.trec_columns import parse_float32


class JsonRun(Format):
    """One JSON object {query: {document: score}}: the runs of pytrec_eval, BEIR and ranx."""

    kind: ClassVar[str] = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        with lines.open_lines(path) as numbered:
            lists = texts.parse_json("\n".join(line for _, line in numbered), str(path))
        if not isinstance(lists, dict) or not all(isinstance(hits, dict) for hits in lists.values()):
            raise DataError(f"{path}: an object of objects was expected, {{query: {{document: score}}}}", code="not-an-object")
        yield row_files.run_from_hits(_iter_hits(lists, str(path)), str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        row_files.drop_tag(run, conversion)
        with lines.open_writer(path) as output:
            output.write("{")
            for index, query in enumerate(run.queries):
                hits = {document: float(runs.format_score(score)) for document, score in run.hits(query)}
                output.write(("," if index else "") + f"\n{json.dumps(query, ensure_ascii=False)}: {json.dumps(hits, ensure_ascii=False)}")
            output.write("\n}\n")
        return len(run.scores)


def _iter_hits(lists: dict[str, dict[str, Any]], name: str) -> Iterator[row_files.LocatedHit]:
    for query, hits in lists.items():
        for document, score in hits.items():
            where = f"{name}: query {query!r}, document {document!r}"
            if isinstance(score, bool) or not isinstance(score, int | float):
                raise DataError(f"{where}: score is not a number: {score!r}", code="score-not-a-number")
            texts.parse_id(query, where)
            yield where, query, texts.parse_id(document, where), parse_float32(repr(score), where)
