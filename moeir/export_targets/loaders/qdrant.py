"""Loads the export in this folder into Qdrant: `python load.py http://localhost:6333`, or `python load.py FOLDER` for the embedded mode."""

from pathlib import Path
from typing import Any

from qdrant_client import QdrantClient, models

from moeir.export_targets.loaders.documents import FOLDER, Hits, Query, read_schema, run_loader, split_points


class QdrantCollection:
    """A collection with a named vector, sparse vector or multi-vector for each expert. `options` go to the client, as in api_key=…."""

    points_per_batch = 64

    def __init__(self, location: str, folder: Path = FOLDER, **options: Any) -> None:
        self.schema = read_schema(folder)
        self.name, self.experts = self.schema["name"], self.schema["experts"]
        self.is_server = "://" in location
        self.client = QdrantClient(**{"url" if self.is_server else "path": location}, **options)

    def read_digest(self) -> str | None:
        if not self.client.collection_exists(self.name):
            return None
        return str((self.client.get_collection(self.name).config.metadata or {}).get("digest", ""))

    def create(self) -> None:
        graph = {} if self.schema["hnsw"] else {"hnsw_config": models.HnswConfigDiff(m=0)}
        options = {"dense": graph, "multivector": {"hnsw_config": models.HnswConfigDiff(m=0)}}
        options["multivector"]["multivector_config"] = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        self.client.create_collection(
            self.name,
            vectors_config={
                name: models.VectorParams(size=facts["width"], distance=models.Distance.DOT, **options[facts["kind"]])
                for name, facts in self.experts.items()
                if facts["kind"] != "sparse"
            },
            sparse_vectors_config={name: models.SparseVectorParams() for name, facts in self.experts.items() if facts["kind"] == "sparse"},
            metadata={"digest": self.schema["digest"]},
        )

    def drop(self) -> None:
        self.client.delete_collection(self.name)

    def stored_count(self) -> int:
        return int(self.client.count(self.name, exact=True).count)

    def add(self, points: list[dict[str, Any]]) -> None:
        for part in split_points(points):
            self.client.upsert(self.name, [models.PointStruct(**point) for point in part], wait=True)

    def finish(self) -> None:
        """Qdrant indexes by itself."""

    def search(self, expert: str, queries: list[Query], depth: int) -> list[Hits]:
        asked = {"using": expert, "limit": depth, "with_payload": ["id"]}
        if self.is_server:  # the embedded mode is always exact
            asked["search_params"] = models.SearchParams(exact=not self.schema["hnsw"])
        answers = [self.client.query_points(self.name, query=self.to_query(expert, query), **asked) for query in queries]
        return [[(point.payload["id"], point.score) for point in answer.points] for answer in answers]

    def to_query(self, expert: str, query: Query) -> Any:
        """A query in the form of Qdrant's `query_points`, for queries of your own, as with `prefetch`."""
        if self.experts[expert]["kind"] == "sparse":
            return models.SparseVector(indices=query[0].tolist(), values=query[1].tolist())
        return query.tolist()

    def close(self) -> None:
        self.client.close()


if __name__ == "__main__":
    run_loader(QdrantCollection)
