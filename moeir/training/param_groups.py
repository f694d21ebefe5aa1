"""Parameter groups of the optimiser: layer-wise learning-rate decay, learning rates by name pattern, and weight decay."""

import fnmatch
import logging
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from moeir.architectures.base import Architecture
from moeir.errors import UsageError

HEAD_OFFSET = 2  # depth of heads and poolers above the last layer
_LAYER = re.compile(r"(?:document_)?encoder\.layers\.(\d+)\.")
_TOWER = re.compile(r"towers\.[^.]+\.(\d+)\.")
log = logging.getLogger(__name__)


def make_param_groups(
    architecture: Architecture,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    layer_decay: float = 1.0,
    group_rates: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """AdamW's parameter groups, each with its `peak` rate: matrices, then biases and normalisations, which have no weight decay.

    `group_rates` are peaks by pattern (the last pattern that matches a name wins), to which `layer_decay` does not apply. The order is that
    of the names, so that a saved optimiser state matches its parameters.
    """
    parameters_by_name = {name: parameter for name, parameter in architecture.named_parameters() if parameter.requires_grad}
    peaks = dict.fromkeys(parameters_by_name, learning_rate)
    if layer_decay != 1.0:
        top = architecture.encoder.config.layers + HEAD_OFFSET  # as in the published code of TASER, with decay 0.8
        peaks = {name: learning_rate * layer_decay ** (top - layer_depth(architecture, name)) for name in parameters_by_name}
    peaks |= match_rates(parameters_by_name, group_rates or {})
    members_by_group: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for is_vector in (False, True):
        for name, parameter in parameters_by_name.items():
            if is_vector == (parameter.ndim < 2):
                members_by_group.setdefault((is_vector, peaks[name]), []).append(parameter)
    _log_groups(parameters_by_name, peaks)
    return [
        {"params": parameters, "weight_decay": 0.0 if is_vector else weight_decay, "peak": peak}
        for (is_vector, peak), parameters in members_by_group.items()
    ]


def match_rates(parameters_by_name: Mapping[str, nn.Parameter], group_rates: Mapping[str, float]) -> dict[str, float]:
    """The rate of each parameter whose name contains a pattern, or matches it as a glob; the last pattern wins. UsageError for a pattern
    without parameters."""
    rates: dict[str, float] = {}
    for pattern, rate in group_rates.items():
        is_glob = any(sign in pattern for sign in "*?[")
        matches = [name for name in parameters_by_name if (fnmatch.fnmatchcase(name, pattern) if is_glob else pattern in name)]
        if not matches:
            parts = dict.fromkeys(name.split(".")[0] for name in parameters_by_name)
            raise UsageError(f"--group-rate {pattern}: matches no parameter name; the names begin with {', '.join(parts)}")
        rates |= dict.fromkeys(matches, rate)
    return rates


def layer_depth(architecture: Architecture, name: str) -> int:
    """Embeddings 0, layer k of L (from 1) k, all above L + 2.

    A tower's layers count as if stacked on the shared ones; a router that several layers share has depth 2/3 L.
    """
    layers = architecture.encoder.config.layers
    if name.startswith(("encoder.embeddings.", "document_encoder.embeddings.", "private_embeddings.")):
        return 0
    if (match := _LAYER.match(name)) is not None:
        return int(match[1]) + 1
    if (match := _TOWER.match(name)) is not None:
        return len(architecture.encoder.layers) + int(match[1]) + 1
    return round(2 * layers / 3) if name.startswith("router.") else layers + HEAD_OFFSET


def _log_groups(parameters_by_name: Mapping[str, nn.Parameter], peaks: Mapping[str, float]) -> None:
    for peak in sorted(set(peaks.values())):
        members = [name for name in parameters_by_name if peaks[name] == peak]
        count = sum(parameters_by_name[name].numel() for name in members)
        name_range = members[0] if len(members) == 1 else f"{members[0]} to {members[-1]}"
        log.info("learning rate up to %.3g: %s parameters in %d tensors (%s)", peak, f"{count:,}", len(members), name_range)
