"""Cross-encoder: query and document encoded as one text, one score per pair (Nogueira and Cho 2019; Gao et al. 2021, LCE).

Queries and documents are tokenized once each, then combined into pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from moeir.architectures.base import Architecture
from moeir.architectures.input_config import InputConfig
from moeir.backbones.encoder import Encoder
from moeir.backbones.layers import init_weights
from moeir.backbones.packed_pairs import PackedPairs, PairTemplate, RaggedIds
from moeir.backbones.packed_tokens import Numbers, PackedTokens, SpecialTokens
from moeir.backbones.pair_text import Context, cut_template
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import UsageError
from moeir.heads.classification import ClassificationHead, WordLogitHead
from moeir.heads.pooling import PoolingHead
from moeir.mixtures.adapters import NO_ADAPTERS, AdapterOptions, insert_adapters
from moeir.parsing import check_choice
from moeir.records.texts import DOCUMENT_FIELDS, FIELD_SEPARATOR
from moeir.representations.dense import Dense

HEADS = ("hf", "linear", "yes-no")


class CrossEncoder(Architecture):
    """A reranker: one relevance score for a query and a document encoded together; used by `rerank`, not by `encode`.

    `head`: hf (the sequence classification of the family, as transformers builds it), linear (one linear map of the first
    token, of a decoder the last) or yes-no (of a decoder, in its chat template or --template: the logit of the first of `words` as the next
    token, less that of the second if there are two).
    `fields` are the fields of a document that are read, of url+title+text, joined by the tokenizer's separator, or by a space with
    separate=false or head=yes-no. `--document-length` is that of the pair; the document is truncated to fit.
    `adapters`: the rank of adapters on a frozen encoder, below a head that trains; their options are those of dense.
    """

    reads_pairs = True
    default_lengths = (256, 512)

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        head: str = "hf",
        fields: tuple[str, ...] = ("url", "title", "text"),
        separate: bool = True,
        words: tuple[str, ...] = ("yes", "no"),
        adapters: AdapterOptions = NO_ADAPTERS,
    ) -> None:
        word_head = encoder.word_head
        super().__init__(encoder, special_tokens)
        check_choice("cross-encoder:head", head, HEADS)
        if not fields or len(set(fields)) < len(fields) or not set(fields) <= set(DOCUMENT_FIELDS):
            raise UsageError(f"cross-encoder:fields={'+'.join(fields)}: expected some of {', '.join(DOCUMENT_FIELDS)}")
        if head == "hf" and encoder.file_names is not None:
            raise UsageError("cross-encoder:head=hf: is that of moeir's own families; use head=linear over a model of transformers")
        if head == "yes-no" and (word_head is None or not encoder.is_causal):
            raise UsageError("cross-encoder:head=yes-no: reads what a decoder of transformers, with its vocabulary head, says next")
        encoder.vocabulary_head, encoder.pooler = word_head if head == "yes-no" else None, None
        insert_adapters(encoder, adapters, ("relevance",))
        self.fields, self.separate = fields, separate
        head_config = encoder.config.classification_head if head == "hf" else None
        if head_config is not None and head_config.pooler:
            encoder.pooler = nn.Linear(encoder.config.hidden, encoder.config.hidden)
            init_weights(encoder.pooler, encoder.config.initializer_range)
        self.is_hf_compatible = head != "linear" and not adapters.adapters
        self.pool = PoolingHead(pooling=head_config.pooling if head_config is not None else "last" if encoder.is_causal else "cls")
        self.heads["relevance"] = WordLogitHead(words) if head == "yes-no" else ClassificationHead(encoder.config, linear=head == "linear")

    def apply_head(self, expert: str, states: Tensor, tokens: PackedTokens) -> Dense:
        """The score of each pair, as vectors [B, 1]."""
        head, pooled = self.heads[expert], self.pool(states, tokens).vectors
        scores: Dense = head(pooled, self.encoder) if isinstance(head, WordLogitHead) else head(pooled, tokens, self.encoder.pooler)
        return scores


@dataclass(frozen=True)
class PairTokenizer:
    """Input configuration of a cross-encoder with its tokenizer: queries of at most `query_length` tokens including two special ones,
    pairs of at most `document_length`, to which the document is truncated. `field_indices` are the fields that are read.

    With a `context`, text of a template that is tokenised with the texts (`cut_template`), both are stripped of white space, a query has no
    special tokens, and one that is too long is cut before that."""

    tokenizer: TextTokenizer
    input_config: InputConfig
    template: PairTemplate
    field_indices: tuple[int, ...]
    separate: bool
    context: Context | None = None

    @classmethod
    def from_architecture(cls, tokenizer: TextTokenizer, input_config: InputConfig, architecture: Architecture) -> "PairTokenizer":
        """For a cross-encoder; UsageError for lengths that leave no room for a document."""
        context, separate = None, architecture.separate
        if isinstance(architecture.heads["relevance"], WordLogitHead):
            template, context = cut_template(tokenizer, input_config.template, input_config.instruction)
            separate = False
        else:
            template = tokenizer.pair_template()
        field_indices = tuple(DOCUMENT_FIELDS.index(name) for name in architecture.fields)
        pairs = cls(tokenizer, input_config, template, field_indices, separate, context)
        length_without_document = pairs.query_budget + template.special_token_count
        if length_without_document >= input_config.document_length:
            query, pair = input_config.query_length, input_config.document_length
            reason = f"a query of {query} tokens leaves no room for a document in a pair of {pair}"
            raise UsageError(f"--query-length {query}: {reason}; lower it, or raise --document-length")
        return pairs

    @property
    def query_budget(self) -> int:
        """Tokens of a query that fit, without special ones."""
        return self.input_config.query_length - (2 if self.context is None else 0)

    def token_ids(self, texts: Sequence[str], side: str, *, untruncated: bool = False) -> tuple[list[list[int]], list[int]]:
        """Tokens without special ones, and how many each text has; a document is a `Text.joined_fields`.

        Truncated to fit into a pair unless `untruncated`; the number of tokens of a long text is then an estimate."""
        if side == "query":
            budget: int | None = self.query_budget
            prefixed = self.input_config.add_prefix(texts, "query")
            ids, sizes = self._encode(prefixed, budget) if self.context is None else self._encode_in_context(prefixed, *self.context)
        else:
            budget = None if untruncated else self.input_config.document_length - self.template.special_token_count
            ids, sizes = self._document_ids(texts, budget)
        return [text[:budget] for text in ids], sizes

    def _encode(self, texts: Sequence[str], budget: int | None) -> tuple[list[list[int]], list[int]]:
        if budget is not None:
            return self.tokenizer.encode_first(texts, budget, special=False)
        ids = self.tokenizer.encode(texts, special=False)
        return ids, list(map(len, ids))

    def _encode_in_context(self, texts: Sequence[str], before: str, after: str, _: str) -> tuple[list[list[int]], list[int]]:
        """Tokens of queries with the template's text around them, and how many there are; of a long query only its first words."""
        stripped = [text.strip() for text in texts]
        ids = self.tokenizer.encode([before + text + after for text in stripped], special=False)
        sizes = list(map(len, ids))
        for row, text in enumerate(stripped):
            begins = self.tokenizer.encode_with_offsets([text])[0][1] if sizes[row] > self.query_budget else []
            for begin in reversed(begins[: self.query_budget + 1]):
                if len(ids[row]) > self.query_budget:
                    [ids[row]] = self.tokenizer.encode([before + text[:begin].rstrip() + after], special=False)
        return ids, sizes

    def _document_ids(self, texts: Sequence[str], budget: int | None) -> tuple[list[list[int]], list[int]]:
        fields = [text.split(FIELD_SEPARATOR) if FIELD_SEPARATOR in text else ["", "", text] for text in texts]
        selected = [[parts[index] for index in self.field_indices if parts[index]] for parts in fields]
        if not self.separate:
            selected = [[" ".join(parts)] for parts in selected]
        prefixed = [[*self.input_config.add_prefix(parts[:1], "document"), *parts[1:]] for parts in selected]
        if self.context is not None:
            prefixed = [[self.context[2] + parts[0].strip()] for parts in prefixed]
        bodies = zip(*self._encode([part for parts in prefixed for part in parts], budget), strict=True)
        documents, sizes = [], []
        for parts in selected:
            ids: list[int] = []
            sizes.append(max(0, len(parts) - 1))
            for number in range(len(parts)):
                part_ids, size = next(bodies)
                ids += [self.tokenizer.special_tokens.separator] * (number > 0) + part_ids
                sizes[-1] += size
            documents.append(ids)
        return documents, sizes

    def make_pairs(self, queries: RaggedIds, documents: RaggedIds, query: Numbers, document: Numbers) -> PackedPairs:
        """Pairs of rows `query` and `document` [n]: each document contributes as many first tokens as fit (FirstP)."""
        sizes = documents.starts[document + 1] - documents.starts[document]
        lengths = np.minimum(sizes, self.document_budget(queries, query))
        return PackedPairs(self.template, queries, documents, query, document, np.zeros(len(query), dtype=np.int64), lengths)

    def document_budget(self, queries: RaggedIds, query: Numbers) -> Numbers:
        """[n] document tokens that fit into a pair with each of the queries `query`."""
        query_lengths = queries.starts[query + 1] - queries.starts[query]
        return np.asarray(self.input_config.document_length - self.template.special_token_count - query_lengths)
