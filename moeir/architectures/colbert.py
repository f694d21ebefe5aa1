"""ColBERT: one vector per token, late interaction (Khattab and Zaharia 2020), built from the same parts as CAME's local expert."""

from dataclasses import replace

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.errors import UsageError
from moeir.heads.token_vectors import TokenVectorHead
from moeir.mixtures.adapters import NO_ADAPTERS, AdapterOptions, insert_adapters
from moeir.parsing import check_choice


class Colbert(Architecture):
    """One vector per token, MaxSim scores: CAME's local expert alone, with ColBERT's markers and augmentation as options.

    As published: normalise=true,markers=true,augmentation=true,punctuation=false with queries of 32 tokens. `attend_masks` lets the
    tokens of a query attend to its [MASK] tokens. `punctuation`: true, false (no vector in documents), or characters (none for a token that
    is one mark without a space, as in PyLate). A score is a sum of cosines over the query's tokens, and is trained without temperature.
    `adapters`: the rank of adapters on a frozen encoder; their options are those of dense.
    """

    is_hf_compatible = False

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        dim: int = 128,
        normalise: bool = False,
        markers: bool = False,
        augmentation: bool = False,
        attend_masks: bool = False,
        punctuation: str = "true",
        scale: float = 1.0,
        adapters: AdapterOptions = NO_ADAPTERS,
    ) -> None:
        super().__init__(encoder, special_tokens)
        insert_adapters(encoder, adapters, ("local",))
        if attend_masks and not augmentation:
            raise UsageError("colbert:attend_masks=true: it needs augmentation=true, which adds the [MASK] tokens")
        encoder.vocabulary_head = None
        check_choice("colbert:punctuation", punctuation, ("true", "false", "characters"))
        if punctuation == "characters":
            special_tokens = replace(special_tokens, punctuation=special_tokens.punctuation_marks)
        options = {"normalise": normalise, "punctuation": punctuation == "true"}
        self.heads["local"] = TokenVectorHead(encoder.config.hidden, special_tokens, dimension=dim, **options)
        self.scales = {"local": scale}
        if markers and None in (special_tokens.query_marker, special_tokens.document_marker):
            raise UsageError("markers=true: the vocabulary has no [unused0] and [unused1]; leave markers out")
        if augmentation and special_tokens.mask is None:
            raise UsageError("augmentation=true: the vocabulary has no [MASK]; leave augmentation out")
        self.markers, self.augmentation, self.attend_masks = markers, augmentation, attend_masks

    def truncate_and_mark(self, texts: list[list[int]], side: str, length: int) -> tuple[list[list[int]], list[int] | None]:
        truncated, _ = super().truncate_and_mark(texts, side, length - self.markers)
        if self.markers:
            leading = self.special_tokens.leading
            marker = self.special_tokens.query_marker if side == "query" else self.special_tokens.document_marker
            assert marker is not None
            truncated = [[*ids[:leading], marker, *ids[leading:]] for ids in truncated]
        if not self.augmentation or side != "query":
            return truncated, None
        assert self.special_tokens.mask is not None
        mask_counts = [length - len(ids) for ids in truncated]
        augmented = [ids + [self.special_tokens.mask] * count for ids, count in zip(truncated, mask_counts, strict=True)]
        return augmented, None if self.attend_masks else mask_counts
