"""Bad input of encode: shards, processes, and limits on representations.

Bad input of check and convert.

Bad input of learned fusions, of tuning, and of side outputs of fuse.

Bad input of report.

Bad input of rerankers: cross-encoders, their training, and rerank.

Bad input of search and export.

Bad input of updates of an index.
"""

from tests.bad_input import ENCODE, INDEX, SEARCH, BadInput, write_corpus, write_file

CAME = ENCODE + "came"
PIPED = CAME.replace("corpus.jsonl", "-")

ENCODING = [
    BadInput("a shard without a number", None, CAME + " --shard 3", 2, "--shard 3: expected I/N, the I-th of N parts counted from 0"),
    BadInput("a shard behind the last", None, CAME + " --shard 3/3", 2, "--shard 3/3: expected I/N"),
    BadInput("more shards than windows", None, CAME + " --shard 0/2", 2, "12 texts, 1 windows of 256; expected at most 1 shards"),
    BadInput("a shard of a pipe", None, PIPED + " --shard 0/2", 2, "--shard: needs a corpus whose texts can be counted"),
    BadInput("no terms", None, CAME + " --terms 0", 2, "--terms 0: expected at least 1"),
    BadInput("no terms by another name", None, CAME + " --top-k 0", 2, "--terms 0: expected at least 1"),
    BadInput("weights of nothing", None, CAME + " --least-weight 0", 2, "--least-weight 0: expected more than 0"),
    BadInput("a weight beyond all", None, CAME + " --least-weight inf", 2, "--least-weight: expected a number, found 'inf'"),
    BadInput("pools of nothing", None, CAME + " --pool-factor 0", 2, "--pool-factor 0: expected at least 1"),
]

CONVERT = "convert --input "
CHECK = "check --corpus corpus.jsonl "

FORMATS = [
    BadInput("nothing to check", None, "check", 2, "check needs --corpus, --queries, --qrels, --train, --run or --encodings"),
    BadInput("an unknown kind of fault", None, CHECK + "--allow tie", 2, "there is no such kind of fault; did you mean 'ties'?"),
    BadInput("a check against no file", None, CHECK + "--qrels absent", 3, "absent: no such file (--qrels)"),
    BadInput("a length without a tokenizer", None, CHECK + "--document-length 9", 2, "--document-length: needs --model"),
    BadInput("a length of plain weights", None, CHECK + "--model tiny", 2, "plain weights have no maximum length; add --document-length"),
    BadInput("mending in its own place", None, CHECK + "--fix .", 2, "--fix .: would replace what --corpus reads, corpus.jsonl"),
    BadInput("mending into what others made", write_file("mine", "x"), CHECK + "--fix mine", 2, "mine: exists and was not made by moeir"),
    BadInput("an unknown format", None, CONVERT + "test.qrels --to trec", 2, "formats has no 'trec'"),
    BadInput(
        "a format that is not sure",
        write_file("x.tsv", "1\t2\t3\n"),
        CONVERT + "x.tsv --to run",
        2,
        "x.tsv: may be tevatron-run or beir-qrels or msmarco-run; say which with --from",
    ),
    BadInput("a kind that is another", None, CONVERT + "one.trec --to tsv", 2, "one.trec is run, a run, which becomes colbert-run,"),
    BadInput("a faulty line", write_corpus("{"), CONVERT + "bad.jsonl --to tsv --output out", 3, "bad.jsonl:2: broken JSON at column 2"),
    BadInput(
        "what would be lost",
        write_corpus('{"_id": "b", "title": "T", "text": "x"}'),
        CONVERT + "bad.jsonl --to tsv --output out",
        2,
        "would be lost",
    ),
    BadInput(
        "texts that are not named", None, CONVERT + "good.jsonl --to dpr --output out", 2, "name the file that has them with --queries"
    ),
    BadInput(
        "a layout of experts",
        None,
        CONVERT + "came --to pylate --output out",
        2,
        "supports colbert; its layout cannot hold the experts of came",
    ),
    BadInput(
        "an artifact without a tokenizer of its own", None, CONVERT + "enc --to anserini-vectors", 2, "has lexical, global; choose one"
    ),
    BadInput("info of what is not sure", write_file("x.tsv", "1\t2\t3\n"), "info x.tsv", 2, "or msmarco-run; say which with --from"),
]

