# Settings and steps that the CoT-MoTE scripts share; sourced by them, not run. Paper: Ma et al. 2023, §3.3 and §4.2.
#
# An environment variable overrides each value, e.g. WORK=/fast/mote KEEP=no bash examples/cot_mote_msmarco.sh; those of all papers: steps.sh
# DATA        MS MARCO's files, listed in cot_mote_msmarco.sh; CORPUS, its passages with titles
# DOCUMENTS   texts of pre-training: JSON lines, or TSV with a header (id, title, text)
# MODEL       weights that pre-training starts from: BERT-base
# MOTE, SIAMESE, SEPARATE, SWITCHED: pre-trained weights of each architecture; those not set are pre-trained here
# COTMAE_V2   CoT-MAE v2's pre-trained weights
# T5, PREFIX  the query generator, and the passage prefix of its training; PER_SPAN queries each, written in SHARDS
#             parts: one after the other here, on as many GPUs in real use
# LEARN_BATCH 2,048 pairs of a span and a query, as the predecessors' scripts count ("2k" in the paper), in LEARN_PARTS batches a step, whose mean
#             is the gradient: 2 of 1,024 pairs in 140 GB of GPU memory, 4 in 80, LAUNCH on 8 GPUs 1
# LEARN_STEPS, STEPS: of pre-training, and of every fine-tuning in place of EPOCHS; CHECKPOINT_EVERY: steps between checkpoints of a pre-training
# GATE        nats per token. A short pre-training of GATE_STEPS must end with every decoder saving more by its vector, or the script stops:
#             80,000 steps that do not go through the bottleneck train a masked language model only. no: without it
# TRIPLES     the training set's own negatives, qidpidtriples.train.full.2.tsv: query, positive, negative, BM25's; no: those of our BM25
# RATE        2e-5 as in the published scripts of its predecessors; the paper prints 2e-4
# shellcheck shell=bash
DATA=${DATA:-data/msmarco} COTMAE_V2=${COTMAE_V2:-} CORPUS=${CORPUS:-titled.tsv} WORK=${WORK:-work/mote} MODEL=${MODEL:-bert-base-uncased}
DOCUMENTS=${DOCUMENTS:-$DATA/msmarco-docs.tsv} T5=${T5:-$PWD/models/doc2query-t5-base} PREFIX=${PREFIX-text2query: } PER_SPAN=${PER_SPAN:-5}
SHARDS=${SHARDS:-1} LEARN_STEPS=${LEARN_STEPS:-80000} LEARN_BATCH=${LEARN_BATCH:-2048} LEARN_PARTS=${LEARN_PARTS:-2}
LEARN_RATE=${LEARN_RATE:-3e-4} GATE=${GATE:-0.02} GATE_STEPS=${GATE_STEPS:-2000} CHECKPOINT_EVERY=${CHECKPOINT_EVERY:-20000}
QUERY_LENGTH=${QUERY_LENGTH:-32} DOCUMENT_LENGTH=${DOCUMENT_LENGTH:-144}
BATCH=${BATCH:-64} NEGATIVES=${NEGATIVES:-15} EPOCHS=${EPOCHS:-3} RATE=${RATE:-2e-5} WARMUP=${WARMUP:-0.1} SEED=${SEED:-42}
BM25=${BM25:-bm25:k1=0.82,b=0.68}                        # tuned for recall on MS MARCO: the paper's row
BM25_DEPTH=${BM25_DEPTH:-1000} MINING_DEPTH=${MINING_DEPTH:-200} DEPTH=${DEPTH:-1000}
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

TRIPLES=${TRIPLES:-$DATA/qidpidtriples.train.full.2.tsv}
DATA=$(absolute "$DATA") DOCUMENTS=$(absolute "$DOCUMENTS") spans=$WORK/data/spans.jsonl
settings=(--query-length "$QUERY_LENGTH" --document-length "$DOCUMENT_LENGTH" --batch-size "$BATCH" --negatives "$NEGATIVES")
settings+=(--epochs "$EPOCHS" --learning-rate "$RATE" --warmup "$WARMUP" --seed "$SEED")
objective=contrastive:flops_query=0,flops_document=0
called=([bm25]='' [global]=dense [lexical]=sparse [fused]=hybrid)
declare -A weights=([mote]=${MOTE:-} [siamese]=${SIAMESE:-} [separate]=${SEPARATE:-} [switched]=${SWITCHED:-} [cotmae-v2]=$COTMAE_V2)

msmarco "$DATA" "$CORPUS"
tests=(dev dl19 dl20)
measures+=([dev]="RR@10 R@1 R@50 R@1000" [dl19]="nDCG@10" [dl20]="nDCG@10")
depths+=([bm25-train]=$BM25_DEPTH [train]=$MINING_DEPTH)

