"""Each kind of bad input ends with its exit code and one line with place and cause, and leaves every file unchanged."""

import fcntl
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from moeir.artifacts import manifests
from tests.kill_points import FullDisk

Setup = Callable[[Path], object]


class BadInput(NamedTuple):
    """A command that fails, its exit code, a part of its error message, and its setup."""

    command: str
    code: int
    message: str
    setup: Setup | None = None


def write_file(name: str, content: str | bytes) -> Setup:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def write_corpus(*lines: str) -> Setup:
    """Write bad.jsonl: a valid line, then `lines`."""
    return write_lines('{"_id": "a", "text": "owl"}', *lines)


def write_lines(*lines: str) -> Setup:
    return write_file("bad.jsonl", "".join(f"{line}\n" for line in lines))


def damaged_copy(what: str, name: str, damage: Callable[[Path], object]) -> Setup:
    """Copy an artifact to `bad` and damage one of its files."""

    def setup(folder: Path) -> None:
        shutil.copytree(folder / what, folder / "bad")
        damage(folder / "bad" / name)

    return setup


def set_keys(**facts: object) -> Callable[[Path], object]:
    """Set some keys of a JSON file."""

    def damage(path: Path) -> None:
        content = json.loads(path.read_text()) | facts
        path.write_text(manifests.serialize_manifest(content) if path.name == manifests.MANIFEST else json.dumps(content))

    return damage