FUSE_TWO = "fuse --run one.trec --run two.trec --output out.trec "
CALIBRATE = "calibrate --run one.trec --run two.trec --qrels test.qrels --output out.json"
LINEAR = '{"moeir_fusion": 1, "method": "linear:weights=1+2", "runs": ["one", "two"], "found": {}}'
LEARNED = FUSE_TWO + "--learned bad.json"

FUSING = [
    BadInput("one list to weigh", None, CALIBRATE.replace("--run two.trec ", ""), 2, "--run: expected 2 or more, found 1"),
    BadInput("a fusion on stdout", None, CALIBRATE.replace("out.json", "-"), 2, "--output -: expected a file to write"),
    BadInput("the same list twice", None, CALIBRATE + " --run one.trec", 2, "the same run is given twice"),
    BadInput(
        "no list for judgements", write_file("test.qrels", "q9 0 owl 1\n"), CALIBRATE, 3, "test.qrels: no query has a relevant document"
    ),
    BadInput("runs of an index", None, CALIBRATE + " --index idx", 2, "calibrate needs --index, to scale its experts, or several --run"),
    BadInput("queries for runs", None, CALIBRATE + " --queries queries.tsv", 2, "--queries needs --index: runs are not searched again"),
    BadInput("nothing to calibrate", None, "calibrate --qrels test.qrels --output out", 2, "calibrate needs --index, to scale"),
    BadInput(
        "an index without queries", None, "calibrate --index idx --qrels test.qrels --output out", 2, "calibrate --index needs --queries"
    ),
    BadInput("no fusion", write_file("bad.json", '{"a": 1}'), LEARNED, 3, "bad.json: no fusion of format 1; expected what moeir calibrate"),
    BadInput("a fusion not JSON", write_file("bad.json", "{"), LEARNED, 3, "bad.json: not JSON"),
    BadInput(
        "a fusion unknown", write_file("bad.json", LINEAR.replace("linear:", "liner:")), LEARNED, 3, "bad.json: fusion has no 'liner'"
    ),
    BadInput("a missing fusion", None, LEARNED, 3, "bad.json: no such file (--learned)"),
    BadInput(
        "three lists for two", write_file("bad.json", LINEAR), LEARNED + " --run made.trec", 2, "learned on 2 runs (one, two), found 3"
    ),
    BadInput(
        "another order", write_file("bad.json", LINEAR.replace('"one", "two"', '"two", "one"')), LEARNED, 2, "in the order two, one, found"
    ),
    BadInput("two fusions", write_file("bad.json", LINEAR), LEARNED + " --method rrf", 2, "--learned and --method exclude one another"),
    BadInput(
        "tuned and learned", write_file("bad.json", LINEAR), LEARNED + " --tune RR --qrels test.qrels", 2, "--learned and --tune exclude"
    ),
    BadInput("queries for nothing", None, FUSE_TWO + "--queries queries.tsv", 2, "--queries needs --group-by FIELD"),
    BadInput("nothing found to save", None, FUSE_TWO + "--save found.json", 2, "fuse: --save is for tuning; add --tune MEASURE"),
    BadInput("tuned weights", None, FUSE_TWO + "--method linear --tune RR --qrels test.qrels", 2, "; moeir calibrate fits its weights"),
    BadInput("no judgements of a loss", None, FUSE_TWO + "--ablation lost.tsv", 2, "--ablation needs --qrels"),
    BadInput("a measure for nothing", None, FUSE_TWO + "--measure RR", 2, "--measure is for --ablation FILE"),
    BadInput(
        "an account over a file", write_file("why.tsv", "mine"), FUSE_TWO + "--attribution why.tsv", 2, "exists and was not made by moeir"
    ),
    BadInput("an account on stdout", None, FUSE_TWO + "--attribution -", 2, "--attribution -: expected a file to write"),
    BadInput("an account over the run", None, FUSE_TWO + "--attribution out.trec", 2, "--attribution out.trec: --output writes there"),
    BadInput("an account over a source", None, FUSE_TWO + "--attribution one.trec", 2, "would replace what --run reads"),
]

