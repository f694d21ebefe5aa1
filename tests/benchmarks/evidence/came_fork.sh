#!/usr/bin/env bash
# CAME: does competition help? One start, then the same training three times; only each query's shares of the experts differ.
#
# Declared: declarations/came_fork.yaml
# Rows:     prepare, the data, BM25's negatives, the start and the negatives of its three experts; gate, 20 competing steps from it;
#           standardised-SEED, competitive-SEED, permuted-SEED for seeds 2 3 4; temperature-T-2 for T of 0.1 0.5 1
# Sizes:    cores: 60 + 200 steps of 8 queries x (1 + 7) passages of 96 tokens; forty minutes a training on one core (AVX-512 BF16, no AMX), 8 hours in all; with AMX 13 minutes and 3 hours
#           h200:  200 + 600 steps of 32 x (1 + 7), 256 tokens, seeds 2 to 6, all queries of the modules that train, with weights that have
#                  not been trained to retrieve (MODEL_FOLDER of BERT base): about 3 hours, estimated
# The collection is made of the docstrings of the installed torch (LIBRARY; constraints.txt names the version); DATA_FOLDER is not read: any folder will do.
set -euo pipefail
sizes=(FIRST_STEPS STEPS BATCH NEGATIVES LENGTH QUERY_LENGTH SHARED_LAYERS LIBRARY TESTED DEV FIRST SECOND TEMPERATURE BAND DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
FIRST_STEPS=${FIRST_STEPS:-$(sized 60 200 2)} STEPS=${STEPS:-$(sized 200 600 2)} BATCH=${BATCH:-$(sized 8 32 2)} NEGATIVES=${NEGATIVES:-$(sized 7 7 2)}
LENGTH=${LENGTH:-$(sized 96 256 24)} QUERY_LENGTH=${QUERY_LENGTH:-32} SHARED_LAYERS=${SHARED_LAYERS:-$(sized 3 6 1)}
LIBRARY=${LIBRARY:-$(sized torch torch multiprocessing)}
TESTED=${TESTED:-$(sized 4500 4500 6)} DEV=${DEV:-$(sized 800 800 6)} FIRST=${FIRST:-$(sized 480 1600 6)} SECOND=${SECOND:-$(sized 1600 4800 6)}
SEEDS=${SEEDS:-$(sized "2 3 4" "2 3 4 5 6" 2)} EVERY=${EVERY:-$(sized 100 100 2)}
TEMPERATURE=${TEMPERATURE:-0.2} TEMPERATURES=${TEMPERATURES-$(sized "0.1 0.5 1" "0.1 0.5 1" 1)} BAND=${BAND:-first=0,last=20} GATE=${GATE:-$(sized 1.0 1.0 1.1)}
corpora=([dev]=data/dev-corpus.jsonl) queries=([dev]=data/dev-queries.jsonl)
qrels=([test]=data/test.tsv [description]=data/test-description.tsv [name]=data/test-name.tsv [dev]=data/dev.tsv)
for set in test description name; do corpora[$set]=data/corpus.jsonl queries[$set]=data/test-queries.jsonl; done

learned() { # NAME MODEL PART STEPS SEED SHARES [FLAGS]: objectives differ in SHARES alone
  local output=ckpt/$1 start=$2 part=$3 steps=$4 seed=$5 shares=$6
  shift 6
  $MOEIR finetune --model "$start" --train "data/$part.jsonl" --corpus "${corpora[test]}" --queries "data/$part-queries.jsonl" --steps "$steps" \
    --objective "competitive:$shares,normalise_standardised=true,flops_query=5e-4,flops_document=5e-4" --batch-size "$BATCH" \
    --negatives "$NEGATIVES" --learning-rate 5e-5 --group-rate heads.local=5e-4 --group-rate towers.lexical=1e-4 --seed "$seed" --output "$output" "$@"
}
watched+=(--evaluate-every "$EVERY")
arms="standardised competitive permuted" pool=data/training-corpus.jsonl

docstrings() { # data/: what modules.py writes; 300 of the queries of dev are watched
  local folder
  folder=$($PYTHON -c 'import importlib, sys; print(importlib.import_module(sys.argv[1]).__path__[0])' "$LIBRARY")
  [ -s data/docstrings/test.qrels ] || $PYTHON "$here/../../../examples/docstrings.py" data/docstrings "$folder"
  [ -s data/dev-corpus.jsonl ] || $PYTHON "$here/modules.py" data/docstrings data --test "$TESTED" --dev "$DEV" --first "$FIRST" --second "$SECOND"
  [ -s data/watched.tsv ] || divided data/dev-queries.jsonl data/dev.tsv 300 data/watched data/unwatched
}

kinds() { # ROW: its runs on all test queries stand for those on the queries of each kind
  ln -sfn test "runs/$1/description"
  ln -sfn test "runs/$1/name"
  [ -d "fused/$1/test" ] && ln -sfn test "fused/$1/description" && ln -sfn test "fused/$1/name"
  return 0
}

tried() { # CHECKPOINT ROW: searched and recorded
  searched "$1" "$2" test dev
  kinds "$2"
  record "$2" "$1" test description name dev
}

negatives() { # PART BAND RUN...
  local part=$1 band=$2 run runs=()
  shift 2
  for run in "$@"; do runs+=(--run "$run"); done
  $MOEIR mine-negatives "${runs[@]}" --qrels "data/$part.tsv" --method "band:$band" --output "data/$part.jsonl"
}

prepare() {
  docstrings
  bm25 test description name dev
  say "the start: $FIRST_STEPS standardised steps on BM25's negatives"
  $MOEIR index --corpus "$pool" --keep-empty --engine bm25 --output idx/bm25/pool
  $MOEIR search --index idx/bm25/pool --queries data/first-queries.jsonl --depth 50 --output runs/bm25/first.trec
  negatives first first=0,last=50 runs/bm25/first.trec
  learned start "$model" first "$FIRST_STEPS" 1 standardised=1 --query-length "$QUERY_LENGTH" --document-length "$LENGTH" \
    --arch "came:shared_layers=$SHARED_LAYERS,pooling=mean,normalise=true,global_scale=20,local_scale=0.5" "${watched[@]}"
  if recorded start; then same_weights start ckpt/start; else KEEP=yes tried ckpt/start start; fi
  $MOEIR encode --model ckpt/start --corpus "$pool" --keep-empty --output enc/start/pool
  $MOEIR index --encodings enc/start/pool --output idx/start/pool
  say "negatives of the start's experts, for questions that it has not read"
  $MOEIR search --index idx/start/pool --queries data/second-queries.jsonl --depth 50 --output runs/start/second
  negatives second "$BAND" runs/start/second/{lexical,local,global}.trec
}

gate() { # the competition that is declared is one: else nothing is compared
  learned gate ckpt/start second "$(sized 20 20 2)" 2 "standardised=0,temperature=$TEMPERATURE"
  record gate ckpt/gate
}

check_gate() {
  if ! recorded gate; then
    echo "the gate is not recorded: run the row gate first" >&2
    exit 2
  fi
  $PYTHON - "$GATE" "$($PYTHON "$here/record.py" gate "$records" --curve entropy.shares)" <<'P'
import math, sys
limit, shares = float(sys.argv[1]), [float(value) for value in sys.argv[2].split()]
entropy = sum(shares) / len(shares)
print(f"gate: mean entropy of the shares in the first {len(shares)} steps {entropy:.4f} (declared: below {limit:g}; ln 3 = {math.log(3):.4f})")
if entropy >= limit:
    sys.exit("gate: not passed. The experts hardly compete, and arms of this kind answer nothing: find out why first")
P
}

row() { # STANDARDISED|COMPETITIVE|PERMUTED|TEMPERATURE-T SEED
  local shares
  case $1 in
  standardised) shares=standardised=1 ;;
  competitive) shares=standardised=0,temperature=$TEMPERATURE ;;
  permuted) shares=standardised=0,temperature=$TEMPERATURE,permuted=true ;;
  temperature-*) shares=standardised=0,temperature=${1#temperature-} ;;
  esac
  check_gate
  same_weights start ckpt/start
  say "training $1, seed $2"
  learned "$1-$2" ckpt/start second "$STEPS" "$2" "$shares" "${watched[@]}"
  tried "ckpt/$1-$2" "$1-$2"
}

run_row() { if [ "$1" = gate ]; then gate; else row "${1%-*}" "${1##*-}"; fi; }

if [ $# = 0 ]; then
  set -- prepare gate
  for seed in $SEEDS; do
    for arm in $arms; do set -- "$@" "$arm-$seed"; done
  done
  for temperature in $TEMPERATURES; do set -- "$@" "temperature-$temperature-${SEEDS%% *}"; done
fi
run_rows "prepare, gate, or ${arms// /, } or temperature-T with -SEED" "prepare|gate|(${arms// /|}|temperature-[0-9.]+)-[0-9]+" "$@"
