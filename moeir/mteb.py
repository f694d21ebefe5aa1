"""MTEB: a checkpoint of moeir as a search model of the benchmark, by all its experts, fused, or by one of them (extra `mteb`).

    import mteb
    from moeir.mteb import SearchModel

    mteb.evaluate(SearchModel("ckpt/came", "work/mteb"), mteb.get_tasks(["SciFact", "NFCorpus"]))

What a single-vector model cannot be there, several lists per query, ours is: it is given the corpus and returns ranked documents.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import moeir
from moeir.architectures.checkpoint import open_checkpoint
from moeir.artifacts import manifests
from moeir.errors import UsageError
from moeir.parsing import check_count
from moeir.records.texts import Text, parse_string, parse_text, write_texts
from moeir.retrieval.searcher import Searcher

try:
    from mteb.models.model_meta import ModelMeta
except ModuleNotFoundError:
    raise UsageError("moeir.mteb: the package mteb is not installed; pip install 'moeir[mteb]'") from None

MODEL_TYPES = {"dense": "dense", "sparse": "sparse", "exact-match": "sparse", "multivector": "late-interaction"}


class SearchModel:
    """MTEB's SearchProtocol. Encodings and indexes are kept below `folder`, one folder for each task, subset and split.

    An interrupted encoding goes on where it was. `expert` is one of the checkpoint's, by default all of them, fused with `fuse` as by
    `moeir search`. Results are filed under `name`, the digest of the checkpoint, and `dtype`.
    """

    def __init__(
        self,
        checkpoint: Path | str,
        folder: Path | str,
        *,
        expert: str | None = None,
        fuse: str | None = None,
        name: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        self.checkpoint, self.folder, self.expert, self.fuse = Path(checkpoint), Path(folder), expert, fuse
        self.device, self.dtype = device, dtype
        self._searcher: Searcher | None = None
        model = open_checkpoint(checkpoint, "cpu")
        kinds = model.architecture.representation_kinds
        if model.architecture.reads_pairs:
            raise UsageError(f"{checkpoint}: a cross-encoder cannot search; give MTEB a retriever")
        if expert is not None and expert not in kinds:
            raise UsageError(f"expert={expert}: {checkpoint} has {', '.join(kinds)}")
        used = {kinds[expert]} if expert else set(kinds.values())
        several = expert is None and len(kinds) > 1
        parts = [part for part in (self.checkpoint.resolve().name, expert, fuse) if part]
        facts = {
            "name": name or f"moeir/{'-'.join(parts).replace('/', '-')}",
            "revision": manifests.compute_digest(self.checkpoint)[:16],
            "n_parameters": model.architecture.parameter_count(),
            "framework": ["PyTorch"],
            "use_instructions": False,
            "experiment_kwargs": {"dtype": dtype},
            "model_type": ["hybrid" if several else MODEL_TYPES.get(used.pop(), "hybrid")],
        }
        unknown = {field: None for field, details in ModelMeta.model_fields.items() if details.is_required()}
        self.mteb_model_meta = ModelMeta(**unknown | facts)

    def index(self, corpus: Iterable[Mapping[str, Any]], *, task_metadata: Any, hf_split: str, hf_subset: str, **others: Any) -> None:
        """Encode and index a corpus of {id, text, title}."""
        folder = self.folder / task_metadata.name / hf_subset / hf_split
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".documents-", dir=folder) as own:
            documents = Path(own) / "corpus.jsonl"
            write_texts((_to_text(document, f"document {number}") for number, document in enumerate(corpus, 1)), documents)
            encodings = {"output": folder / "encodings", "device": self.device, "dtype": self.dtype}
            moeir.encode(model=self.checkpoint, corpus=documents, keep_empty=True, **encodings)
        moeir.index(encodings=folder / "encodings", output=folder / "index")
        self._searcher = moeir.open_index(folder / "index", device=self.device, dtype=self.dtype, verified=True)

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        top_ranked: Mapping[str, list[str]] | None = None,
        **others: Any,
    ) -> dict[str, dict[str, float]]:
        """Scores of the `top_k` documents of each query {id, text}; of the documents of `top_ranked` where they are given."""
        if self._searcher is None:
            raise UsageError("search: no corpus yet; MTEB calls index first")
        searcher = self._searcher
        texts = [_to_text(query, f"query {number}") for number, query in enumerate(queries, 1)]
        top_k = check_count(top_k, "top_k")
        depth = top_k if top_ranked is None else len(searcher.ids)
        results: dict[str, dict[str, float]] = {}
        step = len(texts) if top_ranked is None else 1  # all documents of one query at a time
        for first in range(0, len(texts), max(step, 1)):
            part = texts[first : first + step]
            run = searcher.search([text.content for text in part], depth, self.expert, self.fuse, ids=[text.id for text in part])
            for text in part:
                wanted = None if top_ranked is None else set(top_ranked.get(text.id, ()))
                hits = [hit for hit in run.hits(text.id) if wanted is None or hit[0] in wanted]
                results[text.id] = dict(hits[:top_k])
        return results


def _to_text(record: Mapping[str, Any], where: str) -> Text:
    """A document or query of MTEB; instructions follow the text, as MTEB's own encoders have them."""
    if isinstance(record.get("text"), list | dict):
        raise UsageError(
            f"{record.get('id')!r}: expected a text, found {type(record['text']).__name__}; conversations and images are not read"
        )
    text = parse_text({name: record[name] for name in ("id", "text", "title") if name in record}, where)
    instruction = "" if record.get("instruction") is None else parse_string(record["instruction"], f"{where}: instruction")
    return replace(text, text=" ".join(filter(None, (text.text, instruction))))
