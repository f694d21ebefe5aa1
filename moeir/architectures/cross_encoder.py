"""Cross-encoder: query and document encoded as one text, one score per pair (Nogueira and Cho 2019; Gao et al. 2021, LCE)."""

from torch import Tensor, nn

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder, Layer
from moeir.backbones.tokens import SpecialTokens, PackedTokens
from moeir.errors import UsageError
from moeir.heads.pooled import PoolingHead
from moeir.heads.relevance import ClassificationHead
from moeir.records.texts import DOCUMENT_FIELDS
from moeir.representations.dense import Dense

HEADS = ("hf", "linear")


class CrossEncoder(Architecture):
    """A reranker: one relevance score for a query and a document encoded together; used by `rerank`, not by `encode`.

    `head`: hf (the sequence classification of the family, as transformers builds it) or linear (one linear map of the first token, with
    a `bias` or without). `fields` are the fields of a document that are read, of url+title+text, joined by the tokenizer's separator, or by
    a space with separate=false. `--document-length` is that of the pair; the document is truncated to fit.
    """

    reads_pairs = True
    default_lengths = (256, 512)

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        head: str = "hf",
        bias: bool = True,
        fields: tuple[str, ...] = ("url", "title", "text"),
        separate: bool = True,
    ) -> None:
        super().__init__(encoder, special_tokens)
        if head not in HEADS:
            raise UsageError(f"cross-encoder:head={head}: expected {' or '.join(HEADS)}")
        if head == "hf" and not bias:
            raise UsageError("cross-encoder:bias=false: the head of transformers has a bias; use head=linear")
        if not fields or len(set(fields)) < len(fields) or not set(fields) <= set(DOCUMENT_FIELDS):
            raise UsageError(f"cross-encoder:fields={'+'.join(fields)}: expected some of {', '.join(DOCUMENT_FIELDS)}")
        self.fields, self.separate = fields, separate
        head_config = encoder.config.classification_head if head == "hf" else None
        encoder.vocabulary_head = encoder.pooler = None
        if head_config is not None and head_config.pooler:
            encoder.pooler = nn.Linear(encoder.config.hidden, encoder.config.hidden)
            nn.init.normal_(encoder.pooler.weight, std=encoder.config.initializer_range)
            nn.init.zeros_(encoder.pooler.bias)
        self.is_hf_compatible = head == "hf"
        self.pooling = "cls" if head_config is None else head_config.pooling
        self.pool = PoolingHead(pooling=self.pooling)
        self.heads["relevance"] = ClassificationHead(encoder.config, linear=head == "linear", bias=bias)

    @property
    def representation_kinds(self) -> dict[str, str]:
        return {"relevance": "dense"}

    def cls_only_layers(self) -> list[Layer]:
        return [self.encoder.layers[-1]] if self.pooling == "cls" else []

    def encode_states(self, tokens: PackedTokens) -> dict[str, Tensor]:
        return {"relevance": self.encoder.encode_cls(tokens) if self.pooling == "cls" else self.encoder(tokens)}

    def apply_head(self, expert: str, states: Tensor, tokens: PackedTokens) -> Dense:
        """The score of each pair, as vectors [B, 1]."""
        scores: Dense = self.heads[expert](self.pool(states, tokens).vectors, tokens, self.encoder.pooler)
        return scores
