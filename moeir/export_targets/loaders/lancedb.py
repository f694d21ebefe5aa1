"""Loads the export in this folder into a table of LanceDB: `python load.py FOLDER`, or another address that LanceDB opens."""

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import FTS, HnswFlat, LabelList
from lancedb.query import MultiMatchQuery

from moeir.export_targets.loaders.documents import FOLDER, Hits, Query, read_schema, run_loader

ROWS_PER_BATCH = 1024  # scored at once
DIGEST = b"moeir.digest"


class LancedbTable:
    """A table with columns for each expert. `options` go to `lancedb.connect`, as in storage_options=…."""

    points_per_batch = 128

    def __init__(self, location: str, folder: Path = FOLDER, **options: Any) -> None:
        self.schema = read_schema(folder)
        self.name, self.experts = self.schema["name"], self.schema["experts"]
        self.database = lancedb.connect(location, **options)
        self._table: Any = None

    @property
    def table(self) -> Any:
        """The table, opened once."""
        if self._table is None:
            self._table = self.database.open_table(self.name)
        return self._table

    def read_digest(self) -> str | None:
        if self.name not in self.database.list_tables().tables:
            return None
        return str((self.table.schema.metadata or {}).get(DIGEST, b"").decode())

    def create(self) -> None:
        types = {"number": pa.int64(), "id": pa.string(), "title": pa.string(), "text": pa.string()}
        for expert, facts in self.experts.items():
            if facts["kind"] == "sparse":
                types |= {f"{expert}_terms": pa.list_(pa.int32()), f"{expert}_weights": pa.list_(pa.float32())}
            else:
                vector = pa.list_(pa.float32(), facts["width"])
                types[f"{expert}_vector"] = vector if facts["kind"] == "dense" else pa.list_(vector)
        self._table = self.database.create_table(self.name, schema=pa.schema(types.items(), {DIGEST: self.schema["digest"]}))

    def drop(self) -> None:
        self.database.drop_table(self.name)
        self._table = None

    def stored_count(self) -> int:
        return int(self.table.count_rows())

    def add(self, points: list[dict[str, Any]]) -> None:
        rows = []
        for point in points:
            row = {"number": point["id"], **point["payload"]}
            for expert, facts in self.experts.items():
                vector = point["vector"].get(expert)
                if facts["kind"] == "sparse":
                    row |= {f"{expert}_terms": vector["indices"], f"{expert}_weights": vector["values"]}
                else:
                    row[f"{expert}_vector"] = vector
            rows.append(row)
        upsert = self.table.merge_insert("number").when_matched_update_all().when_not_matched_insert_all()
        upsert.execute(pa.Table.from_pylist(rows, schema=self.table.schema))

    def finish(self) -> None:
        self.table.optimize()
        indexed = {column for index in self.table.list_indices() for column in index.columns}
        for column, config in self._indexes().items():
            if column not in indexed and self.table.count_rows():
                self.table.create_index(column, config=config)

    def _indexes(self) -> dict[str, Any]:
        indexes: dict[str, Any] = {"title": FTS(), "text": FTS()}
        for expert, facts in self.experts.items():
            if facts["kind"] == "sparse":
                indexes[f"{expert}_terms"] = LabelList()
            elif facts["kind"] == "dense" and self.schema["hnsw"]:
                indexes[f"{expert}_vector"] = HnswFlat(distance_type="dot")
        return indexes

    def search(self, expert: str, queries: list[Query], depth: int) -> list[Hits]:
        if self.experts[expert]["kind"] == "sparse":
            return [self._search_terms(expert, terms, weights, depth) for terms, weights in queries]
        lists = []
        for query in queries:
            column, vectors = f"{expert}_vector", len(query) if query.ndim == 2 else 1
            search = self.table.search(query, vector_column_name=column).distance_type("dot").limit(depth).select(["id", "_distance"])
            hits = (search if self.schema["hnsw"] else search.bypass_vector_index()).to_list()
            lists.append([(hit["id"], vectors - hit["_distance"]) for hit in hits])
        return lists

    def _search_terms(self, expert: str, terms: np.ndarray, weights: np.ndarray, depth: int) -> Hits:
        """The documents with the largest sums of products of weights, of all that share a term with the query."""
        dense_query = np.zeros(self.schema["vocabulary"], np.float32)
        dense_query[terms] = weights
        best = heapq.nlargest(depth, self._score_terms(expert, dense_query), key=lambda hit: hit[0]) if len(terms) else []
        return [(key, score) for score, key in best]

    def _score_terms(self, expert: str, dense_query: np.ndarray) -> Iterator[tuple[float, str]]:
        """(score, id) of every document with one of the query's terms; `dense_query` [V] has their weights."""
        shares_a_term = f"array_has_any({expert}_terms, {np.flatnonzero(dense_query).tolist()})"
        search = self.table.search().where(shares_a_term).select(["id", f"{expert}_terms", f"{expert}_weights"]).limit(None)
        for batch in search.to_batches(ROWS_PER_BATCH):
            terms, weights = batch[f"{expert}_terms"], batch[f"{expert}_weights"].flatten().to_numpy()
            lengths = np.diff(terms.offsets.to_numpy())
            rows = np.repeat(np.arange(len(lengths)), lengths)
            scores = np.bincount(rows, dense_query[terms.flatten().to_numpy()] * weights, len(lengths)).astype(np.float32)
            yield from zip(scores.tolist(), batch["id"].to_pylist(), strict=True)

    def search_text(self, queries: list[str], depth: int) -> list[Hits]:
        """LanceDB's BM25 over titles and texts, for each query."""
        matches = [MultiMatchQuery(query, ["title", "text"]) for query in queries]
        lists = [self.table.search(match, query_type="fts").limit(depth).select(["id", "_score"]).to_list() for match in matches]
        return [[(hit["id"], hit["_score"]) for hit in hits] for hits in lists]

    def close(self) -> None:
        """Nothing stays open."""


if __name__ == "__main__":
    run_loader(LancedbTable)