PAGE = "report --run one.trec --output page.html"
JUDGED = PAGE + " --qrels test.qrels"
POINTS = "side\tid\tgroup\tx\ty\n"

REPORTING = [
    BadInput("a report of nothing", None, "report --output page.html", 2, "report: expected --run and --qrels, or --training"),
    BadInput("runs without judgements", None, PAGE, 2, "report: --run needs --qrels"),
    BadInput("runs as text", None, "report --run one.trec --qrels test.qrels", 2, "--run: is for a page; expected --output page.html"),
    BadInput(
        "words of no run",
        write_file("bad.jsonl", '{"step": 1}\n'),
        "report --training bad.jsonl --corpus corpus.jsonl --output page.html",
        2,
        "--corpus needs --run",
    ),
    BadInput("reasons from two places", None, JUDGED + " --queries queries.tsv --index idx --explain good.jsonl", 2, "exclude one another"),
    BadInput("an index that is not asked", None, JUDGED + " --index idx", 2, "--index needs --queries"),
    BadInput("lists of nothing", None, JUDGED + " --depth 0", 2, "--depth 0: expected 1 to"),
    BadInput("texts of nothing", None, JUDGED + " --text-length 0", 2, "--text-length 0: expected at least 1"),
    BadInput("a measure that is none", None, JUDGED + " --measure nDGC@10", 2, "no measure is called 'nDGC@10'"),
    BadInput(
        "a run of another index",
        write_file("lexical.trec", "q1 Q0 newt 1 1 t\n"),
        JUDGED.replace("one.", "lexical=lexical.") + " --queries queries.tsv --index idx",
        3,
        "lexical: document 'newt' is not in idx",
    ),
    BadInput("judgements of other queries", write_file("test.qrels", "zz 0 owl 1\n"), JUDGED, 3, "test.qrels: run of another collection"),
    BadInput(
        "an explanation of something else", None, JUDGED + " --explain good.jsonl", 3, "good.jsonl:1: expected a line of search --explain"
    ),
    BadInput(
        "a broken explanation",
        write_file("bad.jsonl", '{"query": "q1", "document": "owl", "experts": {"a": {"terms": [1]}}}\n'),
        JUDGED + " --explain bad.jsonl",
        3,
        "bad.jsonl:1: expected of each expert its rank, score and part",
    ),
    BadInput(
        "an explanation in two places",
        write_file("bad.jsonl", "".join(f'{{"query": "{query}", "document": "owl", "experts": {{}}}}\n' for query in ("q1", "q2", "q1"))),
        JUDGED + " --explain bad.jsonl",
        3,
        "explanations of query 'q1' are not contiguous",
    ),
    BadInput("a map of nothing", write_file("map.tsv", POINTS), JUDGED + " --projection map.tsv", 3, "map.tsv: has no points"),
    BadInput(
        "a map of something else",
        write_file("map.tsv", "a\tb\n1\t2\n"),
        JUDGED + " --projection map.tsv",
        3,
        "expected the columns side, id, group",
    ),
    BadInput(
        "a point nowhere",
        write_file("map.tsv", POINTS + "query\tq1\ta\t1\tnan\n"),
        JUDGED + " --projection map.tsv",
        3,
        "map.tsv:2: a coordinate is not a number: 'nan'",
    ),
    BadInput(
        "a point that is cut",
        write_file("map.tsv", POINTS + "query\tq1\n"),
        JUDGED + " --projection map.tsv",
        3,
        "map.tsv:2: expected 5 tab-separated columns (side, id, ",
    ),
]

