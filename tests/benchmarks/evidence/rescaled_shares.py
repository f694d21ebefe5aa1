"""Competition whose shares keep the loss of learning alike (`--objective rescaled_shares:rescaled`)."""

from dataclasses import replace
from functools import partial

from moeir.training.losses import EncodedBatch, ObjectiveOutput
from moeir.training.objectives import competitive
from moeir.training.regularizers import DEFAULT_WEIGHTS, RegularizerWeights

NO_PENALTY = RegularizerWeights(flops_query=0.0, flops_document=0.0, entropy=0.0)


def rescaled(batch: EncodedBatch, *, temperature: float = 0.2, regularizers: RegularizerWeights = DEFAULT_WEIGHTS) -> ObjectiveOutput:
    """Shares by rank, times one factor of the batch by which Σ share · loss is the mean loss of all experts; penalties as they are.

    Shares go to the experts that have solved a query, so that the sum is smaller than the mean, and with it the gradient.
    """
    compete = partial(competitive, batch, temperature=temperature, normalise_standardised=True)
    output = compete(standardised=0.0, regularizers=regularizers)
    shared, mean = (compete(standardised=standardised, regularizers=NO_PENALTY).loss for standardised in (0.0, 1.0))
    factor = (mean / shared).detach()
    loss = output.loss + (factor - 1) * shared
    return replace(output, loss=loss, metrics={**output.metrics, "loss": loss.detach(), "rescaling": factor})
