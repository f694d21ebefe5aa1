"""The documentation is true: its commands are valid, the tutorial runs, links lead somewhere, pages about the program are the program's."""

import configparser
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown.extensions.toc import slugify

from moeir import cli, settings, variants
from moeir.errors import UsageError
from moeir.parsing import format_value
from moeir.stages import base
from tests.conftest import TOY, run_moeir, write_tiny_bert

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = ("reference/commands.md", "reference/variants.md")
WRITTEN = [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).as_posix() not in GENERATED)]
TEXTS = {page: page.read_text(encoding="utf-8") for page in WRITTEN}
COMMAND = re.compile(r"(?:^|[|;&] *|-m )moeir (?=\S)")
FENCE = re.compile(r" *(```+|~~~+)")
LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)\)|<(?:img|source)\b[^>]*?\bsrc(?:set)?=\"([^\"]+)\"")
LOADED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)")
LOCAL_PATH = re.compile(r"(?<![\w./:-])/(?:home|root|work|tmp|Users)/")
TYPES = {"int": "whole number", "float": "number", "bool": "true or false", "str": "text", "None": "none"}
TYPES["tuple[str, ...]"] = "words joined by +"
ELLIPSES = {"…", "..."}


def split_code(text: str) -> tuple[list[str], list[str]]:
    """The lines of code, in fences or indented, and the others; an indented line may also be prose of a list."""
    code, prose, fence = list[str](), list[str](), ""
    for line in text.splitlines():
        if (match := FENCE.match(line)) is not None and fence in ("", match[1]):
            fence = "" if fence else match[1]
        else:
            (code if fence or line.startswith("    ") else prose).append(line)
    return code, prose


def list_commands(text: str) -> list[list[str]]:
    """The words after `moeir` of each command in code, also behind a pipe or torchrun; continued lines are one, comments are dropped."""
    commands = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(split_code(text)[0])).splitlines():
        if not COMMAND.search(line.strip()):
            continue
        lexer = shlex.shlex(re.sub(r"(?:^|\s)#.*", "", line), posix=True, punctuation_chars="|;&<>")
        lexer.whitespace_split, lexer.commenters = True, ""
        parts: list[list[str]] = [[]]
        for word in lexer:
            parts[-1].append(word) if not set(word) <= set("|;&") else parts.append([])
        for part in parts:
            if "moeir" in part:
                end = next((place for place, word in enumerate(part) if set(word) <= set("<>")), len(part))
                commands.append(part[part.index("moeir") + 1 : end])
    return commands


