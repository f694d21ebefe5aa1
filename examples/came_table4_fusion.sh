#!/usr/bin/env bash
# CAME, Table 4, upper half: ways to fuse the three experts of one model.
#
# Paper:    Cai et al. 2023, §5.3, Table 4
# Data:     as came_msmarco.sh; with its WORK folder this script reuses its outputs
# Recipe:   came-bm25, the first training of came_msmarco.sh, and its three lists fused by each method. sumrr and maxrr count a document
#           that a list lacks as 1 / K, the last of the list, as sum does with scores. LinearLayer is one weight for each expert, fitted on
#           training queries that are held out (came_steps.sh): the paper names neither its queries nor its loss; here it is listwise, and
#           weights that do not win on held-out folds of these queries are equal ones.
# Hardware: as came_msmarco.sh; the fusions need neither a GPU nor an index
# Hours:    beyond the first training of came_msmarco.sh one
# Expected: percent, Table 4                R@1000  R@100  RR@10
#             competitive-came-sum            98.4   91.7   39.0
#             competitive-normsum             98.4   91.7   38.9
#             competitive-normmax             98.2   90.8   37.9
#             competitive-sumrr               98.5   91.7   38.4
#             competitive-maxrr               98.4   91.3   38.1
#             competitive-linear              98.4   91.8   39.2
#           The paper marks as different from the first row R@100 and RR@10 of normmax, and RR@10 of maxrr; here p is printed
#
#     bash examples/came_table4_fusion.sh       # COLLECTION=nq for the same on NQ, which the paper does not report
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"
METHODS=${METHODS:-came-sum normsum normmax sumrr maxrr linear}

came_bm25
fused competitive "$METHODS" came-bm25/{lexical,local,global}
rows=()
for method in $METHODS; do rows+=("competitive-$method=competitive-$method/fused"); done
tables "Table 4" "${rows[@]}"
