"""XLM-RoBERTa: RoBERTa's layers and weight names, multilingual (Conneau et al. 2020)."""

from moeir.backbones.checkpoints.roberta import NAMES, TIED, from_hf, parse_config, to_hf

__all__ = ["NAMES", "TIED", "class_name", "ours", "shape", "theirs"]


def hf_class_name(*, masked_lm: bool) -> str:
    """The `transformers` class of such a checkpoint."""
    return "XLMRobertaForMaskedLM" if masked_lm else "XLMRobertaModel"
