#!/usr/bin/env bash
# CAME's gain of competition, and scales: is it there only where losses are summed in one stage and averaged in the other, and raw scores are added?
#
# Declared: declarations/confound.yaml
# Rows:     prepare; start-wide-SEED, and summed-wide-SEED, averaged-wide-SEED, competitive-wide-SEED and rescaled-wide-SEED, which go on from it
# Sizes:    as in unsuitable.sh: 24 arms and 6 starts, about an hour of one core with AMX; h200: an hour, estimated
# Each row is fused by sum, SumRR, NormSum and a sum with weights fitted on other queries (dev). FLOPS weighs more than in unsuitable.sh.
set -euo pipefail
fork_needed="start-wide summed-wide averaged-wide competitive-wide" fork_others=rescaled-wide fork_flops=3e-2 fork_fusions=normsum
. "$(dirname "${BASH_SOURCE[0]}")/unsuitable.sh"
