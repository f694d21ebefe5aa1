"""Milvus: a collection of documents with dense and sparse fields, and a collection of token vectors for each late-interaction expert."""

from typing import ClassVar

from moeir.export_targets.base import ExportSchema, ExportTarget

SECTION = """
Documents for Milvus; tried with pymilvus 3.0 and Milvus Lite 3.2, which is the same client as of the distributed engine. A location is
the address of a server, or the name of a file ending in `.db`: Milvus Lite, in a process of its own. The collection has a field
`EXPERT_vector` for each dense and sparse expert, compared by inner product in float32: scores equal moeir's up to the order of a float32
sum.

Milvus Lite has no multi-vectors. Vectors of tokens are rows of a collection of their own, `NAME_EXPERT`; a search takes the documents of
the nearest rows of each query vector (`candidates`: `depth` unless given, 16,384 at most) and scores them by MaxSim in Python: exact
scores, and an exact list where the candidates reach it. Milvus Lite scans all rows for this, so it is for small collections.

A title or text beyond 65,535 bytes, Milvus's limit, is cut there; vectors are those of the whole text. A document without any term has
one that no query has, as Milvus takes no empty sparse vector.
"""


class Milvus(ExportTarget):
    """Points for Milvus and Milvus Lite: dense and sparse fields; token vectors as rows, scored by the loader's `search`."""

    loader: ClassVar[str] = "MilvusCollection"
    location: ClassVar[str] = "http://localhost:19530"
    requirements: ClassVar[str] = "pymilvus milvus-lite"
    section = SECTION

    def __init__(self, schema: ExportSchema, *, name: str = "passages", file_megabytes: int = 50, hnsw: bool = False) -> None:
        super().__init__(schema, name, file_megabytes, hnsw)
