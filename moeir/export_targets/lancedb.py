"""LanceDB: one table with vectors, multi-vectors, weighted terms as lists, and full text."""

from typing import ClassVar

from moeir.export_targets.base import ExportSchema, ExportTarget

SECTION = """
Documents for LanceDB; tried with lancedb 0.40. A location is a folder, or an address such as `s3://bucket/folder`. The table has a column
`EXPERT_vector` for each dense and late-interaction expert. Vectors are compared by inner product, vectors of tokens by MaxSim, both in
float32. LanceDB returns distances, 1 - score and L - score for L vectors of a query, from which `search` computes scores: they equal
moeir's within 1e-6 for each vector of a query. Columns of token vectors have no index: LanceDB's index of them knows cosine only.

LanceDB has no weighted terms. They are two columns of lists, `EXPERT_terms` and `EXPERT_weights`; `search` reads the documents that share
a term with the query, found by an index of labels, and scores them in Python: exact, but slow where a term is in most documents.

`search_text(queries, depth)` is LanceDB's own full text search (BM25) over titles and texts, if the corpus was exported.
"""


class Lancedb(ExportTarget):
    """Points for LanceDB: vectors, multi-vectors and full text; weighted terms as lists, scored by the loader's `search`."""

    loader: ClassVar[str] = "LancedbTable"
    location: ClassVar[str] = "lancedb"
    requirements: ClassVar[str] = "lancedb"
    section = SECTION

    def __init__(self, schema: ExportSchema, *, name: str = "passages", file_megabytes: int = 50, hnsw: bool = False) -> None:
        super().__init__(schema, name, file_megabytes, hnsw)
