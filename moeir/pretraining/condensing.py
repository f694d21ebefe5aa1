"""Losses that Condenser and coCondenser share: of the last layer and of the head."""

from moeir.pretraining.base import Loss, Read, masked_loss
from moeir.pretraining.decoder import BidirectionalDecoder


def condensed(head: BidirectionalDecoder, encoded: Read) -> dict[str, Loss]:
    """The masked-language-model losses of the last layer and of the head on [late vector; middle states]. Gao and Callan 2021."""
    states = head(encoded.pooled, encoded.middle, encoded.texts.tokens)
    return {"mlm": masked_loss(encoded.states, encoded.texts, encoded.encoder), "head": masked_loss(states, encoded.texts, encoded.encoder)}
