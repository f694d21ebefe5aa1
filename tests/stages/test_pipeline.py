"""The whole pipeline on the toy texts, through the command line: it repeats to the byte, and interruptions do not change its products."""

import json

import pytest

from tests.conftest import run_moeir
from tests.processes import read_metrics

CAME = "came:shared_layers=2,local_dim=16"
TRAINING = ("--arch", CAME, "--objective", "competitive:standardised=0.5", "--steps", 4, "--batch-size", 2, "--negatives", 2)
SOURCES = ("--train", "train.jsonl", "--corpus", "toy/corpus.jsonl", "--queries", "toy/train-queries.jsonl")
RATES = ("--learning-rate", 0.001, "--document-length", 32, "--query-length", 16)
FINETUNE = ("finetune", "--model", "weights", *SOURCES, *TRAINING, *RATES)
ENCODE = ("encode", "--model", "ckpt/came", "--corpus", "toy/corpus.jsonl", "--dtype", "float32")
STEPS = (
    ("init", "--model", "weights", "--arch", CAME, "--output", "ckpt/init"),
    ("index", "--corpus", "toy/corpus.jsonl", "--engine", "bm25", "--output", "idx/bm25"),
    ("search", "--index", "idx/bm25", "--queries", "toy/train-queries.jsonl", "--output", "runs/bm25.train.trec"),
    ("mine-negatives", "--run", "runs/bm25.train.trec", "--qrels", "toy/train.qrels", "--output", "train.jsonl"),
    (*FINETUNE, "--dtype", "float32", "--output", "ckpt/came"),
    (*ENCODE, "--output", "enc"),
    ("index", "--encodings", "enc", "--output", "idx/came"),
    ("search", "--index", "idx/came", "--queries", "toy/test-queries.tsv", "--depth", 5, "--output", "runs/came"),
    ("search", "--index", "idx/bm25", "--queries", "toy/test-queries.tsv", "--depth", 5, "--output", "runs/bm25.test.trec"),
    ("fuse", "--run", "runs/came/fused.trec", "--run", "runs/bm25.test.trec", "--method", "rrf", "--output", "runs/all.trec"),
    ("evaluate", "--run", "runs/all.trec", "--run", "runs/bm25.test.trec", "--qrels", "toy/test-qrels.tsv", "--output", "table.txt"),
)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory, tiny_model_with_head, toy):
    """The same commands in two folders."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    for folder in folders:
        run_steps(folder, STEPS, toy=toy, weights=tiny_model_with_head)
    return folders


def run_steps(folder, steps, **links):
    """Run commands in a folder with links to their inputs."""
    for name, path in links.items():
        (folder / name).symlink_to(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for step in steps:
            run_moeir(*step)


def read_products(folder):
    """The content of every product file, without timings."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return {str(file.relative_to(folder)): read_untimed(file) for file in files}


def read_untimed(file):
    if file.name == "metrics.jsonl":
        return [drop_keys(line, "seconds", "tokens_per_second") for line in read_metrics(file.parent)]
    if not file.name.endswith("manifest.json"):
        return file.read_bytes()
    facts = drop_keys(json.loads(file.read_text()), "seconds", "versions", "seal")  # versions: of the libraries loaded so far
    drop_keys(facts["counts"], "speed")
    drop_keys(facts["counts"].get("last", {}), "tokens_per_second")
    drop_keys(facts["files"].get("metrics.jsonl", {}), "bytes", "sha256")
    return facts


def drop_keys(facts, *names):
    for name in names:
        facts.pop(name, None)
    return facts


def test_the_same_commands_give_the_same_bytes_and_leave_nothing_else(rooms):
    one, two = (read_products(folder) for folder in rooms)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []
    assert {"train.jsonl", "ckpt/came/metrics.jsonl", "runs/came/fused.trec", "runs/all.trec", "table.txt.manifest.json"} <= one.keys()
    assert [path for path in rooms[0].rglob("*") if path.name.startswith(".") or path.suffix in (".new", ".partial")] == []


def test_training_says_what_happened(rooms):
    lines = read_metrics(rooms[0] / "ckpt" / "came")
    assert [(line["step"], line["competing"]) for line in lines] == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert {"loss", "loss.lexical", "share.global", "gradient_norm", "tokens_per_second"} <= lines[0].keys()


def test_the_settings_of_a_checkpoint_make_it_again(rooms, tmp_path, tiny_model_with_head, toy):
    command = ("finetune", "--config", rooms[0] / "ckpt" / "came" / "settings.yaml")
    run_steps(tmp_path, [command], toy=toy, weights=tiny_model_with_head, **{"train.jsonl": rooms[0] / "train.jsonl"})
    trained, first = (folder / "ckpt" / "came" / "model.safetensors" for folder in (tmp_path, rooms[0]))
    assert trained.read_bytes() == first.read_bytes()


def test_one_expert_searched_alone_gives_its_own_list(rooms):
    index, queries = rooms[0] / "idx" / "came", rooms[0] / "toy" / "test-queries.tsv"
    result = run_moeir("search", "--index", index, "--queries", queries, "--depth", 5, "--expert", "local", "--output", "-")
    assert result.stdout == (rooms[0] / "runs" / "came" / "local.trec").read_text()
