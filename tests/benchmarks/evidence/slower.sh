#!/usr/bin/env bash
# CAME: is competition slower, or worse? Four times the steps of came_fork.sh, evaluated every 100.
#
# Declared: declarations/slower.yaml
# Rows:     prepare and gate as in came_fork.sh; standardised-SEED, competitive-SEED, permuted-SEED for seeds 2 3 4
# Sizes:    cores: 800 steps, 9 arms of 1 to 2.5 hours of one core; h200: 2,400 steps, 3 hours, estimated
set -euo pipefail
fork_temperatures="" fork_pool=training-corpus fork_steps=800 fork_h200_steps=2400 fork_second=6400 fork_h200_second=76800
. "$(dirname "${BASH_SOURCE[0]}")/came_fork.sh"
