"""PyTerrier: indexes and rerankers of moeir as transformers, which compose with `>>`, `%`, `|` and the rest (extra `pyterrier`).

    import pyterrier as pt
    from moeir.pyterrier import Indexer, Reranker, Retriever

    came = Retriever("idx/came")                                    # the experts, fused as `moeir search` does
    both = Retriever(["idx/came", "idx/bm25"], fuse="rrf")          # BM25 as one more expert
    pipeline = came % 100 >> pt.text.get_text(dataset) >> Reranker("ckpt/lce")

Java is not needed. Results have the ranks of `moeir search`: by score, and then by id, descending.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import moeir
from moeir.errors import DataError, UsageError
from moeir.parsing import check_count
from moeir.records.runs import Run
from moeir.records.texts import Text, parse_id, parse_text, write_texts
from moeir.retrieval.searcher import Searcher, open_index

try:
    import pandas as pd
    import pyterrier as pt
except ModuleNotFoundError:
    raise UsageError("moeir.pyterrier: the package python-terrier is not installed; pip install 'moeir[pyterrier]'") from None

DEPTH = 1000


class Retriever(pt.Transformer):  # type: ignore[misc]
    """Queries (qid, query) → their best documents (docno, score, rank), as by `moeir search`.

    `index` is a folder of `moeir index`, several as of `moeir search`, or an open one; `expert` one of its experts, by default all of them,
    fused with `fuse`.
    """

    def __init__(
        self,
        index: Path | str | Sequence[Path | str] | Searcher,
        *,
        expert: str | None = None,
        fuse: str | None = None,
        num_results: int = DEPTH,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        self.searcher = index if isinstance(index, Searcher) else open_index(index, device=device, dtype=dtype)
        self.expert, self.fuse, self.num_results = expert, fuse, check_count(num_results, "num_results")
        self.searcher.select_experts([expert] if expert else [])

    def __repr__(self) -> str:
        return f"Retriever({self.searcher.label}{f', expert={self.expert}' if self.expert else ''})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Search every query once; other columns of the queries stay."""
        pt.validate.query_frame(inp, extra_columns=["query"])
        queries = _unique_queries(inp)
        if not len(queries):
            return _frame_of_run(queries, Run.from_hits({}))
        run = self.searcher.search(queries["query"].tolist(), self.num_results, self.expert, self.fuse, ids=list(queries.index))
        return _frame_of_run(queries, run)


class Reranker(pt.Transformer):  # type: ignore[misc]
    """Documents with their texts (qid, query, docno, text) → scored again by a checkpoint and ranked, as by `moeir rerank`.

    The checkpoint is a cross-encoder, or any retriever, whose experts then score exactly. A column `title`, if there is one, is read
    before the text. The checkpoint is opened for each call: give it all queries at once. `flags` are those of `moeir rerank`.
    """

    def __init__(self, checkpoint: Path | str, **flags: Any) -> None:
        self.checkpoint, self.flags = checkpoint, flags

    def __repr__(self) -> str:
        return f"Reranker({self.checkpoint})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Score all documents of all queries."""
        pt.validate.result_frame(inp, extra_columns=["query", "text"])
        if not len(inp):
            return _frame_of_run(_unique_queries(inp), Run.from_hits({}))
        queries, documents = _read_texts(inp, "qid", "query"), _read_texts(inp, "docno", "text", "title")
        rows = {(query.id, document.id): row for row, (query, document) in enumerate(zip(queries, documents, strict=True))}
        lists: dict[str, list[tuple[str, float]]] = {}
        for row, (query, document) in enumerate(zip(queries, documents, strict=True)):
            lists.setdefault(query.id, []).append((document.id, -float(row)))
        run = moeir.rerank(
            model=self.checkpoint,
            run=Run.from_hits(lists),
            queries=list({query.id: query for query in queries}.values()),
            corpus=list({document.id: document for document in documents}.values()),
            depth=max(map(len, lists.values())),
            keep_empty=True,
            **self.flags,
        )
        ranked = [run.hits(qid) for qid in lists]
        return _add_ranks(inp.iloc[[rows[qid, docno] for qid, hits in zip(lists, ranked, strict=True) for docno, _ in hits]], ranked)


