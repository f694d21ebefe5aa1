"""The parameters of an architecture with what decides which of them are active for a text."""

from moeir.analysis.flops import Mixture, ParameterAccount
from moeir.architectures.base import Architecture
from moeir.backbones.layers import RotaryAttention
from moeir.mixtures.embedding import EmbeddingMixture
from moeir.mixtures.feedforward import LEARNED_ROUTINGS, RoutedFeedForward

SIDES = ("query", "document")


def count_parameters(architecture: Architecture) -> ParameterAccount:
    """The parameters of an architecture, each counted once, and which experts of its mixtures run for queries and documents."""
    mixtures, unused, windows, cls_only_names = [], [], {}, []
    cls_only = [layer for layer in architecture.cls_only_layers() if layer.supports_cls_only]
    for module_name, module in architecture.named_modules():
        if module in cls_only:
            cls_only_names.append(module_name)
        elif isinstance(module, RoutedFeedForward):
            all_experts = tuple(range(len(module.experts)))
            learned = module.routing in LEARNED_ROUTINGS
            document_experts = (0,) if learned else (len(all_experts) // 2,)
            both_sides = all_experts if learned and module.gradient == "full" else None
            experts_by_side = {"query": both_sides or (0,), "document": both_sides or document_experts}
            mixtures.append(Mixture(module_name, experts_by_side, routed=learned, gate_once_per_text=module.routing == "sequence"))
        elif isinstance(module, EmbeddingMixture):
            is_random = module.gate is None or module.inference == "random"
            uses_all = module.inference == "all" and not is_random
            experts_by_side = dict.fromkeys(SIDES, tuple(range(len(module.experts))) if uses_all else (0,))
            mixtures.append(Mixture(module_name, experts_by_side, routed=True, once_per_text=True, gate_once_per_text=True))
            unused += [f"{module_name}.noise."] + ([f"{module_name}.gate."] if is_random else [])
        elif isinstance(module, RotaryAttention) and module.window is not None:
            windows[module_name] = module.window // 2
    shapes = {name: tuple(parameter.shape) for name, parameter in architecture.named_parameters()}
    return ParameterAccount(shapes, architecture.representation_kinds, tuple(mixtures), tuple(unused), windows, tuple(cls_only_names))
