"""Architectures, losses, fusions, engines and formats of users' own modules: the examples of docs/extending.md, and who may run them."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import moeir as package
from moeir import variants
from moeir.errors import ArtifactError, UsageError
from tests.conftest import CommandResult, run_in_process, run_moeir

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
MODULES = dict(re.findall(r"```python title=\"(\w+)\.py\"\n(.*?)```", PAGE, re.DOTALL))
MORE = '''
from moeir.architectures.dense import Dense
from moeir.formats.base import Format
from moeir.indexes.base import Index
from moeir.indexes.scan import Scan
from moeir.records import lines
from moeir.records.texts import Text


class Adapted(Dense):
    """One vector, as Dense."""


class Slow(Scan):
    """Every document is scored."""


class WordCount(Scan):
    """An engine of texts."""

    kind = "text"


class Arrows(Format):
    """Texts as `id -> text` lines."""

    kind = "texts"

    def __init__(self, *, arrow: str = "->") -> None:
        self.arrow = arrow

    def read(self, path, conversion):
        with lines.open_lines(path) as numbered:
            for _, line in numbered:
                name, _, text = line.partition(f" {self.arrow} ")
                yield Text(name, text)

    def write(self, items, path, conversion):
        return lines.write_lines((f"{item.id} {self.arrow} {item.content}" for item in items), path)
'''
FAULTY = """
import torch
from moeir.architectures.base import Architecture
from moeir.fusion.formulas import rrf
from moeir.indexes.scan import Scan
from moeir.training.losses import ObjectiveOutput, batch_scores


def none(lists):
    return None


def not_a_number(lists):
    documents, scores = rrf(lists)
    return documents, scores * float("nan")


def vector(batch):
    loss = next(iter(batch_scores(batch).values())).sum(1)
    return ObjectiveOutput(loss, {"loss": loss.detach().sum()})


def constant(batch):
    return ObjectiveOutput(torch.tensor(1.0), {"loss": torch.tensor(1.0)})


class Outside(Scan):
    def search(self, queries, depth):
        rows, scores = super().search(queries, depth)
        return rows + 1000, scores


class Unsure(Scan):
    def search(self, queries, depth):
        rows, scores = super().search(queries, depth)
        return rows, scores * float("nan")


class Doubtful(Scan):
    def score_pairs(self, queries, query_rows, document_rows):
        return super().score_pairs(queries, query_rows, document_rows) * float("nan")


class NoExpert(Architecture):
    def __init__(self, encoder, special_tokens):
        super().__init__(encoder, special_tokens)
"""


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The modules of the page in the working directory, none of them imported."""
    for name, source in {**MODULES, "my_more": MORE, "my_faulty": FAULTY}.items():
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    forget_modules()


def forget_modules() -> None:
    """As in a new process, no module of the user is imported."""
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


