#!/usr/bin/env bash
# CAME's gain of competition, and scales: is it there only where losses are summed in one stage and averaged in the other, and raw scores are added?
#
# Declared: declarations/confound.yaml
# Rows:     prepare and gate as in came_fork.sh; summed-SEED, averaged-SEED, competitive-SEED for seeds 2 3 4
# Sizes:    as in came_fork.sh: 9 arms of 200 steps, 2 to 6 hours of one core; h200: an hour, estimated
# Each row is fused by sum, SumRR, NormSum and a linear layer fitted on the modules that develop. FLOPS weighs ten times as much as in came_fork.sh.
set -euo pipefail
fork_arms="summed averaged competitive" fork_temperatures="" fork_pool=training-corpus fork_flops=5e-3 fork_fusions="sumrr normsum"
. "$(dirname "${BASH_SOURCE[0]}")/came_fork.sh"
