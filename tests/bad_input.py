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


class Bad(NamedTuple):
    """A kind of bad input: its setup, the command that fails on it, its exit code, and a part of the error message."""

    name: str
    setup: Setup | None
    command: str
    code: int
    words: str


def file(name: str, content: str | bytes) -> Setup:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def corpus(*lines: str) -> Setup:
    """Write bad.jsonl: a valid line, then `lines`."""
    return file("bad.jsonl", "\n".join(['{"_id": "a", "text": "owl"}', *lines]) + "\n")


def example(line: str) -> Setup:
    return file("bad.jsonl", line + "\n")


def damaged(what: str, name: str, damage: Callable[[Path], object]) -> Setup:
    """Copy an artifact to `bad` and damage one of its files."""

    def setup(folder: Path) -> None:
        shutil.copytree(folder / what, folder / "bad")
        damage(folder / "bad" / name)

    return setup


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def says(**facts: object) -> Callable[[Path], object]:
    """Set some keys of a JSON file; None removes a key."""

    def damage(path: Path) -> None:
        content = json.loads(path.read_text()) | facts
        content = {key: value for key, value in content.items() if value is not None}
        path.write_text(manifests.text_of(content) if path.name == manifests.MANIFEST else json.dumps(content))

    return damage


def names_a_file_outside(path: Path) -> None:
    says(files=json.loads(path.read_text())["files"] | {"../toy.txt": {"bytes": 0, "sha256": ""}})(path)


