"""Each of the 33 attacks, through the command line of two checkouts: what happened at 7e6fa5b, and what happens now.

    git worktree add ../old 7e6fa5b
    python tests/benchmarks/attacks_before_and_after.py --before ../old --after . --work FOLDER [NUMBER …]

Every checkout makes its own artifacts from the toy texts and seeded tiny weights. An attack is a preparation, a command of bash in which
`moeir` is that checkout, and a description of the fault, if there is one; without a fault the command ends in a result or one line with a
documented exit code. The table has what was observed.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.conftest import TOY, write_tiny_bert  # noqa: E402
from tests.tiny_t5 import write_tiny_t5  # noqa: E402

SECONDS = 60
CODES = (0, 1, 2, 3, 4, 130)
MAKE = """
moeir init --model weights --arch came:shared_layers=1,local_dim=8 --query-length 16 --document-length 32 --output ckpt
moeir encode --model ckpt --corpus toy/corpus.jsonl --dtype float32 --output enc
moeir index --encodings enc --output idx
moeir index --corpus toy/corpus.jsonl --engine bm25 --output bm25
moeir search --index bm25 --queries toy/test-queries.tsv --output bm25.trec
moeir search --index idx --queries toy/test-queries.tsv --output came.trec
moeir search --index bm25 --queries toy/train-queries.jsonl --output train.trec
moeir mine-negatives --run train.trec --qrels toy/train.qrels --output train.jsonl
"""
CORPUS, QRELS, QUERIES = "toy/corpus.jsonl", "--qrels toy/test-qrels.tsv", "--queries toy/test-queries.tsv"
TRAIN = f"moeir finetune --model weights --arch dense --train train.jsonl --corpus {CORPUS} --queries toy/train-queries.jsonl"
TRAIN += " --batch-size 2 --negatives 2 --document-length 20 --query-length 12 --dtype float32 --learning-rate 0.001"
FUSE = "moeir fuse --run bm25.trec --run came.trec --method rrf"


class Result(NamedTuple):
    """How a command ended."""

    code: int | None  # None: it did not end
    stdout: str
    stderr: str
    folder: Path


class Attack(NamedTuple):
    """An attack: its number, what it does, the command, what is wrong (None: nothing more than the rules of every command)."""

    number: int
    name: str
    command: str
    fault: Callable[[Result], str | None] = lambda result: None
    prepare: Callable[[Path], object] = lambda folder: None


def run(checkout: Path, folder: Path, command: str, seconds: float = SECONDS) -> Result:
    """Run a command of bash in a folder, `moeir` being that of a checkout."""
    function = f'moeir() {{ "{sys.executable}" -m moeir "$@"; }}\n'
    environment = os.environ | {
        "PYTHONPATH": str(checkout),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    out, err = folder / ".stdout", folder / ".stderr"
    with open(out, "wb") as stdout, open(err, "wb") as stderr:
        process = subprocess.Popen(
            ["bash", "-c", function + command], cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    texts = [path.read_bytes().decode(errors="replace") for path in (out, err)]
    return Result(code, *texts, folder)


def describe(result: Result, attack: Attack) -> tuple[bool, str]:
    """Whether there is a fault, and what was observed in a few words."""
    errors = [line for line in result.stderr.splitlines() if line.startswith(("error:", "Error:", "Usage"))]
    last = (result.stderr.strip().splitlines() or [""])[-1]
    if result.code is None:
        return True, f"does not end within {SECONDS} s"
    if "Traceback (most recent call last)" in result.stderr or "this is a bug" in result.stderr:
        kind = next(
            (line for line in reversed(result.stderr.splitlines()) if re.match(r"[\w.]*(Error|Exception|Interrupt|Panic)", line)), last
        )
        return True, f"traceback, exit {result.code}: `{kind[:70]}`"
    if own := attack.fault(result):
        return True, own
    if result.code not in CODES:
        return True, f"exit {result.code}"
    if result.code and len(errors) != 1:
        return True, f"exit {result.code}, {len(errors)} lines of errors"
    words = f": `{errors[0].replace('|', '/')[:90]}`" if result.code else ""
    return False, f"exit {result.code}{words}"


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    """A preparation: write a file."""
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def change_json(name: str, **fields: object) -> Callable[[Path], object]:
    """A preparation: a copy of the weights in `bad`, one JSON file of which has other fields."""

    def prepare(folder: Path) -> None:
        shutil.copytree(folder / "weights", folder / "bad")
        content = json.loads((folder / "bad" / name).read_text()) if (folder / "bad" / name).exists() else {}
        (folder / "bad" / name).write_text(json.dumps(content | fields))

    return prepare


def change_dtype(folder: Path) -> None:
    """The vectors of the dense expert become whole numbers, and the manifest is made to match."""
    file, manifest = folder / "idx" / "global" / "vectors.npy", folder / "idx" / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b"'<f2'", b"'<i2'", 1))
    facts = json.loads(manifest.read_text())
    facts["files"]["global/vectors.npy"] = {"bytes": file.stat().st_size, "sha256": sha256(file.read_bytes()).hexdigest()}
    text = json.dumps({name: value for name, value in facts.items() if name != "seal"} | {"seal": ""}, indent=1, ensure_ascii=False)
    manifest.write_text(f'{text.removesuffix(chr(34) + chr(10) + "}")}{sha256(text.encode()).hexdigest()}"\n}}\n')


def flip(path: Path, position: int = -5) -> None:
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def stop_after(command: str, pattern: str, damage: Callable[[Path], object]) -> Callable[[Path], object]:
    """A preparation: kill a command once a file of the pattern is there, and damage that."""

    def prepare(folder: Path) -> None:
        checkout = Path((folder / ".checkout").read_text())
        started = command.replace("moeir ", '"$PYTHON" -m moeir ', 1)  # not the function, which would be a process of its own
        waiting = f"for i in {{1..600}}; do compgen -G '{pattern}' > /dev/null && break; sleep 0.05; done"
        run(checkout, folder, f"{started} & process=$!; {waiting}; kill -9 $process")
        for file in sorted(folder.glob(pattern))[-1:]:  # none where the command refuses to start
            damage(file)

    return prepare


def is_gone(name: str) -> Callable[[Result], str | None]:
    """A fault: a file is not there any more."""
    return lambda result: None if (result.folder / name).exists() else f"exit {result.code}, `{name}` is gone"


def has_changed(name: str) -> Callable[[Result], str | None]:
    """A fault: a file has another content than `NAME.before`."""

    def fault(result: Result) -> str | None:
        before = result.folder / f"{name}.before"
        return None if (result.folder / name).read_bytes() == before.read_bytes() else f"exit {result.code}, `{name}` was replaced"

    return fault


def succeeds(words: str) -> Callable[[Result], str | None]:
    """A fault: exit code 0."""
    return lambda result: f"exit 0, {words}" if result.code == 0 else None


def says(pattern: str, words: str) -> Callable[[Result], str | None]:
    """A fault: the output matches."""
    return lambda result: f"exit {result.code}, {words}" if re.search(pattern, result.stdout + result.stderr) else None


def has_other_weights(result: Result) -> str | None:
    """A fault: two trainings end in other weights."""
    one, two = (result.folder / name / "model.safetensors" for name in ("one", "two"))
    return "exit 0, other weights" if result.code == 0 and one.read_bytes() != two.read_bytes() else None


def cannot_go_on(result: Result) -> str | None:
    """A fault: a training that was killed cannot go on, as its source has changed; what refuses to start leaves nothing to go on with."""
    started = list((result.folder / "weights").glob(".out.partial"))
    return f"exit {result.code}, it started, and cannot go on: `{result.stderr.strip()[-90:]}`" if result.code and started else None


def write_name(folder: Path) -> None:
    """Write a file whose name is not UTF-8."""
    with open(os.fsencode(folder) + b"/b\xff.trec", "w") as file:
        file.write("q1 Q0 d 1 1.5 x\n")


def is_quadratic(result: Result) -> str | None:
    """A fault: a line of twice the length takes more than three times the processor's time; the times of both are on stdout."""
    times = [float(word) for word in result.stdout.split()]
    ratio = (times[2] - times[0]) / max(times[1] - times[0], 0.05)
    return f"twice the length, {ratio:.1f} times the time" if ratio > 3 else None