RERANK = "rerank --model came --queries queries.tsv --corpus corpus.jsonl --output out.trec --run "
TRAIN_CROSS_ENCODER = (
    "finetune --model tiny --arch cross-encoder --train good.jsonl --corpus corpus.jsonl --queries train-queries.jsonl --output out"
)
PRETRAIN = "pretrain --model tiny --arch cross-encoder --corpus corpus.jsonl --objective mlm --output out"
CASCADE = RERANK + "one.trec --depth 10 --then "

RERANKING = [
    BadInput("no such device to rerank on", None, RERANK + "one.trec --device cuda:99", 2, "--device cuda:99: torch sees"),
    BadInput(
        "a head that is none", None, TRAIN_CROSS_ENCODER.replace("encoder", "encoder:head=mean"), 2, "head=mean: expected hf or linear"
    ),
    BadInput(
        "no room for a document", None, TRAIN_CROSS_ENCODER + " --query-length 63", 2, "leaves no room for a document in a pair of 64"
    ),
    BadInput(
        "a group of one",
        None,
        TRAIN_CROSS_ENCODER + " --objective lce --negatives 0",
        2,
        "--negatives 0: this objective compares a positive",
    ),
    BadInput("no temperature", None, TRAIN_CROSS_ENCODER + " --objective lce:temperature=0", 2, "lce:temperature=0: expected more than 0"),
    BadInput("a development run alone", None, TRAIN_CROSS_ENCODER + " --dev-run one.trec", 2, "--dev-run: needs --dev-queries"),
    BadInput("a pre-trained cross-encoder", None, PRETRAIN, 2, "--arch cross-encoder: pre-train dense"),
    BadInput("a run of strangers", write_file("bad.trec", "q1 Q0 whale-x 1 2 t\n"), RERANK + "bad.trec", 3, "has no document 'whale-x'"),
    BadInput(
        "a run of other queries", write_file("bad.trec", "x9 Q0 owl 1 2 t\n"), RERANK + "bad.trec", 3, "has no query 'x9', which bad.trec"
    ),
    BadInput("no depth to rerank", None, RERANK + "one.trec --depth 0", 2, "--depth 0: expected 1 to"),
    BadInput("a round without a model", None, CASCADE + "5", 2, "--then 5: expected DEPTH:CHECKPOINT, as in 100:ckpt/lce"),
    BadInput("a deeper round", None, CASCADE + "10:came", 2, "--then 10:…: expected less than the depth before it, 10"),
    BadInput("a round by what is not there", None, CASCADE + "5:nowhere", 4, "nowhere"),
    BadInput("a round by weights", None, CASCADE + "5:tiny", 4, "tiny: "),
    BadInput("an unknown ensemble", None, RERANK + "one.trec --ensemble zscroe", 2, "has no 'zscroe'; did you mean 'zscore'?"),
    BadInput("an unknown way to cut", None, RERANK + "one.trec --passages best", 2, "--passages best: expected firstp, maxp or sump"),
    BadInput("a stride of nothing", None, RERANK + "one.trec --passages maxp --stride 0", 2, "--stride 0: expected at least 1"),
    BadInput("a stride of beginnings", None, RERANK + "one.trec --stride 9", 2, "--passages firstp reads only the first passage; add"),
    BadInput(
        "an expert that is not there", None, RERANK + "one.trec --expert sparse", 2, "--expert sparse: came has lexical, local, global"
    ),
    BadInput("the same run to rerank twice", None, RERANK + "one.trec --run one.trec", 2, "--run: the same run is given twice"),
    BadInput("a corpus for two", None, CASCADE.replace("corpus.jsonl", "-") + "5:came", 2, "--corpus -: every model reads it"),
    BadInput("more shards than queries", None, RERANK + "one.trec --shard 0/2", 2, "--shard 0/2: the run has 1 queries"),
    BadInput("no patience", None, RERANK + "one.trec --patience 0", 2, "--patience 0: expected at least 1"),
    BadInput("patience of several", None, CASCADE + "5:came+came --patience 3", 2, "--patience 3: several models would stop a query"),
    BadInput("patience of experts", None, RERANK + "one.trec --patience 3", 2, "--patience 3: is for cross-encoders, and came is none"),
    BadInput("a tag of two words", None, RERANK + "one.trec --tag a\tb", 2, "--tag"),
]

