"""The interface of every engine: add documents, save plain files, return the first rows by score and then id."""

import errno
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from moeir.artifacts.array_folder import ArrayFolder
from moeir.errors import ArtifactError, UsageError
from moeir.records import runs

SETTINGS_FILE = "engine.json"
SYSTEM_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EIO)  # errors that say nothing about an index
NO_ROW = -1
INDEX_AGAIN = "run moeir index again with --force"


class SearchableIndex(ABC):
    """Search over one representation: documents are rows, search returns row numbers and scores.

    `id_ranks` [N] is the rank of every row's document id among the sorted ids (`records.runs.id_ranks`); without it the row
    number serves as the id.
    """

    kind: str  # kind of representation: "dense" | "sparse" | "multivector" | "exact-match" | "text"
    exact: bool = True
    score_if_not_found: float = -np.inf  # scores at or below this are not retrieved; −∞: every document with a score is

    def __init__(self, id_ranks: np.ndarray | None = None) -> None:
        self._id_ranks = id_ranks

    @abstractmethod
    def __len__(self) -> int:
        """Number of documents N."""

    @abstractmethod
    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        """Fill rows int64 [Q, K] and scores float32 [Q, K], blank (-1, −∞) on entry."""

    def search(self, queries: Any, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `depth` documents of every query -> rows int64 [Q, K], scores float32 [Q, K], K = min(depth, N).

        Ordered by score and then id, both descending: the head of a full sort if the engine is `exact`, else close to it. Beyond the
        last hit the row is -1 and the score −∞.
        """
        width = min(depth, len(self))
        rows = np.full((len(queries), width), NO_ROW, dtype=np.int64)
        scores = np.full((len(queries), width), -np.inf, dtype=np.float32)
        if width and len(queries):
            self._search_into(queries, width, rows, scores)
        return rows, scores

    def score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        """Scores of pairs, query_rows [P] with document_rows [P] -> float32 [P]: identical to the scores of `search`.

        A document that search would not retrieve gets `score_if_not_found`; a query that retrieves nothing scores 0.
        """
        if not len(query_rows):
            return np.empty(0, dtype=np.float32)
        order = np.argsort(query_rows, kind="stable")
        scores = np.empty(len(order), dtype=np.float32)
        scores[order] = self._score_pairs(queries, np.asarray(query_rows)[order], np.asarray(document_rows)[order])
        return scores

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        """`score_pairs` for ascending query_rows, at least one."""
        name = engine_name(type(self))
        raise UsageError(f"engine {name} cannot score documents that it did not find, as exact-sum needs; index with an exact engine")

    def expect_many_queries(self) -> None:  # noqa: B027 - most engines have no loops
        """Take compiled loops from the first query on, where an engine has them, and not only once much work is done."""

    def token_vectors(self, row: int) -> np.ndarray | None:
        """Stored vectors [M, D] of a document's tokens; None if the engine has none."""
        return None

    @property
    def id_ranks(self) -> np.ndarray:
        """Rank of every row's id among the sorted ids, int64 [N]."""
        return np.arange(len(self), dtype=np.int64) if self._id_ranks is None else np.asarray(self._id_ranks, dtype=np.int64)


class Index(SearchableIndex):
    """An engine: shards of documents are added, `save` writes its files, and `open` maps them for search.

    The options of an engine are the keyword-only parameters of its constructor, stored as attributes of the same names.
    """

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(id_ranks)
        self.device = device
        self._document_count, self._is_built = 0, False

    def __len__(self) -> int:
        return self._document_count

    def add(self, shard: Any) -> None:
        """Append the documents of one shard, in their order."""
        if self._is_built:
            raise ArtifactError(f"a built {engine_name(type(self))} index takes no more documents; build a new one")
        self._add(shard)
        self._document_count += len(shard)

    @abstractmethod
    def _add(self, shard: Any) -> None:
        """Check a shard and keep what `_write` needs of it; `len(self)` is the row of its first document."""

    @abstractmethod
    def _write(self, folder: Path) -> dict[str, Any]:
        """Write the engine's files; returns its own entries of `engine.json`."""

    @abstractmethod
    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        """Prepare to search the files of a folder; returns how many documents they hold. The `.npy` files are mapped in `arrays`.

        What compiled code reads is to be read with `arrays.read` and `arrays.read_offsets`, which check it.
        """

    def save(self, folder: Path | str) -> None:
        """Write `engine.json` and the engine's files into `folder`; the caller publishes the folder atomically."""
        assert not self._is_built, "its shards are saved already"
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        options = {name: getattr(self, name) for name in keyword_options(type(self))}
        settings = {"engine": engine_name(type(self)), "kind": self.kind, "exact": self.exact, "options": options, "documents": len(self)}
        settings |= self._write(folder)
        (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        self._is_built = True

    @classmethod
    def open(cls, folder: Path | str, id_ranks: np.ndarray | None = None, device: str = "cpu") -> Self:
        """Open a saved index; arrays stay on disk, memory-mapped."""
        folder = Path(folder)
        settings, name = read_settings(folder), engine_name(cls)
        if settings["engine"] != name:
            raise ArtifactError(f"{folder}: an index of engine {settings['engine']!r}, expected {name!r}")
        try:
            index = cls(id_ranks, device, **settings["options"])
            index._document_count = index._load(ArrayFolder(folder, INDEX_AGAIN), folder, settings)
        except (KeyError, TypeError, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno in SYSTEM_ERRNOS:
                raise
            raise ArtifactError(f"{folder}: damaged {name} index: {error}; run `moeir index` again") from error
        if len(index) != settings["documents"]:
            raise ArtifactError(
                f"{folder}: holds {len(index)} documents, {SETTINGS_FILE} says {settings['documents']}; run `moeir index` again"
            )
        index._is_built = True
        return index


def engine_name(engine: type[SearchableIndex]) -> str:
    """The name of an engine, that of its file; own code is module:Name."""
    package, _, name = engine.__module__.rpartition(".")
    return name if package == __package__ else f"{engine.__module__}:{engine.__qualname__}"


def keyword_options(engine: type[Index]) -> Sequence[str]:
    """Names of an engine's user options."""
    parameters = inspect.signature(engine.__init__).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def read_settings(folder: Path | str) -> dict[str, Any]:
    """The content of an index's `engine.json`: engine, kind, exact, options, documents."""
    path = Path(folder) / SETTINGS_FILE
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error}; run `moeir index` again") from error
    if not isinstance(settings, dict) or not {"engine", "options", "documents"} <= settings.keys():
        raise ArtifactError(f"{path}: engine, options or documents are missing; run `moeir index` again")
    return settings


def fill_ranked_hits(hits: np.ndarray, values: np.ndarray, id_ranks: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
    """Write one query's hits, in rank order, into its row of the result.

    hits int64 [n], values float32 [n] -> rows int64 [K], scores float32 [K]; entries beyond the hits stay blank.
    """
    order = runs.rank_order(values, id_ranks[hits], len(rows))
    rows[: len(order)] = hits[order]
    scores[: len(order)] = values[order]


def fill_all_ranked_hits(hits: np.ndarray, values: np.ndarray, id_ranks: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
    """`fill_ranked_hits` for every query: hits [Q, n], NO_ROW where there is none, values [Q, n] -> rows, scores [Q, K]."""
    for query_row, (query_hits, query_values) in enumerate(zip(hits, values, strict=True)):
        is_hit = query_hits != NO_ROW
        fill_ranked_hits(query_hits[is_hit], query_values[is_hit], id_ranks, rows[query_row], scores[query_row])