negatives() { # NAME RUN DEPTH: training examples data/NAME.jsonl
  $MOEIR mine-negatives --run "$(path train "$2")" --qrels "${qrels[train]}" --method "band:first=0,last=$3" --output "$WORK/data/$1.jsonl"
}

bm25_negatives() { # what every first training learns from: the training set's own negatives, as a run, or those of our BM25
  local run
  bm25 msmarco "$BM25" "${tests[@]}"
  if [ "$TRIPLES" = no ]; then
    bm25 msmarco "$BM25" train
    negatives bm25 bm25/bm25 "$BM25_DEPTH"
    return
  fi
  run=$(path train triples/triples)
  if [ ! "$run" -nt "$TRIPLES" ]; then
    mkdir -p "${run%/*}"
    tr -d '\r' <"$TRIPLES" | awk 'NR == FNR { judged[$1]; next } $1 in judged && !($1 SUBSEP $3 in seen) {
      if ($1 != query) { split("", seen); query = $1; rank = 0 } # a query has its lines together
      seen[$1 SUBSEP $3]; print $1, "Q0", $3, ++rank, -rank, "triples"
    }' "${qrels[train]}" - >"$run.new"
    mv "$run.new" "$run"
  fi
  negatives bm25 triples/triples "$BM25_DEPTH"
}

two_stages() { # NAME WEIGHTS ARCH RUN: NAME-bm25, then NAME on what its RUN finds; both from the WEIGHTS
  trained "$1-bm25" "$2" "$3" "$objective" --train "$WORK/data/bm25.jsonl" --corpus "${corpora[msmarco]}" --queries "${queries[train]}"
  searched "$1-bm25" msmarco train "${tests[@]}"
  negatives "$1-bm25" "$1-bm25/$4" "$MINING_DEPTH"
  trained "$1" "$2" "$3" "$objective" --train "$WORK/data/$1-bm25.jsonl" --corpus "${corpora[msmarco]}" --queries "${queries[train]}"
  searched "$1" msmarco "${tests[@]}"
}

asked() { # the spans of DOCUMENTS, and data/asked-N.jsonl, queries that T5 writes for each
  local part
  [ -s "$spans" ] || $PYTHON "$examples/spans.py" "$MODEL" "$DOCUMENTS" "$spans" "$DOCUMENT_LENGTH" "$SEED"
  for ((part = 0; part < SHARDS; part++)); do
    $MOEIR generate-queries --model "$T5" --prefix "$PREFIX" --corpus "$spans" --queries-per-passage "$PER_SPAN" --top-k 25 --top-p 0.95 \
      --max-output 64 --seed "$SEED" --shard "$part/$SHARDS" --output "$WORK/data/asked-$part.jsonl"
  done
}

pretrained() { # NAME ARCH OBJECTIVE CORPUS FLAGS...: pre/NAME, or the end of the script if its gate, pre/NAME-gate, does not use the bottleneck
  local name=$1 arch=$2 objective=$3 corpus=$4 flags
  shift 4
  flags=(--model "$MODEL" --arch "$arch" --objective "$objective" --corpus "$corpus" "$@" --batch-size $((LEARN_BATCH / LEARN_PARTS)))
  flags+=(--accumulate "$LEARN_PARTS" --warmup 0.1 --weight-decay 0.01 --seed "$SEED" --cache "$WORK/data/tokens")
  if [ "$GATE" != no ] && [ ! -e "$WORK/pre/$name/manifest.json" ]; then
    say "pre-training $name-gate: $GATE_STEPS steps, to see whether the decoder uses its vectors"
    $LAUNCH pretrain "${flags[@]}" --steps "$GATE_STEPS" --output "$WORK/pre/$name-gate"
    $PYTHON "$examples/gate.py" "$WORK/pre/$name-gate" "$GATE"
  fi
  say "pre-training $name: $arch, $objective"
  $LAUNCH pretrain "${flags[@]}" --steps "$LEARN_STEPS" --checkpoint-every "$CHECKPOINT_EVERY" --output "$WORK/pre/$name"
}

recipe() { # NAME, a key of `weights`: pre-trained if need be, then trained by the sum of dense and sparse scores
  local encoders=${1/switched/mote} task=mote part flags=()
  encoders=${encoders/cotmae-v2/siamese}
  if [ -z "${weights[$1]}" ]; then
    asked
    for ((part = 0; part < SHARDS; part++)); do flags+=(--queries "$WORK/data/asked-$part.jsonl"); done
    flags+=(--short-spans 0 --document-length "$DOCUMENT_LENGTH" --query-length 64 --learning-rate "$LEARN_RATE")
    [ "$1" != switched ] || task=mote:switch_corpus=true
    pretrained "$1" "mote:encoders=$encoders" "$task" "$spans" "${flags[@]}"
    weights[$1]=$WORK/pre/$1
  fi
  two_stages "$1" "${weights[$1]}" "mote:encoders=$encoders,similarity=hybrid" fused
}
