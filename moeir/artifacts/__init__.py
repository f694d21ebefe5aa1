"""Artifacts on disk: manifests and checksums, atomic writes, shards, journals, memory-mapped arrays."""
