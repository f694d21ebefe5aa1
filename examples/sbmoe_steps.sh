# Settings and steps that the SB-MoE scripts share; sourced by them, not run. Paper: Sokli et al. 2025, §IV.
#
# An environment variable overrides each value, e.g. BACKBONE=small COLLECTION=nq bash examples/sbmoe_table1.sh; those of all papers: steps.sh
# BACKBONE    tinybert, small, base or contriever; MODEL, if set, are other weights (as model.safetensors: README.md)
# COLLECTION  msmarco (MS MARCO, TREC DL 2019 and 2020), or a folder of BEIR's form under BEIR: nq, hotpotqa, ps, cs
# DATA        MS MARCO's files, as sbmoe_table1.sh lists them
# TRAIN       the folder of the training part of a collection of BEIR's form: its own folder, but BEIR keeps that of nq in nq-train
# COMBINE     release: the published code's sum, whose gate gets no gradient. norm_expert, the default, learns its gate
# VALIDATION  part of the training queries held out. The paper keeps the checkpoint with the lowest validation loss; kept here is the
#             epoch with the best RR@10 of the held-out queries among their own positives, which is what that loss measures
# shellcheck shell=bash
BACKBONE=${BACKBONE:-tinybert} COLLECTION=${COLLECTION:-msmarco}
case $BACKBONE in
tinybert) MODEL=${MODEL:-huawei-noah/TinyBERT_General_4L_312D} EPOCHS=${EPOCHS:-30} ;;
small) MODEL=${MODEL:-google/bert_uncased_L-4_H-512_A-8} ;;
base) MODEL=${MODEL:-bert-base-uncased} ;;
contriever) MODEL=${MODEL:-facebook/contriever} SCALE=${SCALE:-20} ;; # temperature 0.05
*)
  echo "BACKBONE=$BACKBONE: expected tinybert, small, base or contriever" >&2
  exit 2
  ;;
esac
if [ "$COLLECTION" = cs ]; then EPOCHS=${EPOCHS:-10}; fi
EPOCHS=${EPOCHS:-20} SCALE=${SCALE:-1} EXPERTS=${EXPERTS:-6} COMBINE=${COMBINE:-norm_expert}
RATE=${RATE:-1e-6} MIXTURE_RATE=${MIXTURE_RATE:-1e-4} WEIGHT_DECAY=${WEIGHT_DECAY:-0.01} CLIP=${CLIP:-0} SEED=${SEED:-42}
BATCH=${BATCH:-64} LENGTH=${LENGTH:-512} VALIDATION=${VALIDATION:-0.05} DEPTH=${DEPTH:-1000}
DATA=${DATA:-data/msmarco} WORK=${WORK:-work/sbmoe/$BACKBONE-$COLLECTION}
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

DATA=$(absolute "$DATA")
settings=(--query-length "$LENGTH" --document-length "$LENGTH" --batch-size "$BATCH" --negatives 0 --epochs "$EPOCHS")
settings+=(--learning-rate "$RATE" --schedule constant --warmup 0 --weight-decay "$WEIGHT_DECAY" --clip "$CLIP" --seed "$SEED")
settings+=(--train "$WORK/data/train.jsonl" --dev-queries "$WORK/data/dev-queries.jsonl" --dev-qrels "$WORK/data/dev.qrels")
settings+=(--dev-corpus "$WORK/data/dev-corpus.jsonl" --dev-measure RR@10)
wanted="R@100 nDCG@10"

if [ "$COLLECTION" = msmarco ]; then
  msmarco "$DATA"
  corpus=msmarco tests=(dev dl19 dl20) training=("${queries[train]}" "${qrels[train]}" "${corpora[msmarco]}")
  measures+=([dev]="$wanted" [dl19]="$wanted" [dl20]="$wanted")
else
  if [ "$COLLECTION" = nq ]; then TRAIN=${TRAIN:-$BEIR/nq-train}; fi
  TRAIN=$(absolute "${TRAIN:-$BEIR/$COLLECTION}")
  beir "$COLLECTION" "$wanted"
  corpus=beir-$COLLECTION tests=("beir-$COLLECTION") training=("$TRAIN/queries.jsonl" "$TRAIN/qrels/train.tsv" "$TRAIN/corpus.jsonl")
fi

split() { # the training queries without those held out, as examples of positives alone, and those held out
  if [ -s "$WORK/data/train.jsonl" ] && [ "$WORK/data/train.jsonl" -nt "${training[1]}" ]; then return; fi
  say "holding out $VALIDATION of the training queries"
  $PYTHON "$examples/held_out.py" --queries "${training[0]}" --qrels "${training[1]}" --corpus "${training[2]}" --part "$VALIDATION" \
    --seed "$SEED" --output "$WORK/data"
}

learned() { # NAME ARCH FLAGS...: a model, all alike
  local name=$1 arch=$2
  shift 2
  trained "$name" "$MODEL" "$arch,pooling=mean,scale=$SCALE" contrastive "$@" --queries "${training[0]}" --corpus "${training[2]}"
}

fine_tuned() { learned fine-tuned dense:encoders=siamese; }

random_gate() { learned random-gate "sbmoe:experts=$EXPERTS,combine=$COMBINE,gate=random" --group-rate "mixture=$MIXTURE_RATE"; }

top1() { # [N]: top1 with N experts (top1-N, if said), trained by noisy top-1
  learned "top1${1:+-$1}" "sbmoe:experts=${1:-$EXPERTS},combine=$COMBINE" --group-rate "mixture=$MIXTURE_RATE"
}

all() { # [N]: the same training with all experts in use
  $MOEIR init --model "$WORK/ckpt/top1${1:+-$1}" --arch sbmoe:inference=all --output "$WORK/ckpt/all${1:+-$1}"
}
