"""Mutated inputs for everything that reads bytes from outside: each case ends in a result or in a MoeirError, in bounded time and memory.

An input that fails `make torture` is written to tests/fuzz_inputs/TARGET/, which tests/test_fuzz.py reads again.
"""

import contextlib
import functools
import hashlib
import json
import logging
import random
import resource
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeir import variants
from moeir.analysis import training_monitor
from moeir.artifacts import journals, manifests
from moeir.errors import MoeirError
from moeir.formats import detection
from moeir.formats.base import Collection, Conversion
from moeir.fusion import files as fusion_files
from moeir.records.generated_queries import read_generated_queries
from moeir.reporting import training_curves
from moeir.stages.base import run_stage
from moeir.stages.check import Check
from tests import fuzz_artifacts
from tests.conftest import InMemoryStream

INPUTS = Path(__file__).parent / "fuzz_inputs"
SECONDS, EXTRA_MEMORY = 20, 4 << 30  # of one case
EXAMPLE = {
    "query_id": "q1", "query": "who hunts mice", "positive_ids": ["owl"], "negative_ids": ["cat", "bat"],
    "negative_provenance": [[{"run": "bm25", "rank": 3, "score": 1.5}], []], "positive_scores": [2.0], "negative_scores": [0.5, 0.25],
}  # fmt: skip
INLINE = {
    "query_id": "q1", "query": "who hunts", "positive_passages": [{"docid": "1", "title": "t", "text": "an owl", "score": 1.5}],
    "negative_passages": [{"docid": "2", "text": "a cat", "score": 0.5}],
}  # fmt: skip
DPR = {
    "question": "who hunts", "answers": ["an owl"], "question_id": "7",
    "positive_ctxs": [{"title": "Owl", "text": "An owl", "passage_id": "1"}],
    "negative_ctxs": [], "hard_negative_ctxs": [{"title": "Cat", "text": "A cat", "score": 3}],
}  # fmt: skip
FLAG = {"query": "who", "pos": ["a"], "neg": ["b"]}
FLAG |= {"pos_scores": [1.0], "neg_scores": [0.5]}
FORMATS: dict[str, tuple[str, ...]] = {  # format -> whole files of it
    "examples": (json.dumps(EXAMPLE), json.dumps(INLINE)),
    "tevatron": (json.dumps(INLINE),),
    "tevatron-ids": (json.dumps({"query_id": "q", "query_text": "w", "positive_document_ids": ["a"], "negative_document_ids": ["b"]}),),
    "dpr": (json.dumps([DPR, DPR | {"question_id": "8"}], indent=1), json.dumps([DPR])),
    "flagembedding": (json.dumps(FLAG), json.dumps([FLAG], indent=1)),
    "pairs": ("anchor\tpositive\nwho\tan owl\nwhat\ta cat\n", '{"anchor": "who", "positive": "an owl"}'),
    "triplets": ("anchor\tpositive\tnegative_1\tnegative_2\nwho\ta\tb\tc\n", '{"anchor": "w", "positive": "o", "negative": "c"}'),
    "labelled": ("query\tpassage\tlabel\nwho\tan owl\t1\nwho\ta cat\t0\n", '{"sentence1": "a", "sentence2": "b", "label": 1}'),
    "texts": ('{"_id": "owl", "title": "Owl", "text": "An owl hunts.", "url": "u", "answers": ["x"]}\n{"_id": "2", "text": "Zürich"}\n',),
    "tsv": ("1\tAn owl hunts.\n2\tA cat \"waits\".\n", 'id\ttext\ttitle\n1\t"An ""owl""\nhunts\tmice."\tOwl\n2\tA cat\t\n'),
    "tevatron-texts": ('{"docid": "1", "title": "Owl", "text": "An owl."}\n',),
    "qrels": ("q1 0 owl 1\nq1 0 cat 0\nq2 0 owl 2\n",),
    "beir-qrels": ("query-id\tcorpus-id\tscore\nq1\towl\t1\nq2\tcat\t0\n",),
    "run": ("q1 Q0 owl 1 2.5 bm25\nq1 Q0 cat 2 -1.5e-3 bm25\nq2 Q0 owl 1 0.25 bm25\n",),
}  # fmt: skip
TOKENS = (
    b"null", b"true", b"-1", b"0", b"1e999", b"-1e-400", b"NaN", b"Infinity", b"9223372036854775808", b"18446744073709551616", b"9" * 400,
    b"[" * 300, b"{" * 300, b"[]", b"{}", b'""', b'"', b"'", b"\\", b"\\ud800", b"\\u0000", b"\0", b"\x1b[2J", b"\xff", b"\xef\xbb\xbf",
    b"\xc3\xbc", b"\r", b"\n", b"\t", b" ",
    b"\x85", b"\xe2\x80\xa8", b",", b":", b"=", b"+", b"#", b"&a", b"*a", b"<<: ", b"!!int ", b"- ", b"010", b"1_000",
    b"0x1f", b".5", b"1.", b"+1", b"\xd9\xa3", b"../", b"/etc/passwd", b"-", b"\n\n", b"Q0", b"a" * 5_000,
)  # fmt: skip