def train(toy: Path, model: Path, *arguments: object) -> CommandResult:
    """Two steps on an example; the checkpoint is `ckpt`."""
    Path("train.jsonl").write_text('{"query_id": "t1", "positive_ids": ["owl"], "negative_ids": ["cat"]}\n', encoding="utf-8")
    inputs = ("--train", "train.jsonl", "--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
    sizes = ("--negatives", 1, "--steps", 2, "--batch-size", 1)
    return run_in_process("finetune", "--model", model, *inputs, *arguments, *sizes, "--output", "ckpt")


def test_the_engine_of_the_page_keeps_signs_only(own_code, encodings, toy) -> None:
    run_moeir("index", "--encodings", encodings, "--engine", "global=my_signs:Signs", "--output", "idx")
    stored = np.load(own_code / "idx" / "global" / "vectors.npy")
    assert np.array_equal(stored, np.sign(np.load(encodings / "global" / "vectors.npy")))
    assert json.loads((own_code / "idx" / "global" / "engine.json").read_text())["exact"] is False
    run_moeir("search", "--index", "idx", "--queries", toy / "test-queries.tsv", "--expert", "global")


def test_an_own_architecture_is_trained_searched_and_opened_only_if_named(own_code, moeir, tiny_model, toy) -> None:
    result = train(toy, tiny_model, "--arch", "my_architecture:TwoPoolings:dim=8", "--objective", "competitive")
    assert result.code == 0, result.stderr
    assert json.loads((own_code / "ckpt" / "moeir.json").read_text())["architecture"] == "my_architecture:TwoPoolings:dim=8"
    manifest = json.loads((own_code / "ckpt" / "manifest.json").read_text())
    assert manifest["settings"]["arch"] == "my_architecture:TwoPoolings:dim=8"
    assert re.fullmatch(r"my_architecture:[0-9a-f]{64}", *manifest["sources"]["code"])
    forget_modules()
    encode = ("encode", "--model", "ckpt", "--corpus", toy / "corpus.jsonl", "--output", "enc")
    result = moeir(*encode)
    assert result.code == 4 and "my_architecture:TwoPoolings is code outside of moeir" in result.stderr
    assert "add --code my_architecture" in result.stderr
    assert "my_architecture" not in sys.modules
    with pytest.raises(ArtifactError, match="in Python: import my_architecture"):
        package.open_checkpoint(own_code / "ckpt")
    run_moeir(*encode, "--code", "my_architecture")
    forget_modules()
    run_moeir("index", "--encodings", "enc", "--output", "idx")
    search = ("search", "--index", "idx", "--queries", toy / "test-queries.tsv", "--output", "runs")
    assert moeir(*search).code == 4
    run_moeir(*search, "--code", "my_architecture")
    assert {file.name for file in (own_code / "runs").glob("*.trec")} == {"first.trec", "mean.trec", "fused.trec"}


def test_a_changed_module_is_not_already_made(own_code, tiny_model, toy) -> None:
    arguments = ("--arch", "dense", "--objective", "my_loss:triplet:margin=0.5")
    result = train(toy, tiny_model, *arguments)
    assert result.code == 0, result.stderr
    assert "already made" in train(toy, tiny_model, *arguments).stderr
    with (own_code / "my_loss.py").open("a") as module:
        module.write("\n# changed\n")
    forget_modules()
    result = train(toy, tiny_model, *arguments)
    assert result.code != 0 and "--force" in result.stderr


def test_an_own_fusion_agrees_with_its_formula_for_all_queries_at_once(own_code, moeir, bm25_index, toy) -> None:
    one = {"q1": {"a": 3.0, "b": 2.0}, "q2": {"c": 9.0}}
    two = {"q1": {"b": 0.5, "a": 0.4, "c": 0.1}, "q2": {"a": 1.0, "c": 0.2}}
    fused = package.fuse(run=[one, two], method="my_fusion:rank_biased:persistence=0.5")
    assert dict(fused.hits("q1")) == pytest.approx({"a": 0.75, "b": 0.75, "c": 0.125})
    assert fused.hits("q2") == [("c", pytest.approx(0.75)), ("a", pytest.approx(0.5))]
    result = moeir("search", "--index", bm25_index, "--queries", toy / "test-queries.tsv", "--fuse", "my_fusion:rank_biased:persistance=1")
    assert result.code == 2 and "has no option 'persistance'; did you mean 'persistence'" in result.stderr


def test_an_own_engine_is_named_by_its_index(own_code, moeir, encodings, index, toy) -> None:
    result = run_moeir("index", "--encodings", encodings, "--engine", "global=my_more:Slow", "--output", own_code / "idx")
    assert "--code my_more" in result.stderr  # of the next command
    assert len(json.loads((own_code / "idx" / "manifest.json").read_text())["sources"]["code"]) == 1
    forget_modules()
    search = ("search", "--queries", toy / "test-queries.tsv", "--expert", "global")
    result = moeir(*search, "--index", own_code / "idx")
    assert result.code == 4 and f"{own_code / 'idx'}: my_more:Slow is code outside of moeir" in result.stderr
    own, flat = run_moeir(*search, "--index", own_code / "idx", "--code", "my_more"), run_moeir(*search, "--index", index)
    own_rows, flat_rows = ([line.split() for line in result.stdout.splitlines()] for result in (own, flat))
    assert [row[:3] for row in own_rows] == [row[:3] for row in flat_rows]
    assert np.allclose([float(row[4]) for row in own_rows], [float(row[4]) for row in flat_rows], rtol=1e-5)
    result = moeir("index", "--corpus", toy / "corpus.jsonl", "--engine", "my_more:Slow", "--output", own_code / "texts")
    assert result.code == 2 and "the engines that read texts are" in result.stderr
    assert "the engines that read texts" not in moeir("index", "--corpus", toy / "corpus.jsonl", "--engine", "my_more:WordCount",
                                                      "--output", own_code / "texts", "--dry-run").stderr  # fmt: skip


def test_a_class_of_another_kind_is_refused(own_code) -> None:
    variants.import_own_code("my_more")
    with pytest.raises(UsageError, match=r"expected a class derived from moeir\.architectures\.base\.Architecture, found the class Slow"):
        variants.resolve_spec("architectures", "my_more:Slow")
    with pytest.raises(UsageError, match="found the class Index, which lacks _add"):
        variants.resolve_spec("indexes", "my_more:Index")


def test_a_module_that_only_a_file_names_is_never_imported(own_code, moeir, toy) -> None:
    (own_code / "my_trap.py").write_text("import pathlib\npathlib.Path('sprung').touch()\n")
    saved = {"moeir_fusion": 1, "method": "my_trap:fn", "runs": ["a", "b"], "found": {}, "numbers": {}}
    (own_code / "fusion.json").write_text(json.dumps(saved))
    for name in "ab":
        (own_code / f"{name}.trec").write_text("q Q0 d 1 1.0 t\n")
    result = moeir("fuse", "--run", "a.trec", "--run", "b.trec", "--learned", "fusion.json")
    assert result.code == 3 and "add --code my_trap" in result.stderr and not (own_code / "sprung").exists()


def test_an_architecture_derived_from_ours_has_its_options(own_code, tiny_model, toy) -> None:
    arch = "my_more:Adapted:adapters=2,adapter_maps=query+value,pooling=mean"
    run_moeir("init", "--model", tiny_model, "--arch", arch, "--output", "ckpt")
    spec = json.loads((own_code / "ckpt/moeir.json").read_text())["architecture"]
    assert "pooling=mean" in spec and "adapters=2,adapter_alpha=none,adapter_dropout=0.0,adapter_maps=query+value" in spec
    run_moeir("encode", "--model", "ckpt", "--corpus", toy / "corpus.jsonl", "--code", "my_more", "--output", "enc")


FUSE = "fuse --run run.trec b=run.trec --method "
SEARCH = "search --query owl --depth 3 --code my_faulty --index "
ARRAYS = "the fusion has to return two arrays of one length: documents of the lists, ascending, and their scores, finite"
FAULTS = [  # a command, its exit code and words
    (f"{FUSE}no_such_module:fn", 2, "error: there is no module 'no_such_module'"),
    (f"{FUSE}my_fusion:absent", 2, "my_fusion:absent: expected a function whose first parameter is `lists`, found nothing of this name"),
    (f"{FUSE}json:loads", 2, "json:loads: expected a function whose first parameter is `lists`, found loads("),
    (f"{FUSE}my_broken:fn", 2, "module my_broken: ZeroDivisionError: division by zero"),
    (f"{FUSE}my_faulty:none", 2, ARRAYS),
    (f"{FUSE}my_faulty:not_a_number", 2, ARRAYS),
    (f"{SEARCH}Outside --expert global", 2, "global: its engine returned rows (1, 3) up to 10"),
    (f"{SEARCH}Unsure --expert global", 2, "and scores (1, 3), 3 of them NaN; expected (1, 3)"),
    (f"{SEARCH}Doubtful --fuse exact-sum --output runs", 3, "a sum of scores is NaN"),
    ("init --model tiny --arch my_faulty:NoExpert --output ckpt", 2, "my_faulty:NoExpert: has no expert"),
]


@pytest.mark.parametrize(("command", "code", "message"), FAULTS)
def test_what_own_code_is_and_returns_is_checked(own_code, moeir, encodings, tiny_model, command, code, message) -> None:
    (own_code / "tiny").symlink_to(tiny_model)
    (own_code / "my_broken.py").write_text("1 / 0\n")
    (own_code / "run.trec").write_text("q Q0 d 1 1.0 t\n")
    if (engine := re.search(r"--index (\w+)", command)) is not None:
        run_moeir("index", "--encodings", encodings, "--engine", f"global=my_faulty:{engine[1]}", "--output", engine[1])
    result = moeir(*command.split())
    assert (result.code, result.stdout) == (code, "") and result.messages[-1].startswith("error: ") and message in result.messages[-1]


@pytest.mark.parametrize(("name", "words"), [("vector", "[1] with a gradient"), ("constant", "[] without a gradient")])
def test_what_an_own_objective_returns_is_checked(own_code, tiny_model, toy, name, words) -> None:
    result = train(toy, tiny_model, "--arch", "dense", "--objective", f"my_faulty:{name}")
    assert result.code == 2 and f"--objective returned a loss of shape {words}" in result.stderr


def test_variants_shows_own_code(own_code, moeir) -> None:
    result = moeir("variants", "my_architecture:TwoPoolings")
    assert result.stdout.startswith("architectures\n  my_architecture:TwoPoolings Two dense experts") and "dim=64" in result.stdout
    assert moeir("variants", "my_fusion:rank_biased").stdout.startswith("fusion\n")
    assert moeir("variants", "my_fusion:absent").stderr.startswith("error: there is no package or variant 'my_fusion:absent'")


def test_an_own_format_is_written_and_read_back(own_code, toy) -> None:
    source = own_code / "queries.jsonl"
    source.write_bytes((toy / "train-queries.jsonl").read_bytes())
    spec = "my_more:Arrows:arrow==>"
    run_moeir("convert", "--input", source, "--to", spec, "--output", "arrows")
    assert (own_code / "arrows").read_text().splitlines()[0] == "t1 => who hunts mice at night"
    assert json.loads((own_code / "arrows.manifest.json").read_text())["settings"]["to"] == spec
    run_moeir("convert", "--input", "arrows", "--from", spec, "--to", "texts", "--output", "back.jsonl")
    written, original = ([json.loads(line)["text"] for line in path.read_text().splitlines()] for path in (own_code / "back.jsonl", source))
    assert written == original