def overwrite(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


config, weights, tokenizer = (partial(damaged_copy, "tiny", name) for name in ("config.json", "model.safetensors", "tokenizer.json"))
manifest = partial(damaged_copy, "idx", manifests.MANIFEST)


def lock_output(folder: Path) -> object:
    """Lock the output, as another process would."""
    (folder / ".out.partial").mkdir()
    lock = open(folder / ".out.partial/out.lock", "w")  # noqa: SIM115 - closed when the test forgets it
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


# The system's error for that folder: in a container all of /sys may be read-only, even for root
IS_READ_ONLY = os.statvfs("/sys/kernel").f_flag & os.ST_RDONLY  # where root may not write, as below
DENIED = "denied" if os.geteuid() != 0 else "Read-only" if IS_READ_ONLY else "not permitted"


def make_read_only(folder: Path) -> None:
    """Make a folder without write permission; for root, a link into /sys."""
    if os.geteuid() == 0:
        (folder / "locked").symlink_to("/sys/kernel")
    else:
        (folder / "locked").mkdir(mode=0o500)


def lead_in_a_circle(folder: Path) -> None:
    (folder / "circle").symlink_to("circle")


def leave_unfinished_work(folder: Path) -> None:
    (folder / ".out.partial/out/resume").mkdir(parents=True)
    (folder / ".out.partial/out/resume/journal.jsonl").write_text("{}\n")
    (folder / ".out.partial/out.record").write_text(json.dumps({"stage": "encode", "settings": {"dtype": "bfloat16"}, "sources": {}}))


def make_other_checkpoint(folder: Path) -> None:
    shutil.copytree(folder / "came", folder / "other")
    files = json.loads((folder / "came/manifest.json").read_text())["files"]
    set_keys(files={"moeir.json": files["moeir.json"]})(folder / "other/manifest.json")


def remove_seal(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["seal"]
    path.write_text(json.dumps(content))


def rewrite_facts(change: Callable[[Path], object]) -> Setup:
    """Change moeir.json of a checkpoint, and its entry in the manifest, as another version might have written it."""

    def setup(folder: Path) -> None:
        damaged_copy("came", "moeir.json", change)(folder)
        path = folder / "bad" / manifests.MANIFEST
        content = json.loads(path.read_text())
        content["files"]["moeir.json"] = manifests.compute_checksums([folder / "bad/moeir.json"])[0]
        path.write_text(manifests.serialize_manifest(content))

    return setup


BM25 = "index --engine bm25 --output out --corpus "
SEARCH = "search --output out.trec --queries queries.tsv --index "
ENCODE = "encode --corpus corpus.jsonl --dtype float32 --output out --model "
INIT = "init --output out --model tiny "
START = "init --output out --model bad --arch dense"
TRAIN = "finetune --model tiny --arch dense --corpus corpus.jsonl --queries train-queries.jsonl --output out --steps 1 --train "
TRAIN_CROSS_ENCODER = TRAIN.replace("dense", "cross-encoder").replace(" --steps 1", "") + "good.jsonl"
PRETRAIN = "pretrain --model tiny --corpus corpus.jsonl --objective mlm --output out --arch "
TWO = TRAIN + "good.jsonl --train good.jsonl"
ALONE = "finetune --output out --model tiny --arch dense --train bad.jsonl"
DEVELOPMENT = " --dev-queries queries.tsv --dev-qrels test.qrels"
EVALUATE = "evaluate --output out.txt --qrels test.qrels --run "
ANSWERS = "evaluate --run one.trec --corpus corpus.jsonl --answers bad.jsonl"
FUSE = "fuse --output out.trec --run one.trec --run "
FUSE_AGAIN = "fuse --run one.trec --run two.trec --output made.trec"
LEARNED = FUSE + "two.trec --learned bad.json"
CALIBRATE = "calibrate --run one.trec --run two.trec --qrels test.qrels --output out.json"
INDEX = "index --output out --encodings "
UPDATE = "index --output out --encodings "
MINE = "mine-negatives --run one.trec --qrels test.qrels --output out.jsonl"
CONVERT = "convert --input "
CHECK = "check --corpus corpus.jsonl "
JUDGED = "report --run one.trec --output page.html --qrels test.qrels"
RERANK = "rerank --model came --queries queries.tsv --corpus corpus.jsonl --output out.trec --run "
EXPORT = "export --encodings enc --output out --to "
PUSH = "push --repo anna/x --input "

GOOD = '{"query_id": "t1", "positive_ids": ["owl"], "negative_ids": ["cat"]}'
SCORED = GOOD.replace("}", ', "positive_scores": [1.5], "negative_scores": [0.5]}')
INLINE = '{"query_id": "t1", "query": "?", "positive_passages": [{"docid": "a", "text": "b"}], "negative_passages": []}'
ASKED = '{"_id": "q1", "text": "who?", "answers": ["owl"]}\n'
LINEAR = '{"moeir_fusion": 1, "method": "linear:weights=1+2", "runs": ["one", "two"], "found": {}}'
READING = {"query_prefix": "", "document_prefix": "", "query_length": 10**9, "document_length": 32}

ROWS: list[tuple[str, int, str] | tuple[str, int, str, Setup]] = [
    (BM25 + "bad.jsonl", 3, "bad.jsonl:2: duplicate id 'a'", write_corpus('{"_id": "a", "text": "bat"}')),
    (ENCODE.replace("corpus.jsonl", "bad.jsonl") + "came", 3, "--keep-empty", write_corpus('{"_id": "b", "text": " "}')),
    (BM25 + "bad.jsonl", 3, "bad.jsonl:3: broken JSON at column 12", write_corpus("", '{"_id": "c"')),
    (BM25 + "tiny", 3, "tiny: expected a file for --corpus, found a folder"),
    (BM25 + "hf:absent", 2, "hf:absent"),
    (EVALUATE + "bad.trec", 3, "bad.trec: run of another collection", write_file("bad.trec", "x Q0 y 1 1.0 t\n")),
    (MINE, 3, "test.qrels: no query has both positives and negatives in one.trec; do the ids agree?",
     write_file("test.qrels", "zz 0 owl 1\n")),
    (TRAIN + "bad.jsonl", 3, "names document yak, which is", write_lines(GOOD.replace("cat", "yak"))),
    (TRAIN + "bad.jsonl", 3, "query t9 is not among the queries", write_lines(GOOD.replace("t1", "t9"))),
    (ALONE, 3, "name their file with --queries", write_lines(GOOD)),
    (SEARCH + "absent", 4, "absent: no such index"),
    (SEARCH + "bad", 4, "bad: has no manifest.json: unfinished", damaged_copy("bm25", "manifest.json", Path.unlink)),
    (SEARCH + "enc", 4, "enc: expected an index, found encodings (made by moeir encode)"),
    (ENCODE + "tiny", 4, "moeir init --model tiny"),
    (START, 4, "damaged", weights(overwrite("nonsense"))),
    (START, 4, "bad: no config.json", config(Path.unlink)),
    (START, 2, "model_type is 'plankton'", config(set_keys(model_type="plankton"))),
    (START, 4, "weights are missing", config(set_keys(num_hidden_layers=5))),
    (START, 4, "bad: no tokenizer.json or vocab.txt", tokenizer(lambda path: (path.unlink(), path.with_name("vocab.txt").unlink()))),
    (START, 4, "tokenizer cannot be opened", tokenizer(overwrite("{}"))),
    ("finetun --output out", 2, "Did you mean 'finetune'"),
    ("fuse --runn one.trec", 2, "--run"),
    ("fuse --output out.trec", 2, "fuse needs --run"),
    (FUSE + "two.trec --tag a\u00a0b", 2, "expected a word without spaces"),
    ("fuse --run one.trec --output out.trec", 2, "--run: expected 2 or more, found 1; repeat the flag"),
    (INIT + "--arch came:shared_layers=2,experts=local+local", 2, "each once"),
    (ENCODE + "came --device cuda:99", 2, "--device cuda:99: torch sees"),
    (ENCODE + "came --device meta", 2, "--device meta: expected auto, cpu, cuda"),
    (ENCODE.replace("float32", "int3") + "came", 2, "--dtype int3: expected auto"),
    (INDEX + "enc --engine x=flat", 2, "there is no expert 'x'"),
    (INDEX + "enc --engine global=inverted", 2, "takes sparse representations"),
    (BM25.replace("bm25", "bm25:language=de") + "corpus.jsonl", 2, "'de' is unknown; known: ar"),
    ("index --corpus corpus.jsonl --output out --engine flat", 2, "add --engine bm25"),
    (FUSE + "two.trec --config absent.yaml", 3, "absent.yaml: cannot be read"),
    (FUSE + "two.trec", 2, "out.trec: exists and was not made by moeir", write_file("out.trec", "mine")),
    (FUSE_AGAIN, 2, "--force replaces it", write_file("made.trec", "mine")),
    (ENCODE + "came", 2, "unfinished work of other settings (corpus, dtype,", leave_unfinished_work),
    (ENCODE.replace(" out", " .") + "came --force", 2, "--output .: expected the name of a"),
    (FUSE.replace(" out.trec", " ..") + "two.trec --force", 2, "--output ..: expected the name of a"),
    (FUSE.replace(" out.trec", " /") + "two.trec --force", 2, "--output /: expected the name of a"),
    (FUSE.replace("out.", "circle/") + "two.trec", 2, "--output circle/trec: symbolic links that lead", lead_in_a_circle),
    (FUSE + "circle", 2, "--run circle: symbolic links that lead", lead_in_a_circle),
    (FUSE + "two=circle", 3, "circle: no such file (--run)", lead_in_a_circle),
    (SEARCH + "circle", 2, "--index circle: symbolic links that lead", lead_in_a_circle),
    (TRAIN + "good.jsonl --cache circle", 2, "--cache circle: symbolic links that lead", lead_in_a_circle),
    (FUSE.replace("out.", "locked/out.") + "two.trec", 1, DENIED, make_read_only),
    (ENCODE + "came", 1, "out: File too large", FullDisk),
    (ENCODE + "came", 4, "out: another process is writing it", lock_output),
    (SEARCH + "idx --model other", 4, "and moeir index again", make_other_checkpoint),
    (SEARCH + "bad", 4, "bad: an index of format 0, made by version 0.1.0 of moeir; this one reads format 2; run moeir index again",
     manifest(set_keys(format=0))),
    (SEARCH + "bad", 4, "bad/manifest.json: damaged: manifest checksum", manifest(remove_seal)),
    (INIT + "--arch coil:dim=9999999999999", 1, "out of memory"),
    ("info bad", 4, "bad/moeir.json: damaged: not what moeir writes", rewrite_facts(overwrite("[]"))),
    ("info bad", 4, "came has no option 'layers'", rewrite_facts(set_keys(architecture="came:layers=3"))),
    ("info bad", 4, "bad/moeir.json: damaged, or of another version of moeir: came:shared_layers=9: the encoder has 4",
     rewrite_facts(set_keys(architecture="came:shared_layers=9"))),
    ("info bad", 4, "--query-length 1000000000: expected 3 to 64", rewrite_facts(set_keys(reading=READING))),
    (EVALUATE + "one.trec --match regex", 2, "--match needs --answers"),
    ("fuse --run - --run - --output out.trec", 2, "--run - and --run -: standard input can be read once"),
    (ANSWERS.replace("bad.jsonl", "-") + " --group-by _id", 2, "--answers -: --group-by reads them too"),
    (ANSWERS, 3, "bad.jsonl:2: duplicate id 'q1'", write_file("bad.jsonl", ASKED + ASKED)),
    (ANSWERS, 3, "question 'q1' has no answers", write_file("bad.jsonl", ASKED.replace('["owl"]', "[]"))),
    (EVALUATE + "one.trec --measure Success", 2, "cutoff=nothing; expected NAME, NAME@CUTOFF or"),
    (EVALUATE + "one.trec --measure nDCG@10,RR@10", 2, "and the flag again for another measure"),
    ("analyze usage --model came --corpus corpus.jsonl", 2, "came has no learned router; there is no usage to count"),
    (TRAIN + "good.jsonl --sampling-rate 1 --sampling-rate 2", 2, "expected one for each --train, 1; found 2"),
    (TRAIN + "good.jsonl --sampling-rate 0", 2, "--sampling-rate 0: expected 0.001 to 1000"),
    (TRAIN + "good.jsonl --objective kl", 3, "good.jsonl: query t1 has no positive_scores and negative_scores"),
    (TRAIN + "good.jsonl --group-rate heads", 2, "--group-rate heads: expected PATTERN=RATE"),
    (TRAIN + "good.jsonl --dev-queries queries.tsv", 2, "--dev-queries needs --dev-qrels"),
    (TRAIN + "good.jsonl --patience 2", 2, "--patience needs --dev-queries"),
    (ALONE + DEVELOPMENT, 2, "--dev-queries needs --dev-corpus or --corpus", write_file("bad.jsonl", INLINE + "\n")),
    ((TRAIN + "good.jsonl" + DEVELOPMENT).replace("corpus.jsonl", "-"), 2,
     "--corpus -: a pipe can be read only once, and --dev-queries searches the corpus too"),
    (TRAIN + "good.jsonl" + DEVELOPMENT, 3, "none of its queries is", write_file("test.qrels", "zz 0 owl 1\n")),
    (TRAIN + "good.jsonl --dev-measure nDGC@10" + DEVELOPMENT, 2, "did you mean nDCG"),
    (TWO + " --sampling-rate 1 --sampling-rate 1" + " --corpus corpus.jsonl" * 2, 2, "--corpus: expected one"),
    (TRAIN + "good.jsonl --objective contrastive:entropy_sign=x", 2, "entropy_sign=x: expected maximise or as-printed"),
    (TRAIN + "good.jsonl --objective competitive:ties=x", 2, "ties=x: expected one of average", write_file("corpus.jsonl", "{")),
    (TRAIN + "bad.jsonl --objective margin-mse", 1, "step 1: the loss is inf; no update was made yet: check",
     write_lines(SCORED.replace("1.5", "1e30").replace("0.5", "-1e30"))),
    (TRAIN + "good.jsonl --learning-rate 1e300", 1, "the weights contain NaN or Inf"),
    (TRAIN + "bad.jsonl", 3, "bad.jsonl:1: positive_scores: expected finite", write_lines(SCORED.replace("1.5", '"x"'))),
    ("report --training absent", 4, "absent: no such training: moeir finetune and pretrain"),
    ("report --training came", 4, "came: has no metrics.jsonl"),
    ("report --training bad.jsonl", 3, "bad.jsonl: is empty", write_file("bad.jsonl", "")),
    ("report --training bad.jsonl --output out.pdf", 2, "--output out.pdf: expected a name that ends with .html",
     write_file("bad.jsonl", '{"step": 1}\n')),
    (SEARCH.replace("queries.tsv", "bad.jsonl") + "idx", 3, "the text of 'b' is empty; moeir check lists",
     write_corpus('{"_id": "b", "text": ""}')),
    (EVALUATE.replace("out.txt", "x.md") + "one.trec --per-query", 2, "--output x.md: expected .tsv or .jsonl for a table"),
    (EVALUATE.replace("out.txt", "x.csv") + "one.trec", 2, "x.csv: expected .tsv or .jsonl or .tex or .md or .json for a table"),
    ("analyze --run one.trec two.trec --output x.json", 2, "--output x.json: expected .tsv or .jsonl for a table"),
    (TRAIN + "good.jsonl --dev-measure RR@10", 2, "--dev-measure needs --dev-queries"),
    (PRETRAIN + "dense --context nearby", 2, "--context nearby: --objective mlm pairs no spans; leave it out"),
    (ENCODE.replace(" out", " -") + "came --shard 0/2", 2, "--output -: the output is a folder; name one"),
    ("index --corpus corpus.jsonl --engine text=bm25 --output out", 2, "--engine text=bm25: texts have no expert text; leave text= out"),
    (INDEX + "enc --keep-empty", 2, "--keep-empty needs --corpus"),
    (CALIBRATE + " --batch-size 8", 2, "--batch-size needs --index"),
    (PUSH + "came --measure RR@10", 2, "--measure needs --qrels"),
    (PUSH + "came --qrels test.qrels --measure RR", 2, "--qrels needs --run"),
    ("serve --index idx --rerank-depth 5", 2, "--rerank-depth needs --rerank"),
    ("serve --index idx --mcp --port 1", 2, "--port and --mcp exclude one another"),
    ("serve --index idx --corpus irds:cranfield --reload", 2, "--reload reads it again when it is replaced on disk; name a file"),
    ("generate-queries --model tiny --corpus bad.jsonl --shard 5/3 --output out", 2, "--shard 5/3: expected I/N", write_lines("{")),
    (ENCODE + "came --shard 3", 2, "--shard 3: expected I/N, the I-th of N parts counted from 0"),
    (CONVERT + "one.trec --to tsv", 2, "one.trec is run, a run, which becomes run"),
    (CONVERT + "good.jsonl --to dpr --output out", 2, "name the file that has them with --queries"),
    (CONVERT + "- --to tsv", 2, "--input -: a pipe can be read once; give its format with --from"),
    (CONVERT + "test.qrels --to beir", 2, "--output -: the output is a folder; name one"),
    (CONVERT + "absent --to tsv", 3, "absent: no such file or folder (--input)"),
    (CONVERT + "bad.jsonl --to dpr --queries train-queries.jsonl --corpus corpus.jsonl --output out", 3,
     "query 't1': 'yak' is not in the file of --corpus", write_lines(GOOD.replace("cat", "yak"))),
    ("check", 2, "check needs --corpus, --queries, --qrels, --train or --run"),
    (CHECK + "--form xml", 2, "--form xml: expected text or json"),
    (CHECK + "--most -1", 2, "--most -1: expected at least 0"),
    (CONVERT + "enc --to texts", 2, "enc: format not recognised; name it with --from"),
    (CALIBRATE.replace("--run two.trec ", ""), 2, "--run: expected 2 or more, found 1"),
    (CALIBRATE.replace("out.json", "-"), 2, "--output -: expected a file to write"),
    (CALIBRATE, 3, "test.qrels: no query has a relevant document", write_file("test.qrels", "q9 0 owl 1\n")),
    (CALIBRATE + " --index idx", 2, "--index and --run exclude one another"),
    (CALIBRATE + " --queries queries.tsv", 2, "--queries needs --index"),
    ("calibrate --qrels test.qrels --output out", 2, "calibrate needs --index, to weigh"),
    ("calibrate --index idx --qrels test.qrels --output out", 2, "--index needs --queries"),
    (LEARNED, 3, "bad.json: not a fusion of format 1", write_file("bad.json", '{"a": 1}')),
    (LEARNED + " --run made.trec", 2, "learned on 2 runs (one, two), found 3", write_file("bad.json", LINEAR)),
    (LEARNED, 2, "in the order two, one, found", write_file("bad.json", LINEAR.replace('"one", "two"', '"two", "one"'))),
    (LEARNED + " --method rrf", 2, "--learned and --method exclude one another", write_file("bad.json", LINEAR)),
    ("report --output page.html", 2, "report: expected --run and --qrels, or --training"),
    ("report --run one.trec --qrels test.qrels", 2, "--run: is for a page; expected --output page.html"),
    ("report --training bad.jsonl --corpus corpus.jsonl --output page.html", 2, "--corpus needs --run",
     write_file("bad.jsonl", '{"step": 1}\n')),
    (JUDGED + " --index idx", 2, "--index needs --queries"),
    (JUDGED.replace("one.", "lexical=lexical.") + " --queries queries.tsv --index idx", 3, "lexical: document 'newt' is not in idx",
     write_file("lexical.trec", "q1 Q0 newt 1 1 t\n")),
    (JUDGED, 3, "test.qrels: run of another collection", write_file("test.qrels", "zz 0 owl 1\n")),
    (TRAIN_CROSS_ENCODER + " --objective lce --negatives 0", 2, "--negatives 0: this objective compares a positive"),
    (TRAIN_CROSS_ENCODER + " --dev-run one.trec", 2, "--dev-run needs --dev-queries"),
    (PRETRAIN + "cross-encoder", 2, "--arch cross-encoder: pre-train dense"),
    (RERANK + "bad.trec", 3, "has no document 'whale-x'", write_file("bad.trec", "q1 Q0 whale-x 1 2 t\n")),
    (RERANK + "bad.trec", 3, "has no query 'x9', which bad.trec", write_file("bad.trec", "x9 Q0 owl 1 2 t\n")),
    (RERANK.replace("corpus.jsonl", "-") + "one.trec --model came", 2, "--corpus -: every model reads it"),
    (RERANK + "one.trec --shard 0/2", 2, "--shard 0/2: the run has 1 queries"),
    (RERANK + "one.trec --tag a\tb", 2, "--tag"),
    (SEARCH.replace("out.trec", "x.json") + "idx", 2, "--output x.json: a run is lines of TREC's form; expected the name of a .trec"),
    (SEARCH + "idx --index idx", 2, "the same index is given twice"),
    (SEARCH + "idx --corpus corpus.jsonl", 2, "--corpus needs --explain"),
    (SEARCH + "idx --explain queries.tsv --force", 2, "would replace what --queries reads"),
    (SEARCH + "idx --explain why.jsonl", 2, "was not made by moeir", write_file("why.jsonl", "mine")),
    (EXPORT + "qdrant:name=My-texts", 2, "expected lower-case letters"),
    (EXPORT.replace("output out", "output -") + "milvus", 2, "the output is a folder"),
    (EXPORT + "milvus --corpus train-queries.jsonl", 3, "where the encodings have 'owl'"),
    (EXPORT.replace("enc ", "idx ") + "milvus", 4, "idx: expected encodings, found an index"),
    (PUSH + "came", 2, "anna/x: not accepted: Cannot reach"),
    ("pull --repo anna/x --output out", 2, "anna/x: not accepted: Cannot reach"),
    (PUSH + "absent", 3, "absent: no such file or folder (--input)"),
    (PUSH + "corpus.jsonl", 4, "corpus.jsonl: has no manifest.json: unfinished, or not made by moeir"),
    ("index --output out --delete i --corpus corpus.jsonl --engine bm25", 2, "--delete needs --encodings", write_file("i", "x")),
    ("index --encodings enc --output enc", 2, "--output enc: would replace what --encodings reads"),
    (UPDATE + "idx", 4, "idx: expected encodings, found an index"),
    (UPDATE + "enc --encodings enc", 3, "enc: document 'ant' is in the encodings before it, too; to replace documents, name them"),
    (UPDATE + "enc --delete enc/ids.txt", 3, "has all documents of enc; expected one that remains"),
    (UPDATE + "enc --delete no.txt", 3, "none of its ids is in enc, such", write_file("no.txt", "x\ny\n")),
    (UPDATE + "enc --delete no.txt", 3, "no.txt: holds no id; expected one in each line", write_file("no.txt", "\n")),
    (SEARCH + "idx --filter-ids no.txt", 3, "no.txt: holds no id", write_file("no.txt", "")),
    (SEARCH + "idx --filter no.txt", 3, "no.txt: none of its ids is in idx", write_file("no.txt", "x\n")),
]  # fmt: skip


@pytest.fixture(scope="module")
def shop(tmp_path_factory, moeir, toy, tiny_model, came_checkpoint, encodings, index, bm25_index):
    """A folder with one valid artifact or file of every kind."""
    folder = tmp_path_factory.mktemp("shop")
    for name, path in {"tiny": tiny_model, "came": came_checkpoint, "enc": encodings, "idx": index, "bm25": bm25_index}.items():
        (folder / name).symlink_to(path)
    for name in ("corpus.jsonl", "train-queries.jsonl"):
        shutil.copy(toy / name, folder)
    shutil.copy(toy / "test-queries.tsv", folder / "queries.tsv")
    (folder / "test.qrels").write_text("q1 0 owl 1\n")
    (folder / "good.jsonl").write_text(GOOD + "\n")
    (folder / "one.trec").write_text("q1 Q0 owl 1 2.0 t\nq1 Q0 cat 2 1.0 t\n")
    (folder / "two.trec").write_text("q1 Q0 cat 1 2.0 t\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert moeir("fuse", "--run", "one.trec", "--run", "two.trec", "--output", "made.trec").code == 0
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def circumstances(bad: BadInput, folder: Path) -> Iterator[dict[str, bytes]]:
    """Make the input bad and yield the folder's contents."""
    resource = bad.setup(folder) if bad.setup else None
    yield contents(folder)
    if isinstance(resource, FullDisk | io.IOBase):
        resource.close()


@pytest.mark.parametrize("bad", [BadInput(*row) for row in ROWS], ids=lambda bad: bad.message)
def test_bad_input_ends_with_its_code_one_line_and_untouched_files(bad, shop, tmp_path, monkeypatch, moeir):
    folder = tmp_path / "shop"
    shutil.copytree(shop, folder, symlinks=True)
    monkeypatch.chdir(folder)
    with circumstances(bad, folder) as before:
        result = moeir(*bad.command.strip().split(" "))
    assert (result.code, result.stdout) == (bad.code, ""), result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith(("error: ", "moeir"))]
    assert len(lines) == 1 and lines[0] == result.stderr.splitlines()[-1], result.stderr
    assert bad.message in lines[0]
    assert contents(folder) == before
