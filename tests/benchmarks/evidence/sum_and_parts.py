"""An objective for a hybrid of several experts: the loss of their sum, and of each of them (`--objective sum_and_parts:sum_and_parts`)."""

from dataclasses import replace

from moeir.training.losses import EncodedBatch, ObjectiveOutput, batch_scores, contrastive_per_score


def sum_and_parts(batch: EncodedBatch, *, parts: float = 1.0) -> ObjectiveOutput:
    """Contrastive loss of the sum, as `contrastive`, plus `parts` times the mean of the experts' own; no regulariser."""
    losses, metrics = contrastive_per_score(batch, batch_scores(batch))
    own = replace(batch, queries=replace(batch.queries, summed_experts={}))
    own_losses, own_metrics = contrastive_per_score(own, batch_scores(own))
    loss = sum(losses.values()).mean() + parts * (sum(own_losses.values()) / len(own_losses)).mean()
    return ObjectiveOutput(loss, {"loss": loss.detach(), **own_metrics, **metrics})
