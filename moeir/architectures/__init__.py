"""Compositions of backbone, mixtures and heads: one architecture per file, named as in --arch."""
