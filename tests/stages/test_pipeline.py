"""The whole pipeline on the toy texts, through the command line: it repeats to the byte, and interruptions do not change its products."""

import json

import pytest

from tests.conftest import run_in_process

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
    return [_run_all_steps(tmp_path_factory.mktemp(name), tiny_model_with_head, toy) for name in ("one", "two")]


def _run_all_steps(folder, weights, toy):
    _link_inputs(folder, weights, toy)
    for step in STEPS:
        _run(folder, *step)
    return folder


def _link_inputs(folder, weights, toy):
    (folder / "toy").symlink_to(toy)
    (folder / "weights").symlink_to(weights)


def _run(folder, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = run_in_process(*arguments)
    assert result.code == 0, (arguments, result.stderr)
    return result


def _read_products(folder):
    """The content of every product file, without timings."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return {str(file.relative_to(folder)): _read_content(file) for file in files}


def _read_content(file):
    if file.name == "metrics.jsonl":
        return [_drop_keys(json.loads(line), "seconds", "tokens_per_second") for line in file.read_text().splitlines()]
    if not file.name.endswith("manifest.json"):
        return file.read_bytes()
    facts = _drop_keys(json.loads(file.read_text()), "seconds", "versions", "seal")  # versions: of the libraries loaded so far
    _drop_keys(facts["counts"], "speed")
    _drop_keys(facts["counts"].get("last", {}), "tokens_per_second")
    _drop_keys(facts["files"].get("metrics.jsonl", {}), "bytes", "sha256")
    return facts


def _drop_keys(facts, *names):
    for name in names:
        facts.pop(name, None)
    return facts


def test_every_step_leaves_its_product_and_nothing_else(rooms):
    folder = rooms[0]
    assert sorted(path.name for path in (folder / "runs" / "came").iterdir()) == [
        *("fused.trec", "global.trec", "lexical.trec", "local.trec", "manifest.json"),
    ]
    assert sorted(path.name for path in folder.iterdir()) == [
        *("ckpt", "enc", "idx", "runs", "table.txt", "table.txt.manifest.json"),
        *("toy", "train.jsonl", "train.jsonl.manifest.json", "weights"),
    ]
    leftovers = [path for path in folder.rglob("*") if path.name.startswith(".") or path.suffix in (".new", ".partial")]
    assert leftovers == []


def test_the_same_commands_give_the_same_bytes(rooms):
    one, two = (_read_products(folder) for folder in rooms)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []


def test_training_says_what_happened(rooms):
    lines = [json.loads(line) for line in (rooms[0] / "ckpt" / "came" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["competing"] for line in lines] == [0, 0, 1, 1]
    assert {"loss", "loss.lexical", "share.global", "gradient_norm", "tokens_per_second"} <= lines[0].keys()


def test_the_settings_of_a_checkpoint_make_it_again(rooms, tmp_path, tiny_model_with_head, toy):
    _link_inputs(tmp_path, tiny_model_with_head, toy)
    (tmp_path / "train.jsonl").symlink_to(rooms[0] / "train.jsonl")
    settings = rooms[0] / "ckpt" / "came" / "settings.yaml"
    _run(tmp_path, "finetune", "--config", settings)
    trained, first = (folder / "ckpt" / "came" / "model.safetensors" for folder in (tmp_path, rooms[0]))
    assert trained.read_bytes() == first.read_bytes()


def test_one_expert_searched_alone_gives_its_own_list(rooms, tmp_path, moeir):
    index, queries = rooms[0] / "idx" / "came", rooms[0] / "toy" / "test-queries.tsv"
    result = moeir("search", "--index", index, "--queries", queries, "--depth", 5, "--expert", "local", "--output", "-")
    assert result.stdout == (rooms[0] / "runs" / "came" / "local.trec").read_text()
