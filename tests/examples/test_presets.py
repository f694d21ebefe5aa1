"""Every preset loads, trains, here or in a script, and has the settings of its paper's script."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from moeir import variants
from moeir.architectures.checkpoint import canonical_spec
from tests.conftest import CommandResult, run_moeir, write_tiny_bert
from tests.examples.shell import EXAMPLES, CommandServer, record_calls

IN_TABLE_1 = ("splade-max", "colbert-v1", "coil", "dpr")  # trained by came_table1.sh
PRESETS = sorted(path for path in (EXAMPLES / "presets").glob("*.yaml") if path.stem not in IN_TABLE_1)
SCRIPTS = {  # preset -> (script with its values, its checkpoint there, settings that select the checkpoint)
    "came": ("came_msmarco.sh", "came-bm25", {}),
    "taser-role": ("taser_nq.sh", "nq-role-3e-5", {}),
    "taser-token": ("taser_nq.sh", "nq-token-2-3e-5", {}),
    "sbmoe": ("sbmoe_table1.sh", "top1", {"BACKBONE": "base"}),
    "mote": ("cot_mote_msmarco.sh", "mote", {"MOTE": "base", "ROWS": "mote"}),
}
PATH_FLAGS = ("model", "train", "corpus", "queries", "output", "dev_queries", "dev_qrels", "dev_corpus", "dev_measure")


@pytest.fixture(scope="module")
def trained_on(toy: Path, bm25_index: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """The flags that a preset leaves to the user."""
    folder, queries = tmp_path_factory.mktemp("presets"), toy / "train-queries.jsonl"
    run_moeir("search", "--index", bm25_index, "--queries", queries, "--output", folder / "bm25.trec")
    run_moeir("mine-negatives", "--run", folder / "bm25.trec", "--qrels", toy / "train.qrels", "--output", folder / "train.jsonl")
    return ("--train", folder / "train.jsonl", "--corpus", toy / "corpus.jsonl", "--queries", queries)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_preset_trains(preset: Path, trained_on: tuple[object, ...], tiny_model_with_head: Path, tmp_path: Path) -> None:
    weights = write_tiny_bert(tmp_path / "weights", head=True, layers=12) if preset.stem == "came" else tiny_model_with_head
    small = ("--model", weights, "--steps", 1, "--batch-size", 2, "--query-length", 8, "--document-length", 16)
    run_moeir("finetune", "--config", preset, *trained_on, *small, "--output", tmp_path / "trained")
    run_moeir("info", tmp_path / "trained")


def resolve_settings(yaml_text: str) -> dict[str, object]:
    """Settings without paths, their specs with every option written out."""
    settings = {name: value for name, value in yaml.safe_load(yaml_text).items() if name.replace("-", "_") not in PATH_FLAGS}
    settings["arch"] = canonical_spec(str(settings["arch"]))
    variant, options = variants.resolve_spec("training.objectives", str(settings["objective"]))
    settings["objective"] = (variant.name, {option.name: option.default for option in variant.options} | options)
    return settings


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_preset_and_its_script_agree(
    name: str, collections: Path, server: CommandServer, moeir: Callable[..., CommandResult], tmp_path: Path
) -> None:
    script, checkpoint, variables = SCRIPTS[name]
    folders = {"MODEL": tmp_path / "weights", "DATA": collections / "msmarco", "BEIR": tmp_path}
    calls = record_calls(script, tmp_path, server.python, **folders, **variables)
    call = next(call for call in calls if call[0] == "finetune" and call[-1].endswith(f"ckpt/{checkpoint}"))
    preset = ["--config", EXAMPLES / f"presets/{name}.yaml", "--model", tmp_path / "weights", "--train", "t", "--output", "o"]
    results = [moeir(*call, "--show"), moeir("finetune", *preset, "--show")]
    assert [result.code for result in results] == [0, 0], [result.stderr for result in results]
    assert resolve_settings(results[0].stdout) == resolve_settings(results[1].stdout)
