#!/usr/bin/env bash
# CAME: is competition slower, or worse? The same training, and one of four times the steps.
#
# Declared: declarations/slower.yaml
# Rows:     prepare; start-0-SEED, and from it standardised-0-SEED, competitive-0-SEED and rescaled-0-SEED; standardised4-0-SEED,
#           competitive4-0-SEED and permuted4-0-SEED with four times the steps
# Sizes:    as in unsuitable.sh, with 2,000 queries: 36 arms and 6 starts, about two hours of one core with AMX; h200: 5 hours, estimated
set -euo pipefail
fork_needed="start-0 standardised-0 competitive-0 standardised4-0 competitive4-0" fork_others="permuted4-0 rescaled-0" fork_second=2000
. "$(dirname "${BASH_SOURCE[0]}")/unsuitable.sh"
