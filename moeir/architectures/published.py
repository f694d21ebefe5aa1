"""What a published folder of weights brings to a cross-encoder: its classification head, or at least BERT's pooler."""

import logging
from pathlib import Path

import torch

from moeir.architectures.base import Architecture
from moeir.backbones.checkpoints import files
from moeir.errors import ArtifactError
from moeir.heads.relevance import one_output

OUTPUT = f"{files.PAIR}output."
log = logging.getLogger(__name__)


@torch.no_grad()
def brought(folder: Path, architecture: Architecture) -> None:
    """Give a cross-encoder the weights of a folder beside those of its encoder; what the folder lacks stays as it was drawn.

    Two classes become one number; ArtifactError for more, which say no relevance.
    """
    config = files.read_config(folder)
    weights = files.read_weights(folder, config)
    parameters = {name.removeprefix("encoder."): value for name, value in architecture.state_dict().items()}
    parameters = {name: value for name, value in parameters.items() if name.startswith(("pooler.", files.PAIR))}
    weight = weights.get(f"{OUTPUT}weight")
    if weight is not None and weight.ndim == 2 and len(weight) == 2:
        weights[f"{OUTPUT}weight"], bias = one_output(weight, weights.get(f"{OUTPUT}bias"))
        if bias is not None:
            weights[f"{OUTPUT}bias"] = bias
        log.info("%s: two classes: the score is the second's logit less the first's", folder)
    elif weight is not None and weight.ndim == 2 and len(weight) > 2:
        raise ArtifactError(f"{folder}: classifies {len(weight)} ways; expected one output (or two, no and yes) to score pairs with")
    if missing := {name for name in parameters if name.startswith(files.PAIR)} - weights.keys():
        log.info("%s: brings no head that scores pairs; %s starts at random", folder, ", ".join(sorted(missing)))
    files.check_shapes(folder, parameters, weights)
    for name, parameter in parameters.items():
        if name in weights:
            parameter.copy_(weights[name])
