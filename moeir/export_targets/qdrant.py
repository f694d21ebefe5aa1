"""Qdrant: named vectors, sparse vectors and multi-vectors with MaxSim in one collection."""

from typing import ClassVar

from moeir.export_targets.base import ExportSchema, ExportTarget

SECTION = """
Documents for Qdrant; tried with qdrant-client 1.20 in its embedded mode. A location is the address of a server (1.16 or later) or, for
small collections, a folder: Qdrant embedded in Python, always exact, all vectors in memory. One point a document, its payload the id,
title and text. Vectors are compared by inner product in float32, so scores equal moeir's up to the order of a float32 sum; documents of
equal scores are in Qdrant's order. Vectors of tokens are compared by MaxSim and have no graph: all are scanned, or they rescore what
`prefetch` finds. Qdrant's own fusion, `RrfQuery(rrf=Rrf(k=60))`, counts ranks from 0: it is moeir's `rrf:constant=59`.
"""


class Qdrant(ExportTarget):
    """Points for Qdrant: named vectors, sparse vectors and multi-vectors; `hnsw` for dense vectors, or an exact scan."""

    loader: ClassVar[str] = "QdrantCollection"
    location: ClassVar[str] = "http://localhost:6333"
    requirements: ClassVar[str] = "'qdrant-client>=1.16'"
    section = SECTION

    def __init__(self, schema: ExportSchema, *, name: str = "passages", file_megabytes: int = 50, hnsw: bool = False) -> None:
        super().__init__(schema, name, file_megabytes, hnsw)
