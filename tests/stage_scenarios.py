"""Stages on toy data for the programmes of faults: the commands, what precedes them, and the content that they should leave."""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from moeir.analysis.training_monitor import METRICS_FILE
from moeir.artifacts import manifests
from moeir.artifacts.shards import Shard
from moeir.errors import ArtifactError
from tests.conftest import TOY, CommandResult, run_in_process, run_moeir, write_tiny_bert
from tests.tiny_t5 import write_tiny_t5

SMALL_STEPS = {  # journals are flushed with every chunk, and chunks are small
    "moeir.stages.encode.CHUNK": 4,
    "moeir.representations.encodings.FLUSH_SECONDS": 0.0,
    "moeir.reranking.score_journal.FLUSH_SECONDS": 0.0,
    "moeir.retrieval.run_files.SECONDS_BETWEEN_SAVES": 0.0,
    "moeir.stages.search.QUERIES_PER_BLOCK": 2,
    "moeir.stages.generate_queries.BLOCK": 4,
    "moeir.backbones.token_files.MAX_CHUNK_TEXTS": 4,
    "moeir.backbones.families.weights_io.SHARD_BYTES": 300_000,  # those of in/large are in several files
}
Product = dict[str, bytes]  # the content of its files
TIMES = ("seconds", "tokens_per_second")


class Scenario(NamedTuple):
    """Commands that run in a folder with the inputs in `in/` and products in `out/`, after `earlier` ones, which may be interrupted; in
    several `processes` if it is distributed."""

    commands: tuple[str, ...]
    earlier: tuple[str, ...] = ()
    interrupted: bool = False
    processes: int = 1

    @property
    def all_commands(self) -> tuple[str, ...]:
        """The earlier commands and the commands."""
        return (*self.earlier, *self.commands)

    @property
    def products(self) -> list[Path]:
        """The paths that the commands write to."""
        words = [shlex.split(command) for command in self.commands]
        paths = [Path(command[command.index("--output") + 1]) for command in words]
        if words[0][0] == "encode" and self.processes > 1:
            return [paths[0] / f"{rank}-of-{self.processes}" for rank in range(self.processes)]
        shards = [Shard.parse(command[command.index("--shard") + 1]).folder_name if "--shard" in command else "" for command in words]
        return [path / shard for path, shard in zip(paths, shards, strict=True)]


