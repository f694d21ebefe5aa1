"""Losses that Condenser and coCondenser share: of the last layer and of the head."""

from moeir.pretraining.base import TokenLoss, EncodedTexts, mlm_loss
from moeir.pretraining.decoder import BidirectionalDecoder


def condenser_losses(head: BidirectionalDecoder, encoded: EncodedTexts) -> dict[str, TokenLoss]:
    """The masked-language-model losses of the last layer and of the head on [late vector; middle states]. Gao and Callan 2021."""
    states = head(encoded.pooled_vectors, encoded.middle_states, encoded.texts.tokens)
    return {"mlm": mlm_loss(encoded.states, encoded.texts, encoded.encoder), "head": mlm_loss(states, encoded.texts, encoded.encoder)}
