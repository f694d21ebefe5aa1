"""Loads the folder it lies in into Qdrant: `python load.py http://localhost:6333`, or `python load.py FOLDER` for the embedded mode."""

import importlib
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

POINTS_PER_BATCH = 64


def load(location: str, folder: Path) -> Any:
    """Recreate the collection, fill it, and return the client. `location` is the address of a server, or a folder of the embedded mode."""
    library: Any = importlib.import_module("qdrant_client")
    models = library.models
    client = library.QdrantClient(url=location) if location.startswith("http") else library.QdrantClient(path=location)
    schema = json.loads((folder / "collection.json").read_text(encoding="utf-8"))
    if client.collection_exists(schema["name"]):
        client.delete_collection(schema["name"])
    client.create_collection(
        schema["name"],
        vectors_config={name: models.VectorParams(**options) for name, options in schema["vectors"].items()},
        sparse_vectors_config={name: models.SparseVectorParams(**options) for name, options in schema["sparse_vectors"].items()},
    )
    for file in sorted(folder.glob("documents-*.jsonl")):
        with open(file, encoding="utf-8") as lines:
            while points := [models.PointStruct(**json.loads(line)) for line in islice(lines, POINTS_PER_BATCH)]:
                client.upsert(schema["name"], points)
    return client


if __name__ == "__main__":
    opened = load(sys.argv[1], Path(__file__).parent)
    sys.stdout.write(f"{opened.get_collections()}\n")
    opened.close()
