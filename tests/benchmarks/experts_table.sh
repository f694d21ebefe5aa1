#!/usr/bin/env bash
# The tables of experts.sh from the runs in its work folder, without rows that do not exist yet.
#
# Use:      tests/benchmarks/experts_table.sh WORK_FOLDER
# Each table: measures, and p of a two-sided paired t-test against its first row, seed by seed; then losses, parameters and usage.
set -euo pipefail
cd "$1"
mkdir -p table
compare() { # TITLE NAME=RUN...
  local title=$1 pair runs=()
  shift
  for pair in "$@"; do
    if [ -e "runs/${pair#*=}.trec" ]; then
      ln -sfn "../runs/${pair#*=}.trec" "table/${pair%%=*}.trec"
      runs+=(--run "table/${pair%%=*}.trec")
    fi
  done
  if [ "${#runs[@]}" -gt 2 ]; then
    printf '\n== %s\n' "$title"
    moeir evaluate "${runs[@]}" --qrels data/dev.tsv --measure nDCG@10 --measure RR@10 --measure Success@20 2>/dev/null
  fi
}
for seed in 1 2; do
  for side in fused global lexical; do
    rows=()
    for kind in siamese separate mote; do rows+=("mote-$kind-$side-$seed=mote-$kind-$seed/$side"); done
    compare "MoTE, seed $seed, $side" "${rows[@]}"
  done
  rows=("bm25=bm25")
  for row in shared-1 separate-2 role-2 sequence-2 token-2 sequence-4 token-4; do
    for balanced in "" -balanced; do rows+=("taser-$row-$seed$balanced=taser-$row-$seed$balanced/global"); done
  done
  compare "TASER, seed $seed" "${rows[@]:1}" "${rows[0]}"
  rows=("fine-tuned-$seed=sbmoe-plain-1-$seed/global")
  for experts in 3 6 9 12; do
    rows+=("random-$experts-$seed=sbmoe-random-$experts-$seed/global" "top1-$experts-$seed=sbmoe-learned-$experts-$seed/global")
    rows+=("all-$experts-$seed=sbmoe-learned-$experts-$seed-all/global" "top1-$experts-$seed-balanced=sbmoe-learned-$experts-$seed-balanced/global")
    rows+=("all-$experts-$seed-balanced=sbmoe-learned-$experts-$seed-balanced-all/global")
  done
  compare "SB-MoE, seed $seed" "${rows[@]}"
done

printf '\n== Loss: mean of the first and of the last 50 steps; parameters\n'
for row in ckpt/*/; do
  if [ -e "$row/metrics.jsonl" ]; then
    python - "$row" <<'P'
import json, sys
from pathlib import Path
row = Path(sys.argv[1])
steps = [json.loads(line)["loss"] for line in (row / "metrics.jsonl").read_text().splitlines()]
means = [sum(part) / len(part) for part in (steps[:50], steps[-50:])]
count = json.loads((row / "moeir.json").read_text())["parameters"]
print(f"{row.name:32s} {len(steps):5d} steps  {means[0]:.3f} -> {means[1]:.3f}  {count:12,d} parameters")
P
  fi
done

head -n 1000 data/corpus.jsonl >data/usage.jsonl
printf '\n== Usage on held-out texts: what the arg-max without noise takes of the %s development questions and %s passages\n' \
  "$(wc -l <data/dev-queries.jsonl)" "$(wc -l <data/usage.jsonl)"
for row in ckpt/taser-{sequence,token}-* ckpt/sbmoe-learned-*; do
  if [ -e "$row/metrics.jsonl" ]; then
    moeir analyze usage --model "$row" --corpus data/usage.jsonl --queries data/dev-queries.jsonl --dtype auto --form tsv \
      --output "table/$(basename "$row").usage.tsv" 2>/dev/null
    echo "$(basename "$row")"
    awk -F '\t' 'NR > 1 && $4 != "all" { share[$1 " " $2] = share[$1 " " $2] sprintf(" %.3f", $6) } END { for (key in share) print "  " key ":" share[key] }' \
      "table/$(basename "$row").usage.tsv" | sort
  fi
done
