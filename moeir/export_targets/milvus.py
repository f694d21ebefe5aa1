"""Milvus: a collection of documents with dense and sparse fields, and a collection of token vectors for each late-interaction expert."""

from moeir.export_targets.base import ExportSchema, ExportTarget


class Milvus(ExportTarget):
    """Points for Milvus and Milvus Lite: dense and sparse fields; token vectors as rows, scored by the loader's `search`."""

    def __init__(self, schema: ExportSchema, *, name: str = "passages", hnsw: bool = False) -> None:
        super().__init__(schema, name, hnsw)
