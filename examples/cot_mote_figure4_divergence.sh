#!/usr/bin/env bash
# CoT-MoTE, Table 1 and Figures 2 and 4: map and divergence of query vectors and passage vectors, in three architectures.
#
# Paper:    Ma et al. 2023, CoT-MoTE: … Pre-training with Mixture-of-Textual-Experts for Passage Retrieval, §2.2, §5.3, A.1
# Data:     as cot_mote_msmarco.sh, whose WORK folder this script reuses; COTMAE: weights of CoT-MAE for Table 1, pre-trained
#           here from MODEL on the documents if not set
# Recipe:   Table 1: CoT-MAE, 800,000 steps of a random span of each of 512 documents, 128 tokens, with another span of it; from it cotmae-siamese and
#           cotmae-separate, dense only, two trainings each as in cot_mote_msmarco.sh. Figure 4: its three models.
#           400 pairs of development queries and their passages; Gaussian kernel densities, bandwidth 1, of the rows and of the columns
#           of the matrix of cosine distances; KL and Jensen-Shannon divergence of one from the other. The formulas are missing from the
#           paper's text: these fit the ratio of its numbers (KL four times JS), which alone are to be compared, and their order.
#           Figures 2 and 4 (A): the same pairs by t-SNE of cosine distances in two dimensions, perplexity 30 (the paper states none), a
#           line between each query and its passage: WORK/figures/{figure2,figure4a}.svg
# Hardware: as cot_mote_msmarco.sh
# Hours:    beyond cot_mote_msmarco.sh CoT-MAE's pre-training, 5.6e19 FLOP: 40 to 80 (LAUNCH on 8 GPUs: 5 to 10; the paper's: 8 A100, 60
#           hours), four trainings of 2, encodings and searches 15; estimated. Divergences and maps: minutes
# Expected: Table 1            RR@10      KL         JS
#             cotmae-siamese    39.4   7.24e-5    1.81e-5
#             cotmae-separate   39.0   1.42e-4    3.54e-5
#           Figure 4 (B) prints no numbers: mote is lower than both others. Figure 2: one cloud for cotmae-siamese, two apart for
#           cotmae-separate; Figure 4 (A): clusters in mote that cover each other in part
#
#     bash examples/cot_mote_figure4_divergence.sh  # DATA=… WORK=… PAIRS=… PERPLEXITY=…; see cot_mote_steps.sh, steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/cot_mote_steps.sh"
PAIRS=${PAIRS:-400} PERPLEXITY=${PERPLEXITY:-30} COTMAE=${COTMAE:-} COTMAE_STEPS=${COTMAE_STEPS:-800000} COTMAE_BATCH=${COTMAE_BATCH:-512}
SPAN_LENGTH=${SPAN_LENGTH:-128} COTMAE_GATE_STEPS=${COTMAE_GATE_STEPS:-10000}

divergences() { # MODEL...: a line for each
  local model flags=()
  for model in "$@"; do flags+=(--model "$WORK/ckpt/$model"); done
  $PYTHON "$examples/divergence.py" "${flags[@]}" --queries "${queries[dev]}" --corpus "${corpora[msmarco]}" \
    --qrels "${qrels[dev]}" --expert global --pairs "$PAIRS" --seed "$SEED"
}

maps() { # NAME MODEL...: figures/NAME.svg, a panel for each
  local name=$1 model flags=()
  shift
  for model in "$@"; do flags+=(--model "$WORK/ckpt/$model"); done
  mkdir -p "$WORK/figures"
  $PYTHON "$examples/project_vectors.py" "${flags[@]}" --queries "${queries[dev]}" --corpus "${corpora[msmarco]}" --qrels "${qrels[dev]}" \
    --expert global --pairs "$PAIRS" --perplexity "$PERPLEXITY" --seed "$SEED" --output "$WORK/figures/$name.svg"
}

bm25_negatives
if [ -z "$COTMAE" ]; then
  LEARN_STEPS=$COTMAE_STEPS LEARN_BATCH=$COTMAE_BATCH LEARN_PARTS=1 GATE_STEPS=$COTMAE_GATE_STEPS \
    pretrained cotmae dense cotmae "$DOCUMENTS" --document-length "$SPAN_LENGTH" --learning-rate 1e-4
  COTMAE=$WORK/pre/cotmae
fi
for encoders in siamese separate; do two_stages "cotmae-$encoders" "$COTMAE" "dense:encoders=$encoders" global; done
for encoders in mote siamese separate; do recipe "$encoders"; done
measures[dev]="RR@10" called[global]=''
tables "Table 1" msmarco dev -- cotmae-{siamese,separate}/global
say "Table 1 and Figure 4 (B): divergences"
divergences cotmae-{siamese,separate} siamese mote separate
say "Figures 2 and 4 (A): maps"
maps figure2 cotmae-{siamese,separate}
maps figure4a siamese mote separate
