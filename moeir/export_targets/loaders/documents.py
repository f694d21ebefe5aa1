"""The documents of the export in this folder, read in batches, and the command line of its loader."""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MESSAGE_LENGTH, BLOCK_BYTES, MAX_REQUEST_BYTES = 500, 2**20, 2**24
Query = Any  # an array [D] for a dense expert, [L, D] for late interaction, (terms [n], weights [n]) for a sparse expert
Hits = list[tuple[str, float]]  # ids and scores of documents, the best first


def read_schema(folder: Path = FOLDER) -> dict[str, Any]:
    """The export's experts, files and digest; SystemExit if there is none."""
    try:
        schema: dict[str, Any] = json.loads((folder / "schema.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise SystemExit(f"{folder / 'schema.json'}: {problem}; export again") from None
    return schema


def verify_files(folder: Path, schema: dict[str, Any]) -> None:
    """SystemExit if the files of documents are not as they were exported: the digest is that of their content and the schema."""
    digest = hashlib.sha256()
    for file in list_document_files(folder):
        with open(file, "rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
    digest.update(json.dumps({name: value for name, value in schema.items() if name != "digest"}).encode())
    if digest.hexdigest() != schema["digest"]:
        raise SystemExit(f"{folder}: damaged or changed: its checksum is not the one in schema.json; export again")


def list_document_files(folder: Path) -> list[Path]:
    """The files of documents, in order."""
    return sorted(folder.glob("documents-*.jsonl"))


def read_points(folder: Path, first: int = 0) -> Iterator[dict[str, Any]]:
    """The documents from number `first` on, one at a time."""
    for file in list_document_files(folder):
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                if first == 0:
                    yield json.loads(line)
                first = max(first - 1, 0)


def split_points(points: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The documents in parts of one or more, each of at most MAX_REQUEST_BYTES as JSON: engines limit their requests."""
    part: list[dict[str, Any]] = []
    size = 0
    for point in points:
        own = len(json.dumps(point))
        if part and size + own > MAX_REQUEST_BYTES:
            yield part
            part, size = [], 0
        part.append(point)
        size += own
    yield part


def load_documents(collection: Any, location: str, *, replace: bool = False, folder: Path = FOLDER) -> int:
    """Fill a collection from where it stands and return the number of documents; SystemExit if it holds another export.

    `collection.read_digest()` is that of the export in it, "" for content of another origin, None if there is nothing. `stored_count()` is
    the number of documents in it, the leading ones but for a batch that was interrupted; `add` replaces what is there already.
    """
    schema = read_schema(folder)
    verify_files(folder, schema)
    stored = collection.read_digest()
    if stored not in (None, schema["digest"]):
        if not replace or not stored:
            content = f"another export (digest {stored[:12]})" if stored else "documents of another origin"
            advice = f"{'--replace deletes them, or ' if stored else ''}export with another name=…"
            problem = f"holds {content}, expected this export ({schema['digest'][:12]}); {advice}"
            raise SystemExit(f"{schema['name']} at {location} {problem}")
        collection.drop()
        stored = None
    if stored is None:
        collection.create()
    size = collection.points_per_batch
    points = read_points(folder, collection.stored_count() // size * size)
    while batch := list(islice(points, size)):
        collection.add(batch)
    collection.finish()
    count, stored = int(collection.stored_count()), collection.read_digest()
    if (count, stored) != (schema["documents"], schema["digest"]):  # another process loads into it, too
        problem = f"has {count} documents of {stored}, expected {schema['documents']} of {schema['digest']}: changed while it was loaded"
        raise SystemExit(f"{schema['name']} at {location} {problem}; delete it there, and load once")
    return count


def run_loader(open_collection: Callable[..., Any]) -> None:
    """`python load.py LOCATION [--replace] [--option KEY=VALUE]`."""
    parser = argparse.ArgumentParser(description="Load the export in this folder; an interrupted load goes on where it stopped.")
    parser.add_argument("location", help="address, file or folder of the engine")
    parser.add_argument("--replace", action="store_true", help="delete what holds another export")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="passed on to the engine's client; repeatable")
    arguments = parser.parse_args()
    options = dict(option.partition("=")[::2] for option in arguments.option)
    try:
        count = load_documents(open_collection(arguments.location, **options), arguments.location, replace=arguments.replace)
    except Exception as problem:  # noqa: BLE001 - each client has its own, as of a server that does not answer
        reason = " ".join([type(problem).__name__, *str(problem).split()])[:MESSAGE_LENGTH]
        advice = "if an engine answers there, the same command goes on where it stopped"
        raise SystemExit(f"{arguments.location}: {reason}; {advice}") from None
    sys.stdout.write(f"{count} documents are loaded\n")
