# Steps that the scripts of this folder share; sourced by them, not run.
#
# Use of every script: SCRIPT DATA_FOLDER WORK_FOLDER MODEL_FOLDER [ROW...]; without rows all of them, in order. DATA_FOLDER holds collections in
# BEIR's layout (squad/, medquad/, scifact/, …). Several calls may share a WORK_FOLDER once `prepare`, the first row, is there: one call per core,
# with OMP_NUM_THREADS=1. Finished stages are skipped, interrupted ones continue; a row whose record exists in RESULTS is skipped as a whole.
#
# SIZE        cores (the declared size), h200 (the same experiment on one H200), toy (for tests); the script says what each means
# RESULTS     folder of the records, NAME.jsonl.gz with a line for each row (default: tests/benchmarks/results/evidence)
# REPEAT      a word of letters and digits: the whole experiment once more, e.g. on another kind of processor; records go to NAME-REPEAT.
#             It needs a WORK_FOLDER of its own: in that of the first run, finished stages would be recorded again instead of run
# KEEP        no: checkpoints, encodings and indexes of a row are removed once it is recorded
# A script names its size variables in `sizes` before it sources this file. Any of them can be set alone, e.g. STEPS=500; records then go to
# NAME-custom, so that no table mixes them with the declared ones, and every record has all of them.
# shellcheck shell=bash
MOEIR=${MOEIR:-moeir} PYTHON=${PYTHON:-python3} SIZE=${SIZE:-cores} KEEP=${KEEP:-yes}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=$(basename "$0" .sh)
if [ $# -lt 3 ]; then
  echo "use: $0 DATA_FOLDER WORK_FOLDER MODEL_FOLDER [ROW...]" >&2
  exit 2
fi
case $SIZE in cores | h200 | toy) ;; *) echo "SIZE=$SIZE: expected cores, h200 or toy" >&2 && exit 2 ;; esac
[ -d "$1" ] || { echo "$1: no such folder; expected DATA_FOLDER, with collections in BEIR's layout below it" >&2 && exit 2; }
[ -e "$3/config.json" ] || { echo "$3: no config.json; expected MODEL_FOLDER, with a model in Hugging Face's layout" >&2 && exit 2; }
data=$(realpath "$1") model=$(realpath "$3")
RESULTS=$(realpath -m "${RESULTS:-$here/../results/evidence}")
records=$RESULTS/$name
[ "$SIZE" = cores ] || records=$records-$SIZE
if [[ ! ${REPEAT:-} =~ ^[a-z0-9]*$ || ${REPEAT:-} =~ ^(cores|h200|toy|custom)$ ]]; then
  echo "REPEAT=$REPEAT: expected small letters and digits, and not the name of a size; e.g. amx" >&2 && exit 2
fi
records=$records${REPEAT:+-$REPEAT}
for one in "${sizes[@]}"; do
  if [ -n "${!one+set}" ]; then
    case $records in *-custom) ;; *) records=$records-custom && echo "$one is set: records go to $records.jsonl.gz" >&2 ;; esac
  fi
done
records=$records.jsonl.gz
mkdir -p "$2"
cd "$2"
shift 3
export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1} TOKENIZERS_PARALLELISM=false OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
declare -A corpora queries qrels # of each test set
commit=$($PYTHON "$here/record.py" --commit) # of the code that runs, before anything is trained
DEPTH=${DEPTH:-100}

say() { printf '\n== %s  %s\n' "$(date +%H:%M)" "$*" >&2; }

sized() { # CORES H200 TOY: the value of the size at hand
  case $SIZE in cores) echo "$1" ;; h200) echo "$2" ;; toy) echo "$3" ;; esac
}

cut_model() { # LAYERS: `model` is MODEL_FOLDER's first LAYERS from here on; all: as it is
  [ "$1" != all ] || return 0
  [ -s model/config.json ] || $PYTHON "$here/cut_layers.py" "$model" model "$1"
  model=$PWD/model
}

recorded() { # ROW [KIND]: whether RESULTS has the record of a row, or of a tried setting (KIND choice)
  [ -e "$records" ] && gzip -dc "$records" | grep -F "{\"${2:-row}\": \"$1\"," >/dev/null
}

run_rows() { # EXPECTED PATTERN ROW...: `prepare`, and `run_row ROW` for each that is not recorded; all names are checked before the first runs
  local expected=$1 pattern=$2 one
  shift 2
  for one in "$@"; do
    if [[ ! $one =~ ^($pattern)$ ]]; then echo "$one: no such row; expected $expected" >&2 && exit 2; fi
  done
  for one in "$@"; do
    if [ "$one" = prepare ]; then prepare; elif recorded "$one"; then say "$one is recorded: $records"; else run_row "$one"; fi
  done
}

