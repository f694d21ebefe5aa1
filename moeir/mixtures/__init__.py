"""Mixtures of experts: routed feed-forward sub-layers inside the layers, a gated block over the pooled vector."""
