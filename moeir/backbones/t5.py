"""T5 checkpoints that write queries for passages, each token drawn by a random number of its own.

The numbers are a function of seed, passage id, query number and position, so that what a passage is given depends neither on the
passages beside it nor on how many queries it gets. Batches of other shapes round otherwise: then a draw can change where its number
falls between two tokens by less than that rounding.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor

from moeir.backbones.checkpoints import files
from moeir.backbones.tokenizer import opened
from moeir.errors import ArtifactError, UsageError

FAMILIES = {"t5": transformers.T5ForConditionalGeneration, "mt5": transformers.MT5ForConditionalGeneration}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
FULL = 0.75  # a batch with fewer of its queries unfinished closes its ranks


@dataclass(frozen=True)
class Sampling:
    """How many queries a passage gets, and how their tokens are drawn; a `top_k` of 0 and a `top_p` of 1 leave nothing out."""

    queries: int = 5
    top_k: int = 25
    top_p: float = 0.95
    temperature: float = 1.0
    length: int = 64
    seed: int = 42


@dataclass(frozen=True)
class Passage:
    """What queries are written for: its id, and its token ids with the end sign."""

    id: str
    ids: Sequence[int]


class QueryWriter:
    """An encoder and decoder with its tokenizer: passages in, queries out."""

    def __init__(self, model: Path, device: str, dtype: torch.dtype) -> None:
        self.folder, self._device = files.located(model), device
        self._model = _opened(self.folder, dtype).to(device).eval()
        self._tokenizer = opened(self.folder)
        self._vocabulary = self._tokenizer.get_vocab_size()  # the model has more rows; nobody can read what they stand for
        if self._vocabulary > (rows := self._model.config.vocab_size):
            raise ArtifactError(f"{self.folder}: its tokenizer has {self._vocabulary} tokens, the model {rows}; expected one model's")
        self._end, self._start = _signs(self._model, self.folder)

    def read(self, texts: Sequence[str], longest: int) -> tuple[list[list[int]], int]:
        """Token ids of each text, at most `longest` with the end sign, and how many texts were cut for that."""
        whole = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        return [[*ids[: longest - 1], self._end] for ids in whole], sum(len(ids) >= longest for ids in whole)

    def write(self, passages: Sequence[Passage], sampling: Sampling) -> list[list[str]]:
        """The queries of each passage in the order of their numbers, without those that are empty; their white space is single spaces."""
        written = self._sampled(passages, sampling).tolist()
        texts = [" ".join(self._tokenizer.decode(self._cut(ids)).split()) for ids in written]
        groups = (texts[first : first + sampling.queries] for first in range(0, len(texts), sampling.queries))
        return [[text for text in group if text] for group in groups]

    def _cut(self, ids: list[int]) -> list[int]:
        return ids[: ids.index(self._end)] if self._end in ids else ids

    @torch.inference_mode()
    def _sampled(self, passages: Sequence[Passage], sampling: Sampling) -> Tensor:
        """Token ids of each query [B·queries, length], end signs behind the last.

        A passage is encoded once and begins its queries once; then they part, each with a copy of what the decoder has seen.
        """
        ids, mask = self._padded(passages)
        states = self._model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state  # [B, L, H]
        drawn_by = self._numbers(passages, sampling)                                              # [B·queries, length]
        owners = torch.arange(len(passages), device=self._device).repeat_interleave(sampling.queries)
        rows = torch.arange(len(owners), device=self._device)
        written = torch.full(drawn_by.shape, self._end, device=self._device)
        ended, tokens, seen = rows < 0, torch.full((len(passages),), self._start, device=self._device), None
        for position in range(sampling.length):
            said = self._model(
                decoder_input_ids=tokens[:, None], encoder_outputs=(states,), attention_mask=mask, past_key_values=seen, use_cache=True
            )
            logits, seen = said.logits[:, -1, : self._vocabulary].float(), said.past_key_values
            if position == 0:
                logits, states, mask = logits[owners], states[owners], mask[owners]
                seen.reorder_cache(owners)
            self._check(logits)
            numbers = drawn_by[rows, position]
            tokens = drawn(logits, numbers, top_k=sampling.top_k, top_p=sampling.top_p, temperature=sampling.temperature)
            tokens = tokens.masked_fill(ended, self._end)
            written[rows, position] = tokens
            ended = tokens == self._end
            going = (~ended).nonzero()[:, 0]
            if not len(going):
                break
            if len(going) <= FULL * len(rows):
                rows, tokens, ended, states, mask = (part[going] for part in (rows, tokens, ended, states, mask))
                seen.reorder_cache(going)
        return written.cpu()

    def _padded(self, passages: Sequence[Passage]) -> tuple[Tensor, Tensor]:
        """Token ids and what of them is real, [B, L] each."""
        ids = torch.zeros(len(passages), max(len(passage.ids) for passage in passages), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, passage in enumerate(passages):
            ids[row, : len(passage.ids)] = torch.tensor(passage.ids)
            mask[row, : len(passage.ids)] = 1
        return ids.to(self._device), mask.to(self._device)

    def _numbers(self, passages: Sequence[Passage], sampling: Sampling) -> Tensor:
        """[B·queries, length]."""
        every = [uniforms(sampling.seed, passage.id, number, sampling.length) for passage in passages for number in range(sampling.queries)]
        return torch.from_numpy(np.stack(every)).to(self._device)

    def _check(self, logits: Tensor) -> None:
        if not logits.amax(dim=-1).isfinite().all():
            raise ArtifactError(f"{self.folder}: the model's logits are not finite numbers; are its weights whole? try --dtype float32")


def uniforms(seed: int, passage: str, number: int, length: int) -> np.ndarray:
    """float64 [length] in [0, 1): the random numbers of one query of a passage, one for each position.

    The first 53 bits of what Philox counts out under a key made of seed, query number and passage id (Salmon et al. 2011).
    """
    key = hashlib.blake2b(f"{seed} {number} {passage}".encode(), digest_size=16).digest()
    return (np.random.Philox(key=int.from_bytes(key, "little")).random_raw(length) >> 11) * 2.0**-53


def drawn(logits: Tensor, numbers: Tensor, *, top_k: int = 25, top_p: float = 0.95, temperature: float = 1.0) -> Tensor:
    """One token for each row: where its number falls among the cumulated probabilities, the likeliest token first.

    logits float32 [R, V], numbers float64 [R] in [0, 1) -> [R]. Left are the `top_k` likeliest tokens (Fan et al. 2018), of these the
    fewest whose share of the probability of all `top_k` reaches `top_p` (Holtzman et al. 2020). Of equal tokens the lower comes first.

    >>> shares = torch.tensor([[0.2, 0.5, 0.3]]).log()
    >>> [drawn(shares, torch.tensor([number]), top_k=0, top_p=0.7).item() for number in (0.0, 0.62, 0.63, 0.99)]
    [1, 1, 2, 2]
    """
    scores, tokens = _likeliest(logits, top_k)                               # [R, k]
    shares = (scores.double() / temperature).softmax(dim=-1)
    shares = shares.masked_fill(shares.cumsum(dim=-1) - shares >= top_p, 0)  # the first to reach it stays
    reached = shares.cumsum(dim=-1)
    places = (reached <= numbers[:, None] * reached[:, -1:]).sum(dim=-1)
    return tokens.gather(-1, places[:, None])[:, 0]


def _likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest of each row, all for 0, and their places; of equal ones those of the lower places, and these first."""
    if not 0 < count < logits.shape[-1]:
        scores, places = logits.sort(dim=-1, descending=True, stable=True)
        return scores, places
    least = logits.topk(count).values[:, -1:]
    above, level = logits > least, logits == least
    room = count - above.sum(dim=-1, keepdim=True)
    kept = above | (level & (level.cumsum(dim=-1) <= room))
    places = kept.nonzero()[:, 1].view(-1, count)                            # [R, k], ascending
    scores, order = logits.gather(-1, places).sort(dim=-1, descending=True, stable=True)
    return scores, places.gather(-1, order)


