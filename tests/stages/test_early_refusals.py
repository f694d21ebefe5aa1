"""What config.json and the flags show to be wrong is refused by a dry run, and by a run before it reads texts or fits a head."""

import json
import shutil

import pytest

from tests.conftest import write_tiny_bert

WRONG_ARCHITECTURES = {
    "came": "came:shared_layers=10: the encoder has 6 layers; expected 0 to 6, as in --arch came:shared_layers=5",
    "came:shared_layers=4,experts=lexical+dense": "expected some of lexical+local+global",
    "came:shared_layers=4,routing=role,routed_every=5": "every=5: no layer of 4 would have experts",
    "came:shared_layers=4,local_dim=0": "local dimension 0: expected at least 1",
    "came:shared_layers=4,experts=lexical,global_experts=2": "have no global one",
    "mote:layers=9": "layers=9: expected numbers of layers, 1 to 6",
    "mote:encoders=both": "mote:encoders=both: expected one of mote, siamese, separate",
    "taser:every=6": "every=6: no layer of 6 would have experts",
    "taser:gradient=some": "gradient=some: expected one of",
    "sbmoe:experts=0": "experts=0: expected",
    "colbert:attend_masks=true": "it needs augmentation=true",
    "coil:cls_dim=-1": "coil:cls_dim=-1: expected 1 or more",
    "dense:pooling=max": "pooling=max: expected one of cls, mean",
    "splade:pooling=mean": "lexical pooling=mean: expected max or sum",
    "cross-encoder:head=none": "cross-encoder:head=none: expected hf or linear",
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Six layers without a vocabulary head."""
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "six", head=False, layers=6)


@pytest.fixture
def folder(tmp_path):
    """Texts that no stage can read."""
    for name in ("corpus.jsonl", "queries.jsonl", "train.jsonl"):
        (tmp_path / name).write_text("{\n")
    return tmp_path


def commands(folder, weights):
    texts = ("--corpus", folder / "corpus.jsonl")
    output = ("--output", folder / "output")
    return {
        "init": ("init", "--model", weights, *texts, *output),
        "finetune": (
            "finetune",
            "--model",
            weights,
            "--train",
            folder / "train.jsonl",
            *texts,
            "--queries",
            folder / "queries.jsonl",
            *output,
        ),
        "pretrain": ("pretrain", "--model", weights, *texts, "--objective", "mlm", "--document-length", 32, *output),
    }


def assert_refused(moeir, command, flags, words):
    for dry in ((), ("--dry-run",)):
        result = moeir(*command, *flags, *dry)
        assert result.code in (2, 4) and words in result.stderr, (dry, result)
        assert len(result.stderr.splitlines()) == 1, result.stderr


@pytest.mark.parametrize("arch", WRONG_ARCHITECTURES)
def test_an_architecture_that_does_not_fit_the_weights_is_refused_before_texts_are_read(arch, moeir, folder, weights):
    assert_refused(moeir, commands(folder, weights)["finetune"], ("--arch", arch), WRONG_ARCHITECTURES[arch])
    assert_refused(moeir, commands(folder, weights)["init"], ("--arch", arch), WRONG_ARCHITECTURES[arch])
    assert not (folder / "output").exists()


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--arch", "dense", "--document-length", 99), "--document-length 99: expected 3 to 64"),
        (("--arch", "cross-encoder", "--query-length", 64), "leaves no room for a document"),
        (("--arch", "dense", "--temperature", 0.1), "--temperature 0.1: no expert of dense has a normalised vector"),
        (("--arch", "dense", "--group-rate", "towers=1"), "--group-rate towers: matches no parameter name"),
        (("--arch", "dense", "--objective", "kl:temperature=0"), "kl:temperature=0"),
        (("--arch", "dense", "--objective", "lce", "--negatives", 0), "--negatives 0"),
        (("--arch", "dense", "--dtype", "float16"), "--dtype float16: expected auto, float32 or bfloat16"),
        ((), "plain weights; name an architecture: --arch"),
    ],
)
def test_flags_of_finetune_that_do_not_fit_are_refused_before_texts_are_read(flags, words, moeir, folder, weights):
    assert_refused(moeir, commands(folder, weights)["finetune"], flags, words)


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--arch", "came:shared_layers=9"), "came:shared_layers=9: the encoder has 6 layers"),
        (("--arch", "came:shared_layers=4"), "came cannot be pre-trained as one encoder"),
        (("--arch", "dense:head=false"), "pre-training needs a vocabulary head"),
        (("--objective", "mote"), "--queries: missing; moeir generate-queries writes them (--objective mote)"),
        (("--objective", "cotmae-qc:layers=0", "--queries", "corpus"), "layers=0"),
        (("--queries", "corpus"), "--queries: given, but the objective uses none (--objective mlm)"),
        (("--document-length", 65), "--document-length 65: expected 3 to 64"),
        (("--group-rate", "router=1"), "--group-rate router: matches no parameter name"),
    ],
)
def test_flags_of_pretrain_that_do_not_fit_are_refused_before_texts_are_read(flags, words, moeir, folder, weights):
    flags = [folder / "corpus.jsonl" if flag == "corpus" else flag for flag in flags]
    assert_refused(moeir, commands(folder, weights)["pretrain"], flags, words)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("came:shared_layers=2,local_dim=8", "came:shared_layers=3", "its weights are not those of came"),
        ("colbert:dim=8", "colbert:dim=16", "has shape [8, 32]"),
        ("sbmoe:experts=2", "sbmoe:experts=3", "its weights are not those of sbmoe"),
        ("mote", "dense", "a mote checkpoint cannot become dense"),
    ],
)
def test_options_that_a_checkpoint_has_no_weights_for_are_refused_before_texts_are_read(
    old, new, words, moeir, folder, tiny_model_with_head
):
    result = moeir("init", "--model", tiny_model_with_head, "--arch", old, "--output", folder / "start")
    assert result.code == 0, result.stderr
    assert_refused(moeir, commands(folder, folder / "start")["finetune"], ("--arch", new), words)


def test_a_classification_head_of_many_classes_is_refused_before_texts_are_read(moeir, folder, weights):
    import torch
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(weights, folder / "classifier")
    tensors = load_file(copy / "model.safetensors") | {"classifier.weight": torch.zeros(3, 32), "classifier.bias": torch.zeros(3)}
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    assert_refused(moeir, commands(folder, copy)["finetune"], ("--arch", "cross-encoder"), "the head has 3 classes")


def test_a_dry_run_of_what_fits_says_so_and_fits_no_head(moeir, toy, tmp_path, weights):
    example = {"query_id": "t1", "positive_ids": ["cat"], "negative_ids": []}
    (tmp_path / "train.jsonl").write_text(json.dumps(example) + "\n")
    sources = ("--train", tmp_path / "train.jsonl", "--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
    command = ("finetune", "--model", weights, "--arch", "came:shared_layers=4", *sources, "--output", tmp_path / "out", "--dry-run")
    result = moeir(*command)
    assert result.code == 0 and result.stderr == "" and "steps of 8 queries" in result.stdout