COMMANDS = [(page.relative_to(ROOT).as_posix(), words) for page, text in TEXTS.items() for words in list_commands(text)]


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for the examples, whose presets commands name, and the modules of the page on own code."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, source in re.findall(r"```python title=\"(my_\w+\.py)\"\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL):
        (tmp_path / name).write_text(source, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(base, "run_stage", lambda stage, **_: base.check_settings(stage))
    return tmp_path


def resolve(words: list[str]) -> None:
    """Read a command as the program does, and check its settings; where words are left out (…), settings may be missing."""
    shown = [word for word in words if word not in ELLIPSES]
    elided = shown != words
    if elided and len(shown) == 1:
        assert shown[0] in cli.STAGES
        return
    for flag, value in pairwise(shown):
        if flag == "--dataset" and not value.startswith(("irds:", "hf:")) and not Path(value).exists():
            write_beir_folder(Path(value))
    try:
        cli._invoke(shown)
    except UsageError as problem:
        if not (elided and " needs " in str(problem)):
            raise


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else shlex.join(value[:4]))
def test_a_documented_command_is_valid(page: str, words: list[str], working_folder: Path):
    resolve(words)


def write_beir_folder(folder: Path) -> None:
    """Write the toy data in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True)
    shutil.copy(TOY / "corpus.jsonl", folder)
    shutil.copy(TOY / "train.qrels", folder / "qrels" / "train.tsv")
    for split in ("dev", "test"):
        shutil.copy(TOY / "test-qrels.tsv", folder / "qrels" / f"{split}.tsv")
    queries = [line.split("\t") for line in (TOY / "test-queries.tsv").read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({"_id": name, "text": text}) + "\n" for name, text in queries]
    (folder / "queries.jsonl").write_text((TOY / "train-queries.jsonl").read_text(encoding="utf-8") + "".join(lines), encoding="utf-8")


def test_the_tutorial_runs_from_its_first_command_to_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On toy data in place of NFCorpus, and tiny weights in place of MiniLM's six layers."""
    monkeypatch.chdir(tmp_path)
    write_beir_folder(tmp_path / "nfcorpus")
    write_tiny_bert(tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2", head=False, layers=6, max_position_embeddings=512)
    stages = set()
    for words in list_commands(TEXTS[DOCS / "tutorial.md"]):
        run_moeir(*words)
        stages.add(words[0])
    assert {"check", "init", "finetune", "mine-negatives", "encode", "index", "search", "fuse", "evaluate", "report", "rerank"} <= stages


def test_every_stage_architecture_and_objective_is_described():
    text, changes = "".join(TEXTS.values()), (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for name in cli.STAGES:
        assert f"moeir {name}" in text and name in changes
    for package in ("architectures", "training.objectives", "pretraining", "indexes", "fusion", "reranking.ensembles", "export_targets"):
        for variant in variants.list_variants(package):
            assert f"`{variant.name}`" in text, f"{package}: {variant.name}"


def test_the_architecture_page_has_every_package_and_the_layers_as_they_are_checked():
    text = TEXTS[DOCS / "architecture.md"]
    for path in (ROOT / "moeir").iterdir():
        if not path.name.startswith(("_", "py.typed")):
            assert f"`{path.name}{'/' if path.is_dir() else ''}`" in text, path.name
    checked = configparser.ConfigParser()
    checked.read(ROOT / "setup.cfg")
    assert checked["importlinter:contract:floors"]["layers"].strip() in text


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_pictures_lead_somewhere(page: Path):
    text = TEXTS[page]
    assert not LOCAL_PATH.search(text)
    for target in (first or second for first, second in LINK.findall("\n".join(split_code(text)[1]))):
        if target.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            headings = [line.lstrip("# ") for line in split_code(file.read_text(encoding="utf-8"))[1] if line.startswith("#")]
            assert anchor in {slugify(heading.replace("`", ""), "-") for heading in headings}, target


