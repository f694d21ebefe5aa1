"""Qdrant: named vectors, sparse vectors and multi-vectors with MaxSim in one collection."""

import json
from typing import Any

from moeir.export_targets import qdrant_loader
from moeir.export_targets.base import ExportedDocument, ExportSchema, ExportTarget, float16_to_lists, text_payload, to_nine_digits

README_SECTION = """
One point a document; its payload is the document's id, title and text.

    pip install qdrant-client
    python load.py http://localhost:6333      # a server
    python load.py qdrant                     # or a folder: Qdrant embedded in Python, exact, for small collections

`collection.json` is the body of Qdrant's `PUT /collections/{name}`. Vectors are compared by inner product, as the experts are trained;
those of the late-interaction experts have no graph (`m` 0): they rescore what another vector finds (`prefetch`), or are scanned.
"""


class Qdrant(ExportTarget):
    """Points for Qdrant, with named vectors, sparse vectors and multi-vectors; the loader also fills the embedded mode."""

    def __init__(self, schema: ExportSchema, *, name: str = "passages", file_megabytes: int = 50) -> None:
        super().__init__(schema, name, file_megabytes)

    def lines(self, document: ExportedDocument) -> list[Any]:
        vectors: dict[str, Any] = {name: float16_to_lists(vector) for name, vector in document.dense.items()}
        for name, (terms, weights) in document.sparse.items():
            vectors[name] = {"indices": terms.tolist(), "values": to_nine_digits(weights)}
        vectors |= {name: float16_to_lists(tokens) for name, tokens in document.multivector.items() if len(tokens)}
        return [{"id": document.number, "vector": vectors, "payload": text_payload(document.text)}]

    def files(self) -> dict[str, str]:
        widths, experts_of = self.schema.widths, self.schema.experts_of
        vectors: dict[str, Any] = {name: {"size": widths[name], "distance": "Dot"} for name in experts_of("dense")}
        late_interaction = {"multivector_config": {"comparator": "max_sim"}, "hnsw_config": {"m": 0}}
        vectors |= {name: {"size": widths[name], "distance": "Dot", **late_interaction} for name in experts_of("multivector")}
        body = {"vectors": vectors, "sparse_vectors": {name: {} for name in experts_of("sparse")}}
        with open(qdrant_loader.__file__, encoding="utf-8") as script:
            return {"collection.json": json.dumps({"name": self.name, **body}, indent=1) + "\n", "load.py": script.read()}

    def readme_section(self) -> str:
        return README_SECTION.format(name=self.name)
