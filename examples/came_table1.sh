#!/usr/bin/env bash
# CAME, Table 1, with the neural baselines that can be trained here, and daggers.
#
# Paper:    Cai et al. 2023, §4.2, §5.1, Table 1
# Data:     as came_msmarco.sh or came_nq.sh; with their WORK folder this script reuses their outputs
#           BERT (default models/bert-base-uncased) and DISTILBERT (default models/distilbert-base-uncased, with its vocabulary head)
# Recipe:   came is the whole recipe. The paper took the baselines' official code or checkpoints; here each is trained on BM25's negatives:
#             MS MARCO   splade, colbert, coil: presets/splade-max, colbert-v1, coil, with their own papers' values;
#                        dpr: two encoders, in CAME's first training's batches, epochs, lengths and rate
#             NQ         dpr: presets/dpr; splade with FLOPS 0.01, colbert of 128 dimensions and coil of 32 (§4.2) as dpr above
#           BASELINE overrides settings of the presets, e.g. BASELINE="--batch-size 32 --gradient-cache 8192"
# Hardware: as came_msmarco.sh; KEEP=no, or 1 TB (MS MARCO) or 3 TB (NQ) more of disk
# Hours:    beyond came_msmarco.sh or came_nq.sh four trainings, encodings and searches of test queries: 30 (MS MARCO), 25 (NQ); estimated
# Expected: percent, Table 1   MS MARCO RR@10  R@1000 |  DL19 nDCG@10  R(rel=2)@1000 |  NQ Top-20  Top-100
#             bm25                     18.4    85.3   |          50.6     74.5         |    59.1     73.7      (settings: came_msmarco.sh)
#             splade                   34.0    96.5   |          68.4     85.1         |    77.4     84.8
#             colbert                  36.0    96.8   |          68.7     72.7         |    78.8     84.6
#             coil                     35.5    96.3   |          71.4     84.8         |    77.9     84.5
#             dpr                      31.6    94.1   |          61.6     70.4         |    78.4     85.4
#             came                     41.3    98.8   |          74.5     86.6         |    87.5     91.4
#           Not trained here, for their methods are not included; a run from elsewhere joins `moeir evaluate` as any other:
#             RocketQA                 37.0    97.9   |          71.3     79.3         |    82.7     88.5
#             AR2                      39.5    98.6   |          70.0     82.0         |    86.0     90.1
#             ME-HYBRID                34.3    97.1   |          70.6     81.7         |    82.6     88.6
#             SPAR                     38.6    98.5   |          71.7     82.8         |    83.0     88.8
#             CLEAR                    33.8    96.9   |          69.9     81.2         |    82.3     88.5
#             DrBoost                  34.4       -   |             -        -         |    80.9     87.6
#             DSR                      35.8    96.7   |          69.4     84.1         |    83.2     88.9
#             UnifieR                  40.7    98.4   |          73.8        -         |       -        -
#           The paper's marks are those of CAME over RocketQA, AR2, SPAR and DSR; here every row has one for each baseline that it is
#           significantly better than.
#
#     bash examples/came_table1.sh              # COLLECTION=nq for the NQ half
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/came_steps.sh"
BERT=${BERT:-$PWD/models/bert-base-uncased} DISTILBERT=${DISTILBERT:-$PWD/models/distilbert-base-uncased}
colbert=colbert:dim=128,normalise=true,markers=true,augmentation=true,punctuation=false

preset() { # NAME WEIGHTS PRESET: ckpt/NAME as presets/PRESET.yaml says
  say "training $1: presets/$3.yaml"
  # shellcheck disable=SC2086
  $LAUNCH finetune --config "$examples/presets/$3.yaml" --model "$2" --train "$WORK/data/bm25.jsonl" \
    --corpus "$corpus" --queries "${queries[train]}" ${BASELINE:-} ${STEPS:+--steps "$STEPS"} --output "$WORK/ckpt/$1"
}

alike() { # NAME WEIGHTS ARCH OBJECTIVE: ckpt/NAME in the batches, epochs, lengths and rate of CAME's first training
  trained "$1" "$2" "$WORK/data/bm25.jsonl" "$EPOCHS" "$4" "$3"
}

recipe
if [ "$COLLECTION" = msmarco ]; then
  preset splade "$DISTILBERT" splade-max
  preset colbert "$BERT" colbert-v1
  preset coil "$BERT" coil
  alike dpr "$BERT" dense:encoders=separate contrastive
else
  alike splade "$DISTILBERT" splade "$(contrastive)"
  alike colbert "$BERT" "$colbert" contrastive
  alike coil "$BERT" coil:dim=32,cls_dim=768 contrastive
  preset dpr "$BERT" dpr
fi
for model in splade colbert coil dpr; do searched "$model" "${tests[@]}"; done
against=(bm25 splade colbert coil dpr)
tables "Table 1" bm25/bm25 splade=splade/lexical colbert=colbert/local coil=coil/fused dpr=dpr/global came=came/fused
