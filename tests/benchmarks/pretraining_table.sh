#!/usr/bin/env bash
# The tables of pretraining.sh: loss curves of its pre-trainings, and raw against pre-trained weights; without missing rows.
#
# Use:      tests/benchmarks/pretraining_table.sh PRETRAINED_FOLDER TUNED_FOLDER...
# Measures: of each pair p of a two-sided paired t-test of the second row, pre-trained, against the first, raw.
set -euo pipefail
pretrained=$(realpath "$1")
shift
printf '== Losses and share of right predictions, means of ten steps: at the start, after a third, two thirds, at the end\n'
for row in "$pretrained"/*/; do
  [ -e "$row/metrics.jsonl" ] && python - "$row" <<'P'
import json, sys
from pathlib import Path
row = Path(sys.argv[1])
steps = [json.loads(line) for line in (row / "metrics.jsonl").read_text().splitlines()]
speed = json.loads((row / "manifest.json").read_text()).get("counts", {}) if (row / "manifest.json").exists() else {}
print(f"{row.name}: {len(steps)} steps, {sum(step['tokens'] for step in steps):,} tokens")
places = [round(part * (len(steps) - 10) / 3) for part in range(4)]
for name in (name for name in steps[0] if name.startswith(("loss", "accuracy"))):
    means = [sum(step[name] for step in steps[place : place + 10]) / 10 for place in places]
    print(f"  {name:20s}" + "".join(f"{mean:9.3f}" for mean in means))
P
done
for folder in "$@"; do
  cd "$folder"
  mkdir -p table
  for weights in minilm scratch; do
    for kind in dense/global mote/fused mote/global mote/lexical; do
      for seed in 1 2; do
        runs=()
        for from in raw pretrained; do
          name=$weights-$from-${kind%/*}-$seed
          if [ -e "runs/$name/${kind#*/}.trec" ]; then found=runs/$name/${kind#*/}.trec; else found=runs/$name.trec; fi
          if [ -e "$found" ]; then
            ln -sfn "../$found" "table/$from-$seed.trec"
            runs+=(--run "table/$from-$seed.trec")
          fi
        done
        if [ "${#runs[@]}" = 4 ]; then
          printf '\n== %s: %s, from %s\n' "$(basename "$folder")" "${kind/\// }" "$weights"
          moeir evaluate "${runs[@]}" --qrels data/dev.tsv --measure nDCG@10 --measure RR@10 --measure Success@20 2>/dev/null
        fi
      done
    done
  done
  cd - >/dev/null
done