CORPUS = "--corpus in/toy/corpus.jsonl"
TRAINING = "--model in/tiny --arch dense --steps 2 --save-minutes 0 --document-length 20 --query-length 12 --dtype float32"
EXAMPLES = f"--train in/train.jsonl {CORPUS} --queries in/toy/train-queries.jsonl --batch-size 2 --negatives 2"
FINETUNE = f"finetune {TRAINING} {EXAMPLES} --output out/trained"
PRETRAIN = f"pretrain {TRAINING} {CORPUS} --objective mlm --batch-size 4"
GENERATE = f"generate-queries --model in/t5 {CORPUS} --max-output 4 --queries-per-passage 1 --dtype float32"
RERANK_SOURCES = f"--run in/bm25.trec {CORPUS} --queries in/toy/test-queries.tsv"
RERANK = f"rerank --model in/lce {RERANK_SOURCES} --depth 4 --max-tokens 200 --dtype float32"
ENCODE = f"encode --model in/came {CORPUS} --dtype float32 --output out/encodings"
BM25 = f"index {CORPUS} --engine bm25 --output out/bm25"
UPDATE = "index --encodings in/encodings --encodings in/more --delete in/ids.txt --output out/updated"
SEARCH = "search --queries in/toy/test-queries.tsv --depth 5 --batch-size 2 --dtype float32"
FUSE = "fuse --run in/bm25.trec --run in/came.trec"
INPUTS = {
    "came": "init --model in/tiny --arch came:shared_layers=1,local_dim=8 --query-length 16 --document-length 32",
    "lce": "init --model in/tiny --arch cross-encoder --query-length 12 --document-length 20",
    "encodings": f"encode --model in/came {CORPUS} --dtype float32",
    "index": "index --encodings in/encodings",
    "bm25": f"index {CORPUS} --engine bm25",
    "more": "encode --model in/came --corpus in/toy/train-queries.jsonl --dtype float32",
    "bm25.trec": "search --index in/bm25 --queries in/toy/test-queries.tsv --depth 5",
    "came.trec": "search --index in/index --queries in/toy/test-queries.tsv --depth 5 --dtype float32",
    "train.trec": "search --index in/bm25 --queries in/toy/train-queries.jsonl",
    "train.jsonl": "mine-negatives --run in/train.trec --qrels in/toy/train.qrels",
}
SCENARIOS = {
    "convert": Scenario(("convert --input in/toy/corpus.jsonl --to tevatron-texts --lossy --output out/converted",)),
    "mine-negatives": Scenario(("mine-negatives --run in/train.trec --qrels in/toy/train.qrels --output out/train.jsonl",)),
    "init": Scenario(("init --model in/tiny --arch came:shared_layers=2,local_dim=16 --output out/init",)),
    "init in shards": Scenario(("init --model in/large --arch splade --output out/init",)),
    "pull": Scenario(("pull --repo anna/came --output out/pulled",), ("push --input in/came --repo anna/came",)),
    "finetune": Scenario((FINETUNE,)),
    "finetune adapters": Scenario((FINETUNE.replace("--arch dense", "--arch came:shared_layers=1,local_dim=8,adapters=2"),)),
    "finetune with a cache": Scenario((f"{FINETUNE} --cache out/cache",)),
    "finetune over another": Scenario((f"{FINETUNE} --force",), (f"{FINETUNE} --learning-rate 0.01",), interrupted=True),
    "pretrain": Scenario((f"{PRETRAIN} --output out/pretrained",)),
    "generate-queries": Scenario((f"{GENERATE} --output out/queries.jsonl",)),
    "encode": Scenario((ENCODE,)),
    "encode a shard": Scenario((f"{ENCODE} --shard 1/2",)),
    "index of bm25": Scenario((BM25,)),
    "index": Scenario(("index --encodings in/encodings --output out/index",)),
    "index over another": Scenario(
        ("index --encodings in/encodings --engine lexical=inverted --force --output out/index",),
        ("index --encodings in/encodings --engine lexical=scan --output out/index",),
    ),
    "index of several encodings": Scenario((UPDATE,)),
    "search": Scenario((f"{SEARCH} --index in/index --output out/runs/came.trec",)),
    "search into a folder": Scenario((f"{SEARCH} --index in/index --output out/runs",)),
    "search into a compressed file": Scenario((f"{SEARCH} --index in/index --output out/came.trec.gz",)),
    "rerank": Scenario((f"{RERANK} --output out/reranked.trec",)),
    "fuse": Scenario((f"{FUSE} --method rrf --output out/fused.trec",)),
    "fuse over another": Scenario(
        (f"{FUSE} --method combsum --force --output out/fused.trec",), (f"{FUSE} --method rrf --output out/fused.trec",)
    ),
    "evaluate": Scenario(("evaluate --run in/bm25.trec --qrels in/toy/test-qrels.tsv --output out/table.txt",)),
    "chain": Scenario(
        (
            BM25,
            f"{SEARCH} --index out/bm25 --output out/bm25.trec",
            "fuse --run out/bm25.trec --run in/came.trec --method rrf --output out/fused.trec",
            "evaluate --run out/fused.trec --qrels in/toy/test-qrels.tsv --output out/table.txt",
        )
    ),
}
PROGRAMMES = {name: (scenario,) for name, scenario in SCENARIOS.items()} | {  # scenarios side by side
    "two shards": (Scenario((f"{ENCODE} --shard 0/2",)), Scenario((f"{ENCODE} --shard 1/2",))),
    "encode in two processes": (Scenario((f"{ENCODE.replace(CORPUS, '--corpus in/long.jsonl')} --device cpu",), processes=2),),
    "distributed training": (Scenario((f"finetune {TRAINING} {EXAMPLES} --steps 3 --device cpu --output out/trained",), processes=2),),
}


def write_long_corpus(path: Path) -> None:
    """Write 600 texts of 3 to 11 toy words: three windows of `encode`, for several processes."""
    words = " ".join(json.loads(line)["text"] for line in (TOY / "corpus.jsonl").read_text().splitlines()).split()
    lines = (json.dumps({"_id": f"d{row}", "text": " ".join(words[row % 50 : row % 50 + 3 + row % 9])}) for row in range(600))
    path.write_text("\n".join(lines) + "\n")


