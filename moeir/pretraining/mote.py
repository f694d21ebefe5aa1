"""CoT-MoTE pre-training: separate experts for queries and passages, dense and sparse bottlenecks (Ma et al. 2023)."""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.architectures.base import Architecture, StepMetrics
from moeir.errors import UsageError
from moeir.heads.lexical import LexicalHead
from moeir.pretraining.base import EncodedTexts, Pretraining, check_weights
from moeir.pretraining.batches import MaskedTexts, PretrainingBatch
from moeir.pretraining.decoder import CausalDecoder

SIDES = ("document", "query")
DECODER_TARGETS = ("query", "passage", "none")
EPSILON = 1e-4


class Mote(Pretraining):
    """Textual experts: query and passage are encoded on their own sides; a query is decoded from dense and from sparse vectors.

    loss = `mlm_weight` · (MLM of passages + MLM of queries) + `decoder_weight` · Σ CLM(dense) + `sparse_weight` · Σ CLM(sparse), each a
    mean over its tokens in the whole batch; one causal decoder for all (Ma et al. 2023, §3.2; where the paper is silent, as CoT-MAE-qc).
    The passage's vectors decode to the query; the query's to the text set by `decode_from_query`. The sparse bottleneck is
    Σ_v w_v E_v / (Σ w + 1e-4) with w the log-saturated maximum of the vocabulary logits over all but the special tokens, which the
    sparse vectors of fine-tuning and search do count, and E the word embeddings without gradient: our reading, as LexMAE's.
    `switch_corpus` encodes queries by the passage's expert and passages by the query's (Table 4).
    """

    context = "query"

    def __init__(
        self,
        architecture: Architecture,
        *,
        rate: float = 0.30,
        layers: int = 1,
        window: int = 3,
        decode_from_query: str = "query",
        switch_corpus: bool = False,
        sparse: bool = True,
        decoder_weight: float = 1.0,
        sparse_weight: float = 1.0,
        mlm_weight: float = 1.0,
    ) -> None:
        super().__init__(architecture, rate=rate, mlm_weight=mlm_weight)
        if decode_from_query not in DECODER_TARGETS:
            raise UsageError(f"decode_from_query={decode_from_query}: expected one of {', '.join(DECODER_TARGETS)}")
        check_weights(decoder_weight=decoder_weight, mlm_weight=mlm_weight, **({"sparse_weight": sparse_weight} if sparse else {}))
        self.decoder = CausalDecoder(architecture.encoder.config, layers=layers, window=window)
        self.decode_from_query, self.switch_corpus = decode_from_query, switch_corpus
        self.weights |= {"dense": decoder_weight, "sparse": sparse_weight}
        self.bottlenecks = ("dense", "sparse") if sparse else ("dense",)

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, StepMetrics]:
        """Parts are named after the encoded side: `mlm.document`, `dense.document`, `sparse.query`, …"""
        assert batch.contexts is not None
        texts_by_side = dict(zip(SIDES, (batch.anchors, batch.contexts), strict=True))
        targets_by_side, has_mlm = {"document": batch.contexts}, self.weights["mlm"] > 0
        if self.decode_from_query != "none":
            targets_by_side["query"] = batch.contexts if self.decode_from_query == "query" else batch.anchors
        encoded = {
            side: self.encode(self._for_expert_side(texts)) for side, texts in texts_by_side.items() if has_mlm or side in targets_by_side
        }
        parts = self.mlm_losses({f"mlm.{side}": one for side, one in encoded.items()})
        for side, targets in targets_by_side.items():
            for kind in self.bottlenecks:
                vectors = encoded[side].vectors if kind == "dense" else self.sparse_bottleneck(encoded[side])
                decode = partial(self.decoder, texts=targets, encoder=encoded[side].encoder)
                parts[f"{kind}.{side}"] = self.decoder_loss(vectors, decode)
        return self.combine_losses(parts)

    def _for_expert_side(self, texts: MaskedTexts) -> MaskedTexts:
        """Texts with the side whose expert encodes them."""
        if not self.switch_corpus:
            return texts
        other = SIDES[1 - SIDES.index(texts.tokens.side)]
        return replace(texts, tokens=replace(texts.tokens, side=other))

    def sparse_bottleneck(self, encoded: EncodedTexts) -> Tensor:
        """The sparse representation of each text as a weighted mean of word embeddings, [B, H], in the order of the input."""
        ids, special_tokens = encoded.texts.original_ids, self.architecture.special_tokens
        excluded = (ids == special_tokens.beginning) | (ids == special_tokens.separator)  # from the maximum
        tokens = replace(encoded.texts.tokens, no_attend_mask=excluded)
        sparse = LexicalHead()(encoded.states, tokens, encoded.encoder)
        owners = torch.repeat_interleave(sparse.starts.diff(), output_size=len(sparse.terms))
        sums = sparse.weights.new_zeros(len(sparse)).index_add(0, owners, sparse.weights)
        words, project = encoded.encoder.embeddings.words.weight.detach(), encoded.encoder.embeddings.project
        means = F.embedding_bag(sparse.terms, words, sparse.starts[:-1], mode="sum", per_sample_weights=sparse.weights)
        means = means / (sums[:, None] + EPSILON)
        if project is not None:  # to the width of the states
            means = F.linear(means, project.weight.detach(), project.bias.detach())
        return means.index_select(0, encoded.original_order)
