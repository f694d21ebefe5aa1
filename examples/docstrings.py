"""Build a small retrieval collection from the documentation strings of this Python's standard library.

The first sentence of a docstring is a query, the rest is the passage that answers it. Modules are divided into train, dev and test, so
that no test module is in the training part. A query that its own passage contains verbatim is left out, and so are repeated texts.

    python examples/docstrings.py FOLDER    # corpus.jsonl, {train,dev,test}-queries.jsonl, {train,dev,test}.qrels
"""

import ast
import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SKIPPED = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo", "__pycache__", "ensurepip"}
SENTENCE = re.compile(r"(?<=[a-z\)\"'`\]])[.!?:](?=\s)")
FEWEST_QUERY_WORDS, MOST_QUERY_WORDS, FEWEST_PASSAGE_WORDS, MOST_PASSAGE_WORDS = 4, 30, 8, 60


def docstrings(library: Path) -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) of everything documented in a library's sources, without importing it."""
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if SKIPPED.intersection(parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        module = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                yield (module if isinstance(node, ast.Module) else f"{module}.{node.name}"), text


def halves(text: str) -> tuple[str, str] | None:
    """The first sentence and the rest; None if either is too short, or if the rest contains the first sentence."""
    words = " ".join(text.split())
    boundary = SENTENCE.search(words)
    if boundary is None:
        return None
    query, passage = words[: boundary.start()].strip(), " ".join(words[boundary.end() :].split()[:MOST_PASSAGE_WORDS])
    if not FEWEST_QUERY_WORDS <= len(query.split()) <= MOST_QUERY_WORDS:
        return None
    if len(passage.split()) < FEWEST_PASSAGE_WORDS or query.lower() in passage.lower():
        return None
    return query, passage


def split(module: str) -> str:
    """The part of a top-level module: 72 % train, 12 % dev, 16 % test, by a hash of its name."""
    bucket = int(hashlib.sha256(module.split(".")[0].encode()).hexdigest(), 16) % 100
    return "train" if bucket < 72 else "dev" if bucket < 84 else "test"


def main(folder: Path) -> None:
    """Write the collection."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus, queries, qrels = [], {"train": [], "dev": [], "test": []}, {"train": [], "dev": [], "test": []}
    seen: set[str] = set()
    for name, text in docstrings(Path(sysconfig.get_paths()["stdlib"])):
        parts = halves(text)
        if parts is None or seen.intersection(part.lower() for part in parts):
            continue
        seen |= {part.lower() for part in parts}
        number, part = f"d{len(corpus):05d}", split(name)
        corpus.append({"_id": number, "text": parts[1]})
        queries[part].append({"_id": f"q{number[1:]}", "text": parts[0]})
        qrels[part].append(f"q{number[1:]} 0 {number} 1\n")
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus), encoding="utf-8")
    for part in queries:
        (folder / f"{part}-queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries[part]), encoding="utf-8")
        (folder / f"{part}.qrels").write_text("".join(qrels[part]), encoding="utf-8")
    sizes = ", ".join(f"{len(queries[part])} {part}" for part in queries)
    sys.stderr.write(f"{len(corpus)} passages; queries: {sizes}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