class Indexer(pt.Indexer):  # type: ignore[misc]
    """Documents (docno, text, and title if there is one) → an index in `folder`, and a `Retriever` over it.

    Without a checkpoint, BM25. An interrupted encoding goes on where it was, and what is already made of the same documents is used.
    `flags` are those of `moeir index`.
    """

    def __init__(
        self, checkpoint: Path | str | None, folder: Path | str, *, device: str = "auto", dtype: str = "auto", **flags: Any
    ) -> None:
        self.checkpoint, self.folder, self.device, self.dtype, self.flags = checkpoint, Path(folder), device, dtype, flags

    def index(self, iter: Iterable[Mapping[str, Any]], **kwargs: Any) -> Retriever:
        """Write the documents, encode and index them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".documents-", dir=self.folder) as own:
            corpus = Path(own) / "corpus.jsonl"
            write_texts(_to_texts(iter), corpus)
            if self.checkpoint is None:
                moeir.index(corpus=corpus, engine="bm25", output=self.folder / "index", keep_empty=True, **self.flags)
            else:
                encodings = {"output": self.folder / "encodings", "device": self.device, "dtype": self.dtype}
                moeir.encode(model=self.checkpoint, corpus=corpus, keep_empty=True, **encodings)
                moeir.index(encodings=self.folder / "encodings", output=self.folder / "index", **self.flags)
        return Retriever(self.folder / "index", device=self.device, dtype=self.dtype)


def _to_texts(documents: Iterable[Mapping[str, Any]]) -> Iterator[Text]:
    """PyTerrier's documents {docno, text, title} as texts."""
    for number, document in enumerate(documents):
        fields = {name: document[name] for name in ("text", "title") if name in document}
        yield parse_text(fields | {"_id": document.get("docno")}, f"document {number} ({document.get('docno')!r})")


def _read_ids(frame: pd.DataFrame, column: str) -> list[str]:
    """The ids of a column, by the rules of text files."""
    return [parse_id(name, f"row {row}, column {column!r}") for row, name in enumerate(frame[column])]


def _read_texts(frame: pd.DataFrame, key: str, *columns: str) -> list[Text]:
    """The text of each row, by the rules of text files; DataError for an id with two texts."""
    texts, by_id = list[Text](), dict[str, Text]()
    present = [column for column in columns if column in frame]
    for row, (name, *values) in enumerate(zip(_read_ids(frame, key), *map(frame.get, present), strict=True)):
        texts.append(parse_text({"_id": name, **dict(zip(present, values, strict=True))}, f"row {row}"))
        if by_id.setdefault(name, texts[-1]) != texts[-1]:
            problem = f"{key} {name!r} has another {' or '.join(present)} in an earlier row"
            raise DataError(f"row {row}: {problem}; different texts need other ids")
    return texts


def _unique_queries(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns of the queries, each query once, in order; the index is their ids."""
    columns = [name for name in frame.columns if name in ("qid", "query") or name.startswith(("query_", "query."))]
    queries = frame[columns].set_axis([query.id for query in _read_texts(frame, "qid", "query")])
    return queries[~queries.index.duplicated()]


def _frame_of_run(queries: pd.DataFrame, run: Run) -> pd.DataFrame:
    """A frame of PyTerrier: the columns of the queries, docno, score, and rank from 0."""
    lists = [run.hits(qid) for qid in queries.index]
    frame = queries.iloc[[row for row, hits in enumerate(lists) for _ in hits]]
    return _add_ranks(frame.assign(docno=[docno for hits in lists for docno, _ in hits]), lists)


def _add_ranks(frame: pd.DataFrame, lists: list[list[tuple[str, float]]]) -> pd.DataFrame:
    """The rows of ranked lists with their scores, and ranks from 0."""
    scores = pd.Series([score for hits in lists for _, score in hits], dtype="float64")
    ranks = pd.Series([rank for hits in lists for rank in range(len(hits))], dtype="int64")
    return frame.reset_index(drop=True).assign(score=scores, rank=ranks)
