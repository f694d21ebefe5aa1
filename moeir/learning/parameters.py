"""How fast each parameter learns: layer-wise decay of the learning rate, rates of named groups, and what is not decayed in weight."""

import difflib
import fnmatch
import logging
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from moeir.architectures.base import Architecture
from moeir.errors import UsageError

ABOVE = 2  # how far heads and poolers stand above the last layer
_LAYER = re.compile(r"(?:document_)?encoder\.layers\.(\d+)\.")
_TOWER = re.compile(r"towers\.[^.]+\.(\d+)\.")
log = logging.getLogger(__name__)


def groups(
    architecture: Architecture,
    *,
    rate: float,
    weight_decay: float = 0.0,
    layer_decay: float = 1.0,
    rates: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """AdamW's groups, each with its `peak` rate: matrices, then biases and normalisations, whose weights do not decay.

    `rates` are peaks by pattern (the last pattern that fits a name wins), which `layer_decay` leaves alone. The order is that of the
    names, so that a saved optimiser finds its parameters again.
    """
    named = {name: parameter for name, parameter in architecture.named_parameters() if parameter.requires_grad}
    peaks = dict.fromkeys(named, rate)
    if layer_decay != 1.0:
        multipliers = decays(architecture, layer_decay)
        peaks = {name: rate * multipliers[name] for name in named}
    for pattern, own in (rates or {}).items():
        peaks |= dict.fromkeys(_fitting(pattern, named), own)
    made: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for plain in (False, True):
        for name, parameter in named.items():
            if plain == (parameter.ndim < 2):
                made.setdefault((plain, peaks[name]), []).append(parameter)
    _tell(named, peaks)
    return [
        {"params": parameters, "weight_decay": 0.0 if plain else weight_decay, "peak": peak} for (plain, peak), parameters in made.items()
    ]


def decays(architecture: Architecture, decay: float) -> dict[str, float]:
    """What multiplies the learning rate of each parameter: decay^(L + 2 - depth), so 1 above the layers and least for embeddings.

    Of the release of TASER (specs/taser §4), which decays by 0.8.
    """
    top = architecture.encoder.shape.layers + ABOVE
    return {name: decay ** (top - depth(architecture, name)) for name, _ in architecture.named_parameters()}


def depth(architecture: Architecture, name: str) -> int:
    """Embeddings 0, layer k of L (from 1) k, all above L + 2.

    A tower's layers stand where they would in one stack, a gate that several layers share stands two thirds up.
    """
    layers = architecture.encoder.shape.layers
    if name.startswith(("encoder.embeddings.", "document_encoder.embeddings.", "private_embeddings.")):
        return 0
    if (found := _LAYER.match(name)) is not None:
        return int(found[1]) + 1
    if (found := _TOWER.match(name)) is not None:
        return len(architecture.encoder.layers) + int(found[1]) + 1
    return round(2 * layers / 3) if name.startswith("router.") else layers + ABOVE


def _fitting(pattern: str, named: Mapping[str, nn.Parameter]) -> list[str]:
    """The names that contain the pattern, or that it matches as a file name pattern; UsageError if there are none."""
    wild = any(sign in pattern for sign in "*?[")
    fitting = [name for name in named if (fnmatch.fnmatchcase(name, pattern) if wild else pattern in name)]
    if not fitting:
        words = sorted({word for name in named for word in (name, *name.split("."), name.rsplit(".", 1)[0]) if not word.isdecimal()})
        near = difflib.get_close_matches(pattern, words, n=3, cutoff=0.5) or sorted({name.split(".")[0] for name in named})
        raise UsageError(f"--group-rate {pattern}: no parameter has that in its name; the nearest names are {', '.join(near)}")
    return fitting


def _tell(named: Mapping[str, nn.Parameter], peaks: Mapping[str, float]) -> None:
    for peak in sorted(set(peaks.values())):
        members = [name for name in named if peaks[name] == peak]
        count = sum(named[name].numel() for name in members)
        words = members[0] if len(members) == 1 else f"{members[0]} to {members[-1]}"
        log.info("learning rate up to %.3g: %s parameters in %d tensors (%s)", peak, f"{count:,}", len(members), words)
