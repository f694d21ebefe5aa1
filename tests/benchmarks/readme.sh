#!/usr/bin/env bash
# The commands of the README's first screens, as they stand there, on SciFact: five minutes without training, then CAME and its report.
#
# Use:      tests/benchmarks/readme.sh SCIFACT_FOLDER MODEL_FOLDER WORK_FOLDER     # moeir on the path; all-MiniLM-L6-v2 as MODEL_FOLDER
# Expected: nDCG@10 of BM25 0.6777, MiniLM 0.643 to 0.648 (bfloat16), both fused 0.719; with CAME 0.719; results/readme.md
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
data=$(realpath "$1") model=$(realpath "$2") work=$3
mkdir -p "$work/scifact/qrels" "$work/sentence-transformers"
cd "$work"
for file in corpus.jsonl queries.jsonl qrels/train.tsv qrels/test.tsv; do
  if [ -e "$data/$file" ]; then cat "$data/$file"; else gzip -dc "$data/$file.gz"; fi > "scifact/$file"
done
ln -sfn "$model" sentence-transformers/all-MiniLM-L6-v2
python3 - "$root/README.md" > commands.sh <<'PY'
import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8").split("## Five minutes")[1].split("## Python")[0]
blocks = re.sub(r"\\\n\s*", "", "\n".join(line[4:] for line in text.splitlines() if line.startswith("    ")))
for command in (line.split(" #")[0].strip() for line in blocks.splitlines() if line.startswith("moeir ")):
    shown = command.replace('"', '\\"')
    print(f'echo "\\$ {shown}"; begin=$SECONDS; {command}; echo "# $((SECONDS - begin)) s"')
PY
HF_HUB_OFFLINE=1 bash -euo pipefail commands.sh
