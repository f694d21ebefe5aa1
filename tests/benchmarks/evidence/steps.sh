# Steps that the scripts of this folder share; sourced by them, not run.
#
# Use of every script: SCRIPT DATA_FOLDER WORK_FOLDER MODEL_FOLDER [ROW...]; without rows all of them, in order. DATA_FOLDER holds collections in
# BEIR's layout (squad/, medquad/, scifact/, …). Several calls may share a WORK_FOLDER once `prepare`, the first row, is there: one call per core,
# with OMP_NUM_THREADS=1. Finished stages are skipped, interrupted ones continue; a row whose record exists in RESULTS is skipped as a whole.
#
# SIZE        cores (the declared size), h200 (the same experiment on one H200), toy (for tests); the script says what each means
# RESULTS     folder of the records: NAME/ROW.json, ROW.scores.gz, ROW.log.gz (default: tests/benchmarks/results/evidence)
# KEEP        no: checkpoints, encodings and indexes of a row are removed once it is recorded
# Any size of a script can be set alone, e.g. STEPS=500; its records then say so.
# shellcheck shell=bash
MOEIR=${MOEIR:-moeir} PYTHON=${PYTHON:-python3} SIZE=${SIZE:-cores} KEEP=${KEEP:-yes}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=$(basename "$0" .sh)
if [ $# -lt 3 ]; then
  echo "use: $0 DATA_FOLDER WORK_FOLDER MODEL_FOLDER [ROW...]" >&2
  exit 2
fi
data=$(realpath "$1") model=$(realpath "$3")
RESULTS=$(realpath -m "${RESULTS:-$here/../results/evidence}")
records=$RESULTS/$name
[ "$SIZE" = cores ] || records=$records-$SIZE
mkdir -p "$2" "$records"
cd "$2"
shift 3
export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1} TOKENIZERS_PARALLELISM=false OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
declare -A corpora queries qrels # of each test set
DEPTH=${DEPTH:-100}

say() { printf '\n== %s  %s\n' "$(date +%H:%M)" "$*" >&2; }

sized() { # CORES H200 TOY: the value of the size at hand
  case $SIZE in cores) echo "$1" ;; h200) echo "$2" ;; toy) echo "$3" ;; *) echo "SIZE=$SIZE: expected cores, h200 or toy" >&2; exit 2 ;; esac
}

recorded() { [ -e "$records/$1.json" ]; } # ROW

searched() { # CHECKPOINT ROW SET...: runs/ROW/SET/RUN.trec, each set's corpus encoded once
  local checkpoint=$1 row=$2 set corpus
  shift 2
  for set in "$@"; do
    corpus=$(basename "${corpora[$set]}" .jsonl)
    $MOEIR encode --model "$checkpoint" --corpus "${corpora[$set]}" --output "enc/$row/$corpus"
    $MOEIR index --encodings "enc/$row/$corpus" --output "idx/$row/$corpus"
    $MOEIR search --index "idx/$row/$corpus" --queries "${queries[$set]}" --depth "$DEPTH" --output "runs/$row/$set"
  done
}

bm25() { # SET...: the record of the row bm25
  local set corpus
  for set in "$@"; do
    corpus=$(basename "${corpora[$set]}" .jsonl)
    $MOEIR index --corpus "${corpora[$set]}" --engine bm25 --output "idx/bm25/$corpus"
    $MOEIR search --index "idx/bm25/$corpus" --queries "${queries[$set]}" --depth "$DEPTH" --output "runs/bm25/$set/bm25.trec"
  done
  record bm25 - "$@"
}

record() { # ROW CHECKPOINT SET...: the record of runs/ROW/SET/*.trec, with the log and settings of the training (- for none)
  local row=$1 checkpoint=$2 set judged=()
  shift 2
  for set in "$@"; do judged+=("$set=${qrels[$set]}"); done
  say "recording $row"
  SIZE=$SIZE $PYTHON "$here/record.py" "$row" "$records" --training "$checkpoint" "${judged[@]}"
  if [ "$KEEP" = no ]; then rm -rf "enc/$row" "idx/$row" "ckpt/$row"; fi
}
