"""Kinds of bad input: a setup, the command that fails on it, its exit code and a part of its error message."""

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


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def set_keys(**facts: object) -> Callable[[Path], object]:
    """Set some keys of a JSON file; None removes a key."""

    def damage(path: Path) -> None:
        content = json.loads(path.read_text()) | facts
        content = {key: value for key, value in content.items() if value is not None}
        path.write_text(manifests.serialize_manifest(content) if path.name == manifests.MANIFEST else json.dumps(content))

    return damage


def name_outside_file(path: Path) -> None:
    set_keys(files=json.loads(path.read_text())["files"] | {"../toy.txt": {"bytes": 0, "sha256": ""}})(path)


def overwrite(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


EMPTY_PATTERN = {"type": "Replace", "pattern": {"String": ""}, "content": "x"}
config, weights, tokenizer = (partial(damaged_copy, "tiny", name) for name in ("config.json", "model.safetensors", "tokenizer.json"))
manifest = partial(damaged_copy, "idx", "manifest.json")


def lock_output(folder: Path) -> object:
    """Lock the output, as another process would."""
    lock = open(folder / ".out.lock", "w")  # noqa: SIM115 - closed when the test forgets it
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


# The system's error for that folder: in a container all of /sys may be read-only, even for root
DENIED = "Read-only" if os.geteuid() == 0 and os.statvfs("/sys/kernel").f_flag & os.ST_RDONLY else "denied"


def make_read_only(folder: Path) -> None:
    """Make a folder without write permission; for root, a link into /sys."""
    if os.geteuid() == 0:
        (folder / "locked").symlink_to("/sys/kernel")
    else:
        (folder / "locked").mkdir(mode=0o500)


def lead_to_an_empty_folder(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("empty")
    (folder / "dangling").symlink_to("nowhere")


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
    (folder / ".out.partial/resume").mkdir(parents=True)
    (folder / ".out.partial/resume/journal.jsonl").write_text("{}\n")
    (folder / ".out.record").write_text(json.dumps({"stage": "encode", "settings": {"dtype": "bfloat16"}, "sources": {}}))


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
    BadInput("missing id", write_corpus('{"text": "bat"}'), BM25 + "bad.jsonl", 3, "bad.jsonl:2: no id"),
    BadInput("duplicate id", write_corpus('{"_id": "a", "text": "bat"}'), BM25 + "bad.jsonl", 3, "bad.jsonl:2: duplicate id 'a'"),
    BadInput("id with spaces", write_corpus('{"_id": "b c", "text": "bat"}'), BM25 + "bad.jsonl", 3,
        "bad.jsonl:2: id with white space: 'b c'"),
    BadInput("empty text", write_corpus('{"_id": "b", "text": " "}'), ENCODE.replace("corpus.jsonl", "bad.jsonl") + "came", 3,
        "--keep-empty"),
    BadInput("broken JSON at line 3", write_corpus("", '{"_id": "c"'), BM25 + "bad.jsonl", 3, "bad.jsonl:3: broken JSON at column 12"),
    BadInput("no object", write_corpus("[1, 2]"), BM25 + "bad.jsonl", 3, "bad.jsonl:2: expected a JSON object, found [1, 2]"),
    BadInput("empty file", write_file("bad.jsonl", ""), BM25 + "bad.jsonl", 3, "bad.jsonl: holds no text"),
    BadInput("not UTF-8", write_file("bad.tsv", b"a\tf\xfcr\n"), BM25 + "bad.tsv", 3, "bad.tsv:1: not UTF-8: byte 0xfc"),
    BadInput("not text", write_file("bad.tsv", b"a\tb\n\0\0\n"), BM25 + "bad.tsv", 3, "bad.tsv:2: not a text file"),
    BadInput("truncated gzip", write_file("bad.jsonl.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\xff\xab"), BM25 + "bad.jsonl.gz", 3,
        "damaged archive"),
    BadInput("not a gzip", write_file("bad.jsonl.gz", "a\tb\n"), BM25 + "bad.jsonl.gz", 3, "damaged archive"),
    BadInput("three columns for two", write_file("queries.tsv", "q1\ta\tb\n"), SEARCH + "bm25", 3,
        "queries.tsv:1: expected 2 tab-separated columns"),
    BadInput("no such file", None, BM25 + "absent.jsonl", 3, "absent.jsonl: no such file (--corpus)"),
    BadInput("a folder for a file", None, BM25 + "tiny", 3, "tiny: expected a file for --corpus, found a folder"),
    BadInput("an unreadable source", None, BM25 + "hf:absent", 2, "hf:absent"),
    BadInput("grade not a number", write_file("test.qrels", "q1 0 owl x\n"), EVALUATE + "one.trec", 3,
        "test.qrels:1: grade is not a number: 'x'"),
    BadInput("two columns for four", write_file("test.qrels", "q1 owl\n"), EVALUATE + "one.trec", 3, "test.qrels:1: expected 4 columns"),
    BadInput("two grades", write_file("test.qrels", "q1 0 owl 1\nq1 0 owl 2\n"), EVALUATE + "one.trec", 3,
        "grade 2 here, 1 on an earlier line"),
    BadInput("run of another collection", write_file("bad.trec", "x Q0 y 1 1.0 t\n"), EVALUATE + "bad.trec", 3,
        "bad.trec: run of another collection"),
    BadInput("NaN score", write_file("bad.trec", "q1 Q0 owl 1 nan t\n"), FUSE + "bad.trec", 3, "bad.trec:1: score is not finite: 'nan'"),
    BadInput("score not a number", write_file("bad.trec", "q1 Q0 owl 1 1,5 t\n"), FUSE + "bad.trec", 3,
        "bad.trec:1: score is not a number: '1,5'"),
    BadInput("five columns for six", write_file("bad.trec", "q1 Q0 owl 1 1.5\n"), FUSE + "bad.trec", 3, "bad.trec:1: expected 6 columns"),
    BadInput("a document twice", write_file("bad.trec", "q Q0 d 1 2 t\nq Q0 d 2 1 t\n"), FUSE + "bad.trec", 3,
        "bad.trec:2: document 'd' is listed"),
    BadInput("judgements of other queries", write_file("test.qrels", "zz 0 owl 1\n"), MINE, 3,
        "test.qrels: no query has both positives and negatives in one.trec; do the ids agree?"),
    BadInput("example of an absent document", write_example(GOOD.replace("cat", "yak")), TRAIN + "bad.jsonl", 3,
        "names document yak, which is"),
    BadInput("example of an absent query", write_example(GOOD.replace("t1", "t9")), TRAIN + "bad.jsonl", 3,
        "query t9 is not among the queries"),
    BadInput("a positive that is a negative", write_example(GOOD.replace("cat", "owl")), TRAIN + "bad.jsonl", 3,
        "bad.jsonl:1: document 'owl' is a"),
    BadInput("no positive", write_example(GOOD.replace('"owl"', "")), TRAIN + "bad.jsonl", 3, "bad.jsonl:1: query 't1' has no positive"),
    BadInput("no negative", write_example(GOOD.replace('"cat"', "")), TRAIN + "bad.jsonl", 3, "or train with --negatives 0"),
    BadInput("examples without texts", write_example(GOOD), ALONE, 2, "name their files with --queries"),
]  # fmt: skip

ARTIFACTS = [
    BadInput("no such artifact", None, SEARCH + "absent", 4, "absent: no such index"),
    BadInput("a file for a folder", None, SEARCH + "queries.tsv", 4, "expected a folder with index, found a file"),
    BadInput("unfinished", damaged_copy("bm25", "manifest.json", Path.unlink), SEARCH + "bad", 4, "bad: has no manifest.json: unfinished"),
    BadInput("flipped bit", damaged_copy("came", "model.safetensors", flip_bit), ENCODE + "bad", 4,
        "not the one in the manifest; run moeir init"),
    BadInput("truncated file", damaged_copy("idx", "local/vectors.npy", truncate), SEARCH + "bad", 4,
        "bad/local/vectors.npy: damaged: expected"),
    BadInput("missing file", damaged_copy("enc", "ids.txt", Path.unlink), INDEX + "bad", 4, "bad/ids.txt: damaged artifact: the file is"),
    BadInput("garbled manifest", manifest(overwrite("{")), SEARCH + "bad", 4, "bad/manifest.json: damaged: not a manifest"),
    BadInput("manifest of nothing", manifest(set_keys(files=7)), SEARCH + "bad", 4, "bad/manifest.json: damaged: not a manifest"),
    BadInput("manifest without kind", manifest(set_keys(kind=None)), SEARCH + "bad", 4, "damaged: not a manifest"),
    BadInput("a file outside", manifest(name_outside_file), SEARCH + "bad", 4, "names a file outside the folder"),
    BadInput("wrong kind", None, SEARCH + "enc", 4, "enc: expected an index, found encodings (made by moeir encode)"),
    BadInput("plain weights for a checkpoint", None, ENCODE + "tiny", 4, "moeir init --model tiny"),
    BadInput("no way from a checkpoint to another", None, INIT + "--model came --arch dense", 4, "cannot become dense"),
    BadInput("corrupt weights", weights(overwrite("nonsense")), START, 4, "damaged"),
    BadInput("weights cut short", weights(truncate), START, 4, "damaged"),
    BadInput("no weights", weights(Path.unlink), START, 4, "no model.safetensors"),
    BadInput("no config.json", config(Path.unlink), START, 4, "bad: no config.json"),
    BadInput("config.json broken", config(overwrite("{")), START, 4, "not a JSON object"),
    BadInput("config.json without sizes", config(set_keys(hidden_size=None)), START, 4, "hidden_size"),
    BadInput("config.json of true layers", config(set_keys(num_hidden_layers=True)), START, 4,
        "bad/config.json: num_hidden_layers is True; expected a whole number from 1 to 1,000"),
    BadInput("config.json of endless layers", config(set_keys(num_hidden_layers=2**31)), START, 4, "num_hidden_layers is 2147483648"),
    BadInput("unknown family", config(set_keys(model_type="t5")), START, 2, "model_type is 't5'"),
    BadInput("weights of another size", config(set_keys(num_hidden_layers=5)), START, 4, "weights are missing"),
    BadInput("no tokenizer", tokenizer(lambda path: (path.unlink(), path.with_name("vocab.txt").unlink())),
        START, 4, "bad: no tokenizer.json or vocab.txt"),
    BadInput("broken tokenizer", tokenizer(overwrite("{}")), START, 4, "tokenizer cannot be opened"),
    BadInput("tokenizer that replaces nothing", tokenizer(set_keys(normalizer=EMPTY_PATTERN)), START, 4,
        "bad: its tokenizer has a Replace with an empty pattern"),
    BadInput("weights nowhere", None, "init --model owner/absent --arch dense --output out", 2,
        "not a folder, and it cannot be loaded from the hub"),
]  # fmt: skip

FLAGS = [
    BadInput("unknown stage", None, "finetun --output out", 2, "Did you mean 'finetune'"),
    BadInput("unknown flag", None, "fuse --runn one.trec", 2, "--run"),
    BadInput("missing flag", None, "fuse --output out.trec", 2, "fuse needs --run"),
    BadInput("not a whole number", None, FUSE + "two.trec --depth ten", 2, "--depth: expected a whole number, found 'ten'"),
    BadInput("depth of nothing", None, FUSE + "two.trec --depth 0", 2, "--depth 0: expected 1 to"),
    BadInput("tag of two words", None, FUSE + "two.trec --tag a\u00a0b", 2, "expected a word without spaces"),
    BadInput("one run to fuse", None, "fuse --run one.trec --output out.trec", 2, "--run: expected 2 or more, found 1; repeat the flag"),
    BadInput("the same run twice", None, EVALUATE + "one.trec --run one.trec", 2, "the same run is given twice"),
    BadInput("unknown fusion", None, FUSE + "two.trec --method rff", 2, "fusion has no 'rff'; did you mean 'rrf'?"),
    BadInput("unknown option", None, FUSE + "two.trec --method rrf:konstant=6", 2,
        "rrf has no option 'konstant'; did you mean 'constant'?"),
    BadInput("option out of its range", None, FUSE + "two.trec --method rrf:constant=-1", 2, "rrf:constant=-1.0: expected 0 or more"),
    BadInput("option not a number", None, FUSE + "two.trec --method rrf:constant=many", 2, "constant: expected a number, found 'many'"),
    BadInput("unknown architecture", None, INIT + "--arch dens", 2, "architectures has no 'dens'; did you mean 'dense'?"),
    BadInput("no architecture", None, INIT, 2, "plain weights; name an architecture: --arch"),
    BadInput("too many shared layers", None, INIT + "--arch came:shared_layers=5", 2, "the encoder has 4 layers; expected 0 to 4"),
    BadInput("an expert twice", None, INIT + "--arch came:shared_layers=2,experts=local+local", 2, "each once"),
    BadInput("longer than the positions", None, INIT + "--arch dense --document-length 65", 2, "--document-length 65: expected 3 to 64"),
    BadInput("a seed below zero", None, INIT + "--arch dense --seed -1", 2, "--seed -1: expected 0 to"),
    BadInput("no steps", None, TRAIN + "good.jsonl --steps 0", 2, "--steps 0: expected at least 1"),
    BadInput("unknown objective", None, TRAIN + "good.jsonl --objective competitve", 2, "did you mean 'competitive'?"),
    BadInput("no such device", None, ENCODE + "came --device cuda:99", 2, "--device cuda:99: torch sees"),
    BadInput("no device to compute on", None, ENCODE + "came --device meta", 2, "--device meta: expected auto, cpu, cuda"),
    BadInput("a device without a number", None, ENCODE + "came --device cuda:one", 2,
        "--device cuda:one: expected auto, cpu, cuda or cuda:N"),
    BadInput("no such dtype", None, ENCODE.replace("float32", "int3") + "came", 2, "--dtype int3: expected auto"),
    BadInput("unknown measure", None, EVALUATE + "one.trec --measure nDGC@10", 2, "did you mean nDCG"),
    BadInput("an expert that is not there", None, SEARCH + "idx --expert lexicon", 2, "--expert lexicon: idx has lexical, local, global"),
    BadInput("an engine for an expert that is not there", None, INDEX + "enc --engine x=flat", 2, "there is no expert 'x'"),
    BadInput("an engine of another kind", None, INDEX + "enc --engine global=inverted", 2, "takes sparse representations"),
    BadInput("an unknown language", None, BM25.replace("bm25", "bm25:language=de") + "corpus.jsonl", 2, "'de' is unknown; known: ar"),
    BadInput("an unknown stemmer", None, BM25.replace("bm25", "bm25:stemmer=lucene") + "corpus.jsonl", 2, "unknown; known: snowball"),
    BadInput("an engine that reads no texts", None, "index --corpus corpus.jsonl --output out --engine flat", 2, "add --engine bm25"),
    BadInput("no such YAML", None, FUSE + "two.trec --config absent.yaml", 3, "absent.yaml: cannot be read"),
    BadInput("YAML garbage", write_file("bad.yaml", "a: [1\nb: }"), FUSE + "two.trec --config bad.yaml", 3, "bad.yaml: not YAML"),
    BadInput("YAML of a list", write_file("bad.yaml", "- a\n"), FUSE + "two.trec --config bad.yaml", 3, "expected a mapping `flag: value`"),
    BadInput("unknown key", write_file("bad.yaml", "metod: rrf\n"), FUSE + "two.trec --config bad.yaml", 2, "did you mean 'method'?"),
    BadInput("a key of two values", write_file("bad.yaml", "tag: [a, b]\n"), FUSE + "two.trec --config bad.yaml", 2,
        "expected one value, found 2"),
    BadInput("a key of none", write_file("bad.yaml", "tag:\n"), FUSE + "two.trec --config bad.yaml", 2,
        "tag: expected one plain value, found none"),
]  # fmt: skip

OUTPUTS = [
    BadInput("output not made by moeir", write_file("out.trec", "mine"), FUSE + "two.trec", 2,
        "out.trec: exists and was not made by moeir"),
    BadInput("output of other settings", None, FUSE_AGAIN + " --depth 3", 2, "made with other settings or sources (depth)"),
    BadInput("output of other sources", None, "fuse --run two.trec --run one.trec --output made.trec", 2,
        "other settings or sources (run)"),
    BadInput("output edited since", write_file("made.trec", "mine"), FUSE_AGAIN, 2, "--force replaces it"),
    BadInput("output under a file", None, FUSE.replace("out.trec", "one.trec/out") + "two.trec", 2, "one.trec"),
    BadInput("unfinished work of other settings", leave_unfinished_work, ENCODE + "came", 2,
        "unfinished work of other settings (corpus, dtype,"),
    BadInput("output that is read", None, FUSE.replace(" out", " one") + "two.trec --force", 2, "would replace what --run reads"),
    BadInput("output around what is read", None, ENCODE.replace(" out", " ../shop") + "came --force", 2, "would replace what --corpus"),
    BadInput("output inside plain weights", None, INIT.replace(" out", " tiny/out") + "--arch dense", 2, "is inside the folder"),
    BadInput("output without a name", None, ENCODE.replace(" out", " .") + "came --force", 2, "--output .: expected the name of a"),
    BadInput("output above", None, FUSE.replace(" out.trec", " ..") + "two.trec --force", 2, "--output ..: expected the name of a"),
    BadInput("output of everything", None, FUSE.replace(" out.trec", " /") + "two.trec --force", 2, "--output /: expected the name of a"),
    BadInput("output in a circle", lead_in_a_circle, FUSE.replace("out.", "circle/") + "two.trec", 2, "symbolic links that lead"),
    BadInput("output is a link", lead_to_an_empty_folder, ENCODE.replace(" out", " link") + "came", 2, "link: a symbolic link"),
    BadInput("output of a link", lead_to_an_empty_folder, ENCODE.replace(" out", " dangling") + "came", 2, "dangling: a symbolic link"),
    BadInput("integer of 65 bits", None, FUSE + "two.trec --depth 9223372036854775808", 2, "expected a whole number of 64 bits"),
    BadInput("read-only folder", make_read_only, FUSE.replace("out.", "locked/out.") + "two.trec", 1, DENIED),
    BadInput("disk full at the first byte", FullDisk, ENCODE + "came", 1, "out: File too large"),
    BadInput("disk full at the weights", partial(FullDisk, bytes=20_000), INIT + "--arch dense", 1, "model.safetensors: cannot be written"),
    BadInput("disk full in training", partial(FullDisk, bytes=20_000), TRAIN + "good.jsonl --steps 2 --save-minutes 0", 1,
        "cannot be written"),
    BadInput("disk full at the index", partial(FullDisk, bytes=300), BM25 + "corpus.jsonl", 1, "out: "),
    BadInput("disk full at the run", partial(FullDisk, bytes=1000), SEARCH + "idx", 1, "out.trec: File too large"),
    BadInput("two writers", lock_output, ENCODE + "came", 4, "out: another process is writing it"),
]  # fmt: skip

COMMON = [*TEXTS, *ARTIFACTS, *FLAGS, *OUTPUTS]
