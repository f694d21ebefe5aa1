"""Anserini: integer term impacts for Lucene, as a JsonVectorCollection."""

from typing import Any, ClassVar

import numpy as np

from moeir.errors import UsageError
from moeir.export_targets.base import ExportedDocument, ExportSchema, ExportTarget

README_SECTION = """
`collection/` is a JsonVectorCollection of the expert {expert}: a weight w is the impact round({levels} · w / {largest:g}), and a
term whose impact is 0 is left out: the convention of Anserini's and Pyserini's SPLADE collections. Queries' weights become impacts
in the same way; a run's scores are then ({levels} / {largest:g})² = {factor:g} times the expert's, up to rounding.

    ANSERINI=anserini-fatjar.jar ./load.sh index     # needs Java 21

Dense vectors and token vectors are not exported.
"""
LOAD_SCRIPT = """#!/bin/sh
# Indexes the impacts with Lucene: ANSERINI=anserini-fatjar.jar ./load.sh INDEX
set -eu
jar=${ANSERINI:?the fat jar of Anserini}
index=${1:?the folder to write the index to}
java -cp "$jar" io.anserini.index.IndexCollection -collection JsonVectorCollection -generator DefaultLuceneDocumentGenerator \\
  -input "$(dirname "$0")/collection" -index "$index" -threads "${THREADS:-4}" -impact -pretokenized -optimize
"""


class Anserini(ExportTarget):
    """Impacts for Anserini: a weight w becomes round(levels · w / largest), as in its SPLADE collections. Sparse experts only."""

    supported_kinds: ClassVar[tuple[str, ...]] = ("sparse",)
    documents_folder: ClassVar[str] = "collection"

    def __init__(
        self, schema: ExportSchema, *, name: str = "passages", file_megabytes: int = 50, levels: int = 256, largest: float = 5.0
    ) -> None:
        super().__init__(schema, name, file_megabytes)
        if levels < 1 or not largest > 0:
            raise UsageError(f"anserini:levels={levels},largest={largest:g}: expected more than 0")
        sparse_experts = schema.experts_of("sparse")
        if len(sparse_experts) != 1:
            raise UsageError(f"anserini: takes the weighted terms of one expert; the encodings have {', '.join(sparse_experts) or 'none'}")
        self.levels, self.largest, self._expert = levels, largest, sparse_experts[0]

    def to_impacts(self, weights: np.ndarray) -> list[int]:
        """Integer impacts for weights [n].

        >>> server = Anserini(ExportSchema({"lexical": "sparse"}, {}, ["a"]))
        >>> server.to_impacts(np.array([0.005, 1.0, 5.0], dtype=np.float32))
        [0, 51, 256]
        """
        rounded: list[int] = np.rint(self.levels * weights.astype(np.float64) / self.largest).astype(np.int64).tolist()
        return rounded

    def lines(self, document: ExportedDocument) -> list[Any]:
        terms, weights = document.sparse[self._expert]
        impacts = zip(terms.tolist(), self.to_impacts(weights), strict=True)
        vector = {self.schema.terms[term]: impact for term, impact in impacts if impact}
        return [{"id": document.text.id, "contents": document.text.content, "vector": vector}]

    def files(self) -> dict[str, str]:
        return {"load.sh": LOAD_SCRIPT}

    def readme_section(self) -> str:
        factor = (self.levels / self.largest) ** 2
        return README_SECTION.format(expert=self._expert, levels=self.levels, largest=self.largest, factor=factor)
