"""Kinds of bad input, one table: a setup, the command that fails on it, its exit code and a part of its error message."""

import fcntl
import json
import os
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from moeir.artifacts import manifests

Setup = Callable[[Path], object]


class BadInput(NamedTuple):
    """A kind of bad input: its setup, the command that fails on it, its exit code, and a part of the error message."""

    name: str
    setup: Setup | None
    command: str
    code: int
    message: str


def write_file(name: str, content: str | bytes) -> Setup:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def write_corpus(*lines: str) -> Setup:
    """Write bad.jsonl: a valid line, then `lines`."""
    return write_file("bad.jsonl", "\n".join(['{"_id": "a", "text": "owl"}', *lines]) + "\n")


def write_example(line: str) -> Setup:
    return write_file("bad.jsonl", line + "\n")


def damaged_copy(what: str, name: str, damage: Callable[[Path], object]) -> Setup:
    """Copy an artifact to `bad` and damage one of its files."""

    def setup(folder: Path) -> None:
        shutil.copytree(folder / what, folder / "bad")
        damage(folder / "bad" / name)

    return setup


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def set_keys(**facts: object) -> Callable[[Path], object]:
    """Set some keys of a JSON file; None removes a key."""

    def damage(path: Path) -> None:
        content = json.loads(path.read_text()) | facts
        content = {key: value for key, value in content.items() if value is not None}
        path.write_text(manifests.serialize_manifest(content) if path.name == manifests.MANIFEST else json.dumps(content))

    return damage


