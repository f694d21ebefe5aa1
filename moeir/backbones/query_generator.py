"""Query generation (doc2query) with a sequence-to-sequence model of transformers, T5 for example.

The queries of a batch are sampled by transformers' `generate`, from random numbers that are a function of the seed and of its first
passage: the same command gives the same queries. Passages come in blocks: batches of similar length within a block, and an output file
that an interruption leaves resumable.
"""

import hashlib
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Encoding
from torch.nn.utils.rnn import pad_sequence

from moeir.artifacts.atomic_write import make_folder
from moeir.artifacts.journals import AppendableText, JsonlJournal
from moeir.backbones.families import weights_io
from moeir.backbones.tokenizer import load_tokenizer
from moeir.backbones.transformers_model import refuse_transformers_errors
from moeir.errors import ArtifactError, UsageError
from moeir.records import generated_queries, lines
from moeir.records.texts import Text

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampling:
    """Queries per passage and sampling parameters; `top_k=0` and `top_p=1` disable the filters."""

    queries: int = 5
    top_k: int = 25
    top_p: float = 0.95
    temperature: float = 1.0
    length: int = 64
    seed: int = 42


class QueryGenerator:
    """A model with its tokenizer: blocks of passages in, their queries out, counted. A passage is read with `prefix` before it, up to
    `max_input` tokens; a batch has at most `max_tokens` tokens of passages and queries."""

    def __init__(
        self,
        model: Path,
        device: str,
        dtype: torch.dtype,
        sampling: Sampling,
        *,
        prefix: str = "",
        max_input: int = 512,
        max_tokens: int = 16384,
    ) -> None:
        self.folder, self._device = weights_io.resolve_model(model), device
        self._sampling, self._prefix, self._max_input, self._max_tokens = sampling, prefix, max_input, max_tokens
        self._model = _load_model(self.folder, dtype).to(device).eval()
        self._tokenizer, vocabulary = load_tokenizer(self.folder)
        tokens, rows = max(vocabulary.values()) + 1, self._model.config.vocab_size
        if tokens > rows:
            raise ArtifactError(f"{self.folder}: its tokenizer has {tokens} tokens, its model {rows}; expected those of one model")
        if self._tokenizer.encode("").ids[-1:] != [self._model.config.eos_token_id]:
            raise ArtifactError(f"{self.folder}: its tokenizer ends no text with the model's eos_token_id; expected that of the weights")
        self._unused_rows = list(range(tokens, rows)) or None
        if len(self._tokenizer.encode(prefix).ids) >= max_input:
            raise UsageError(f"--max-input {max_input}: the prefix and the end token leave no room for a passage")
        self._tokenizer.enable_truncation(max_input)
        self.counts = dict.fromkeys(("passages", "queries", "cut", "empty"), 0)

    def generate_lines(self, block: Sequence[Text]) -> list[str]:
        """A line for each passage of a block, with its queries in order, without empty ones; white space is collapsed to single spaces."""
        texts = [text for text in block if text.content]
        encodings = self._tokenizer.encode_batch([self._prefix + text.content for text in texts])
        queries_by_id: dict[str, list[str]] = {text.id: [] for text in block}
        order = sorted(range(len(texts)), key=lambda row: -len(encodings[row]))
        while order:  # a batch is padded to the longest, its first
            size = self._sampling.queries * (len(encodings[order[0]]) + self._sampling.length)
            count = max(1, self._max_tokens // size)
            rows, order = order[:count], order[count:]
            generated = self._generate([encodings[row] for row in rows], texts[rows[0]].id)
            for number, query in enumerate(generated):
                if query:
                    queries_by_id[texts[rows[number // self._sampling.queries]].id].append(query)
        queries = sum(map(len, queries_by_id.values()))
        self.counts["passages"] += len(block)
        self.counts["queries"] += queries
        self.counts["cut"] += sum(bool(encoding.overflowing) for encoding in encodings)
        self.counts["empty"] += len(texts) * self._sampling.queries - queries
        return [generated_queries.format_line(name, queries) for name, queries in queries_by_id.items()]

    @torch.inference_mode()
    def _generate(self, passages: Sequence[Encoding], first_id: str) -> list[str]:
        """The queries of each passage, passage by passage."""
        ids, mask = (
            pad_sequence([torch.tensor(part) for part in parts], batch_first=True).to(self._device)
            for parts in ([one.ids for one in passages], [one.attention_mask for one in passages])
        )
        sampling = self._sampling
        digest = hashlib.blake2b(f"{sampling.seed} {first_id}".encode(), digest_size=8).digest()
        torch.manual_seed(int.from_bytes(digest, "little", signed=True))
        with refuse_transformers_errors(f"{self.folder}: cannot generate; check its weights, or try --dtype float32"):
            generated = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                num_beams=1,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                temperature=sampling.temperature,
                max_new_tokens=sampling.length,
                num_return_sequences=sampling.queries,
                suppress_tokens=self._unused_rows,
            )
        return [" ".join(text.split()) for text in self._tokenizer.decode_batch(generated.tolist())]

    def report_counts(self) -> dict[str, Any]:
        """Warn about truncated passages and empty queries; the counts for the manifest."""
        counts = self.counts
        if counts["cut"]:
            log.warning("%d of %d passages were truncated to --max-input %d tokens", counts["cut"], counts["passages"], self._max_input)
        if counts["empty"]:
            log.warning("%d generated queries were empty and were dropped", counts["empty"])
        return dict(counts)


def _load_model(folder: Path, dtype: torch.dtype) -> Any:
    """Load the model of a folder; ArtifactError for one that is damaged, incomplete, or no sequence-to-sequence model."""
    weights_io.read_config(folder)
    weights_io.list_weight_files(folder)
    with refuse_transformers_errors(f"{folder}: cannot be opened as a sequence-to-sequence model"):
        options = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
        model, loading_info = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype, **options)
    if missing := sorted(loading_info["missing_keys"]):
        raise ArtifactError(f"{folder}: weights are missing, first {missing[0]} ({len(missing)} in all); expected a whole checkpoint")
    return model


class ResumableQueryFile:
    """A growing file of finished blocks with a journal: an interruption loses at most one block."""

    def __init__(self, folder: Path, generator: QueryGenerator) -> None:
        make_folder(folder)
        self._path, self._generator = folder / "lines.jsonl", generator
        self._journal = JsonlJournal(folder / "journal.jsonl")
        last = self._journal.entries[-1] if self._journal.entries else {"bytes": 0, "counts": generator.counts}
        self._lines, generator.counts = AppendableText(self._path, last["bytes"]), last["counts"]

    @property
    def passages_done(self) -> int:
        """Number of finished passages."""
        return self._generator.counts["passages"]

    def add_block(self, block: Sequence[Text]) -> None:
        """Generate queries for a block and flush them to disk."""
        self._lines.append(self._generator.generate_lines(block))
        self._journal.write({"bytes": self._lines.flush(), "counts": self._generator.counts})

    def close(self, output: Path) -> None:
        """Copy the lines to `output`."""
        self._lines.close()
        self._journal.close()
        with open(self._path, encoding="utf-8", newline="") as source_file, lines.open_writer(output) as file:
            shutil.copyfileobj(source_file, file)
