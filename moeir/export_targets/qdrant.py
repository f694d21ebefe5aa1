"""Qdrant: named vectors, sparse vectors and multi-vectors with MaxSim in one collection."""

from moeir.export_targets.base import ExportSchema, ExportTarget


class Qdrant(ExportTarget):
    """Points for Qdrant: named vectors, sparse vectors and multi-vectors; `hnsw` for dense vectors, or an exact scan."""

    def __init__(self, schema: ExportSchema, *, name: str = "passages", hnsw: bool = False) -> None:
        super().__init__(schema, name, hnsw)
