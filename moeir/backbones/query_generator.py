"""Query generation (doc2query) with T5 checkpoints; each token is sampled with its own random number.

The numbers are a function of seed, passage id, query number and position, so that the queries of a passage depend neither on the other
passages of its batch nor on the number of queries. Batches of other shapes round differently: a token changes if its random number lies
within that rounding of the boundary between two tokens. Passages come in blocks: batches of similar length within a block, and an output
file that an interruption leaves resumable.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from moeir.artifacts.atomic_write import make_folder
from moeir.artifacts.journals import AppendableText, JsonlJournal
from moeir.backbones.families import weights_io
from moeir.backbones.json_fields import CheckedFields
from moeir.backbones.tokenizer import load_tokenizer
from moeir.errors import ArtifactError, UsageError, is_out_of_memory
from moeir.records import generated_queries, lines
from moeir.records.texts import Text

log = logging.getLogger(__name__)
Queries = dict[str, list[str]]  # the queries of some passages, by id
FAMILIES = {"t5": transformers.T5ForConditionalGeneration, "mt5": transformers.MT5ForConditionalGeneration}
MIN_ACTIVE_SHARE = 0.75  # finished queries are dropped from a batch when fewer than this share are unfinished


@dataclass(frozen=True)
class Sampling:
    """Queries per passage and sampling parameters; `top_k=0` and `top_p=1` disable the filters."""

    queries: int = 5
    top_k: int = 25
    top_p: float = 0.95
    temperature: float = 1.0
    length: int = 64
    seed: int = 42


@dataclass(frozen=True)
class Passage:
    """A passage: its id, and its token ids with the end token."""

    id: str
    ids: Sequence[int]


class T5QueryGenerator:
    """A T5 encoder-decoder with its tokenizer: passages in, queries out."""

    def __init__(self, model: Path, device: str, dtype: torch.dtype) -> None:
        self.folder, self._device = weights_io.resolve_model(model), device
        self._model = _load_model(self.folder, dtype).to(device).eval()
        self._tokenizer, vocabulary = load_tokenizer(self.folder)
        self._vocabulary_size = max(vocabulary.values()) + 1  # the model's embeddings have more rows, which are no tokens
        if (tokens := self._vocabulary_size) > (rows := self._model.config.vocab_size):
            raise ArtifactError(f"{self.folder}: its tokenizer has {tokens} tokens, its model {rows}; expected those of one model")
        self._end_id, self._start_id = _end_and_start_ids(self._model, self.folder)

    def tokenize(self, texts: Sequence[str], max_length: int) -> tuple[list[list[int]], int]:
        """Token ids of each text, at most `max_length` with the end token, and the number of truncated texts."""
        token_ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        return [[*ids[: max_length - 1], self._end_id] for ids in token_ids], sum(len(ids) >= max_length for ids in token_ids)

    def generate(self, passages: Sequence[Passage], sampling: Sampling) -> list[list[str]]:
        """The queries of each passage in order, without empty ones; white space is collapsed to single spaces."""
        generated = self._sample(passages, sampling).tolist()
        texts = [" ".join(self._tokenizer.decode(list(takewhile(lambda token: token != self._end_id, ids))).split()) for ids in generated]
        groups = (texts[first : first + sampling.queries] for first in range(0, len(texts), sampling.queries))
        return [[text for text in group if text] for group in groups]

    @torch.inference_mode()
    def _sample(self, passages: Sequence[Passage], sampling: Sampling) -> Tensor:
        """Token ids of each query [B·queries, length], padded with end tokens.

        A passage is encoded once and its first decoder step runs once; then each query gets its own copy of the decoder cache.
        """
        ids, mask = self._pad(passages)
        states = self._model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state  # [B, L, H]
        random_numbers = self._uniforms(passages, sampling)  # [B·queries, length]
        passage_rows = torch.arange(len(passages), device=self._device).repeat_interleave(sampling.queries)
        rows = torch.arange(len(passage_rows), device=self._device)
        generated = torch.full(random_numbers.shape, self._end_id, device=self._device)
        finished, tokens, cache = rows < 0, torch.full((len(passages),), self._start_id, device=self._device), None
        for position in range(sampling.length):
            encoded = {"encoder_outputs": (states,), "attention_mask": mask}
            output = self._model(decoder_input_ids=tokens[:, None], past_key_values=cache, use_cache=True, **encoded)
            logits, cache = output.logits[:, -1, : self._vocabulary_size].float(), output.past_key_values
            if position == 0:
                logits, states, mask = logits[passage_rows], states[passage_rows], mask[passage_rows]
                cache.reorder_cache(passage_rows)
            if not logits.amax(dim=-1).isfinite().all():
                raise ArtifactError(f"{self.folder}: the model's logits contain NaN or Inf; check its weights, or try --dtype float32")
            tokens = sample_tokens(logits, random_numbers[rows, position], sampling.top_k, sampling.top_p, sampling.temperature)
            tokens = tokens.masked_fill(finished, self._end_id)
            generated[rows, position] = tokens
            finished = tokens == self._end_id
            active = (~finished).nonzero()[:, 0]
            if not len(active):
                break
            if len(active) <= MIN_ACTIVE_SHARE * len(rows):
                rows, tokens, finished, states, mask = (part[active] for part in (rows, tokens, finished, states, mask))
                cache.reorder_cache(active)
        return generated.cpu()

    def _pad(self, passages: Sequence[Passage]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, [B, L] each."""
        texts = [torch.tensor(passage.ids) for passage in passages]
        ids, mask = (pad_sequence(parts, batch_first=True) for parts in (texts, [torch.ones_like(text) for text in texts]))
        return ids.to(self._device), mask.to(self._device)

    def _uniforms(self, passages: Sequence[Passage], sampling: Sampling) -> Tensor:
        """[B·queries, length]."""
        keys = ((passage.id, number) for passage in passages for number in range(sampling.queries))
        draws = [philox_uniforms(sampling.seed, passage, number, sampling.length) for passage, number in keys]
        return torch.from_numpy(np.stack(draws)).to(self._device)


