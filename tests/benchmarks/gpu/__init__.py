"""The first hour on a GPU, in parts; tests/benchmarks/gpu.sh says which there are."""
