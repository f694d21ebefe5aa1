"""Architectures over models of transformers: saved, reopened, trained, and equal to our own layers where there are both."""

import pytest
import torch
import transformers

from moeir import open_checkpoint
from moeir.architectures.base import count_parameters
from moeir.architectures.initialize import build_checkpoint, check_options
from moeir.backbones import transformers_model
from tests.backbones import tiny_models, tiny_tokenizers
from tests.backbones.test_transformers_encoder import PACKED, WHOLE

TEXTS = ["An owl, hunting at night.", "the sea (the end)", "bread in the whale"]
RULES = {"query_length": 16, "document_length": 16}
CAME = "came:shared_layers=1,local_dim=8"
ARCHITECTURES = {
    "dense:pooling=last,normalise=true": "qwen3",
    "dense:encoders=separate": "qwen3",
    "dense:pooling=mean": "lfm2",
    "splade": "qwen3",
    "splade:pooling=sum": "gte",
    CAME: "qwen3",
    f"{CAME},routing=token": "eurobert",
    "colbert:dim=8": "embedding_gemma2_text",
    "coil:cls_dim=8,dim=4": "mistral",
    "sbmoe:experts=2": "qwen3_moe",
    "taser:every=1,routing=sequence,expert_ln=false": "qwen3",
    "taser:every=0,routing=token,gradient=switch": "llama",
    "mote": "qwen3",
    "cross-encoder:head=linear": "ultrabert",
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """`weights(name)`: a folder with a tiny model and a tokenizer."""
    root = tmp_path_factory.mktemp("models")

    def folder(name, **changes):
        path = root / "-".join([name, *map(str, changes.values())])
        if not path.exists():
            size = tiny_tokenizers.write_roberta(path)
            family, settings = (PACKED | WHOLE)[name]
            if not hasattr(transformers, f"{family}Config"):
                pytest.skip(f"transformers {transformers.__version__} has no {name}")
            config = getattr(transformers, f"{family}Config")(**(settings | {"vocab_size": size} | changes))
            torch.manual_seed(3)
            transformers_model.choose_class(config)(config).save_pretrained(path)
        return path

    return folder


def check_same(actual, expected, tolerance=0.0):
    """Columns of all experts are equal, or differ by a share of the largest number."""
    assert set(actual.representations) == set(expected.representations)
    for expert in expected.representations:
        for column, values in expected[expert].columns().items():
            values, others = torch.as_tensor(values).float(), torch.as_tensor(actual[expert].columns()[column]).float()
            assert bool(values.isfinite().all()) and float((others - values).abs().max()) <= tolerance * float(values.abs().max())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_saved_checkpoint_says_the_same(arch, weights, tmp_path):
    folder, rules = weights(ARCHITECTURES[arch]), RULES | ({"document_length": 24} if "cross" in arch else {})
    assert check_options(folder, arch, rules) is not None
    checkpoint = build_checkpoint(folder, arch, rules)
    checkpoint.save(tmp_path)
    again = open_checkpoint(tmp_path)
    if not checkpoint.architecture.reads_pairs:
        for side in ("query", "document"):
            check_same(again.encode(TEXTS, side), checkpoint.encode(TEXTS, side))
    account = count_parameters(again.architecture)
    assert 0 < account.flops("query", 4) < account.flops("query", 16) and account.total == again.architecture.parameter_count()
    before, after = checkpoint.architecture.state_dict(), again.architecture.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("arch", ["dense:pooling=mean", CAME])
def test_modernbert_by_transformers_is_our_own(arch, tmp_path):
    """The same files, by either implementation; the choice is kept in a checkpoint."""
    size = tiny_tokenizers.write_modernbert(tmp_path)
    tiny_models.make_model("modernbert", vocab_size=size).save_pretrained(tmp_path)
    ours, theirs = (build_checkpoint(tmp_path, arch, RULES, backbone=backbone) for backbone in (None, "transformers"))
    assert ours.architecture.encoder.file_names is None
    theirs.architecture.heads.load_state_dict(ours.architecture.heads.state_dict())
    expected = ours.encode(TEXTS)
    check_same(theirs.encode(TEXTS), expected, 1e-5)
    (folder := tmp_path / "saved").mkdir()
    theirs.save(folder)
    again = open_checkpoint(folder)
    assert again.architecture.encoder.file_names is not None
    check_same(again.encode(TEXTS), expected, 1e-5)
