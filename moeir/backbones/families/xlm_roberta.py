"""XLM-RoBERTa: RoBERTa's layers and weight names, multilingual (Conneau et al. 2020)."""

from dataclasses import replace

from moeir.backbones.families import roberta

NAMES = replace(roberta.NAMES, class_prefix="XLMRoberta")
parse_config = roberta.parse_config
