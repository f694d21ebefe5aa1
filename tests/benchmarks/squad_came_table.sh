#!/usr/bin/env bash
# The tables of squad_came.sh from the existing runs in its work folder.
set -euo pipefail
cd "$1"
mkdir -p table
link() { if [ -e "runs/$1" ]; then ln -sfn "../runs/$1" "table/$2.trec"; fi; }
link bm25.trec bm25
link bm25-cut.trec bm25-cut
link minilm/global.trec minilm
link dense/global.trec dense
link splade/lexical.trec splade
link colbert/local.trec colbert
link alone.trec alone-fused
for name in competitive-1 competitive-2 standardised-1 standardised-2; do
  for expert in lexical local global fused; do link "$name/$expert.trec" "$name-$expert"; done
done
runs=()
for name in bm25 bm25-cut minilm dense splade colbert alone-fused {competitive,standardised}-{1,2}-{lexical,local,global,fused}; do
  if [ -e "table/$name.trec" ]; then runs+=(--run "table/$name.trec"); fi
done
echo "p: two-sided paired t-test against the first row"
moeir evaluate "${runs[@]}" --qrels data/dev.tsv --measure nDCG@10 --measure RR@10 --measure R@100
for seed in 1 2; do
  if [ -e "table/competitive-$seed-fused.trec" ] && [ -e "table/standardised-$seed-fused.trec" ]; then
    echo "competitive against standardised, seed $seed"
    moeir evaluate --run "table/standardised-$seed-fused.trec" --run "table/competitive-$seed-fused.trec" --qrels data/dev.tsv
  fi
done
for name in competitive-1 standardised-1 competitive-2 standardised-2; do
  if [ -e "table/$name-fused.trec" ]; then
    echo "rank-biased overlap of the experts' lists, $name"
    moeir analyze --run "table/$name-lexical.trec" --run "table/$name-local.trec" --run "table/$name-global.trec" --overlap rbo:persistence=0.9
  fi
done
if [ -e table/alone-fused.trec ]; then
  echo "rank-biased overlap of the models trained alone"
  moeir analyze --run table/splade.trec --run table/colbert.trec --run table/dense.trec --overlap rbo:persistence=0.9
fi