def philox_uniforms(seed: int, passage: str, number: int, length: int) -> np.ndarray:
    """float64 [length] in [0, 1): the random numbers of one query of a passage, one per position.

    The top 53 bits of Philox's output under a key of seed, query number and passage id (Salmon et al. 2011).
    """
    key = hashlib.blake2b(f"{seed} {number} {passage}".encode(), digest_size=16).digest()
    return (np.random.Philox(key=int.from_bytes(key, "little")).random_raw(length) >> 11) * 2.0**-53


def sample_tokens(logits: Tensor, numbers: Tensor, top_k: int = 25, top_p: float = 0.95, temperature: float = 1.0) -> Tensor:
    """Sample one token per row: the first whose cumulative probability, in descending order of probability, exceeds the row's number.

    logits float32 [R, V], numbers float64 [R] in [0, 1) -> [R]. Candidates are the `top_k` likeliest tokens (Fan et al. 2018), of these the
    fewest whose share of the probability of all `top_k` reaches `top_p` (Holtzman et al. 2020). Ties go to the lower token id.

    >>> shares = torch.tensor([[0.2, 0.5, 0.3]]).log()
    >>> [sample_tokens(shares, torch.tensor([number]), top_k=0, top_p=0.7).item() for number in (0.0, 0.62, 0.63, 0.99)]
    [1, 1, 2, 2]
    """
    scores, tokens = _top_k(logits, top_k)  # [R, k]
    probabilities = (scores.double() / temperature).softmax(dim=-1)
    probabilities = probabilities.masked_fill(probabilities.cumsum(dim=-1) - probabilities >= top_p, 0)  # keep the first that reaches it
    cumulative = probabilities.cumsum(dim=-1)
    ranks = (cumulative <= numbers[:, None] * cumulative[:, -1:]).sum(dim=-1)
    return tokens.gather(-1, ranks[:, None])[:, 0]


