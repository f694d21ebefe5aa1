"""PyTerrier: indexes, rerankers and fusion of moeir as transformers, which compose with `>>`, `%`, `|` and the rest (extra `pyterrier`).

    import pyterrier as pt
    from moeir.pyterrier import Fusion, Indexer, Reranker, Retriever

    came = Retriever("idx/came")                                    # the experts, fused as `moeir search` does
    lists = Fusion(Retriever("idx/came", expert="global"), Retriever("idx/bm25"), method="rrf")
    pipeline = came % 100 >> pt.text.get_text(dataset) >> Reranker("ckpt/lce")

Java is not needed. Results have the ranks of `moeir search`: by score, and then by id, descending.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import moeir
from moeir import variants
from moeir.errors import UsageError
from moeir.fusion import formulas
from moeir.records.runs import Run
from moeir.records.texts import Text, write_texts
from moeir.retrieval.searcher import Searcher, open_index

try:
    import pandas as pd
    import pyterrier as pt
except ModuleNotFoundError:
    raise UsageError("moeir.pyterrier: the package python-terrier is not installed; pip install 'moeir[pyterrier]'") from None

DEPTH = 1000
DOCUMENT_COLUMNS = ("docno", "text")


class Retriever(pt.Transformer):  # type: ignore[misc]
    """Queries (qid, query) → their best documents (docno, score, rank), as by `moeir search`.

    `index` is a folder of `moeir index`, or an open one; `expert` one of its experts, by default all of them, fused with `fuse`.
    """

    def __init__(
        self,
        index: Path | str | Searcher,
        *,
        expert: str | None = None,
        fuse: str | None = None,
        num_results: int = DEPTH,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        self.searcher = index if isinstance(index, Searcher) else open_index(index, device=device, dtype=dtype)
        self.expert, self.fuse, self.num_results = expert, fuse, num_results
        self.searcher.select_experts([expert] if expert else [])

    def __repr__(self) -> str:
        return f"Retriever({self.searcher.label}{f', expert={self.expert}' if self.expert else ''})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Search every query once; other columns of the queries stay."""
        pt.validate.query_frame(inp, extra_columns=["query"])
        queries = _unique_queries(inp)
        if not len(queries):
            return _frame_of_run(queries, Run.from_hits({}))
        contents, ids = queries["query"].astype(str).tolist(), queries["qid"].astype(str).tolist()
        return _frame_of_run(queries, self.searcher.search(contents, self.num_results, self.expert, self.fuse, ids=ids))

    def fuse_rank_cutoff(self, k: int) -> "Retriever":
        """The retriever of the first `k`, which PyTerrier puts in the place of `retriever % k`."""
        return Retriever(self.searcher, expert=self.expert, fuse=self.fuse, num_results=min(k, self.num_results))


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
        queries = _unique_queries(inp)
        if not len(inp):
            return _frame_of_run(queries, Run.from_hits({}))
        hits = inp.assign(qid=inp["qid"].astype(str), docno=inp["docno"].astype(str))
        documents = hits.drop_duplicates("docno")
        titles = documents["title"] if "title" in documents else pd.Series("", index=documents.index)
        lists = {
            qid: [(docno, -float(rank)) for rank, docno in enumerate(group["docno"])] for qid, group in hits.groupby("qid", sort=False)
        }
        run = moeir.rerank(
            model=self.checkpoint,
            run=Run.from_hits(lists),
            queries=[Text(qid, str(text)) for qid, text in zip(queries["qid"].astype(str), queries["query"], strict=True)],
            corpus=[
                Text(docno, str(text), title=str(title))
                for docno, text, title in zip(documents["docno"], documents["text"], titles, strict=True)
            ],
            depth=max(map(len, lists.values())),
            keep_empty=True,
            **self.flags,
        )
        extra = [name for name in hits.columns if name not in {*queries.columns, "score", "rank"}]
        return _frame_of_run(queries, run).merge(hits[["qid", *extra]], on=["qid", "docno"], how="left")


class Fusion(pt.Transformer):  # type: ignore[misc]
    """The lists of several transformers, fused by a method of `moeir fuse`: `Fusion(dense, bm25, method="rrf:constant=60")`."""

    def __init__(self, *transformers: pt.Transformer, method: str = "came-sum", num_results: int = DEPTH) -> None:
        if len(transformers) < 2:
            raise UsageError(f"Fusion: expected two transformers or more, found {len(transformers)}")
        self.transformers, self.method, self.num_results = transformers, method, num_results
        self._formula = variants.bind_variant("fusion", method)

    def __repr__(self) -> str:
        return f"Fusion({', '.join(map(repr, self.transformers))}, method={self.method})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Give every transformer the same queries and fuse what they find."""
        pt.validate.query_frame(inp, extra_columns=["query"])
        queries = _unique_queries(inp)
        runs = [_run_of_frame(queries, transformer.transform(inp)) for transformer in self.transformers]
        return _frame_of_run(queries, formulas.fuse_runs(runs, self._formula, self.num_results))


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
        if missing := [name for name in DOCUMENT_COLUMNS if name not in document]:
            raise UsageError(f"document {number}: has no {missing[0]}; expected {' and '.join(DOCUMENT_COLUMNS)}")
        yield Text(str(document["docno"]), str(document["text"]), title=str(document.get("title") or ""))


def _unique_queries(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns of the queries, each query once, in order."""
    columns = [name for name in frame.columns if name in ("qid", "query") or name.startswith(("query_", "query."))]
    return frame[columns].drop_duplicates("qid").reset_index(drop=True)


def _frame_of_run(queries: pd.DataFrame, run: Run) -> pd.DataFrame:
    """A frame of PyTerrier: the columns of the queries, docno, score, and rank from 0."""
    lists = [run.hits(qid) for qid in queries["qid"].astype(str)]
    rows = [row for row, hits in enumerate(lists) for _ in hits]
    frame = queries.iloc[rows].reset_index(drop=True)
    frame["docno"] = [docno for hits in lists for docno, _ in hits]
    frame["score"] = pd.Series([score for hits in lists for _, score in hits], dtype="float64")
    frame["rank"] = pd.Series([rank for hits in lists for rank in range(len(hits))], dtype="int64")
    return frame


def _run_of_frame(queries: pd.DataFrame, frame: pd.DataFrame) -> Run:
    """The run of a frame of results, with every query."""
    hits: dict[str, list[tuple[str, float]]] = {qid: [] for qid in queries["qid"].astype(str)}
    for qid, docno, score in zip(frame["qid"].astype(str), frame["docno"].astype(str), frame["score"], strict=True):
        hits.setdefault(qid, []).append((docno, float(score)))
    return Run.from_hits(hits)