def write_inputs(inputs: Path, commands: Iterable[str]) -> None:
    """Write the inputs `in/NAME` that commands read, and what those are made of, unless they exist."""
    names = {Path(word).parts[1] for command in commands for word in shlex.split(command) if word.startswith("in/")}
    for name in sorted(names):
        if (inputs / name).exists():
            continue
        if name == "toy":
            (inputs / name).symlink_to(TOY)
        elif name == "tiny":
            write_tiny_bert(inputs / name, head=True, layers=2)
        elif name == "large":
            write_tiny_bert(inputs / name, head=True, hidden_size=64, intermediate_size=128)
        elif name == "t5":
            write_tiny_t5(inputs / name, TOY / "corpus.jsonl")
        elif name == "long.jsonl":
            write_long_corpus(inputs / name)
        elif name == "ids.txt":
            (inputs / name).write_text("owl\neel\n", encoding="utf-8")
        else:
            write_inputs(inputs, [INPUTS[name]])
            with working_folder(inputs.with_name("making"), inputs):
                run_moeir(*shlex.split(INPUTS[name]), "--output", f"in/{name}")


@contextmanager
def working_folder(folder: Path, inputs: Path) -> Iterator[Path]:
    """Work in a folder with the inputs in `in/`, in small steps."""
    folder.mkdir(exist_ok=True)
    if not (folder / "in").exists():
        (folder / "in").symlink_to(inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in SMALL_STEPS.items():
            patch.setattr(name, value)
        yield folder


def run_command(command: str) -> CommandResult:
    """Run a command of a scenario in this process."""
    return run_in_process(*shlex.split(command))


def run_earlier(scenario: Scenario) -> None:
    """Run what precedes a scenario; an interrupted command leaves unfinished work."""
    for command in scenario.earlier:
        with pytest.MonkeyPatch.context() as patch:
            if scenario.interrupted:
                patch.setattr("moeir.artifacts.atomic_write._commit", _interrupt)
            assert run_command(command).code == (130 if scenario.interrupted else 0)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def read_product(path: Path) -> Product:
    """The content of a product's files, without its manifest and without times."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return {str(file.relative_to(path)): _read_untimed(file) for file in files if file.name != manifests.MANIFEST}


def _read_untimed(file: Path) -> bytes:
    """The bytes of a file; without times and speeds those of metrics, if they are not damaged."""
    content = file.read_bytes()
    if file.name != METRICS_FILE:
        return content
    with suppress(ValueError):
        steps = [json.loads(line) for line in content.splitlines()]
        content = json.dumps([{name: value for name, value in step.items() if name not in TIMES} for step in steps]).encode()
    return content


def list_leftovers(folder: Path) -> list[Path]:
    """Hidden and temporary files, which no finished command leaves."""
    return sorted(path for path in folder.rglob("*") if path.name.startswith(".") or path.suffix in (".new", ".partial"))


def read_if_present(path: Path) -> Product | None:
    """The content of a product as `read_product` has it; None if there is none."""
    return read_product(path) if path.exists() else None


def product_of(leftover: Path) -> Path:
    """The product that a temporary file belongs to."""
    return leftover.with_name(re.sub(r"^\.(.*)\.partial$|^(.*)\.new$", r"\1\2", leftover.name))


def check_end(expected: Mapping[Path, Product | None], existing: Collection[str] = ()) -> str | None:
    """What is wrong when all has ended: other bytes than undisturbed, a product that a reader refuses, or temporary files of products that
    were not there before."""
    if differing := [path for path in expected if read_if_present(path) != expected[path]]:
        return f"differs after the second run: {', '.join(_describe_difference(path, expected[path]) for path in differing)}"
    if refusals := [refusal for path in expected if (refusal := refusal_of(path))]:
        return f"refused after the second run: {refusals[0]}"
    leftovers = [path for path in list_leftovers(Path("out")) if str(product_of(path)) not in existing]
    return f"leaves {', '.join(map(str, leftovers))}" if leftovers else None


def _describe_difference(path: Path, expected: Product | None) -> str:
    content, whole = read_if_present(path) or {}, expected or {}
    names = [name for name in sorted(content.keys() | whole.keys()) if content.get(name) != whole.get(name)]
    return f"{path} ({', '.join(names)})"


def refusal_of(path: Path) -> str | None:
    """What every reader of a product says of it, None if it is taken for whole."""
    try:
        if path.is_dir():
            manifests.verify_artifact(path, manifests.read_manifest(path)["kind"])
        else:
            manifests.verify_file(path)
    except ArtifactError as problem:
        return str(problem)
    return None