def _opened(folder: Path, dtype: torch.dtype) -> Any:
    """The model of a folder, whole; UsageError for another family, ArtifactError for weights that are missing or damaged."""
    family = str(files.read_config(folder).get("model_type"))
    if family not in FAMILIES:
        raise UsageError(f"{folder}: model_type is {family!r}; queries are written by {' or '.join(FAMILIES)}")
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise ArtifactError(f"{folder}: no model.safetensors; convert other formats with transformers' save_pretrained first")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, facts = FAMILIES[family].from_pretrained(
            folder, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
        )
    except (SafetensorError, OSError, ValueError, RuntimeError) as problem:
        raise ArtifactError(f"{folder}: its weights cannot be opened: {' '.join(str(problem).split())[:300]}") from None
    if missing := sorted(facts["missing_keys"]):
        raise ArtifactError(f"{folder}: weights are missing, first {missing[0]} ({len(missing)} in all); expected a whole checkpoint")
    return model


def _signs(model: Any, folder: Path) -> tuple[int, int]:
    """The tokens that end a text and begin a query."""
    end, start = model.config.eos_token_id, model.generation_config.decoder_start_token_id
    start = model.config.pad_token_id if start is None else start
    if not (isinstance(end, int) and isinstance(start, int)):
        raise ArtifactError(f"{folder}/config.json: eos_token_id {end}, decoder_start_token_id {start}: expected a token's number for each")
    return end, start
