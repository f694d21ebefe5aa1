"""Reranking of the top documents of a run by cross-encoders, by the experts of an architecture, or by ensembles of these."""
