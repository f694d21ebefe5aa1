"""Loads the export in this folder into Milvus: `python load.py http://localhost:19530`, or `python load.py FILE.db` for Milvus Lite."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from pymilvus import DataType, MilvusClient

from moeir.export_targets.loaders.documents import FOLDER, Hits, Query, read_schema, run_loader, split_points

MAX_BYTES = 65535  # of a VARCHAR
MAX_HITS = 16384  # that one search returns
MAX_TOKENS = 65536  # of a document: numbers of its token vectors
DOCUMENTS_PER_QUERY = 64  # whose token vectors are fetched at once
INDEXES = {"sparse": "SPARSE_INVERTED_INDEX", "multivector": "FLAT", "dense": "FLAT"}


class MilvusCollection:
    """A collection with a field for each dense and sparse expert, and one of token vectors for each late-interaction expert.

    `options` go to the client, as in token=….
    """

    points_per_batch = 64

    def __init__(self, location: str, folder: Path = FOLDER, **options: Any) -> None:
        self.schema, self._location = read_schema(folder), location
        self.name, self.experts = self.schema["name"], self.schema["experts"]
        self.client = MilvusClient(location, **options)
        self.token_collections = {
            expert: f"{self.name}_{expert}" for expert, facts in self.experts.items() if facts["kind"] == "multivector"
        }

    def read_digest(self) -> str | None:
        digests = [
            str(self.client.describe_collection(name)["properties"].get("digest", ""))
            for name in (*self.token_collections.values(), self.name)
            if self.client.has_collection(name)
        ]
        if not digests or (set(digests) == {self.schema["digest"]} and not self.client.has_collection(self.name)):
            return None  # nothing, or an interruption between the collections
        return next((digest for digest in digests if digest != self.schema["digest"]), digests[0])

    def create(self) -> None:
        for expert, name in self.token_collections.items():
            fields = self._identifiers()
            fields.add_field("document", DataType.INT64)
            fields.add_field("vector", DataType.FLOAT_VECTOR, dim=self.experts[expert]["width"])
            self._create_collection(name, fields)
        fields = self._identifiers()
        for column in ("title", "text"):
            fields.add_field(column, DataType.VARCHAR, max_length=MAX_BYTES)
        for expert, facts in self.experts.items():
            if facts["kind"] == "dense":
                fields.add_field(f"{expert}_vector", DataType.FLOAT_VECTOR, dim=facts["width"])
            elif facts["kind"] == "sparse":
                fields.add_field(f"{expert}_vector", DataType.SPARSE_FLOAT_VECTOR)
        self._create_collection(self.name, fields)

    def _identifiers(self) -> Any:
        fields = MilvusClient.create_schema(auto_id=False)
        fields.add_field("number", DataType.INT64, is_primary=True)
        fields.add_field("id", DataType.VARCHAR, max_length=MAX_BYTES)
        return fields

    def _create_collection(self, name: str, fields: Any) -> None:
        if not self.client.has_collection(name):
            properties = {"digest": self.schema["digest"]}
            self.client.create_collection(name, schema=fields, properties=properties, consistency_level="Strong")

    def drop(self) -> None:
        for name in (*self.token_collections.values(), self.name):
            self.client.drop_collection(name)

    def stored_count(self) -> int:
        self.finish()
        self.client.load_collection(self.name)  # Milvus counts what is loaded, and loads what has an index
        [row] = self.client.query(self.name, filter="", output_fields=["count(*)"])
        return int(row["count(*)"])

    def add(self, points: list[dict[str, Any]]) -> None:
        for part in split_points(points):
            for expert, name in self.token_collections.items():
                rows = [
                    {"number": point["id"] * MAX_TOKENS + position, "document": point["id"], "id": point["payload"]["id"], "vector": vector}
                    for point in part
                    for position, vector in enumerate(point["vector"].get(expert, ()))
                ]
                if rows:
                    self.client.upsert(name, rows)
            self.client.upsert(self.name, [self._document(point) for point in part])

    def _document(self, point: dict[str, Any]) -> dict[str, Any]:
        row = {"number": point["id"], "id": point["payload"]["id"]}
        row |= {column: cut_text(point["payload"].get(column, "")) for column in ("title", "text")}
        for expert, vector in point["vector"].items():
            if self.experts[expert]["kind"] == "sparse":
                unused = {self.schema["vocabulary"]: 1.0}
                row[f"{expert}_vector"] = dict(zip(vector["indices"], vector["values"], strict=True)) or unused
            elif self.experts[expert]["kind"] == "dense":
                row[f"{expert}_vector"] = vector
        return row

    def finish(self) -> None:
        for expert, facts in self.experts.items():
            collection = self.token_collections.get(expert, self.name)
            field = "vector" if expert in self.token_collections else f"{expert}_vector"
            if field not in self.client.list_indexes(collection):
                graph = self.schema["hnsw"] and facts["kind"] == "dense"
                index = self.client.prepare_index_params()
                index.add_index(
                    field,
                    index_type="HNSW" if graph else INDEXES[facts["kind"]],
                    metric_type="IP",
                    params={"M": 16, "efConstruction": 200} if graph else {},
                )
                self.client.create_index(collection, index)

    def search(self, expert: str, queries: list[Query], depth: int, *, candidates: int | None = None) -> list[Hits]:
        """As for any engine; `candidates` are the rows that each vector of a late-interaction query finds, by default `depth`."""
        kind = self.experts[expert]["kind"]
        self.client.load_collection(self.token_collections.get(expert, self.name))  # Milvus Lite forgets it at the end of a process
        if kind == "multivector":
            rows = min(candidates or depth, MAX_HITS)
            return [self._search_tokens(expert, np.asarray(query, dtype=np.float32), depth, rows) for query in queries]
        vectors = [query.tolist() if kind == "dense" else dict(zip(query[0].tolist(), query[1].tolist(), strict=True)) for query in queries]
        parameters = {"params": {"ef": max(64, depth)} if self.schema["hnsw"] and kind == "dense" else {}}
        lists = self.client.search(
            self.name, vectors, anns_field=f"{expert}_vector", limit=depth, output_fields=["id"], search_params=parameters
        )
        return [[(hit["entity"]["id"], hit["distance"]) for hit in hits] for hits in lists]

    def _search_tokens(self, expert: str, query: np.ndarray, depth: int, candidates: int) -> Hits:
        """MaxSim of the documents whose rows are nearest to one of the query's vectors [L, D]."""
        name = self.token_collections[expert]
        nearest = self.client.search(name, query.tolist(), anns_field="vector", limit=candidates, output_fields=["document"])
        documents = sorted({hit["entity"]["document"] for hits in nearest for hit in hits})
        scores = []
        for first in range(0, len(documents), DOCUMENTS_PER_QUERY):
            vectors = defaultdict(list)
            part = {"filter": f"document in {documents[first : first + DOCUMENTS_PER_QUERY]}", "output_fields": ["id", "vector"]}
            pages = self.client.query_iterator(name, batch_size=MAX_HITS, **part)
            while rows := pages.next():
                for row in rows:
                    vectors[row["id"]].append(row["vector"])
            pages.close()
            scores += [(key, float((query @ np.asarray(rows, np.float32).T).max(1).sum())) for key, rows in vectors.items()]
        return sorted(scores, key=lambda hit: -hit[1])[:depth]

    def close(self) -> None:
        """Close the client and, of a file, the server that Milvus Lite runs in this process; others can open the file then."""
        self.client.close()
        if self._location.endswith(".db"):
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self._location)


def cut_text(text: str) -> str:
    """At most MAX_BYTES bytes of a text in UTF-8."""
    return text.encode()[:MAX_BYTES].decode(errors="ignore")


if __name__ == "__main__":
    run_loader(MilvusCollection)
