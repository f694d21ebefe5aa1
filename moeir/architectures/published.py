"""Classification head, and BERT's pooler, of a published folder of weights for a cross-encoder."""

import logging
from pathlib import Path

import torch

from moeir.architectures.base import Architecture
from moeir.backbones.checkpoints import files
from moeir.errors import ArtifactError
from moeir.heads.relevance import binary_to_single_logit

CLASSIFIER_OUTPUT = f"{files.CLASSIFIER_PREFIX}output."
log = logging.getLogger(__name__)


@torch.no_grad()
def load_classification_head(folder: Path, architecture: Architecture) -> None:
    """Copy a folder's pooler and classification head into a cross-encoder; missing weights keep their random initialisation.

    Two classes are reduced to one logit; ArtifactError for more than two.
    """
    config = files.read_config(folder)
    weights = files.read_weights(folder, config)
    parameters = {name.removeprefix("encoder."): value for name, value in architecture.state_dict().items()}
    parameters = {name: value for name, value in parameters.items() if name.startswith(("pooler.", files.CLASSIFIER_PREFIX))}
    weight = weights.get(f"{CLASSIFIER_OUTPUT}weight")
    if weight is not None and weight.ndim == 2 and len(weight) == 2:
        weights[f"{CLASSIFIER_OUTPUT}weight"], bias = binary_to_single_logit(weight, weights.get(f"{CLASSIFIER_OUTPUT}bias"))
        if bias is not None:
            weights[f"{CLASSIFIER_OUTPUT}bias"] = bias
        log.info("%s: two classes; the score is the second logit minus the first", folder)
    elif weight is not None and weight.ndim == 2 and len(weight) > 2:
        raise ArtifactError(f"{folder}: the head has {len(weight)} classes; expected 1, or 2 (no and yes), to score pairs")
    if missing := {name for name in parameters if name.startswith(files.CLASSIFIER_PREFIX)} - weights.keys():
        log.info("%s: has no classification head; %s is initialised at random", folder, ", ".join(sorted(missing)))
    files.check_shapes(folder, parameters, weights)
    for name, parameter in parameters.items():
        if name in weights:
            parameter.copy_(weights[name])
