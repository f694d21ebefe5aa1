#!/usr/bin/env bash
# SB-MoE, Table I: fine-tuned without experts, random gate, top-1, all experts, and controls; for each backbone and collection.
#
# Paper:    Sokli et al. 2025, Mixture of Experts Approaches in Dense Retrieval Tasks, §III to V, Table I
# Data:     COLLECTIONS=msmarco: DATA (default data/msmarco), the collection's files under their own names, as came_msmarco.sh says, and
#             msmarco-test2020-queries.tsv, 2020qrels-pass.txt      TREC DL 2020, 54 judged queries
#           nq, hotpotqa: BEIR's folders nq, nq-train, hotpotqa under BEIR (default data/beir), which have
#             corpus.jsonl, queries.jsonl, qrels/train.tsv, qrels/test.tsv
#           ps, cs: political and computer science of Bassani et al. 2022 in the same form, under BEIR
#           BACKBONES=tinybert, small, base, contriever
# Recipe:   5 % of the training queries held out; 64 queries and a positive of each a step, no other negatives; rate 1e-6, of the block
#           1e-4, constant; 30 epochs (others than TinyBERT 20, on CS 10); mean pooling, inner product, temperature 1 (Contriever 0.05);
#           exact search, 1000 documents. top1 and all are one training, of which the checkpoint with the lowest validation loss is
#           kept. The release's code weights experts such that the gate learns nothing: COMBINE=release does the same.
#           random-gate takes an expert at random, anew each time a text is trained on, as the release does. CONTROLS, which the paper does
#           not have, say with it what the gate is worth, in a second table against top1: adapter, one expert for all. CONTROLS= leaves
#           it out. What the block adds to a vector is as long for a random gate as for a learned one at its start; the adapter's is
#           longer (1), but with COMBINE=release, where all have length 1
# Hardware: one GPU of 16 GB for TinyBERT, 40 GB for BERT-base; 32 GB of memory; 30 GB of disk a model
# Hours:    estimated from operation counts for an H200, not measured: TinyBERT on MS MARCO 4 a training, BERT-base 8; four trainings
# Expected: Table I, recall@100 and nDCG@10, tinybert   fine-tuned   random-gate   top1         all
#             msmarco                                   .682 .244    .686 .243     .688 .245    .688 .246
#             dl19                                      .421 .439    .408 .434     .421 .440    .422 .438
#             dl20                                      .521 .466    .516 .466     .524 .452    .516 .468
#             nq                                        .722 .261    .721 .264     .723 .263    .725 .271
#             hotpotqa                                  .465 .243    .458 .235     .464 .236    .477 .252
#             ps                                        .282 .145    .284 .146     .284 .145    .291 .149
#             cs                                        .327 .172    .328 .172     .328 .171    .332 .175
#           on msmarco:   small .734 .254   .732 .253   .736 .255   .736 .255      base .790 .293   .788 .286   .790 .289   .791 .290
#                         contriever .850 .321   .838 .308   .839 .309   .839 .309
#           Recall counts grade 1 and better on the DL tracks too, as the release does. p is of a paired t-test against the first row with
#           Bonferroni's correction over the comparisons of a printed table, three rows by two measures. The paper corrects by Bonferroni
#           too and does not say over which comparisons: over its whole table multiply by 28, its backbones and test sets
#
#     bash examples/sbmoe_table1.sh             # BACKBONES="tinybert small base contriever" COLLECTIONS="msmarco nq hotpotqa ps cs"
#                                               # and everything at the top of sbmoe_steps.sh and steps.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/sbmoe_steps.sh"
read -ra controls <<<"${CONTROLS-adapter}"

cell() {
  local set row rows=(fine-tuned random-gate "${controls[@]}" top1 all)
  split
  for row in "${rows[@]}"; do
    "${row//-/_}"
    searched "$row" "$corpus" "${tests[@]}"
  done
  tables "Table I, $backbone" "$corpus" "${tests[@]}" -- {fine-tuned,random-gate,top1,all}/global
  if [ ${#controls[@]} -gt 0 ]; then
    tables "What the gate is worth, $backbone" "$corpus" "${tests[@]}" -- top1/global random-gate/global "${controls[@]/%//global}"
  fi
  for set in "${tests[@]}"; do gather "$set" "${rows[@]/%//global}"; done
}

each_cell cell
overview "Table I"