shelf() { # SET: the name of its corpus below enc/ and idx/; sets that share a corpus share it
  echo "$(basename "$(dirname "${corpora[$1]}")")-$(basename "${corpora[$1]}")"
}

searched() { # CHECKPOINT ROW SET...: runs/ROW/SET/RUN.trec
  local checkpoint=$1 row=$2 set
  shift 2
  for set in "$@"; do
    $MOEIR encode --model "$checkpoint" --corpus "${corpora[$set]}" --keep-empty --output "enc/$row/$(shelf "$set")"
    $MOEIR index --encodings "enc/$row/$(shelf "$set")" --output "idx/$row/$(shelf "$set")"
    $MOEIR search --index "idx/$row/$(shelf "$set")" --queries "${queries[$set]}" --depth "$DEPTH" --output "runs/$row/$set"
  done
}

bm25() { # SET...: runs/bm25/SET/bm25.trec, and the record of the row bm25
  local set
  for set in "$@"; do
    $MOEIR index --corpus "${corpora[$set]}" --keep-empty --engine bm25 --output "idx/bm25/$(shelf "$set")"
    $MOEIR search --index "idx/bm25/$(shelf "$set")" --queries "${queries[$set]}" --depth "$DEPTH" --output "runs/bm25/$set/bm25.trec"
  done
  recorded bm25 || KEEP=yes record bm25 - "$@" # `prepare` still searches its index
}

calibrated() { # ROW RUN...: fused/ROW/test/calibrated.trec, a sum with weights fitted on the questions of `dev` (equal ones if
  # these do not win on held-out questions), and with-bm25.trec
  local row=$1 run dev=() test=()
  shift
  for run in "$@"; do
    dev+=(--run "runs/$row/dev/$run.trec")
    test+=(--run "runs/$row/test/$run.trec")
  done
  $MOEIR calibrate "${dev[@]}" --qrels "${qrels[dev]}" --depth "$DEPTH" --output "fused/$row.json"
  $MOEIR fuse "${test[@]}" --learned "fused/$row.json" --depth "$DEPTH" --output "fused/$row/test/calibrated.trec"
  $MOEIR fuse --run "fused/$row/test/calibrated.trec" --run runs/bm25/test/bm25.trec --method rrf --depth "$DEPTH" \
    --output "fused/$row/test/with-bm25.trec"
}

record() { # ROW [NAME=]CHECKPOINT,... SET...: the record of {runs,fused}/ROW/SET/*.trec, and logs and settings of trainings (- for none)
  local row=$1 trainings=$2 set one flags=()
  shift 2
  [ "$trainings" = - ] || for one in ${trainings//,/ }; do flags+=(--training "$one"); done
  for one in "${sizes[@]}"; do flags+=(--variable "$one=${!one}"); done
  for set in "$@"; do flags+=("$set=${qrels[$set]}=${corpora[$set]}"); done
  say "recording $row"
  SIZE=$SIZE COMMIT=$commit $PYTHON "$here/record.py" "$row" "$records" "${flags[@]}"
  if [ "$KEEP" = no ]; then rm -rf "enc/$row" "idx/$row" "ckpt/$row"; fi
}

same_weights() { # ROW CHECKPOINT: an error unless ROW was recorded with the weights of CHECKPOINT
  $PYTHON "$here/record.py" "$1" "$records" --same "$2"
}

divided() { # QUERIES QRELS COUNT FIRST REST: FIRST-queries.jsonl and FIRST.tsv with the first COUNT questions, REST-queries.jsonl and REST.tsv
  $PYTHON - "$@" <<'P'
import sys
from moeir.records import qrels, texts
queries, judgements, count, first, rest = sys.argv[1:]
questions, judged = list(texts.read_texts(queries)), qrels.read_qrels(judgements)
for name, part in ((first, questions[: int(count)]), (rest, questions[int(count) :])):
    if not part:  # nothing is left over at a small size
        continue
    texts.write_texts(part, f"{name}-queries.jsonl")
    qrels.write_qrels({question.id: judged[question.id] for question in part}, f"{name}.tsv")
P
}

articles() { # data/: SQuAD's development articles, those that train in two halves (articles.py); 300 of the questions of dev are watched
  [ -s data/dev-corpus.jsonl ] || $PYTHON "$here/articles.py" "$data/squad" data --test "$TITLES" --dev "$DEV_TITLES" --others "$OTHERS"
  [ -s data/watched.tsv ] || divided data/dev-queries.jsonl data/dev.tsv 300 data/watched data/unwatched
}
watched=(--dev-queries data/watched-queries.jsonl --dev-qrels data/watched.tsv --dev-corpus data/dev-corpus.jsonl --keep last)