def writes(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


config, weights, tokenizer = (partial(damaged, "tiny", name) for name in ("config.json", "model.safetensors", "tokenizer.json"))
manifest = partial(damaged, "idx", "manifest.json")


def being_written(folder: Path) -> object:
    """Lock the output, as another process would."""
    lock = open(folder / ".out.lock", "w")  # noqa: SIM115 - closed when the test forgets it
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


# The system's error for that folder: in a container all of /sys may be read-only, even for root
DENIED = "Read-only" if os.geteuid() == 0 and os.statvfs("/sys/kernel").f_flag & os.ST_RDONLY else "denied"


def read_only(folder: Path) -> None:
    """Make a folder without write permission; for root, a link into /sys."""
    if os.geteuid() == 0:
        (folder / "locked").symlink_to("/sys/kernel")
    else:
        (folder / "locked").mkdir(mode=0o500)


class Full:
    """Limit the size of files, as a full disk would, until closed."""

    def __init__(self, folder: Path, bytes: int = 0) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, self._limits[1]))

    def close(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


def half_done(folder: Path) -> None:
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
MADE = "fuse --run one.trec --run two.trec --output made.trec"
INDEX = "index --output out --encodings "
MINE = "mine-negatives --run one.trec --qrels test.qrels --output out.jsonl"
ALONE = "finetune --output out --model tiny --arch dense --train bad.jsonl"
GOOD = '{"query_id": "t1", "positive_ids": ["owl"], "negative_ids": ["cat"]}'

TEXTS = [
    Bad("missing id", corpus('{"text": "bat"}'), BM25 + "bad.jsonl", 3, "bad.jsonl:2: no id"),
    Bad("duplicate id", corpus('{"_id": "a", "text": "bat"}'), BM25 + "bad.jsonl", 3, "bad.jsonl:2: duplicate id 'a'"),
    Bad("id with spaces", corpus('{"_id": "b c", "text": "bat"}'), BM25 + "bad.jsonl", 3, "bad.jsonl:2: id with white space: 'b c'"),
    Bad("empty text", corpus('{"_id": "b", "text": " "}'), ENCODE.replace("corpus.jsonl", "bad.jsonl") + "came", 3, "--keep-empty"),
    Bad("broken JSON at line 3", corpus("", '{"_id": "c"'), BM25 + "bad.jsonl", 3, "bad.jsonl:3: broken JSON at column 12"),
    Bad("no object", corpus("[1, 2]"), BM25 + "bad.jsonl", 3, "bad.jsonl:2: expected a JSON object, found [1, 2]"),
    Bad("empty file", file("bad.jsonl", ""), BM25 + "bad.jsonl", 3, "bad.jsonl: holds no text"),
    Bad("not UTF-8", file("bad.tsv", b"a\tf\xfcr\n"), BM25 + "bad.tsv", 3, "bad.tsv:1: not UTF-8: byte 0xfc"),
    Bad("not text", file("bad.tsv", b"a\tb\n\0\0\n"), BM25 + "bad.tsv", 3, "bad.tsv:2: not a text file"),
    Bad("truncated gzip", file("bad.jsonl.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\xff\xab"), BM25 + "bad.jsonl.gz", 3, "damaged archive"),
    Bad("not a gzip", file("bad.jsonl.gz", "a\tb\n"), BM25 + "bad.jsonl.gz", 3, "damaged archive"),
    Bad("three columns for two", file("queries.tsv", "q1\ta\tb\n"), SEARCH + "bm25", 3, "queries.tsv:1: expected 2 tab-separated columns"),
    Bad("no such file", None, BM25 + "absent.jsonl", 3, "absent.jsonl: no such file (--corpus)"),
    Bad("a folder for a file", None, BM25 + "tiny", 3, "tiny: expected a file for --corpus, found a folder"),
    Bad("an unreadable source", None, BM25 + "hf:absent", 2, "hf:absent"),
    Bad("grade not a number", file("test.qrels", "q1 0 owl x\n"), EVALUATE + "one.trec", 3, "test.qrels:1: grade is not a number: 'x'"),
    Bad("two columns for four", file("test.qrels", "q1 owl\n"), EVALUATE + "one.trec", 3, "test.qrels:1: expected 4 columns"),
    Bad("two grades", file("test.qrels", "q1 0 owl 1\nq1 0 owl 2\n"), EVALUATE + "one.trec", 3, "grade 2 here, 1 on an earlier line"),
    Bad("run of another collection", file("bad.trec", "x Q0 y 1 1.0 t\n"), EVALUATE + "bad.trec", 3, "bad.trec: run of another collection"),
    Bad("NaN score", file("bad.trec", "q1 Q0 owl 1 nan t\n"), FUSE + "bad.trec", 3, "bad.trec:1: score is not finite: 'nan'"),
    Bad("score not a number", file("bad.trec", "q1 Q0 owl 1 1,5 t\n"), FUSE + "bad.trec", 3, "bad.trec:1: score is not a number: '1,5'"),
    Bad("five columns for six", file("bad.trec", "q1 Q0 owl 1 1.5\n"), FUSE + "bad.trec", 3, "bad.trec:1: expected 6 columns"),
    Bad("a document twice", file("bad.trec", "q Q0 d 1 2 t\nq Q0 d 2 1 t\n"), FUSE + "bad.trec", 3, "bad.trec:2: document 'd' is listed"),
    Bad("judgements of other queries", file("test.qrels", "zz 0 owl 1\n"), MINE, 3,
        "test.qrels: no query has both positives and negatives in one.trec; do the ids agree?"),
    Bad("example of an absent document", example(GOOD.replace("cat", "yak")), TRAIN + "bad.jsonl", 3, "names document yak, which is"),
    Bad("example of an absent query", example(GOOD.replace("t1", "t9")), TRAIN + "bad.jsonl", 3, "query t9 is not among the queries"),
    Bad("a positive that is a negative", example(GOOD.replace("cat", "owl")), TRAIN + "bad.jsonl", 3, "bad.jsonl:1: document 'owl' is a"),
    Bad("no positive", example(GOOD.replace('"owl"', "")), TRAIN + "bad.jsonl", 3, "bad.jsonl:1: query 't1' has no positive"),
    Bad("no negative", example(GOOD.replace('"cat"', "")), TRAIN + "bad.jsonl", 3, "or train with --negatives 0"),
    Bad("examples without texts", example(GOOD), ALONE, 2, "name their files with --queries"),
]  # fmt: skip

ARTIFACTS = [
    Bad("no such artifact", None, SEARCH + "absent", 4, "absent: no such index"),
    Bad("a file for a folder", None, SEARCH + "queries.tsv", 4, "expected a folder with index, found a file"),
    Bad("unfinished", damaged("bm25", "manifest.json", Path.unlink), SEARCH + "bad", 4, "bad: has no manifest.json: unfinished"),
    Bad("flipped bit", damaged("came", "model.safetensors", flip), ENCODE + "bad", 4, "not the one in the manifest; run moeir init"),
    Bad("truncated file", damaged("idx", "local/vectors.npy", cut), SEARCH + "bad", 4, "bad/local/vectors.npy: damaged: expected"),
    Bad("missing file", damaged("enc", "ids.txt", Path.unlink), INDEX + "bad", 4, "bad/ids.txt: damaged artifact: the file is"),
    Bad("garbled manifest", manifest(writes("{")), SEARCH + "bad", 4, "bad/manifest.json: damaged: not a manifest"),
    Bad("manifest of nothing", manifest(says(files=7)), SEARCH + "bad", 4, "bad/manifest.json: damaged: not a manifest"),
    Bad("manifest without kind", manifest(says(kind=None)), SEARCH + "bad", 4, "damaged: not a manifest"),
    Bad("a file outside", manifest(names_a_file_outside), SEARCH + "bad", 4, "names a file outside the folder"),
    Bad("wrong kind", None, SEARCH + "enc", 4, "enc: expected an index, found encodings (made by moeir encode)"),
    Bad("plain weights for a checkpoint", None, ENCODE + "tiny", 4, "moeir init --model tiny"),
    Bad("no way from a checkpoint to another", None, INIT + "--model came --arch dense", 4, "cannot become dense"),
    Bad("corrupt weights", weights(writes("nonsense")), START, 4, "damaged"),
    Bad("weights cut short", weights(cut), START, 4, "damaged"),
    Bad("no weights", weights(Path.unlink), START, 4, "no model.safetensors"),
    Bad("no config.json", config(Path.unlink), START, 4, "bad: no config.json"),
    Bad("config.json broken", config(writes("{")), START, 4, "not a JSON object"),
    Bad("config.json without sizes", config(says(hidden_size=None)), START, 4, "hidden_size"),
    Bad("unknown family", config(says(model_type="t5")), START, 2, "model_type is 't5'"),
    Bad("weights of another size", config(says(num_hidden_layers=5)), START, 4, "weights are missing"),
    Bad("no tokenizer", tokenizer(lambda path: (path.unlink(), path.with_name("vocab.txt").unlink())),
        START, 4, "bad: no tokenizer.json or vocab.txt"),
    Bad("broken tokenizer", tokenizer(writes("{}")), START, 4, "tokenizer cannot be opened"),
    Bad("weights nowhere", None, "init --model owner/absent --arch dense --output out", 2, "not a folder, and it cannot be loaded from the hub"),
]  # fmt: skip

FLAGS = [
    Bad("unknown stage", None, "finetun --output out", 2, "Did you mean 'finetune'"),
    Bad("unknown flag", None, "fuse --runn one.trec", 2, "--run"),
    Bad("missing flag", None, "fuse --output out.trec", 2, "fuse needs --run"),
    Bad("not a whole number", None, FUSE + "two.trec --depth ten", 2, "--depth: expected a whole number, found 'ten'"),
    Bad("depth of nothing", None, FUSE + "two.trec --depth 0", 2, "--depth 0: expected at least 1"),
    Bad("tag of two words", None, FUSE + "two.trec --tag a\u00a0b", 2, "expected a word without spaces"),
    Bad("one run to fuse", None, "fuse --run one.trec --output out.trec", 2, "expected two runs or more, found 1"),
    Bad("the same run twice", None, EVALUATE + "one.trec --run one.trec", 2, "the same run is given twice"),
    Bad("unknown fusion", None, FUSE + "two.trec --method rff", 2, "fusion has no 'rff'; did you mean 'rrf'?"),
    Bad("unknown option", None, FUSE + "two.trec --method rrf:konstant=6", 2, "rrf has no option 'konstant'; did you mean 'constant'?"),
    Bad("option out of its range", None, FUSE + "two.trec --method rrf:constant=-1", 2, "rrf:constant=-1.0: expected 0 or more"),
    Bad("option not a number", None, FUSE + "two.trec --method rrf:constant=many", 2, "constant: expected a number, found 'many'"),
    Bad("unknown architecture", None, INIT + "--arch dens", 2, "architectures has no 'dens'; did you mean 'dense'?"),
    Bad("no architecture", None, INIT, 2, "plain weights; name an architecture: --arch"),
    Bad("too many shared layers", None, INIT + "--arch came:shared_layers=5", 2, "the encoder has 4 layers; expected 0 to 4"),
    Bad("an expert twice", None, INIT + "--arch came:shared_layers=2,experts=local+local", 2, "each once"),
    Bad("longer than the positions", None, INIT + "--arch dense --document-length 65", 2, "--document-length 65: expected 3 to 64"),
    Bad("a seed below zero", None, INIT + "--arch dense --seed -1", 2, "--seed -1: expected 0 to"),
    Bad("no steps", None, TRAIN + "good.jsonl --steps 0", 2, "--steps 0: expected more than 0"),
    Bad("unknown objective", None, TRAIN + "good.jsonl --objective competitve", 2, "did you mean 'competitive'?"),
    Bad("no such device", None, ENCODE + "came --device cuda:99", 2, "--device cuda:99: torch sees"),
    Bad("no device to compute on", None, ENCODE + "came --device meta", 2, "--device meta: expected auto, cpu, cuda"),
    Bad("a device without a number", None, ENCODE + "came --device cuda:one", 2, "--device cuda:one: expected auto, cpu, cuda or cuda:N"),
    Bad("no such dtype", None, ENCODE.replace("float32", "int3") + "came", 2, "--dtype int3: expected auto"),
    Bad("unknown measure", None, EVALUATE + "one.trec --measure nDGC@10", 2, "did you mean nDCG"),
    Bad("an expert that is not there", None, SEARCH + "idx --expert lexicon", 2, "--expert lexicon: idx has lexical, local, global"),
    Bad("an engine for an expert that is not there", None, INDEX + "enc --engine x=flat", 2, "there is no expert 'x'"),
    Bad("an engine of another kind", None, INDEX + "enc --engine global=inverted", 2, "takes sparse representations"),
    Bad("an engine that reads no texts", None, "index --corpus corpus.jsonl --output out --engine flat", 2, "add --engine bm25"),
    Bad("no such YAML", None, FUSE + "two.trec --config absent.yaml", 3, "absent.yaml: cannot be read"),
    Bad("YAML garbage", file("bad.yaml", "a: [1\nb: }"), FUSE + "two.trec --config bad.yaml", 3, "bad.yaml: not YAML"),
    Bad("YAML of a list", file("bad.yaml", "- a\n"), FUSE + "two.trec --config bad.yaml", 3, "expected a mapping `flag: value`"),
    Bad("unknown key", file("bad.yaml", "metod: rrf\n"), FUSE + "two.trec --config bad.yaml", 2, "did you mean 'method'?"),
    Bad("a key of two values", file("bad.yaml", "tag: [a, b]\n"), FUSE + "two.trec --config bad.yaml", 2, "expected one value, found 2"),
    Bad("a key of none", file("bad.yaml", "tag:\n"), FUSE + "two.trec --config bad.yaml", 2, "tag: expected one plain value, found none"),
]  # fmt: skip

OUTPUTS = [
    Bad("output not made by moeir", file("out.trec", "mine"), FUSE + "two.trec", 2, "out.trec: exists and was not made by moeir"),
    Bad("output of other settings", None, MADE + " --depth 3", 2, "made with other settings or sources (depth)"),
    Bad("output of other sources", None, "fuse --run two.trec --run one.trec --output made.trec", 2, "other settings or sources (run)"),
    Bad("output edited since", file("made.trec", "mine"), MADE, 2, "--force replaces it"),
    Bad("output under a file", None, FUSE.replace("out.trec", "one.trec/out") + "two.trec", 1, "one.trec"),
    Bad("unfinished work of other settings", half_done, ENCODE + "came", 2, "unfinished work of other settings (corpus, dtype,"),
    Bad("output that is read", None, FUSE.replace(" out", " one") + "two.trec --force", 2, "would replace what --run reads"),
    Bad("output around what is read", None, ENCODE.replace(" out", " .") + "came --force", 2, "would replace what --corpus reads"),
    Bad("read-only folder", read_only, FUSE.replace("out.", "locked/out.") + "two.trec", 1, DENIED),
    Bad("disk full at the first byte", Full, ENCODE + "came", 1, "out: File too large"),
    Bad("disk full at the weights", partial(Full, bytes=20_000), INIT + "--arch dense", 1, "model.safetensors: cannot be written"),
    Bad("disk full in training", partial(Full, bytes=20_000), TRAIN + "good.jsonl --steps 2 --save-minutes 0", 1, "cannot be written"),
    Bad("disk full at the index", partial(Full, bytes=300), BM25 + "corpus.jsonl", 1, "out: "),
    Bad("disk full at the run", partial(Full, bytes=1000), SEARCH + "idx", 1, "out.trec: File too large"),
    Bad("two writers", being_written, ENCODE + "came", 4, "out: another process is writing it"),
]  # fmt: skip

EVERY = [*TEXTS, *ARTIFACTS, *FLAGS, *OUTPUTS]
