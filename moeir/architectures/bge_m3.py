"""BGE-M3: one encoder with three outputs (Chen et al. 2024), a CAME whose layers are all shared."""

from collections.abc import Mapping
from typing import ClassVar

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.errors import UsageError
from moeir.heads.lexical import TokenWeightHead
from moeir.heads.pooling import PoolingHead
from moeir.heads.token_vectors import TokenVectorHead


class BgeM3(Architecture):
    """BGE-M3, as published: one vector, a weight of each token and a vector of each token, all from the last layer.

    `init` reads the heads from sparse_linear.pt and colbert_linear.pt beside the weights; `fresh_heads=true` draws them at random.
    `experts`: some of global+lexical+local; without local an index is a small part of its size. `local_dim`, the width of token vectors, is
    that of the encoder unless it is set. `scale` multiplies all scores: 1 / temperature (--temperature). `global_weight`, `lexical_weight`
    and `local_weight` multiply the scores when texts are searched, not in training: the fused run is the weighted sum. `moeir init --model
    CHECKPOINT --arch bge-m3:lexical_weight=0.3` changes them without training.
    """

    is_hf_compatible = False
    default_lengths = (512, 512)
    head_files: ClassVar[Mapping[str, str]] = {"lexical": "sparse_linear.pt", "local": "colbert_linear.pt"}

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        experts: tuple[str, ...] = ("global", "lexical", "local"),
        local_dim: int | None = None,
        fresh_heads: bool = False,
        scale: float = 50.0,
        global_weight: float = 0.4,
        lexical_weight: float = 0.2,
        local_weight: float = 0.4,
    ) -> None:
        super().__init__(encoder, special_tokens)
        encoder.vocabulary_head, hidden = None, encoder.config.hidden
        dimension = hidden if local_dim is None else local_dim
        options = {"normalise": True, "bias": True, "first_token": False, "mean": True}
        heads = {
            "global": lambda: PoolingHead(normalise=True),
            "lexical": lambda: TokenWeightHead(hidden, special_tokens),
            "local": lambda: TokenVectorHead(hidden, special_tokens, dimension=dimension, **options),
        }
        if not experts or not heads.keys() >= set(experts) or len(set(experts)) < len(experts):
            raise UsageError(f"bge-m3:experts={'+'.join(experts)}: expected some of {'+'.join(heads)}, each once")
        self.heads.update({name: head() for name, head in heads.items() if name in experts})
        self.head_files = {} if fresh_heads else {name: file for name, file in self.head_files.items() if name in experts}
        self.scales, self.token_terms = dict.fromkeys(self.heads, scale), ("lexical",)
        weights = {"global": global_weight, "lexical": lexical_weight, "local": local_weight}
        self.fusion_weights = {name: weights[name] for name in self.heads}
        for name, weight in weights.items():
            if not 0 < weight < float("inf"):
                raise UsageError(f"bge-m3:{name}_weight={weight:g}: expected a number above 0; search --expert leaves an expert out")
