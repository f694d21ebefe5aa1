"""What config.json and the flags show to be wrong is refused before texts are read or a head is fitted, by a dry run too."""

import json
import shutil

import pytest

from tests.conftest import write_tiny_bert

REFUSED = [  # a stage of six layers without a vocabulary head, its flags, and words of the error
    ("init", "--arch came", "came:shared_layers=10: the encoder has 6 layers; expected 0 to 6, as in --arch came:shared_layers=5"),
    ("finetune", "--arch mote:layers=9", "layers=9: expected numbers of layers, 1 to 6"),
    ("finetune", "--arch taser:every=6", "every=6: no layer of 6 would have experts"),
    ("finetune", "--arch dense --document-length 99", "--document-length 99: expected 3 to 64"),
    ("finetune", "--arch cross-encoder --query-length 64", "leaves no room for a document"),
    ("finetune", "--arch dense --temperature 0.1", "--temperature 0.1: no expert of dense has a normalised vector"),
    ("finetune", "--arch dense --group-rate towers=1", "--group-rate towers: matches no parameter name"),
    ("finetune", "--arch dense --objective lce --negatives 0", "--negatives 0"),
    ("finetune", "", "plain weights; name an architecture: --arch"),
    ("pretrain", "--arch came:shared_layers=9", "came:shared_layers=9: the encoder has 6 layers"),
    ("pretrain", "--objective cotmay", "did you mean"),
    ("pretrain", "--objective mote", "--queries: missing; moeir generate-queries writes them (--objective mote)"),
    ("pretrain", "--queries corpus.jsonl", "--queries: given, but the objective uses none (--objective mlm)"),
    ("pretrain", "--document-length 65", "--document-length 65: expected 3 to 64"),
]
COMMANDS = {
    "init": "--corpus corpus.jsonl",
    "finetune": "--train train.jsonl --corpus corpus.jsonl --queries queries.jsonl",
    "pretrain": "--corpus corpus.jsonl --objective mlm --document-length 32",
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Six layers without a vocabulary head."""
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "six", head=False, layers=6)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, of texts that no stage can read."""
    for name in ("corpus.jsonl", "queries.jsonl", "train.jsonl"):
        (tmp_path / name).write_text("{\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_refused(moeir, stage, model, flags, words):
    for dry in ((), ("--dry-run",)) if stage != "init" else ((),):
        result = moeir(stage, "--model", model, *COMMANDS[stage].split(), *flags.split(), "--output", "output", *dry)
        assert result.code in (2, 4) and words in result.stderr, (dry, result)
        assert len(result.stderr.splitlines()) == 1, result.stderr


@pytest.mark.parametrize(("stage", "flags", "words"), REFUSED)
def test_what_does_not_fit_the_weights_is_refused_before_texts_are_read(stage, flags, words, moeir, folder, weights):
    assert_refused(moeir, stage, weights, flags, words)
    assert not (folder / "output").exists()


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("came:shared_layers=2,local_dim=8", "came:shared_layers=3", "its weights are not those of came"),
        ("colbert:dim=8", "colbert:dim=16", "has shape [8, 32]"),
        ("mote", "dense", "a mote checkpoint cannot become dense"),
    ],
)
def test_options_that_a_checkpoint_has_no_weights_for_are_refused_before_texts_are_read(
    old, new, words, moeir, folder, tiny_model_with_head
):
    result = moeir("init", "--model", tiny_model_with_head, "--arch", old, "--output", folder / "start")
    assert result.code == 0, result.stderr
    assert_refused(moeir, "finetune", "start", f"--arch {new}", words)


def test_a_classification_head_of_many_classes_is_refused_before_texts_are_read(moeir, folder, weights):
    import torch
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(weights, folder / "classifier")
    tensors = load_file(copy / "model.safetensors") | {"classifier.weight": torch.zeros(3, 32), "classifier.bias": torch.zeros(3)}
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    assert_refused(moeir, "finetune", copy, "--arch cross-encoder", "the head has 3 classes")


