"""What an architecture consists of and what a text costs: parameters by owner, and those that a text uses and its FLOPs, measured."""

import re
from collections import Counter
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from moeir.architectures.base import Architecture
from moeir.backbones.packed_tokens import PackedTokens

OWN_PARTS = re.compile(r"(?:heads|towers|private_embeddings)\.(\w+)\.")
ROUTER_PARTS = re.compile(r"(?:^|\.)(?:router|gate|noise)\.")
EXPERT_PARTS = re.compile(r"\.experts\.(\d+)\.")
LONGEST_RUN = 256  # tokens of a text that is encoded to count its operations


class _ParameterRecorder(TorchFunctionMode):
    """Notes the parameters from which torch computes something."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}  # by identity

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.sizes |= {id(one): one.numel() for one in tree_leaves((args, kwargs)) if isinstance(one, nn.Parameter)}
        return result


def find_owner(name: str) -> str:
    """The expert whose representation a parameter serves, `router`, the number of an expert in layers, or what all texts share.

    >>> find_owner("towers.local.0.output.weight"), find_owner("encoder.layers.2.feedforward.experts.1.up.weight")
    ('local', 'expert 1')
    """
    if own := OWN_PARTS.match(name):
        return own[1]
    if ROUTER_PARTS.search(name):
        return "router"
    if expert := EXPERT_PARTS.search(f".{name}"):
        return f"expert {expert[1]}"
    if ".vocabulary_head." in name:
        return "vocabulary head"
    return "document encoder" if name.startswith("document_encoder.") else "shared"


def count_parameters(architecture: Architecture) -> dict[str, int]:
    """Owner -> its number of parameters, each counted once."""
    counts = Counter[str]()
    for name, parameter in architecture.named_parameters():
        counts[find_owner(name)] += parameter.numel()
    return dict(counts)


@torch.no_grad()
def measure_cost(architecture: Architecture, side: str, length: int) -> tuple[int, int]:
    """The parameters that one text of `length` tokens uses, and its floating-point operations, those of matrix products.

    Tables are counted whole, and so are matrices that hold several experts, and attention within a window. The operations of a text longer
    than `LONGEST_RUN` follow from three shorter ones, as they are a polynomial of second degree in its tokens.
    """
    if length > LONGEST_RUN:
        step = LONGEST_RUN // 4
        (_, first), (_, second), (active, third) = (measure_cost(architecture, side, tokens) for tokens in (2 * step, 3 * step, 4 * step))
        steps = Fraction(length - 2 * step, step)
        return active, round(first + steps * (second - first) + steps * (steps - 1) / 2 * (third - 2 * second + first))
    architecture.eval()
    tokens = PackedTokens.from_lists([[number % architecture.encoder.config.vocabulary for number in range(length)]], side)
    recorder, counter = _ParameterRecorder(), FlopCounterMode(display=False)
    with recorder, counter, sdpa_kernel(SDPBackend.MATH):  # of other kernels on a CPU it does not know the operations
        architecture(tokens)
    return sum(recorder.sizes.values()), counter.get_total_flops()