def overwrite(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


config, weights, tokenizer = (partial(damaged_copy, "tiny", name) for name in ("config.json", "model.safetensors", "tokenizer.json"))
manifest = partial(damaged_copy, "idx", "manifest.json")


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


class FullDisk:
    """Limit the size of files, as a full disk would, until closed."""

    def __init__(self, folder: Path, bytes: int = 0) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, self._limits[1]))

    def close(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


def leave_unfinished_work(folder: Path) -> None:
    (folder / ".out.partial/out/resume").mkdir(parents=True)
    (folder / ".out.partial/out/resume/journal.jsonl").write_text("{}\n")
    (folder / ".out.partial/out.record").write_text(json.dumps({"stage": "encode", "settings": {"dtype": "bfloat16"}, "sources": {}}))


BM25 = "index --engine bm25 --output out --corpus "
SEARCH = "search --output out.trec --queries queries.tsv --index "
ENCODE = "encode --corpus corpus.jsonl --dtype float32 --output out --model "
INIT = "init --output out --model tiny "
START = "init --output out --model bad --arch dense"
TRAIN = "finetune --model tiny --arch dense --corpus corpus.jsonl --queries train-queries.jsonl --output out --steps 1 --train "
EVALUATE = "evaluate --output out.txt --qrels test.qrels --run "
FUSE = "fuse --output out.trec --run one.trec --run "
FUSE_AGAIN = "fuse --run one.trec --run two.trec --output made.trec"
INDEX = "index --output out --encodings "
MINE = "mine-negatives --run one.trec --qrels test.qrels --output out.jsonl"
ALONE = "finetune --output out --model tiny --arch dense --train bad.jsonl"
GOOD = '{"query_id": "t1", "positive_ids": ["owl"], "negative_ids": ["cat"]}'
TEXTS = [
    BadInput("duplicate id", write_corpus('{"_id": "a", "text": "bat"}'), BM25 + "bad.jsonl", 3, "bad.jsonl:2: duplicate id 'a'"),
    BadInput("empty text", write_corpus('{"_id": "b", "text": " "}'), ENCODE.replace("corpus.jsonl", "bad.jsonl") + "came", 3,
        "--keep-empty"),
    BadInput("broken JSON at line 3", write_corpus("", '{"_id": "c"'), BM25 + "bad.jsonl", 3, "bad.jsonl:3: broken JSON at column 12"),
    BadInput("empty file", write_file("bad.jsonl", ""), BM25 + "bad.jsonl", 3, "bad.jsonl: holds no text"),
    BadInput("a folder for a file", None, BM25 + "tiny", 3, "tiny: expected a file for --corpus, found a folder"),
    BadInput("an unreadable source", None, BM25 + "hf:absent", 2, "hf:absent"),
    BadInput("run of another collection", write_file("bad.trec", "x Q0 y 1 1.0 t\n"), EVALUATE + "bad.trec", 3,
        "bad.trec: run of another collection"),
    BadInput("judgements of other queries", write_file("test.qrels", "zz 0 owl 1\n"), MINE, 3,
        "test.qrels: no query has both positives and negatives in one.trec; do the ids agree?"),
    BadInput("example of an absent document", write_example(GOOD.replace("cat", "yak")), TRAIN + "bad.jsonl", 3,
        "names document yak, which is"),
    BadInput("example of an absent query", write_example(GOOD.replace("t1", "t9")), TRAIN + "bad.jsonl", 3,
        "query t9 is not among the queries"),
    BadInput("examples without texts", write_example(GOOD), ALONE, 3, "name their file with --queries"),
]  # fmt: skip

ARTIFACTS = [
    BadInput("no such artifact", None, SEARCH + "absent", 4, "absent: no such index"),
    BadInput("a file for a folder", None, SEARCH + "queries.tsv", 4, "expected a folder with index, found a file"),
    BadInput("unfinished", damaged_copy("bm25", "manifest.json", Path.unlink), SEARCH + "bad", 4, "bad: has no manifest.json: unfinished"),
    BadInput("truncated file", damaged_copy("idx", "local/vectors.npy", truncate), SEARCH + "bad", 4,
        "bad/local/vectors.npy: damaged: expected"),
    BadInput("missing file", damaged_copy("enc", "ids.txt", Path.unlink), INDEX + "bad", 4, "bad/ids.txt: damaged artifact: the file is"),
    BadInput("garbled manifest", manifest(overwrite("{")), SEARCH + "bad", 4, "bad/manifest.json: damaged: not a manifest"),
    BadInput("wrong kind", None, SEARCH + "enc", 4, "enc: expected an index, found encodings (made by moeir encode)"),
    BadInput("plain weights for a checkpoint", None, ENCODE + "tiny", 4, "moeir init --model tiny"),
    BadInput("corrupt weights", weights(overwrite("nonsense")), START, 4, "damaged"),
    BadInput("no config.json", config(Path.unlink), START, 4, "bad: no config.json"),
    BadInput("unknown family", config(set_keys(model_type="plankton")), START, 2, "model_type is 'plankton'"),
    BadInput("weights of another size", config(set_keys(num_hidden_layers=5)), START, 4, "weights are missing"),
    BadInput("no tokenizer", tokenizer(lambda path: (path.unlink(), path.with_name("vocab.txt").unlink())), START, 4,
        "bad: no tokenizer.json or vocab.txt"),
    BadInput("broken tokenizer", tokenizer(overwrite("{}")), START, 4, "tokenizer cannot be opened"),
]  # fmt: skip

FLAGS = [
    BadInput("unknown stage", None, "finetun --output out", 2, "Did you mean 'finetune'"),
    BadInput("unknown flag", None, "fuse --runn one.trec", 2, "--run"),
    BadInput("missing flag", None, "fuse --output out.trec", 2, "fuse needs --run"),
    BadInput("tag of two words", None, FUSE + "two.trec --tag a\u00a0b", 2, "expected a word without spaces"),
    BadInput("one run to fuse", None, "fuse --run one.trec --output out.trec", 2, "--run: expected 2 or more, found 1; repeat the flag"),
    BadInput("unknown fusion", None, FUSE + "two.trec --method rff", 2, "fusion has no 'rff'; did you mean 'rrf'?"),
    BadInput("unknown architecture", None, INIT + "--arch dens", 2, "architectures has no 'dens'; did you mean 'dense'?"),
    BadInput("an expert twice", None, INIT + "--arch came:shared_layers=2,experts=local+local", 2, "each once"),
    BadInput("unknown objective", None, TRAIN + "good.jsonl --objective competitve", 2, "did you mean 'competitive'?"),
    BadInput("no such device", None, ENCODE + "came --device cuda:99", 2, "--device cuda:99: torch sees"),
    BadInput("no device to compute on", None, ENCODE + "came --device meta", 2, "--device meta: expected auto, cpu, cuda"),
    BadInput("no such dtype", None, ENCODE.replace("float32", "int3") + "came", 2, "--dtype int3: expected auto"),
    BadInput("an engine for an expert that is not there", None, INDEX + "enc --engine x=flat", 2, "there is no expert 'x'"),
    BadInput("an engine of another kind", None, INDEX + "enc --engine global=inverted", 2, "takes sparse representations"),
    BadInput("an unknown language", None, BM25.replace("bm25", "bm25:language=de") + "corpus.jsonl", 2, "'de' is unknown; known: ar"),
    BadInput("an engine that reads no texts", None, "index --corpus corpus.jsonl --output out --engine flat", 2, "add --engine bm25"),
    BadInput("no such YAML", None, FUSE + "two.trec --config absent.yaml", 3, "absent.yaml: cannot be read"),
    BadInput("YAML garbage", write_file("bad.yaml", "a: [1\nb: }"), FUSE + "two.trec --config bad.yaml", 3, "bad.yaml: not YAML"),
    BadInput("unknown key", write_file("bad.yaml", "metod: rrf\n"), FUSE + "two.trec --config bad.yaml", 2, "did you mean 'method'?"),
]  # fmt: skip

OUTPUTS = [
    BadInput("output not made by moeir", write_file("out.trec", "mine"), FUSE + "two.trec", 2,
        "out.trec: exists and was not made by moeir"),
    BadInput("output edited since", write_file("made.trec", "mine"), FUSE_AGAIN, 2, "--force replaces it"),
    BadInput("unfinished work of other settings", leave_unfinished_work, ENCODE + "came", 2,
        "unfinished work of other settings (corpus, dtype,"),
    BadInput("output without a name", None, ENCODE.replace(" out", " .") + "came --force", 2, "--output .: expected the name of a"),
    BadInput("output above", None, FUSE.replace(" out.trec", " ..") + "two.trec --force", 2, "--output ..: expected the name of a"),
    BadInput("output of everything", None, FUSE.replace(" out.trec", " /") + "two.trec --force", 2, "--output /: expected the name of a"),
    BadInput("output in a circle", lead_in_a_circle, FUSE.replace("out.", "circle/") + "two.trec", 2, "symbolic links that lead"),
    BadInput("read-only folder", make_read_only, FUSE.replace("out.", "locked/out.") + "two.trec", 1, DENIED),
    BadInput("disk full at the first byte", FullDisk, ENCODE + "came", 1, "out: File too large"),
    BadInput("two writers", lock_output, ENCODE + "came", 4, "out: another process is writing it"),
]  # fmt: skip

REPAIR = "run moeir index again with --force"


def make_other_checkpoint(folder: Path) -> None:
    shutil.copytree(folder / "came", folder / "other")
    files = json.loads((folder / "came/manifest.json").read_text())["files"]
    set_keys(files={"moeir.json": files["moeir.json"]})(folder / "other/manifest.json")


def swap_file(name: str, other: str) -> Setup:
    """Copy the index and replace one of its files by another."""

    def setup(folder: Path) -> None:
        shutil.copytree(folder / "idx", folder / "bad")
        shutil.copy(folder / other, folder / "bad" / name)

    return setup


def remove_seal(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["seal"]
    path.write_text(json.dumps(content))


index_manifest, encodings_manifest = ("idx", "manifest.json"), ("enc", "manifest.json")
OLD_FORMAT = "bad: an index of format 0, made by version"
DAMAGE = [
    BadInput("queries of another checkpoint", make_other_checkpoint, SEARCH + "idx --model other", 4, "and moeir index again"),
    BadInput("an older index", damaged_copy(*index_manifest, set_keys(format=0)), SEARCH + "bad", 4,
        f"{OLD_FORMAT} 0.1.0 of moeir; this one reads format 2; {REPAIR}"),
    BadInput("a manifest without its seal", damaged_copy(*index_manifest, remove_seal), SEARCH + "bad", 4,
        "bad/manifest.json: damaged: manifest checksum"),
    BadInput("another expert's", swap_file("global/vectors.npy", "idx/local/vectors.npy"), SEARCH + "bad", 4,
        "global/vectors.npy: damaged"),
    BadInput("ids of another index", swap_file("ids.txt", "queries.tsv"), SEARCH + "bad", 4, REPAIR),
    BadInput("encodings of nothing", damaged_copy("enc", "lexical/terms.npy", overwrite("")), INDEX + "bad", 4,
        "moeir encode again with --force"),
]  # fmt: skip

facts = "came", "moeir.json"
ASKED = '{"_id": "q1", "text": "who?", "answers": ["owl"]}\n'
ANSWERS = "evaluate --run one.trec --corpus corpus.jsonl --answers bad.jsonl"
USAGE = "analyze usage --model came --corpus corpus.jsonl"


def rewrite_checkpoint_facts(**changes: object) -> Setup:
    """Change moeir.json of a checkpoint, and its entry in the manifest, as another version might have written it."""
    return rewrite_facts(set_keys(**changes))


def rewrite_facts(change: Callable[[Path], object]) -> Setup:
    """Change moeir.json of a checkpoint, and its entry in the manifest."""

    def setup(folder: Path) -> None:
        damaged_copy(*facts, change)(folder)
        manifest, changed = folder / "bad/manifest.json", folder / "bad/moeir.json"
        content = json.loads(manifest.read_text())
        content["files"]["moeir.json"] = manifests.compute_checksums([changed])[0]
        manifest.write_text(manifests.serialize_manifest(content))

    return setup


def rewrite_reading_rules(**changes: object) -> Setup:
    return rewrite_checkpoint_facts(
        reading={"query_prefix": "", "document_prefix": "", "query_length": 16, "document_length": 32} | changes
    )


SPECS = [
    BadInput("more memory than there is", None, INIT + "--arch coil:dim=9999999999999", 1, "out of memory"),
]  # fmt: skip

CHECKPOINTS = [
    BadInput("facts that are a list", rewrite_facts(overwrite("[]")), "info bad", 4, "bad/moeir.json: damaged: not what moeir writes"),
    BadInput("an architecture of other options", rewrite_checkpoint_facts(architecture="came:layers=3"), "info bad", 4,
        "came has no option 'layers'"),
    BadInput("an architecture that cannot be", rewrite_checkpoint_facts(architecture="came:shared_layers=9"), "info bad", 4,
        "bad/moeir.json: damaged, or of another version of moeir: came:shared_layers=9: the encoder has 4"),
    BadInput("a length that nobody reads", rewrite_reading_rules(query_length=10**9), "info bad", 4,
        "--query-length 1000000000: expected 3 to 64"),
]  # fmt: skip

ANSWERED = [
    BadInput("a way to match nothing", None, EVALUATE + "one.trec --match regex", 2, "--match needs --answers"),
    BadInput("one stream for two", None, "fuse --run - --run - --output out.trec", 2,
        "--run - and --run -: standard input can be read once"),
    BadInput("answers read twice from a stream", None, ANSWERS.replace("bad.jsonl", "-") + " --group-by _id", 2,
        "--answers -: --group-by reads them too"),
    BadInput("a question twice", write_file("bad.jsonl", ASKED + ASKED), ANSWERS, 3, "bad.jsonl:2: duplicate id 'q1'"),
    BadInput("no answers", write_file("bad.jsonl", ASKED.replace('["owl"]', "[]")), ANSWERS, 3, "question 'q1' has no answers"),
    BadInput("a measure without its cut-off", None, EVALUATE + "one.trec --measure Success", 2,
        "cutoff=nothing; expected NAME, NAME@CUTOFF or"),
    BadInput("two measures in one", None, EVALUATE + "one.trec --measure nDCG@10,RR@10", 2, "and the flag again for another measure"),
    BadInput("no router", None, USAGE, 2, "came has no learned router; there is no usage to count"),
]  # fmt: skip

DEVELOPMENT = " --dev-queries queries.tsv --dev-qrels test.qrels"
INLINE = '{"query_id": "t1", "query": "?", "positive_passages": [{"docid": "a", "text": "b"}], "negative_passages": []}'
SCORED = GOOD.replace("}", ', "positive_scores": [1.5], "negative_scores": [0.5]}')
TWO = TRAIN + "good.jsonl --train good.jsonl"
TRAINING = [
    BadInput("a rate for every set", None, TRAIN + "good.jsonl --sampling-rate 1 --sampling-rate 2", 2,
        "expected one for each --train, 1; found 2"),
    BadInput("a set never walked", None, TRAIN + "good.jsonl --sampling-rate 0", 2, "--sampling-rate 0: expected 0.001 to 1000"),
    BadInput("no teacher", None, TRAIN + "good.jsonl --objective kl", 3, "good.jsonl: query t1 has no positive_scores and negative_scores"),
    BadInput("a group without a rate", None, TRAIN + "good.jsonl --group-rate heads", 2, "--group-rate heads: expected PATTERN=RATE"),
    BadInput("development without judgements", None, TRAIN + "good.jsonl --dev-queries queries.tsv", 2,
        "--dev-queries needs --dev-qrels"),
    BadInput("patience without development", None, TRAIN + "good.jsonl --patience 2", 2, "--patience needs --dev-queries"),
    BadInput("development without a corpus", write_file("bad.jsonl", INLINE + "\n"), ALONE + DEVELOPMENT, 2,
        "--dev-queries needs --dev-corpus or --corpus"),
    BadInput("development in a stream that is read", None, (TRAIN + "good.jsonl" + DEVELOPMENT).replace("corpus.jsonl", "-"), 2,
        "--corpus -: a pipe can be read only once, and --dev-queries searches the corpus too"),
    BadInput("development on other queries", write_file("test.qrels", "zz 0 owl 1\n"), TRAIN + "good.jsonl" + DEVELOPMENT, 3,
        "none of its queries is"),
    BadInput("an unknown measure to be best at", None, TRAIN + "good.jsonl --dev-measure nDGC@10" + DEVELOPMENT, 2, "did you mean nDCG"),
    BadInput("a collection too many", None, TWO + " --sampling-rate 1 --sampling-rate 1" + " --corpus corpus.jsonl" * 2, 2,
        "--corpus: expected one"),
    BadInput("an unknown sign", None, TRAIN + "good.jsonl --objective contrastive:entropy_sign=x", 2,
        "entropy_sign=x: expected maximise or as-printed"),
    BadInput("options that mean nothing, before texts are read", write_file("corpus.jsonl", "{"),
        TRAIN + "good.jsonl --objective competitive:ties=x", 2,
        "ties=x: expected one of average"),
    BadInput("a teacher beyond all numbers", write_example(SCORED.replace("1.5", "1e30").replace("0.5", "-1e30")),
        TRAIN + "bad.jsonl --objective margin-mse", 1,
        "step 1: the loss is inf; no update was made yet: check"),
    BadInput("a learning rate beyond all numbers", None, TRAIN + "good.jsonl --learning-rate 1e300", 1, "the weights contain NaN or Inf"),
    BadInput("a score that is none", write_example(SCORED.replace("1.5", '"x"')), TRAIN + "bad.jsonl", 3,
        "bad.jsonl:1: positive_scores: expected finite"),
    BadInput("a training that is nowhere", None, "report --training absent", 4, "absent: no such training: moeir finetune and pretrain"),
    BadInput("a checkpoint that was not trained", None, "report --training came", 4, "came: has no metrics.jsonl"),
    BadInput("a training that has not begun", write_file("bad.jsonl", ""), "report --training bad.jsonl", 3, "bad.jsonl: is empty"),
    BadInput("a report of another form", write_file("bad.jsonl", '{"step": 1}\n'), "report --training bad.jsonl --output out.pdf", 2,
        "--output out.pdf: expected a name that ends with .txt, .tsv"),
]  # fmt: skip

CAME = ENCODE + "came"
ENCODING = [
    BadInput("a shard without a number", None, CAME + " --shard 3", 2, "--shard 3: expected I/N, the I-th of N parts counted from 0"),
]  # fmt: skip

CONVERT = "convert --input "
CHECK = "check --corpus corpus.jsonl "
FORMATS = [
    BadInput("mending in its own place", None, CHECK + "--fix .", 2, "--fix .: would replace what --corpus reads, corpus.jsonl"),
    BadInput("an unknown format", None, CONVERT + "test.qrels --to trec", 2, "formats has no 'trec'"),
    BadInput("a format that is not sure", write_file("x.tsv", "1\t2\t3\n"), CONVERT + "x.tsv --to run", 2,
        "x.tsv: may be tevatron-run or beir-qrels or msmarco-run; say which with --from"),
    BadInput("a kind that is another", None, CONVERT + "one.trec --to tsv", 2, "one.trec is run, a run, which becomes msmarco-run,"),
    BadInput("a faulty line", write_corpus("{"), CONVERT + "bad.jsonl --to tsv --output out", 3, "bad.jsonl:2: broken JSON at column 2"),
    BadInput("what would be lost", write_corpus('{"_id": "b", "title": "T", "text": "x"}'), CONVERT + "bad.jsonl --to tsv --output out", 2,
        "would be lost"),
    BadInput("texts that are not named", None, CONVERT + "good.jsonl --to dpr --output out", 2,
        "name the file that has them with --queries"),
    BadInput("an artifact of vectors", None, CONVERT + "enc --to texts", 2, "enc: format not recognised; name it with --from"),
]  # fmt: skip

FUSE_TWO = "fuse --run one.trec --run two.trec --output out.trec "
CALIBRATE = "calibrate --run one.trec --run two.trec --qrels test.qrels --output out.json"
LINEAR = '{"moeir_fusion": 1, "method": "linear:weights=1+2", "runs": ["one", "two"], "found": {}}'
LEARNED = FUSE_TWO + "--learned bad.json"
FUSING = [
    BadInput("one list to weigh", None, CALIBRATE.replace("--run two.trec ", ""), 2, "--run: expected 2 or more, found 1"),
    BadInput("a fusion on stdout", None, CALIBRATE.replace("out.json", "-"), 2, "--output -: expected a file to write"),
    BadInput("no list for judgements", write_file("test.qrels", "q9 0 owl 1\n"), CALIBRATE, 3,
        "test.qrels: no query has a relevant document"),
    BadInput("runs of an index", None, CALIBRATE + " --index idx", 2, "--index and --run exclude one another"),
    BadInput("queries for runs", None, CALIBRATE + " --queries queries.tsv", 2, "--queries needs --index"),
    BadInput("nothing to calibrate", None, "calibrate --qrels test.qrels --output out", 2, "calibrate needs --index, to weigh"),
    BadInput("an index without queries", None, "calibrate --index idx --qrels test.qrels --output out", 2,
        "--index needs --queries"),
    BadInput("no fusion", write_file("bad.json", '{"a": 1}'), LEARNED, 3, "bad.json: not a fusion of format 1"),
    BadInput("three lists for two", write_file("bad.json", LINEAR), LEARNED + " --run made.trec", 2,
        "learned on 2 runs (one, two), found 3"),
    BadInput("another order", write_file("bad.json", LINEAR.replace('"one", "two"', '"two", "one"')), LEARNED, 2,
        "in the order two, one, found"),
    BadInput("two fusions", write_file("bad.json", LINEAR), LEARNED + " --method rrf", 2, "--learned and --method exclude one another"),
    BadInput("an account over the run", None, FUSE_TWO + "--attribution out.trec", 2, "--attribution out.trec: --output writes there"),
]  # fmt: skip

PAGE = "report --run one.trec --output page.html"
JUDGED = PAGE + " --qrels test.qrels"
POINTS = "side\tid\tgroup\tx\ty\n"
REPORTING = [
    BadInput("a report of nothing", None, "report --output page.html", 2, "report: expected --run and --qrels, or --training"),
    BadInput("runs as text", None, "report --run one.trec --qrels test.qrels", 2, "--run: is for a page; expected --output page.html"),
    BadInput("words of no run", write_file("bad.jsonl", '{"step": 1}\n'),
        "report --training bad.jsonl --corpus corpus.jsonl --output page.html", 2,
        "--corpus needs --run"),
    BadInput("an index that is not asked", None, JUDGED + " --index idx", 2, "--index needs --queries"),
    BadInput("a run of another index", write_file("lexical.trec", "q1 Q0 newt 1 1 t\n"),
        JUDGED.replace("one.", "lexical=lexical.") + " --queries queries.tsv --index idx", 3,
        "lexical: document 'newt' is not in idx"),
    BadInput("judgements of other queries", write_file("test.qrels", "zz 0 owl 1\n"), JUDGED, 3, "test.qrels: run of another collection"),
    BadInput("a map of nothing", write_file("map.tsv", POINTS), JUDGED + " --projection map.tsv", 3, "map.tsv: has no points"),
]  # fmt: skip

RERANK = "rerank --model came --queries queries.tsv --corpus corpus.jsonl --output out.trec --run "
TRAIN_CROSS_ENCODER = (
    "finetune --model tiny --arch cross-encoder --train good.jsonl --corpus corpus.jsonl --queries train-queries.jsonl --output out"
)
PRETRAIN = "pretrain --model tiny --arch cross-encoder --corpus corpus.jsonl --objective mlm --output out"
RERANKING = [
    BadInput("a group of one", None, TRAIN_CROSS_ENCODER + " --objective lce --negatives 0", 2,
        "--negatives 0: this objective compares a positive"),
    BadInput("a development run alone", None, TRAIN_CROSS_ENCODER + " --dev-run one.trec", 2, "--dev-run needs --dev-queries"),
    BadInput("a pre-trained cross-encoder", None, PRETRAIN, 2, "--arch cross-encoder: pre-train dense"),
    BadInput("a run of strangers", write_file("bad.trec", "q1 Q0 whale-x 1 2 t\n"), RERANK + "bad.trec", 3, "has no document 'whale-x'"),
    BadInput("a run of other queries", write_file("bad.trec", "x9 Q0 owl 1 2 t\n"), RERANK + "bad.trec", 3,
        "has no query 'x9', which bad.trec"),
    BadInput("an unknown way to cut", None, RERANK + "one.trec --passages best", 2, "--passages best: expected firstp, maxp or sump"),
    BadInput("a stride of beginnings", None, RERANK + "one.trec --stride 9", 2, "--passages firstp reads only the first passage; add"),
    BadInput("a corpus for two", None, RERANK.replace("corpus.jsonl", "-") + "one.trec --model came", 2,
        "--corpus -: every model reads it"),
    BadInput("more shards than queries", None, RERANK + "one.trec --shard 0/2", 2, "--shard 0/2: the run has 1 queries"),
    BadInput("a tag of two words", None, RERANK + "one.trec --tag a\tb", 2, "--tag"),
]  # fmt: skip

EXPORT = "export --encodings enc --output out --to "
SEARCHING = [
    BadInput("the same index twice", None, SEARCH + "idx --index idx", 2, "the same index is given twice"),
    BadInput("a corpus for nothing", None, SEARCH + "idx --corpus corpus.jsonl", 2, "--corpus needs --explain"),
    BadInput("an explanation over the queries", None, SEARCH + "idx --explain queries.tsv --force", 2,
        "would replace what --queries reads"),
    BadInput("an explanation over a file", write_file("why.jsonl", "mine"), SEARCH + "idx --explain why.jsonl", 2, "was not made by moeir"),
    BadInput("unknown server", None, EXPORT + "qdrnt", 2, "export_targets has no 'qdrnt'; did you mean 'qdrant'?"),
    BadInput("a collection of two words", None, EXPORT + "qdrant:name=My-texts", 2, "expected lower-case letters"),
    BadInput("an export to a pipe", None, EXPORT.replace("output out", "output -") + "milvus", 2, "the output is a folder"),
    BadInput("an export of another corpus", None, EXPORT + "milvus --corpus train-queries.jsonl", 3, "where the encodings have 'owl'"),
    BadInput("an export of an index", None, EXPORT.replace("enc ", "idx ") + "milvus", 4, "idx: expected encodings, found an index"),
]  # fmt: skip

PUSH = "push --repo anna/x --input "
HUB = [
    BadInput("a push without a network", None, PUSH + "came", 2, "anna/x: not accepted: Cannot reach"),
    BadInput("a pull without a network", None, "pull --repo anna/x --output out", 2, "anna/x: not accepted: Cannot reach"),
    BadInput("a push of nothing", None, PUSH + "absent", 3, "absent: no such file or folder (--input)"),
    BadInput("a push of texts", None, PUSH + "corpus.jsonl", 4, "corpus.jsonl: has no manifest.json: unfinished, or not made by moeir"),
]  # fmt: skip

UPDATE = "index --output out --index "
UPDATING = [
    BadInput("an addition to nothing", None, "index --output out --add enc", 2, "--add needs --index"),
    BadInput("an update without a change", None, UPDATE + "idx", 2, "--index idx: expected --add, --delete or --compact"),
    BadInput("an update with other engines", None, UPDATE + "idx --compact --engine flat", 2, "--engine and --index exclude one another"),
    BadInput("an update in its place", None, "index --index idx --compact --output idx", 2,
        "--output idx: would replace what --index reads"),
    BadInput("an update of encodings", None, UPDATE + "enc --compact", 4, "enc: expected an index, found encodings"),
    BadInput("an addition of an index", None, UPDATE + "idx --add idx", 4, "idx: expected encodings, found an index"),
    BadInput("texts for encodings", None, UPDATE + "idx --add corpus.jsonl", 2,
        "--add corpus.jsonl: expected the output folder of moeir encode"),
    BadInput("a document added again", None, UPDATE + "idx --add enc", 3,
        "document 'ant' is in idx already; to replace documents, name them"),
    BadInput("all documents deleted", None, UPDATE + "idx --delete enc/ids.txt", 3,
        "has all 12 documents of idx; expected one that remains"),
    BadInput("ids of no document", write_file("no.txt", "x\ny\n"), UPDATE + "idx --delete no.txt", 3, "none of its ids is in idx, such"),
    BadInput("no ids", write_file("no.txt", "\n"), UPDATE + "idx --delete no.txt", 3, "no.txt: holds no id; expected one in each line"),
    BadInput("a filter of no ids", write_file("no.txt", ""), SEARCH + "idx --filter-ids no.txt", 3, "no.txt: holds no id"),
    BadInput("a filter of strangers", write_file("no.txt", "x\n"), SEARCH + "idx --filter no.txt", 3, "no.txt: none of its ids is in idx"),
]  # fmt: skip

TABLE = [
    *TEXTS,
    *ARTIFACTS,
    *FLAGS,
    *OUTPUTS,
    *DAMAGE,
    *SPECS,
    *CHECKPOINTS,
    *ANSWERED,
    *TRAINING,
    *ENCODING,
    *FORMATS,
    *FUSING,
    *REPORTING,
    *RERANKING,
    *SEARCHING,
    *HUB,
    *UPDATING,
]
