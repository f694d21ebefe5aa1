"""Bad input of rerankers: cross-encoders, their training, and rerank."""

from tests.bad_input import BadInput, write_file

RERANK = "rerank --model came --queries queries.tsv --corpus corpus.jsonl --output out.trec --run "
TRAIN_CROSS_ENCODER = "finetune --model tiny --arch cross-encoder --train good.jsonl --corpus corpus.jsonl --queries train-queries.jsonl --output out"
PRETRAIN = "pretrain --model tiny --arch cross-encoder --corpus corpus.jsonl --objective mlm --output out"
CASCADE = RERANK + "one.trec --depth 10 --then "

RERANKING = [
    BadInput("no such device to rerank on", None, RERANK + "one.trec --device cuda:99", 2, "--device cuda:99: torch sees"),
    BadInput("a head that is none", None, TRAIN_CROSS_ENCODER.replace("encoder", "encoder:head=mean"), 2, "head=mean: expected hf or linear"),
    BadInput("no room for a document", None, TRAIN_CROSS_ENCODER + " --query-length 63", 2, "leaves no room for a document in a pair of 64"),
    BadInput("a group of one", None, TRAIN_CROSS_ENCODER + " --objective lce --negatives 0", 2, "--negatives 0: this objective compares a positive"),
    BadInput("no temperature", None, TRAIN_CROSS_ENCODER + " --objective lce:temperature=0", 2, "lce:temperature=0: expected more than 0"),
    BadInput("a development run alone", None, TRAIN_CROSS_ENCODER + " --dev-run one.trec", 2, "--dev-run: needs --dev-queries"),
    BadInput("a pre-trained cross-encoder", None, PRETRAIN, 2, "--arch cross-encoder: pre-train dense"),
    BadInput("a run of strangers", write_file("bad.trec", "q1 Q0 whale-x 1 2 t\n"), RERANK + "bad.trec", 3, "has no document 'whale-x'"),
    BadInput("a run of other queries", write_file("bad.trec", "x9 Q0 owl 1 2 t\n"), RERANK + "bad.trec", 3, "has no query 'x9', which bad.trec"),
    BadInput("no depth to rerank", None, RERANK + "one.trec --depth 0", 2, "--depth 0: expected at least 1"),
    BadInput("a round without a model", None, CASCADE + "5", 2, "--then 5: expected DEPTH:CHECKPOINT, as in 100:ckpt/lce"),
    BadInput("a deeper round", None, CASCADE + "10:came", 2, "--then 10:…: expected less than the depth before it, 10"),
    BadInput("a round by what is not there", None, CASCADE + "5:nowhere", 4, "nowhere"),
    BadInput("a round by weights", None, CASCADE + "5:tiny", 4, "tiny: "),
    BadInput("an unknown ensemble", None, RERANK + "one.trec --ensemble zscroe", 2, "has no 'zscroe'; did you mean 'zscore'?"),
    BadInput("an unknown way to cut", None, RERANK + "one.trec --passages best", 2, "--passages best: expected one of firstp, maxp, sump"),
    BadInput("a stride of nothing", None, RERANK + "one.trec --passages maxp --stride 0", 2, "--stride 0: expected at least 1"),
    BadInput("a stride of beginnings", None, RERANK + "one.trec --stride 9", 2, "--passages firstp reads only the first passage; add"),
    BadInput("an expert that is not there", None, RERANK + "one.trec --expert sparse", 2, "--expert sparse: came has lexical, local, global"),
    BadInput("the same run to rerank twice", None, RERANK + "one.trec --run one.trec", 2, "--run: the same run is given twice"),
    BadInput("a corpus for two", None, CASCADE.replace("corpus.jsonl", "-") + "5:came", 2, "--corpus -: every model reads it"),
    BadInput("more shards than queries", None, RERANK + "one.trec --shard 0/2", 2, "--shard 0/2: the run has 1 queries"),
    BadInput("no patience", None, RERANK + "one.trec --patience 0", 2, "--patience 0: expected at least 1"),
    BadInput("patience of several", None, CASCADE + "5:came+came --patience 3", 2, "--patience 3: several models would stop a query"),
    BadInput("patience of experts", None, RERANK + "one.trec --patience 3", 2, "--patience 3: is for cross-encoders, and came is none"),
    BadInput("a tag of two words", None, RERANK + "one.trec --tag a\tb", 2, "--tag"),
]