def test_a_dry_run_of_what_fits_says_so_and_fits_no_head(moeir, toy, tmp_path, weights):
    example = {"query_id": "t1", "positive_ids": ["cat"], "negative_ids": ["owl"]}
    (tmp_path / "train.jsonl").write_text(json.dumps(example) + "\n")
    sources = ("--train", tmp_path / "train.jsonl", "--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
    command = ("finetune", "--model", weights, "--arch", "came:shared_layers=4", *sources, "--output", tmp_path / "out", "--dry-run")
    result = moeir(*command)
    assert (
        result.code == 0
        and "head" not in result.stderr
        and "spend  1 step of 8 queries: 1.00 epochs of 1 query, 64 documents" in result.stdout
    )


@pytest.fixture
def work_folder(tmp_path, monkeypatch, toy, came_checkpoint, encodings, index, bm25_index):
    """A folder with the toy collection and what is made from it, to type short commands in."""
    for name, path in {"came": came_checkpoint, "enc": encodings, "idx": index, "bm25": bm25_index, "toy": toy}.items():
        (tmp_path / name).symlink_to(path)
    (tmp_path / "by-id.jsonl").write_text('{"query_id": "t1", "positive_ids": ["cat"], "negative_ids": ["owl"]}\n')
    (tmp_path / "a.trec").write_text("q1 Q0 owl 1 2.0 a\nq1 Q0 cat 2 1.0 a\n")
    (tmp_path / "b.trec").write_text("q1 Q0 gone 1 2.0 b\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    (tmp_path / "learned.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


REFUSALS = {
    "finetune --model came --train by-id.jsonl --queries toy/train-queries.jsonl --output x": "by-id.jsonl",
    "finetune --model came --train by-id.jsonl --queries toy/train-queries.jsonl --corpus toy/corpus.jsonl --output other": "other: exists",
    "rerank --model came --run b.trec --queries toy/test-queries.tsv --corpus toy/corpus.jsonl --output x.trec": "gone",
    "encode --model came --corpus toy/corpus.jsonl --output other": "other: exists",
    "encode --model came --corpus toy/corpus.jsonl --output a.trec/x": "a.trec",
    "encode --model came --corpus toy/corpus.jsonl --shard 0/9 --output x": "expected at most 1 shards",
    "index --encodings enc --engine lexical=maxsim --output x": "takes multivector representations",
    "index --encodings enc --engine maxsim --output x": "name its expert",
    "index --corpus toy/corpus.jsonl --engine bm25 --output a.trec": "a.trec: exists and was not made by moeir",
    "index --encodings enc --engine global=flat global=scan --output x": "--engine global=flat: its expert has another --engine",
    "search --index idx --queries toy/test-queries.tsv --expert none --output x": "none",
    "search --index idx --queries a.trec --output x": "a.trec",
    "calibrate --index bm25 --queries toy/test-queries.tsv --qrels toy/test-qrels.tsv --output x": "has no checkpoint",
    "evaluate --run a.trec --qrels toy/test-qrels.tsv --output b.trec": "b.trec: exists and was not made by moeir",
    "fuse --run a.trec --run b.trec --learned learned.json --output x.trec": "learned.json",
    "report --run a.trec --qrels toy/test-qrels.tsv --measure none@3 --output x.html": "none@3",
    "convert --input a.trec --to beir --output x": "which becomes",
    "export --to none --encodings enc --output x": "none",
}


@pytest.mark.parametrize("command", REFUSALS)
def test_a_dry_run_refuses_in_the_words_of_the_run(command, work_folder, moeir):
    dry, real = moeir(*command.split(), "--dry-run"), moeir(*command.split())
    assert REFUSALS[command] in dry.stderr and dry.code != 0
    assert (dry.code, dry.messages[-1]) == (real.code, real.messages[-1])


def test_a_dry_run_refuses_outputs_that_may_not_be_replaced_and_takes_force(work_folder, moeir):
    command = ("fuse", "--run", "a.trec", "--run", "b.trec", "--output", "fused.trec")
    assert moeir(*command).code == 0
    assert "note   fused.trec is up to date" in moeir(*command, "--dry-run").stdout
    dry, real = moeir(*command, "--depth", 1, "--dry-run"), moeir(*command, "--depth", 1)
    assert (dry.code, dry.messages[-1]) == (real.code, real.messages[-1]) == (2, dry.messages[-1]) and "--force replaces it" in dry.stderr
    assert "note   fused.trec exists, and is replaced" in moeir(*command, "--depth", 1, "--dry-run", "--force").stdout
    (work_folder / ".fused.trec.partial").write_text("another's")
    dry, real = moeir(*command, "--depth", 1, "--force", "--dry-run"), moeir(*command, "--depth", 1, "--force")
    assert (dry.code, dry.messages[-1]) == (real.code, real.messages[-1]) and "was not made by moeir" in dry.stderr


def test_a_dry_run_refuses_an_output_that_a_process_is_writing(work_folder, moeir):
    import fcntl

    command = ("fuse", "--run", "a.trec", "--run", "b.trec", "--output", "fused.trec")
    (work_folder / ".fused.trec.partial").mkdir()
    with open(work_folder / ".fused.trec.partial/fused.trec.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        dry, real = moeir(*command, "--dry-run"), moeir(*command)
    assert (dry.code, dry.messages[-1]) == (real.code, real.messages[-1]) and "another process is writing it" in dry.stderr


def test_a_dry_run_passes_shards_that_are_made_already(work_folder, moeir, toy):
    rows = (toy / "corpus.jsonl").read_text().splitlines()
    many = [json.dumps(json.loads(rows[number % len(rows)]) | {"_id": f"d{number}"}) for number in range(300)]
    (work_folder / "many.jsonl").write_text("\n".join(many) + "\n")
    command = ("encode", "--model", "came", "--corpus", "many.jsonl", "--output", "shards")
    assert moeir(*command, "--shard", "0/2").code == 0
    assert moeir(*command, "--shard", "1/2", "--dry-run").code == 0
    assert moeir(*command, "--dry-run").messages[-1] == moeir(*command).messages[-1]