def test_the_site_is_built_without_warnings_has_every_page_and_loads_nothing_from_elsewhere(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 0, process.stderr
    navigation = yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    for page in (page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")):
        assert re.search(rf"\b{re.escape(page)}\n", navigation), f"{page} is not in the navigation"
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(WRITTEN)
    for page in pages:
        assert LOADED.findall(page.read_text(encoding="utf-8")) == [], page


def commands_page() -> str:
    """Help of every stage, as tests/golden/help has it."""
    pages = [(ROOT / "tests" / "golden" / "help" / f"{name}.txt").read_text(encoding="utf-8") for name in ("root", *cli.STAGES)]
    parts = [f"## moeir {name}\n\n```text\n{page}```\n" for name, page in zip(("--help", *cli.STAGES), pages, strict=True)]
    return "# Commands\n\nWhat `moeir STAGE --help` prints.\n\n" + "\n".join(parts)


def variants_page() -> str:
    """Names, options and details of all variants, package by package."""
    lines = ["# Variants", "", "What `moeir variants` lists: the names that a flag accepts, written `name:option=value,option=value`,"]
    lines += ["and the options of each with their defaults. Inside a value `+` stands for a comma.", ""]
    for package in variants.PACKAGES:
        lines += [f"## {package}", "", f"Used by {', '.join(flags_of_package(package))}.", ""]
        for variant in variants.list_variants(package):
            lines += [f"### {variant.name}", "", variant.summary, ""]
            prose, _, example = variant.details.partition(">>> ")
            if variant.options:
                lines += ["| option | default | type |", "|---|---|---|"]
                lines += [f"| `{option.name}` | {default_of(option)} | {type_of(option)} |" for option in variant.options]
                lines.append("")
            if prose.strip():
                lines += [*(line.strip() for line in prose.strip().splitlines()), ""]
            if example:
                lines += ["```pycon", f">>> {example}", "```", ""]
    return "\n".join(lines)


def default_of(option: variants.Option) -> str:
    """The default of an option as a cell of a table."""
    return "required" if option.default is variants.REQUIRED else f"`{text}`" if (text := format_value(option.default)) else "empty"


def type_of(option: variants.Option) -> str:
    """What an option accepts, in words."""
    return " or ".join(TYPES[part.strip()] for part in option.annotation.split("|"))


def flags_of_package(package: str) -> list[str]:
    """The flags whose help refers to a package."""
    return [
        f"`{name} {setting.flag}`"
        for name in cli.STAGES
        for setting in settings.list_settings(cli.stage_class(name))
        if re.search(rf"moeir variants {re.escape(package)}\b", setting.help) or setting.package == package
    ]


@pytest.mark.parametrize(("name", "content"), [(GENERATED[0], commands_page), (GENERATED[1], variants_page)])
def test_the_pages_about_the_program_are_the_programs(name: str, content: Callable[[], str], check_golden: Callable[[str, str], None]):
    check_golden(str(DOCS / name), content())


COPY_TOY_DATA = """\
# the toy data of the repository, in a new folder; leave this cell out in a folder of your own five files
import os
import shutil
import tempfile

folder = tempfile.mkdtemp()
shutil.copytree("../tests/toy", folder, dirs_exist_ok=True)
os.chdir(folder)
"""


def write_notebook(page: str) -> str:
    """The page on Python as a notebook, up to what needs more packages: its code as cells, its text between them."""
    text = re.sub(r"\]\((?!http)([^)]+)\)", r"](../docs/\1)", page[: page.index("## PyTerrier")]).replace("../docs/../", "../")
    title, *parts = re.split(r"```python[^\n]*\n(.*?)```\n", text, flags=re.DOTALL)
    cells = [("markdown", title), ("code", COPY_TOY_DATA), *zip(cycle(("code", "markdown")), parts)]
    notebook = {
        "cells": [
            {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.strip().splitlines(keepends=True)}
            | ({"execution_count": None, "outputs": []} if kind == "code" else {})
            for number, (kind, source) in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def test_the_notebook_is_the_page_on_python(check_golden: Callable[[str, str], None]):
    check_golden(str(ROOT / "examples" / "python.ipynb"), write_notebook(TEXTS[DOCS / "python.md"]))


def test_every_cell_of_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """With tiny weights in place of BERT's twelve layers, as Jupyter would: cell by cell, in the notebook's folder."""
    write_tiny_bert(tmp_path / "bert", head=True, layers=12, max_position_embeddings=512)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(ROOT / "examples")
    notebook = json.loads(Path("python.ipynb").read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(sources) == 4 and sum(source.count("bert-base-uncased") for source in sources) == 1
    names: dict[str, Any] = {}
    for source in sources:
        exec(source.replace("bert-base-uncased", str(tmp_path / "bert")), names)
    assert Path.cwd().parent == tmp_path and "nDCG@10" in capsys.readouterr().out
    evaluation = names["evaluation"]
    assert list(evaluation) == ["bm25", "came", "both"] and evaluation["bm25"]["nDCG@10"] > 0.9
    assert all(math.isfinite(entry["p"]) for entry in evaluation.details["runs"]["both"]["all"].values())
    assert len(names["run"]) == 6 and names["qrels"]["q1"] == {"owl": 1} and names["scores"].shape == (1, 1)
    assert sorted(names["documents"].ids) == sorted(text.id for text in names["corpus"])


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_with_head: Path, capsys):
    """On toy data in place of SciFact, and tiny weights in place of BERT's twelve layers."""
    monkeypatch.chdir(tmp_path)
    write_beir_folder(tmp_path / "scifact")
    example = {"query_id": "t1", "positive_ids": ["owl"], "negative_ids": ["bat"]}
    (tmp_path / "train.jsonl").write_text(json.dumps(example) + "\n", encoding="utf-8")
    script = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(script) == 1 and len(script[0].splitlines()) <= 10 and len(TEXTS[ROOT / "README.md"].split()) <= 800
    exec(script[0].replace('"came"', '"came:shared_layers=2"').replace("bert-base-uncased", str(tiny_model_with_head)), {})
    assert "nDCG@10" in capsys.readouterr().out
