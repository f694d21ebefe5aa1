#!/usr/bin/env bash
# CoT-MoTE, Figure 1: length and form of queries and of passages, MS MARCO.
#
# Paper:    Ma et al. 2023, CoT-MoTE: … Pre-training with Mixture-of-Textual-Experts for Passage Retrieval, §1
# Data:     as came_msmarco.sh: QUERIES (default DATA/queries.train.tsv) and CORPUS, the passages without titles
# Recipe:   words per text; sentences split at their marks, and each called a question, a statement or a phrase by its mark and by closed
#           classes of English words (text_forms.py). The paper does not name its tool. Parts of speech and dependencies need a parser,
#           which moeir does not have
# Hardware: any, one core
# Hours:    0.4 for 8.8 million passages, estimated
# Expected: the paper's text: queries are short, often questions or phrases; passages are long, of declarative sentences. The figure's
#           numbers are not in it
#
#     bash examples/cot_mote_figure1.sh             # DATA=… WORK=… CORPUS=… QUERIES=…
set -euo pipefail
CORPUS=${CORPUS:-collection.tsv}
. "$(dirname "${BASH_SOURCE[0]}")/cot_mote_steps.sh"
QUERIES=${QUERIES:-$DATA/queries.train.tsv}
mkdir -p "$WORK/figures"

say "Figure 1, $WORK/figures/figure1.svg"
$PYTHON "$examples/text_forms.py" "$QUERIES" "${corpora[msmarco]}" "$WORK/figures/figure1.svg"