class Hang(BaseException):
    """A case took longer than `SECONDS`."""


@dataclass(frozen=True)
class Target:
    """A reader: what it does with a file of mutated content, the name of the file, and whole files to mutate."""

    read: Callable[[Path], object]
    file: str
    seeds: Sequence[bytes]


def _suffix(content: str) -> str:
    return {"[": ".json", "{": ".jsonl"}.get(content[0], ".tsv")


def _check_file(path: Path, setting: str) -> None:
    """`moeir check`, which reads faulty lines, too, and ends with an error if there are any."""
    value: Any = path if setting in ("corpus", "queries") else (path,)
    run_stage(Check(**{setting: value}))


def _read_sealed_manifest(path: Path) -> None:
    """The content as a manifest of a folder, its checksum made right where it is JSON, as a foreign tool would write it."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        path.write_text(manifests.serialize_manifest(json.loads(path.read_bytes())), encoding="utf-8", errors="surrogatepass")
    manifests.verify_artifact(path.parent, "index")


def _read_metrics(path: Path) -> None:
    training_curves.format_trainings(training_curves.load_trainings([path]))
    list(training_monitor.read_metrics(path))


def _make_manifest() -> bytes:
    """The manifest of a folder with one file, `ids.txt`, that the fuzzer writes beside it."""
    entry = {"bytes": 4, "sha256": hashlib.sha256(b"a\nb\n").hexdigest()}
    facts = {"kind": "index", "format": manifests.FORMAT, "stage": "index", "settings": {"engine": ["flat"], "depth": 3}}
    more = {"sources": {"corpus": [entry["sha256"]]}, "versions": {"moeir": "0.1.0"}, "counts": {"documents": 2}}
    return manifests.serialize_manifest(facts | more | {"files": {"ids.txt": entry}}).encode()


def _read_all(path: Path, spec: str) -> None:
    """Read everything that a file or folder of a format holds."""
    for item in variants.bind_variant("formats", spec)().read(path, Conversion(spec, spec, lossy=True)):
        for _ in (*item.corpus, *item.queries) if isinstance(item, Collection) else ():
            pass


def list_targets() -> dict[str, Target]:
    """The readers, by name."""
    targets = dict[str, Target]()
    for name, seeds in FORMATS.items():
        for suffix in dict.fromkeys(map(_suffix, seeds)):
            own_seeds = tuple(seed.encode() for seed in seeds if _suffix(seed) == suffix)
            targets[f"{name}{suffix}"] = Target(functools.partial(_read_all, spec=name), f"data{suffix}", own_seeds)
    every_format = tuple(seed.encode() for seeds in FORMATS.values() for seed in seeds)
    targets["detection"] = Target(lambda path: _read_all(path, detection.detect_format(path)), "data.jsonl", every_format)
    targets["csv"] = Target(functools.partial(_read_all, spec="pairs"), "data.csv", (b'anchor,positive\n"who, he",an owl\n',))
    for setting, name in {"corpus": "texts", "qrels": "qrels", "run": "run", "train": "examples"}.items():
        own_seeds = tuple(seed.encode() for seed in FORMATS[name])
        targets[f"check {setting}"] = Target(functools.partial(_check_file, setting=setting), "data.jsonl", own_seeds)
    generated = b'{"_id": "owl", "queries": ["who hunts", "what flies"]}\n{"_id": "cat", "queries": ["who waits"]}\n'
    targets["generated queries"] = Target(lambda path: list(read_generated_queries(path)), "data.jsonl", (generated,))
    targets["manifest"] = Target(_read_sealed_manifest, manifests.MANIFEST, (_make_manifest(),))
    fusion = {"moeir_fusion": 1, "method": "linear:weights=0.5+1", "runs": ["a", "b"], "found": {"by": "moeir fuse", "depth": 100}}
    targets["fusion"] = Target(fusion_files.read_fusion, "fusion.json", (json.dumps(fusion, indent=1).encode(),))
    with tempfile.TemporaryDirectory() as folder:
        journal = journals.JsonlJournal(Path(folder, "journal.jsonl"))
        for rows in (4, 8):
            journal.write({"texts": rows, "experts": {"global": {"rows": rows}}})
        journal.close()
        content = Path(folder, "journal.jsonl").read_bytes()
    targets["journal"] = Target(lambda path: journals.JsonlJournal(path).close(), "journal.jsonl", (content,))
    shares = {"share.lexical": 0.9, "share.global": 0.1, "entropy.shares": 0.3, "loss.lexical": 0.7, "uniform_loss": 0.7, "tokens": 99}
    steps = [{"step": step, "loss": 0.7, **shares, "usage.1.query.0": 1.0, "usage.1.query.1": 0.0} for step in range(1, 40)]
    metrics = "".join(f"{json.dumps(step)}\n" for step in [*steps, {"step": 39, "dev.nDCG@10": 0.5}])
    targets["metrics"] = Target(_read_metrics, "metrics.jsonl", (metrics.encode(),))
    for name, (read, patterns) in fuzz_artifacts.READERS.items():
        targets[name] = Target(functools.partial(fuzz_artifacts.read_case, read=read), "case", fuzz_artifacts.FileSeeds(*patterns))
    return targets


def mutate(content: bytes, seeds: Sequence[bytes], generator: random.Random) -> bytes:
    """One to four changes: bits, bytes, tokens in place of words, spans cut, doubled or moved, a splice with another seed, a cut end."""
    for _ in range(generator.choice((1, 1, 1, 2, 3, 4))):
        begin = generator.randrange(len(content) + 1)
        end = min(len(content), begin + generator.choice((1, 2, 4, 16, 64)))
        match generator.randrange(8):
            case 0 if content:
                position = begin % len(content)
                content = content[:position] + bytes([content[position] ^ 1 << generator.randrange(8)]) + content[position + 1 :]
            case 1:
                content = content[:begin] + generator.choice(TOKENS) + content[begin:]
            case 2:
                content = content[:begin] + generator.choice(TOKENS) + content[end:]
            case 3:
                words = [index for index, byte in enumerate(content) if byte in b' \t\n",:[]{}=+']
                if len(words) > 1:
                    first = generator.randrange(len(words) - 1)
                    content = content[: words[first] + 1] + generator.choice(TOKENS) + content[words[first + 1] :]
            case 4:
                content = content[:begin] + content[end:]
            case 5:
                content = content[:end] + content[begin:end] * generator.choice((1, 2, 50)) + content[end:]
            case 6:
                other = generator.choice(seeds)
                content = content[:begin] + other[generator.randrange(len(other) + 1) :]
            case 7:
                content = content[:begin]
    return content


def run_case(target: Target, content: bytes, folder: Path) -> str:
    """`accepted`, `refused`, or the failure of a target that reads `content`; within `bound_cases`."""
    path = folder / target.file
    path.write_bytes(content)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.redirect_stdout(InMemoryStream()):
            target.read(path)
    except (MoeirError, OSError) as refusal:  # the command line prints both as a line
        return "refused" if str(refusal) else "a refusal without words"
    except (Exception, Hang) as problem:  # noqa: BLE001 that is what is looked for
        return f"{type(problem).__name__}: {problem}"[:200]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "accepted"


@contextlib.contextmanager
def bound_cases(folder: Path) -> Iterator[None]:
    """Within the block a timer ends a case in the folder by Hang, and the process has EXTRA_MEMORY more than now."""

    def raise_hang(*_: object) -> None:
        raise Hang(f"no end after {SECONDS} s")

    (folder / "ids.txt").write_bytes(b"a\nb\n")  # that of the manifest
    log = logging.getLogger("moeir")
    level = log.level
    log.setLevel(logging.CRITICAL)
    limits, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, raise_hang)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + EXTRA_MEMORY, limits[1]))
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        log.setLevel(level)


Results = tuple[Counter[str], list[tuple[str, bytes]]]  # how many were accepted, refused and failed, and failing inputs


def fuzz(name: str, target: Target, cases: int, seed: int, folder: Path) -> Results:
    """Run seeded cases of a target in a folder, where one that ends the process stays; the first failing input of each message."""
    counts, failures, generator = Counter[str](), dict[str, bytes](), random.Random(f"{name} {seed}")
    assert len(target.seeds)  # which may have to be made first
    with bound_cases(folder):
        for _ in range(cases):
            content = mutate(generator.choice(target.seeds), target.seeds, generator)
            outcome = run_case(target, content, folder)
            counts[outcome if outcome in ("accepted", "refused") else "failed"] += 1
            if outcome not in ("accepted", "refused"):
                failures.setdefault(outcome, content)
    return counts, list(failures.items())


def save_failures(name: str, failures: list[tuple[str, bytes]]) -> None:
    """Write each failing input where tests/test_fuzz.py reads it again."""
    for _, content in failures:
        path = INPUTS / name.replace(" ", "_") / hashlib.sha256(content).hexdigest()[:12]
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