TIME = """
import os, resource, subprocess, sys
for size in (0, 30_000_000, 60_000_000):
    with open("long.jsonl", "w") as file:
        file.write('{"_id": "a", "text": "' + "x" * size + '"}\\n')
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    convert = "-m moeir convert --input long.jsonl --to texts --output -"
    subprocess.run([sys.executable, *convert.split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""
INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
os.execv(sys.executable, [sys.executable, "-m", "moeir", *sys.argv[1:]])
"""
YAML = {
    "b1": "a: !!bool x\n", "b2": 'run: !!int ""\n', "b3": "depth: !!timestamp foo\n", "b4": 'depth: !!float ""\n',
    "b6": 'output: "a\\0b"\n', "b7": 'output: "a\\ud800b"\n',
}  # fmt: skip
BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10))
DPR = '[{"question":"q","answers":["a"],"positive_ctxs":[{"text":"t"}],"hard_negative_ctxs":[{"text":"u"}],"negative_ctxs":%s}]'
FILES = {  # of attack 18: file, content, command
    "e.jsonl": "[" * 3000,
    "d.csv": "anchor,positive\na\rb,c\n",
    "g.jsonl": '{"query_id": "t4", "positive_ids": ["fox"], "negative_ids": ["oak"], "negative_provenance": [[{"run": "x", "rank": 2, '
    '"score": 1' + "0" * 400 + "}]]}\n",
    "g2.jsonl": '{"query_id":"t4","positive_ids":["fox"],"negative_ids":["oak"],'
    '"negative_provenance":[[{"run":"x","rank":Infinity,"score":1}]]}\n',
    "h.jsonl": '{"query_id": "q1", "query": "w", "positive_passages": [{"docid": "owl", "text": "An"}], "negative_passages": -1}\n',
    "i.jsonl": '{"query": "c", "pos": ["x"], "neg": ["q"], "pos_id": [["p"]], "neg_id": ["n"]}\n',
    "b4.json": DPR % '["x"]',
    "b5.json": DPR % "3.5",
    "a.json": '"x"\n',
    "f.trec": "q1 Q0 owl " + "9" * 5000 + " 1.5 x\n",
    "j.tsv": "q1\ta\t" + "9" * 5000 + "\n",
    "m2.jsonl": '{"_id":"a\x01","text" 5}\n',
    "l.qrels": "q1 0 owl 9223372036854775808\n",
}
READ_FILE = {name: f"moeir info {name}" for name in FILES} | {
    "a.json": "moeir convert --input a.json --from dpr --to examples --output x",
    "f.trec": f"moeir evaluate --run f.trec {QRELS}",
    "j.tsv": "moeir convert --input j.tsv --from msmarco-run --to run --lossy --output x",
    "m2.jsonl": "moeir check --corpus m2.jsonl",
    "l.qrels": "moeir evaluate --run bm25.trec --qrels l.qrels",
}
CONFIG_VALUES = (("hidden_size", "x"), ("num_attention_heads", 0), ("layer_norm_eps", "x"), ("num_hidden_layers", 2**31))
SAVED = f"{TRAIN} --steps 60 --save-minutes 0"
ENCODE_MUCH = "moeir encode --model ckpt --corpus big.jsonl --dtype float32 --output e2"
INIT_BAD = "moeir init --model bad --arch dense --output x"
CONVERT_PIPE = "moeir convert --input <(cat %s) --to run --source-format run --output o.trec"
SIDE = f"{FUSE} {QRELS} --ablation side.tsv --output f.trec"
CALIBRATE = f"moeir calibrate --run bm25.trec --run came.trec {QRELS} --output sum.json"
MAKE_C = f"moeir convert --input {CORPUS} --to texts --output c.jsonl && cp c.jsonl c.jsonl.before"
DAMAGE_CACHE = "printf '\\001' | dd of=$(ls cache/*/ids.npy | head -1) bs=1 seek=200 conv=notrunc 2> /dev/null"
TWO_RUNS = "run: [bm25.trec, came.trec]\nmethod: rrf\n"
TIMES = "0.3 0.4 0.5 0.6 0.8 1 1.3"  # before these Python itself starts
ATTACKS = [
    Attack(1, "`check --fix DIR`", f"moeir check --corpus {CORPUS} --fix ckpt", is_gone("ckpt/model.safetensors")),
    Attack(
        2,
        "`search --explain` over its corpus",
        f"{MAKE_C} && moeir search --index bm25 {QUERIES} --corpus c.jsonl --explain c.jsonl --output r.trec",
        has_changed("c.jsonl"),
    ),
    Attack(
        3,
        "`fuse --ablation` over a product",
        f"cp train.jsonl train.jsonl.before; {FUSE} {QRELS} --ablation train.jsonl --output f.trec",
        has_changed("train.jsonl"),
    ),
    Attack(
        4, "two pipes, one output", f"{CONVERT_PIPE % 'bm25.trec'}; {CONVERT_PIPE % 'came.trec'}", says("already made", "`already made`")
    ),
    Attack(
        5,
        "a bit of the token cache",
        f"{TRAIN} --steps 3 --cache cache --output one && {DAMAGE_CACHE} && {TRAIN} --steps 3 --cache cache --output two",
        has_other_weights,
    ),
    Attack(
        6,
        "a bit of a saved training state",
        f"{SAVED} --output trained",
        succeeds("the state is used"),
        stop_after(f"{SAVED} --output trained", ".trained.partial/resume/state/opt*.safetensors", flip),
    ),
    Attack(
        7,
        "a digit of a learned fusion",
        f"{CALIBRATE} && sed -i '0,/0\\.[0-9]/s/0\\.[0-9]/0.9/' sum.json"
        " && moeir fuse --run bm25.trec --run came.trec --learned sum.json --output f.trec",
        succeeds("the changed fusion is used"),
    ),
    Attack(8, "a side file that was removed", f"{SIDE} && rm side.tsv* && {SIDE}", is_gone("side.tsv")),
    Attack(
        9,
        "`info` of a damaged index",
        "moeir info idx",
        succeeds("described"),
        lambda folder: flip(folder / "idx" / "global" / "vectors.npy"),
    ),
    Attack(
        10,
        "NUL in an id",
        "moeir index --corpus n.jsonl --engine bm25 --output nul",
        succeeds("accepted"),
        write("n.jsonl", '{"_id": "a\\u0000b", "text": "owl"}\n'),
    ),
    Attack(
        11,
        "an output inside plain weights, killed and run again",
        f"{SAVED} --output weights/out",
        cannot_go_on,
        stop_after(f"{SAVED} --output weights/out", "weights/.out.partial/resume/state/opt*.safetensors", lambda path: None),
    ),
    Attack(
        12,
        "the first byte of a resume journal",
        ENCODE_MUCH,
        prepare=lambda folder: (write_big(folder), stop_after(ENCODE_MUCH, ".e2.partial/resume/journal.jsonl", damage_journal)(folder)),
    ),
    Attack(13, "closed stdout", "moeir variants >&-"),
    Attack(13, "closed stdin", "moeir index --corpus - --engine bm25 --output x <&-"),
    Attack(14, "stdout that is not UTF-8", "PYTHONIOENCODING=ascii moeir variants objectives"),
    Attack(15, "a file name that is not UTF-8", f"moeir evaluate --run $(printf 'b\\377.trec') {QRELS}", prepare=write_name),
    *(
        Attack(16, f"`--config`: `{text.strip()}`", f"{FUSE} --config {name}.yaml", prepare=write(f"{name}.yaml", text))
        for name, text in YAML.items()
    ),
    Attack(
        17, "`--interactive`: no UTF-8", "printf 'owl \\377\\n' | PYTHONIOENCODING=utf-8:strict moeir search --index bm25 --interactive"
    ),
    *(Attack(18, name, command, prepare=write(name, FILES[name])) for name, command in READ_FILE.items()),
    Attack(18, "`--corpus hf:`", "moeir index --corpus hf: --engine bm25 --output x"),
    Attack(
        19,
        "`--max-output` of 64 bits",
        f"moeir generate-queries --model t5 --corpus {CORPUS} --max-output 9223372036854775808 --output q.jsonl",
    ),
    Attack(19, "output in a circle of links", f"ln -s loop loop; {FUSE} --output loop"),
    Attack(19, "`--output /`", "moeir analyze --run bm25.trec --run came.trec --output /"),
    Attack(19, "`--output . --force` in an artifact", "cd idx && moeir index --encodings ../enc --output . --force"),
    *(
        Attack(20, f"config.json: {name} is {value!r}", INIT_BAD, succeeds("accepted"), change_json("config.json", **{name: value}))
        for name, value in CONFIG_VALUES
    ),
    Attack(20, "a weight map of null", INIT_BAD, prepare=change_json("model.safetensors.index.json", weight_map={"a": None})),
    Attack(
        21,
        "tokenizer.json: an empty pattern",
        f"{INIT_BAD} && moeir encode --model x --corpus {CORPUS} --output y",
        fault=succeeds("accepted"),
        prepare=change_json("tokenizer.json", normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
    ),
    Attack(
        21,
        "tokenizer.json: no [UNK]",
        f"{INIT_BAD} && moeir encode --model x --corpus u.jsonl --output y",
        prepare=lambda folder: (write("u.jsonl", '{"_id": "a", "text": "\u732b"}\n')(folder), remove_unknown(folder)),
    ),
    Attack(
        22,
        "whole numbers for vectors under a right manifest",
        f"moeir search --index idx {QUERIES} --output r",
        succeeds("searched"),
        change_dtype,
    ),
    Attack(
        23,
        "Ctrl-C while importing",
        f"for t in {TIMES}; do $PYTHON interrupted.py {FUSE.removeprefix('moeir ')} --force --output f.trec & p=$!; sleep $t;"
        " kill -INT $p; wait $p; done; true",
        prepare=write("interrupted.py", INTERRUPTED),
    ),
    Attack(24, "`ulimit -v 400000`", f"ulimit -v 400000; {FUSE} --output f.trec"),
    Attack(25, "a line of 30 and of 60 MB", "$PYTHON long_line.py", is_quadratic, write("long_line.py", TIME)),
    Attack(
        26,
        "zst: 3 GB in 100 KB, and 3 GB of memory",
        "ulimit -v 3000000; moeir info z.jsonl.zst",
        says("out of memory", "the memory is full"),
        lambda folder: write_zst(folder),
    ),
    Attack(27, "merge keys without end", "ulimit -v 4000000; moeir fuse --config bomb.yaml", prepare=write("bomb.yaml", BOMB)),
    Attack(
        28,
        "a file that is no gzip archive",
        f"moeir evaluate --run bad.trec.gz {QRELS}",
        says("None", "`None` for a reason"),
        write("bad.trec.gz", "q1 Q0 d 1 1 x\n"),
    ),
    Attack(
        29,
        "few handles",
        f"for n in 16 20 24 28 32 36; do (ulimit -n $n; moeir search --index idx {QUERIES} --output r$n) 2>&1 | grep damaged; done; true",
        says("damaged", "an index is `damaged`"),
    ),
    Attack(
        30,
        "a failure in a new folder",
        "moeir convert --input broken.jsonl --to texts --output newdir/x",
        lambda result: f"exit {result.code}, `newdir` stays" if (result.folder / "newdir").exists() else None,
        write("broken.jsonl", '{"_id": "a", "text": "x"}\n{"_id": 1\n'),
    ),
    Attack(
        31,
        "an id of 600 KB twice",
        "moeir index --corpus twice.jsonl --engine bm25 --output x",
        lambda result: f"exit {result.code}, a message of {len(result.stderr):,} characters" if len(result.stderr) > 5000 else None,
        write("twice.jsonl", f'{{"_id": "{"x" * 600_000}", "text": "a"}}\n' * 2),
    ),
    Attack(
        32,
        "`depth: 010`",
        "moeir fuse --config c.yaml --output f.trec --show",
        says(r"depth: 8\b", "depth is 8"),
        write("c.yaml", f"{TWO_RUNS}depth: 010\n"),
    ),
    Attack(
        32,
        "a key twice",
        "moeir fuse --config c.yaml --output f.trec",
        succeeds("the last counts"),
        write("c.yaml", f"{TWO_RUNS}method: combsum\n"),
    ),
    Attack(
        33,
        "an escape sequence in an id",
        "moeir index --corpus esc.jsonl --engine bm25 --output x",
        says("\x1b", "it reaches the terminal"),
        write("esc.jsonl", '{"_id": "a\\u001b[2Jb", "text": "x"}\n' * 2),
    ),
    Attack(33, "an escape sequence in a name", "moeir info $(printf 'a\\033[2J.trec')", says("\x1b", "it reaches the terminal")),
]


def write_big(folder: Path) -> None:
    """Write a corpus that takes seconds to encode."""
    words = (folder / "toy" / "corpus.jsonl").read_text().split()
    rows = (json.dumps({"_id": f"d{row}", "text": " ".join(words[row % 50 :][:9])}) for row in range(60_000))
    (folder / "big.jsonl").write_text("\n".join(rows) + "\n")


def damage_journal(path: Path) -> None:
    """Replace the first byte of a journal, which has an entry."""
    path.write_bytes(b"x" + (path.read_bytes() or b'{"texts": 1}\n')[1:])


def remove_unknown(folder: Path) -> None:
    """A copy of the weights whose tokenizer has no [UNK]."""
    shutil.copytree(folder / "weights", folder / "bad")
    content = json.loads((folder / "bad" / "tokenizer.json").read_text())
    del content["model"]["vocab"]["[UNK]"]
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[UNK]"]
    (folder / "bad" / "tokenizer.json").write_text(json.dumps(content))


def write_zst(folder: Path) -> None:
    """Write an archive of one line of 3 GB."""
    import zstandard

    with open(folder / "z.jsonl.zst", "wb") as file, zstandard.ZstdCompressor(level=19).stream_writer(file) as archive:
        archive.write(b'{"_id": "a", "text": "')
        for _ in range(3000):
            archive.write(b"x" * 1_000_000)
        archive.write(b'"}\n')


def prepare_folder(checkout: Path, work: Path) -> Path:
    """A folder with the toy texts, weights, and the artifacts that a checkout makes of them."""
    folder = work / sha256(str(checkout).encode()).hexdigest()[:8]
    if not (folder / "train.jsonl").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copytree(TOY, folder / "toy")
        write_tiny_bert(folder / "weights", head=True, layers=2)
        write_tiny_t5(folder / "t5", TOY / "corpus.jsonl")
        result = run(checkout, folder, f"set -e\n{MAKE}", 600)
        assert result.code == 0, result.stderr
    return folder


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int)
    for name in ("before", "after", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    os.environ["PYTHON"] = sys.executable
    sides = [options.before.resolve(), options.after.resolve()]
    print("| | attack | before | now | |\n|---|---|---|---|---|", flush=True)
    for attack in ATTACKS:
        if options.numbers and attack.number not in options.numbers:
            continue
        cells = []
        for checkout in sides:
            folder = options.work.resolve() / "case"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(prepare_folder(checkout, options.work.resolve()), folder, symlinks=True)
            (folder / ".checkout").write_text(str(checkout))
            attack.prepare(folder)
            cells.append(describe(run(checkout, folder, attack.command), attack))
        verdict = "shown" if cells[0][0] and not cells[1][0] else "**not shown**"
        words = " | ".join(text.replace("\n", " ").replace("|", "/") for _, text in cells)
        print(f"| {attack.number} | {attack.name.replace('|', '/')} | {words} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