def _top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row (all for 0) and their columns; ties go to the lower column, which comes first."""
    if not 0 < count < logits.shape[-1]:
        scores, columns = logits.sort(dim=-1, descending=True, stable=True)
        return scores, columns
    threshold = logits.topk(count).values[:, -1:]
    above, tied = logits > threshold, logits == threshold
    tied_count = count - above.sum(dim=-1, keepdim=True)
    selected = above | (tied & (tied.cumsum(dim=-1) <= tied_count))
    columns = selected.nonzero()[:, 1].view(-1, count)  # [R, k], ascending
    scores, order = logits.gather(-1, columns).sort(dim=-1, descending=True, stable=True)
    return scores, columns.gather(-1, order)


def _load_model(folder: Path, dtype: torch.dtype) -> Any:
    """Load the model of a folder; UsageError for another family, ArtifactError for missing or damaged weights or a damaged config.json."""
    fields = weights_io.read_config(folder)
    family = str(fields.get("model_type"))
    if family not in FAMILIES:
        raise UsageError(f"{folder}: model_type is {family!r}; queries are generated by {' or '.join(FAMILIES)}")
    CheckedFields(fields, folder / "config.json").check_all()
    shapes = weights_io.read_shapes(folder)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with _refuse_transformers_errors(f"{folder}/config.json: cannot be read"):
        config = FAMILIES[family].config_class.from_pretrained(folder, local_files_only=True)
    weights_io.check_whole(
        folder, _build_meta_weights(config), {name.removeprefix("transformer."): shape for name, shape in shapes.items()}
    )
    with _refuse_transformers_errors(f"{folder}: its weights cannot be opened"):
        options = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
        model, loading_info = FAMILIES[family].from_pretrained(folder, config=config, dtype=dtype, **options)
    if missing := sorted(loading_info["missing_keys"]):
        raise ArtifactError(f"{folder}: weights are missing, first {missing[0]} ({len(missing)} in all); expected a whole checkpoint")
    return model


@contextmanager
def _refuse_transformers_errors(reason: str) -> Iterator[None]:
    """ArtifactError for whatever transformers raises on files that it does not expect, but for a lack of memory."""
    try:
        yield
    except Exception as problem:
        if is_out_of_memory(problem):
            raise
        raise ArtifactError(f"{reason}: {' '.join(str(problem).split())[:300]}") from None


def _build_meta_weights(config: Any) -> dict[str, Tensor]:
    """Weights of every layer that have the model's sizes, by name, without memory."""
    shapes = {}
    for stack, layers, feedforward in (("encoder", config.num_layers, 1), ("decoder", config.num_decoder_layers, 2)):
        for prefix in (f"{stack}.block.{number}.layer." for number in range(layers)):
            shapes[f"{prefix}0.SelfAttention.q.weight"] = (config.num_heads * config.d_kv, config.d_model)
            shapes[f"{prefix}{feedforward}.DenseReluDense.wo.weight"] = (config.d_model, config.d_ff)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def _end_and_start_ids(model: Any, folder: Path) -> tuple[int, int]:
    """The end token of a text and the start token of a query."""
    end, start = model.config.eos_token_id, model.generation_config.decoder_start_token_id
    start = model.config.pad_token_id if start is None else start
    if not all(type(number) is int and 0 <= number < model.config.vocab_size for number in (end, start)):
        raise ArtifactError(f"{folder}/config.json: eos_token_id {end}, decoder_start_token_id {start}: expected a token's number for each")
    return end, start


