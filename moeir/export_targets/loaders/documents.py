"""The documents of the export in this folder, read in batches, and the command line of its loader."""

import argparse
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MESSAGE_LENGTH = 500
Query = Any  # an array [D] for a dense expert, [L, D] for late interaction, (terms [n], weights [n]) for a sparse expert
Hits = list[tuple[str, float]]  # ids and scores of documents, the best first


def read_schema(folder: Path = FOLDER) -> dict[str, Any]:
    """The export's experts, files and digest; SystemExit if there is none."""
    try:
        schema: dict[str, Any] = json.loads((folder / "schema.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise SystemExit(f"{folder / 'schema.json'}: {problem}; export again") from None
    return schema


def verify_files(folder: Path) -> None:
    """SystemExit if a file of documents is not as it was exported."""
    for name, facts in read_schema(folder)["files"].items():
        try:
            with open(folder / name, "rb") as file:
                is_whole = hashlib.file_digest(file, "sha256").hexdigest() == facts["sha256"]
        except OSError as problem:
            raise SystemExit(f"{folder / name}: {problem.strerror}; export again") from None
        if not is_whole:
            raise SystemExit(f"{folder / name}: damaged or changed: its checksum is not the one in schema.json; export again")


def read_points(folder: Path, first: int = 0) -> Iterator[dict[str, Any]]:
    """The documents from number `first` on, one at a time; files before it are not read."""
    for name, facts in read_schema(folder)["files"].items():
        if first < facts["documents"]:
            with open(folder / name, encoding="utf-8") as lines:
                yield from map(json.loads, islice(lines, first, None))
        first = max(0, first - facts["documents"])


def load_documents(collection: Any, location: str, *, replace: bool = False, folder: Path = FOLDER) -> int:
    """Fill a collection from where it stands and return the number of documents; SystemExit if it holds another export.

    `collection.read_digest()` is that of the export in it, "" for content of another origin, None if there is nothing. `stored_count()` is
    the number of documents in it, the leading ones but for a batch that was interrupted; `add` replaces what is there already. Loads of one
    export on one machine wait for each other.
    """
    schema, file = read_schema(folder), folder / "schema.json"
    with open(file, "ab" if os.access(file, os.W_OK) else "rb") as lock:  # NFS locks only what is opened for writing
        fcntl.flock(lock, fcntl.LOCK_EX)
        verify_files(folder)
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
    if (count, stored) != (schema["documents"], schema["digest"]):  # another machine loads into it, too
        problem = f"has {count} documents of {stored}, expected {schema['documents']} of {schema['digest']}: changed while it was loaded"
        raise SystemExit(f"{schema['name']} at {location} {problem}; delete it there, and load once")
    return count


def run_loader(open_collection: Callable[..., Any]) -> None:
    """`python load.py LOCATION [--replace] [--option KEY=VALUE]`."""
    parser = argparse.ArgumentParser(description="Load the export in this folder; an interrupted load goes on where it stopped.")
    parser.add_argument("location", help="address, file or folder of the engine; README.md has an example")
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
