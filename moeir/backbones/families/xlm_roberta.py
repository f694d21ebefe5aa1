"""XLM-RoBERTa: RoBERTa's layers and weight names, multilingual (Conneau et al. 2020)."""

from moeir.backbones.families.roberta import NAMES, TIED, from_hf, parse_config, to_hf

__all__ = ["NAMES", "TIED", "from_hf", "hf_class_name", "parse_config", "to_hf"]


def hf_class_name(*, masked_lm: bool) -> str:
    """The `transformers` class of such a checkpoint."""
    return "XLMRobertaForMaskedLM" if masked_lm else "XLMRobertaModel"