@dataclass
class BlockGenerator:
    """Generates queries for the passages of a block in batches of similar length, and counts the results."""

    model: T5QueryGenerator
    sampling: Sampling
    prefix: str
    max_input: int
    max_tokens: int

    def __post_init__(self) -> None:
        self.counts = dict.fromkeys(("passages", "queries", "cut", "empty"), 0)
        [prefix_ids], _ = self.model.tokenize([self.prefix], self.max_input)
        if len(prefix_ids) == self.max_input:
            raise UsageError(f"--max-input {self.max_input}: the prefix and the end token leave no room for a passage")

    def generate_lines(self, block: Sequence[Text], finished: Queries, save: Callable[[Queries], None]) -> list[str]:
        """A line for each passage; `finished` queries are not generated again, new ones go to `save` batch by batch."""
        non_empty = [text for text in block if text.content]
        token_ids, truncated = self.model.tokenize([self.prefix + text.content for text in non_empty], self.max_input)
        queries_by_id: Queries = {text.id: [] for text in block} | finished
        for batch in self._make_batches([Passage(text.id, ids) for text, ids in zip(non_empty, token_ids, strict=True)]):
            if new_passages := [passage for passage in batch if passage.id not in finished]:
                generated = self.model.generate(new_passages, self.sampling)
                new_queries = {passage.id: queries for passage, queries in zip(new_passages, generated, strict=True)}
                save(new_queries)
                queries_by_id |= new_queries
        queries = sum(map(len, queries_by_id.values()))
        added = {"passages": len(block), "queries": queries, "cut": truncated, "empty": len(non_empty) * self.sampling.queries - queries}
        self.counts = {name: self.counts[name] + added[name] for name in added}
        return [generated_queries.format_line(text.id, queries_by_id[text.id]) for text in block]

    def _make_batches(self, passages: Sequence[Passage]) -> Iterator[list[Passage]]:
        """Batches, shortest passages first; each has as many as fit when padded to the longest, with all their queries."""
        batch: list[Passage] = []
        for passage in sorted(passages, key=lambda passage: len(passage.ids)):
            tokens_per_passage = self.sampling.queries * (len(passage.ids) + self.sampling.length)
            if batch and (len(batch) + 1) * tokens_per_passage > self.max_tokens:
                yield batch
                batch = []
            batch.append(passage)
        if batch:
            yield batch

    def report_counts(self) -> dict[str, Any]:
        """Warn about truncated passages and empty queries; the counts for the manifest."""
        counts = self.counts
        if counts["cut"]:
            log.warning("%d of %d passages were truncated to --max-input %d tokens", counts["cut"], counts["passages"], self.max_input)
        if counts["empty"]:
            log.warning("%d generated queries were empty and were dropped", counts["empty"])
        return dict(counts)


class ResumableQueryFile:
    """A growing file of finished blocks, and a journal of the current block: an interruption loses at most one batch."""

    def __init__(self, folder: Path, generator: BlockGenerator) -> None:
        make_folder(folder)
        self._folder, self._generator = folder, generator
        self._journal = JsonlJournal(folder / "journal.jsonl")
        self._lines = AppendableText(folder / "lines.jsonl", self._journal.entries[-1]["bytes"] if self._journal.entries else 0)
        if self._journal.entries:
            generator.counts = self._journal.entries[-1]["tally"]

    @property
    def passages_done(self) -> int:
        """Number of finished passages."""
        return self._generator.counts["passages"]

    def add_block(self, block: Sequence[Text]) -> None:
        """Generate queries for a block and flush them to disk."""
        draft_path = self._folder / f"block-{self.passages_done}.jsonl"
        drafts = JsonlJournal(draft_path)
        finished = {passage: queries for entry in drafts.entries for passage, queries in entry.items()}
        self._lines.append(self._generator.generate_lines(block, finished, drafts.write))
        self._journal.write({"bytes": self._lines.flush(), "tally": self._generator.counts})
        drafts.close()
        draft_path.unlink()

    def close(self, output: Path) -> None:
        """Copy the lines to `output`."""
        self._lines.close()
        self._journal.close()
        with open(self._folder / "lines.jsonl", encoding="utf-8", newline="") as source_file, lines.open_writer(output) as file:
            shutil.copyfileobj(source_file, file)