EXPORT = "export --encodings enc --output out --to "
ASK = "search --index idx --interactive"

SEARCHING = [
    BadInput("no queries", None, "search --index idx --output out.trec", 2, "search needs --queries"),
    BadInput("no threads", None, SEARCH + "idx --threads 0", 2, "--threads 0: expected 1 to 4096"),
    BadInput("batches of nothing", None, SEARCH + "idx --batch-size 0", 2, "--batch-size 0: expected at least 1"),
    BadInput("no such device to search on", None, SEARCH + "idx --device cuda:99", 2, "--device cuda:99: torch sees"),
    BadInput("the same index twice", None, SEARCH + "idx --index idx", 2, "the same index is given twice"),
    BadInput("parts of two kinds", None, SEARCH + "idx --index bm25", 4, "bm25: made with another checkpoint than idx"),
    BadInput("a corpus for nothing", None, SEARCH + "idx --corpus corpus.jsonl", 2, "is read only with --explain or --interactive"),
    BadInput(
        "an explanation over the corpus",
        None,
        SEARCH + "idx --corpus corpus.jsonl --explain corpus.jsonl --force",
        2,
        "would replace what --corpus reads",
    ),
    BadInput(
        "an explanation over the queries",
        None,
        SEARCH + "idx --explain queries.tsv --force",
        2,
        "would replace what --queries reads",
    ),
    BadInput("an explanation over a file", write_file("why.jsonl", "mine"), SEARCH + "idx --explain why.jsonl", 2, "was not made by moeir"),
    BadInput("an explanation on stdout", None, SEARCH + "idx --explain -", 2, "--explain -: expected a file to write"),
    BadInput("an explanation in the run", None, SEARCH + "idx --explain out.trec", 2, "--output writes there"),
    BadInput("asking with queries", None, ASK + " --queries queries.tsv", 2, "--queries: cannot be combined with --interactive"),
    BadInput("asking for a run", None, ASK + " --output out.trec", 2, "--output: cannot be combined with --interactive"),
    BadInput("unknown server", None, EXPORT + "qdrnt", 2, "export_targets has no 'qdrnt'; did you mean 'qdrant'?"),
    BadInput("a collection of two words", None, EXPORT + "qdrant:name=My-texts", 2, "expected lower-case letters"),
    BadInput("no impacts", None, EXPORT + "anserini:levels=0", 2, "expected more than 0"),
    BadInput("an export to a pipe", None, EXPORT.replace("output out", "output -") + "milvus", 2, "the output is a folder"),
    BadInput("an export of another corpus", None, EXPORT + "milvus --corpus train-queries.jsonl", 3, "where the encodings have 'owl'"),
    BadInput("an export of an index", None, EXPORT.replace("enc ", "idx ") + "milvus", 4, "idx: expected encodings, found an index"),
]

