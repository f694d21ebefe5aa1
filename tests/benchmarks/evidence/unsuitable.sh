#!/usr/bin/env bash
# When does competition help? A share of the queries suits one expert only: does the sign of competition's effect turn with that share?
#
# Declared: declarations/unsuitable.yaml
# Rows:     prepare, the collection and the model; start-SHARE-SEED, a start; ARM-SHARE-SEED for the arms standardised, competitive, loss,
#           permuted, learnability and rescaled, which go on from it; SHARE of 0 and 60 (per cent of keys), and wide: 0 with experts that are not bounded
# Sizes:    cores: MiniLM's first 3 layers, 40 + 60 steps of 8 queries x (1 + 3) passages of 32 tokens, seeds 1 to 6; about a minute of one core a training
#           h200:  MiniLM whole, 200 + 600 steps of 32 x (1 + 7), 128 tokens, seeds 1 to 6, shares 0, 30 and 60: about 5 hours, estimated
# The collection is made of the docstrings of the installed Python (LIBRARY, a folder of sources); DATA_FOLDER is not read: any folder will do.
# confound.sh and slower.sh source this file, and say by fork_… what differs.
set -euo pipefail
sizes=(FIRST_STEPS STEPS BATCH NEGATIVES LENGTH QUERY_LENGTH LAYERS SHARED_LAYERS TESTED TEST DEV FIRST SECOND BOUNDED TEMPERATURE SHARES LIBRARY DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
FIRST_STEPS=${FIRST_STEPS:-$(sized 40 200 2)} STEPS=${STEPS:-$(sized 60 600 2)} BATCH=${BATCH:-$(sized 8 32 2)} NEGATIVES=${NEGATIVES:-$(sized 3 7 2)}
LENGTH=${LENGTH:-$(sized 32 128 24)} QUERY_LENGTH=${QUERY_LENGTH:-$(sized 16 32 12)} LAYERS=${LAYERS:-$(sized 3 6 2)}
SHARED_LAYERS=${SHARED_LAYERS:-$(sized 2 5 1)} TESTED=${TESTED:-$(sized 1000 1000 4)} TEST=${TEST:-$(sized 600 1000 3)} DEV=${DEV:-$(sized 300 300 3)}
FIRST=${FIRST:-$(sized 320 1600 6)} SECOND=${SECOND:-$(sized "${fork_second:-800}" 4800 6)} BOUNDED=${BOUNDED:-lexical_queries=tokens,dimension=$(sized 64 64 8),local_dim=8}
TEMPERATURE=${TEMPERATURE:-0.2} SHARES=${SHARES:-$(sized "0 60" "0 30 60" 60)} SEEDS=${SEEDS:-$(sized "1 2 3 4 5 6" "1 2 3 4 5 6" 1)} LIBRARY=${LIBRARY:-}
for set in test plain key; do corpora[$set]=data/test-corpus.jsonl queries[$set]=data/test-queries.jsonl qrels[$set]=data/$set.tsv; done
corpora[dev]=data/test-corpus.jsonl queries[dev]=data/dev-queries.jsonl qrels[dev]=data/dev.tsv
arms="summed averaged standardised competitive loss permuted learnability rescaled" flops=${fork_flops:-5e-4}
ln -sf "$here/rescaled_shares.py" . # own code is read from the working directory

learned() { # NAME MODEL PART STEPS SEED OBJECTIVE [FLAGS]: objectives differ in their shares alone
  local output=ckpt/$1 start=$2 part=$3 steps=$4 seed=$5 objective=$6
  shift 6
  $MOEIR finetune --model "$start" --train "data/$part.jsonl" --corpus data/corpus.jsonl --queries "data/$part-queries.jsonl" --steps "$steps" \
    --objective "$objective,flops_query=$flops,flops_document=$flops" --batch-size "$BATCH" \
    --negatives "$NEGATIVES" --learning-rate 1e-4 --group-rate heads.local=1e-3 --seed "$seed" --output "$output" "$@"
}

tried() { # ROW: searched and recorded; with fork_fusions in these ways, too, and with weights fitted on the queries of dev
  # shellcheck disable=SC2086
  searched "ckpt/$1" "$1" test ${fork_fusions:+dev}
  for method in sumrr ${fork_fusions:-}; do
    $MOEIR fuse --run "runs/$1/test/lexical.trec" --run "runs/$1/test/local.trec" --run "runs/$1/test/global.trec" --method "$method" \
      --depth "$DEPTH" --output "fused/$1/test/$method.trec"
  done
  [ -z "${fork_fusions:-}" ] || calibrated "$1" lexical local global
  for kind in plain key; do ln -sfn test "runs/$1/$kind" && ln -sfn test "fused/$1/$kind"; done
  record "$1" "ckpt/$1" test plain key
}

prepare() {
  [ -s data/docstrings/test.qrels ] || $PYTHON "$here/../../../examples/docstrings.py" data/docstrings ${LIBRARY:+"$LIBRARY"}
  # shellcheck disable=SC2086
  [ -s data/model/vocab.txt ] || $PYTHON "$here/keys.py" data/docstrings "$model" data --tested "$TESTED" --test "$TEST" --dev "$DEV" --first "$FIRST" \
    --second "$SECOND" --shares 0 $SHARES --layers "$LAYERS"
  [ -z "${fork_fusions:-}" ] || bm25 test plain
}

run_row() { # ARM-SHARE-SEED; ARM4 trains for four times the steps. A start whose record exists and whose weights do not is trained again
  local arm share seed alike=competitive:standardised=1,normalise_standardised=true competing=competitive:standardised=0,normalise_standardised=true
  local objective bounded=,$BOUNDED part steps=$STEPS flags=() start
  IFS=- read -r arm share seed <<<"$1"
  start=start-$share-$seed
  if [ "$share" = wide ]; then bounded='' part=0; else part=$share; fi
  if [ "${arm%4}" != "$arm" ]; then arm=${arm%4} steps=$((4 * STEPS)); fi
  case $arm in
  start | standardised | averaged) objective=$alike ;;
  summed) objective=${alike/true/false} ;;
  competitive) objective=$competing,temperature=$TEMPERATURE ;;
  loss) objective=$competing,shares=loss,temperature=1 ;;
  permuted) objective=$competing,temperature=$TEMPERATURE,permuted=true ;;
  learnability) objective=$competing,shares=learnability,temperature=0.1 ;;
  rescaled) objective=rescaled_shares:rescaled:temperature=$TEMPERATURE flags=(--clip 0) ;;
  esac
  say "training $1"
  learned "$start" data/model "first-$part" "$FIRST_STEPS" "$seed" "$alike" --query-length "$QUERY_LENGTH" --document-length "$LENGTH" \
    --arch "came:shared_layers=$SHARED_LAYERS,pooling=mean,normalise=true,global_scale=20,local_scale=0.5$bounded"
  if [ "$arm" = start ]; then
    KEEP=yes tried "$start"
  else
    same_weights "$start" "ckpt/$start"
    learned "$1" "ckpt/$start" "second-$part" "$steps" "$seed" "$objective" ${flags[@]+"${flags[@]}"}
    tried "$1"
  fi
}

if [ $# = 0 ]; then
  set -- prepare
  needed='' others='start-wide standardised-wide competitive-wide'
  for share in $SHARES; do # what the primary contrast needs, then the others
    needed+=" start-$share standardised-$share competitive-$share" others="loss-$share permuted-$share learnability-$share $others"
  done
  for seed in $SEEDS; do for one in ${fork_needed:-$needed}; do set -- "$@" "$one-$seed"; done; done
  for seed in $SEEDS; do for one in ${fork_others-$others}; do set -- "$@" "$one-$seed"; done; done
fi
run_rows "prepare, or start, ${arms// /, } with -SHARE-SEED" "prepare|(start|(${arms// /|})4?)-([0-9]+|wide)-[0-9]+" "$@"
