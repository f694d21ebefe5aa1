"""Compositions of backbone, mixtures and heads: one file, one architecture, named as people type it."""