PUSH = "push --repo anna/x --input "
HUB = [
    BadInput("a push without a network", None, PUSH + "came", 2, "anna/x: not accepted: Cannot reach"),
    BadInput("a pull without a network", None, "pull --repo anna/x --output out", 2, "anna/x: not accepted: Cannot reach"),
    BadInput("a pull to a pipe", None, "pull --repo anna/x --output -", 2, "--output -: the output is a folder"),
    BadInput("a push of nothing", None, PUSH + "absent", 3, "absent: no such file or folder (--input)"),
    BadInput("a push of texts", None, PUSH + "corpus.jsonl", 4, "corpus.jsonl: has no manifest.json: unfinished, or not made by moeir"),
    BadInput("a push of plain weights", None, PUSH + "tiny", 4, "tiny: has no manifest.json"),
    BadInput("measures without judgements", None, PUSH + "came --run one.trec", 2, "--run needs --qrels"),
    BadInput("a sample of other texts", None, PUSH + "enc --corpus train-queries.jsonl", 3, "no document 'ant', which enc has"),
    BadInput("a sample without texts", write_file("none.jsonl", ""), PUSH + "came --corpus none.jsonl", 3, "none.jsonl"),
]

UPDATE = "index --output out --index "

UPDATING = [
    BadInput("an addition to nothing", None, "index --output out --add enc", 2, "--add: goes with --index, the index to update"),
    BadInput("a deletion from nothing", None, INDEX + "enc --delete enc/ids.txt", 2, "--delete: goes with --index"),
    BadInput("an update without a change", None, UPDATE + "idx", 2, "--index idx: expected --add, --delete or --compact"),
    BadInput("an update with other engines", None, UPDATE + "idx --compact --engine flat", 2, "--engine: cannot be combined with --index"),
    BadInput("an addition by another name", None, UPDATE + "idx --encodings enc", 2, "--encodings: cannot be combined with --index"),
    BadInput("an expansion of encodings", None, UPDATE + "idx --add enc --expansion good.jsonl", 2, "encodings are not expanded"),
    BadInput(
        "an update in its place", None, "index --index idx --compact --output idx", 2, "--output idx: would replace what --index reads"
    ),
    BadInput("an update of encodings", None, UPDATE + "enc --compact", 4, "enc: expected an index, found encodings"),
    BadInput("an addition that is not there", None, UPDATE + "idx --add nowhere", 3, "nowhere: no such file"),
    BadInput("an addition of an index", None, UPDATE + "idx --add idx", 4, "idx: expected encodings, found an index"),
    BadInput(
        "texts for encodings", None, UPDATE + "idx --add corpus.jsonl", 2, "--add corpus.jsonl: expected the output folder of moeir encode"
    ),
    BadInput("encodings for texts", None, UPDATE + "bm25 --add enc", 2, "--add enc: expected texts, as bm25 has bm25"),
    BadInput(
        "a document added again", None, UPDATE + "idx --add enc", 3, "document 'ant' is in idx already; to replace documents, name them"
    ),
    BadInput("a text added again", None, UPDATE + "bm25 --add corpus.jsonl", 3, "document 'ant' is in bm25 already; to replace documents"),
    BadInput(
        "all documents deleted", None, UPDATE + "idx --delete enc/ids.txt", 3, "has all 12 documents of idx; expected one that remains"
    ),
    BadInput("ids of no document", write_file("no.txt", "x\ny\n"), UPDATE + "idx --delete no.txt", 3, "none of its ids is in idx, such"),
    BadInput("no ids", write_file("no.txt", "\n"), UPDATE + "idx --delete no.txt", 3, "no.txt: holds no id; expected one in each line"),
    BadInput("a run for ids", None, UPDATE + "idx --delete one.trec", 3, "one.trec:1: id with white space"),
    BadInput("a folder for ids", None, UPDATE + "idx --delete enc", 3, "enc: expected a file for --delete, found a folder"),
    BadInput("a filter of no ids", write_file("no.txt", ""), SEARCH + "idx --filter-ids no.txt", 3, "no.txt: holds no id"),
    BadInput("a filter of strangers", write_file("no.txt", "x\n"), SEARCH + "idx --filter no.txt", 3, "no.txt: none of its ids is in idx"),
]
