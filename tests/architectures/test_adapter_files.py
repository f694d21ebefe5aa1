"""Checkpoints with adapters on disk: PEFT's files for each expert, a trunk that is named, compared and never copied."""

import json
import shutil

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import moeir
from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.device import autocast
from moeir.backbones.families import weights_io
from moeir.errors import ArtifactError, UsageError
from moeir.mixtures.adapters import list_adapters
from tests.architectures.folders import change_json, save
from tests.architectures.test_adapter_architectures import build_any
from tests.architectures.test_expert_architectures import RULES, TEXTS, scores


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_each_expert_is_a_folder_as_peft_writes_it(tiny_model_with_head, tmp_path):
    checkpoint = build_any(
        tiny_model_with_head, "came:shared_layers=3,local_dim=8,adapters=4,adapter_alpha=6,adapter_maps=query+output.dense"
    )
    folder = save(checkpoint, tmp_path / "saved")
    experts = [name for name in files_of(folder) if name.startswith("adapters/")]
    parts = ("config.json", "model.safetensors")
    assert experts == [f"adapters/{name}/adapter_{part}" for name in ("global", "lexical", "local") for part in parts]
    layer = "encoder.layer.3"
    maps = [f"{layer}.attention.output.dense", f"{layer}.attention.self.query", f"{layer}.output.dense"]
    assert json.loads((folder / "adapters/local/adapter_config.json").read_text()) == {
        "peft_type": "LORA", "task_type": None, "base_model_name_or_path": str(tiny_model_with_head), "revision": None, "r": 4,
        "lora_alpha": 6.0, "lora_dropout": 0.0, "bias": "none", "inference_mode": True, "target_modules": maps, "fan_in_fan_out": False,
        "use_rslora": False,
    }  # fmt: skip
    weights = load_file(folder / "adapters/local/adapter_model.safetensors")
    assert sorted(weights) == sorted(f"base_model.model.{path}.lora_{part}.weight" for path in maps for part in "AB")
    for path, (down, up) in list_adapters(checkpoint.architecture)["local"].items():
        assert torch.equal(weights[f"base_model.model.{path}.lora_A.weight"], down)
        assert torch.equal(weights[f"base_model.model.{path}.lora_B.weight"], up)


def test_one_adapter_is_a_folder_of_sentence_transformers(tiny_model, tmp_path):
    """Without config.json, by which transformers would take the folder for the whole model, and in which it looks for the tokenizer's class
    unless that is named elsewhere."""
    folder = save(build_any(tiny_model, "dense:adapters=4,pooling=mean"), tmp_path / "saved")
    assert {"adapter_config.json", "adapter_model.safetensors", "modules.json", "1_Pooling/config.json"} <= set(files_of(folder))
    assert not {"config.json", "adapters"} & {path.name for path in folder.iterdir()}
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] in ("BertTokenizer", "BertTokenizerFast")


def test_peft_and_sentence_transformers_open_it(tiny_model, tmp_path):
    """An optional test, of libraries that moeir does not install."""
    peft, library = (pytest.importorskip(name, reason=f"{name} is not installed") for name in ("peft", "sentence_transformers"))
    checkpoint = build_any(tiny_model, "dense:adapters=4,pooling=mean,normalise=true")
    folder = save(checkpoint, tmp_path / "saved")
    expected = checkpoint.encode(TEXTS)["global"].vectors
    assert (torch.tensor(library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)) - expected).abs().max() <= 1e-6
    model = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(tiny_model), folder).eval()
    tokens = checkpoint.tokenize(TEXTS[:1], "document")
    states = model(input_ids=tokens.ids[None]).last_hidden_state[0].mean(0)
    assert (torch.nn.functional.normalize(states, dim=0) - expected[0]).abs().max() <= 1e-6


def test_another_trunk_or_none_is_refused_in_one_line(tiny_model, tmp_path):
    trunk = shutil.copytree(tiny_model, tmp_path / "trunk")
    folder = save(build_any(trunk, "dense:adapters=4"), tmp_path / "saved")
    weights = load_file(trunk / "model.safetensors")
    first = next(iter(weights))
    weights[first] = weights[first] + 1e-3
    save_file(weights, trunk / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"trunk/model.safetensors: not the file that the adapters of .*saved were trained on"):
        open_checkpoint(folder)
    shutil.rmtree(trunk)
    with pytest.raises(ArtifactError, match=r"saved: the weights that its adapters belong to are gone from .*trunk; put them"):
        open_checkpoint(folder)
    (tmp_path / "trunk").symlink_to(tiny_model)
    assert open_checkpoint(folder).trunk.model == str(tiny_model.resolve())
    (tmp_path / "below").mkdir()
    moved = shutil.move(tmp_path / "saved", tmp_path / "below" / "saved")
    with pytest.raises(ArtifactError, match="are gone"):
        open_checkpoint(moved)


def test_a_trunk_in_the_cache_of_the_hub_is_opened_without_a_request_or_as_a_folder(tiny_model, tmp_path, monkeypatch, moeir):
    """By its path it has no name of the Hub, by which others could have it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "1" * 40
    snapshot = shutil.copytree(tiny_model, tmp_path / "hub/models--anna--tiny/snapshots" / commit)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *names, **options: pytest.fail("a request"))
    assert weights_io.resolve_commit("anna/tiny", commit, ("config.json", "model.safetensors")) == snapshot
    with pytest.raises(pytest.fail.Exception, match="a request"):
        weights_io.resolve_commit("anna/tiny", commit, ("config.json", "more.safetensors"))
    assert moeir("init", "--model", snapshot, "--arch", "dense:adapters=4", "--output", tmp_path / "made").code == 0
    trunk = open_checkpoint(tmp_path / "made").trunk
    assert (trunk.model, trunk.revision) == (str(snapshot.resolve()), None)
    result = moeir("push", "--input", tmp_path / "made", "--repo", "anna/adapters")
    assert result.code == 2 and "which others do not have" in result.stderr


def write_peft(folder, base, *, rank=4, alpha=6.0, maps=("query", "value"), layers=4, **config):
    """An adapter in the layout of peft, written here by its documentation; returns A and B of each map."""
    folder.mkdir()
    generator, width = torch.Generator().manual_seed(7), moeir.open_checkpoint(base).architecture.encoder.config.hidden
    weights = {}
    for layer in range(layers):
        for name in maps:
            path = f"base_model.model.encoder.layer.{layer}.attention.self.{name}"
            weights[f"{path}.lora_A.weight"] = torch.randn(rank, width, generator=generator)
            weights[f"{path}.lora_B.weight"] = torch.randn(width, rank, generator=generator) * 0.2
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": rank, "lora_alpha": alpha, "lora_dropout": 0.05}
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": list(maps), "bias": "none"} | config))
    return weights


@pytest.fixture
def base(tiny_model, tmp_path):
    checkpoint = build_checkpoint(tiny_model, "dense", RULES)
    return save(checkpoint, tmp_path / "base")


@pytest.mark.parametrize("rslora", [False, True])
def test_a_published_adapter_is_its_merged_weights(base, tmp_path, moeir, rslora):
    weights = write_peft(tmp_path / "adapter", base, use_rslora=rslora)
    result = moeir("init", "--model", tmp_path / "adapter", "--arch", "dense", "--output", tmp_path / "opened")
    assert result.code == 0, result.stderr
    opened, merged = open_checkpoint(tmp_path / "opened"), open_checkpoint(base)
    state = merged.architecture.encoder.state_dict()
    for layer, name in ((layer, name) for layer in range(4) for name in ("query", "value")):
        path = f"base_model.model.encoder.layer.{layer}.attention.self.{name}"
        product = weights[f"{path}.lora_B.weight"] @ weights[f"{path}.lora_A.weight"]
        state[f"layers.{layer}.attention.{name}.weight"] += 6.0 / (2.0 if rslora else 4.0) * product
    merged.architecture.encoder.load_state_dict(state)
    actual, expected = (model.encode(TEXTS)["global"].vectors for model in (opened, merged))
    assert (actual - expected).abs().max() <= 5e-6 * expected.abs().max()
    assert "adapters=4" in opened.spec and "adapter_maps=query+value" in opened.spec and "adapter_dropout=0.05" in opened.spec


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "use_dora is True; moeir reads low-rank updates"),
        ({"corda_config": {"x": 1}}, "corda_config is {'x': 1}"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"of_tomorrow": 2}, "of_tomorrow is 2"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"modules_to_save": ["pooler"]}, r"modules_to_save is \['pooler'\]"),
        ({"alpha_pattern": {"query": 3}}, "alpha_pattern is"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"r": 5}, r"expected A \[5, inputs\] and B \[outputs, 5\]"),
        ({"layers": 2}, r"its maps are not those that the architecture adapts \(first: encoder.layer.2"),
        ({"lora_alpha": None}, "expected r, lora_alpha, lora_dropout and base_model_name_or_path"),
        ({"base_model_name_or_path": "/nowhere"}, "not a folder, and it cannot be loaded from the hub"),
    ],
)
def test_what_is_more_than_a_low_rank_update_is_refused_by_name(base, tmp_path, config, message):
    write_peft(tmp_path / "adapter", base, **config)
    with pytest.raises((ArtifactError, UsageError), match=message):
        build_checkpoint(tmp_path / "adapter", "dense", {})


@pytest.mark.parametrize("spec", ["dense:adapters=4,adapter_maps=attention", "came:shared_layers=2,local_dim=8,adapters=4"])
def test_a_trunk_in_bfloat16_is_held_and_opened_so(tiny_model_with_head, tmp_path, spec):
    reference = build_any(tiny_model_with_head, spec)
    plain, model = scores(reference), shutil.copytree(tiny_model_with_head, tmp_path / "model")
    change_json(model / "config.json", dtype="bfloat16")
    checkpoint = build_checkpoint(model, spec, RULES, TEXTS, 0)
    for own, others in list_adapters(reference.architecture).items():
        for path, pair in others.items():
            for target, value in zip(list_adapters(checkpoint.architecture)[own][path], pair, strict=True):
                target.copy_(value)
    layers = checkpoint.architecture.encoder.layers.named_parameters()
    assert {one.dtype for name, one in layers if "norm" not in name and not one.requires_grad} == {torch.bfloat16}
    assert {weight.dtype for weight in checkpoint.architecture.parameters() if weight.requires_grad} == {torch.float32}
    words = checkpoint.architecture.encoder.embeddings.words.weight.dtype
    assert words == (torch.float32 if spec.startswith("came") else torch.bfloat16)  # a vocabulary head multiplies by them
    opened = open_checkpoint(save(checkpoint, tmp_path / "saved"))
    assert opened.trunk.dtype == "bfloat16"
    for kind in (torch.float32, torch.bfloat16):
        with autocast(kind, "cpu"):
            actual, expected = scores(opened), scores(checkpoint)
        assert all(torch.equal(actual[name], one) for name, one in expected.items())
        assert all((actual[name] - one).norm() <= 0.03 * one.norm() for name, one in plain.items())


def test_a_damaged_entry_of_the_trunk_is_one_line(tiny_model, tmp_path):
    file = save(build_any(tiny_model, "dense:adapters=4"), tmp_path / "saved") / "moeir.json"
    whole = file.read_text()
    for changes in ({"dtype": "int3"}, {"files": 3}, {"model": None}, {"more": 1}):
        file.write_text(whole)
        change_json(file, "trunk", **changes)
        with pytest.raises(ArtifactError, match=r"moeir.json: damaged: not what moeir writes of a trunk"):
            open_checkpoint(file.parent)


def test_damaged_files_are_refused_in_one_line(tiny_model_with_head, tmp_path):
    folder = save(build_any(tiny_model_with_head, "came:shared_layers=3,local_dim=8,adapters=4"), tmp_path / "saved")
    file = folder / "adapters/local/adapter_model.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    for changed, message in (
        ({key: value for key, value in weights.items() if key != name}, "expected A"),
        (weights | {name: weights[name] * float("nan")}, "holds NaN"),
        (weights | {"base_model.model.pooler.weight": torch.zeros(2)}, "pooler.weight is not read"),
        (weights | {name: torch.zeros(4, 3)}, "has shape"),
    ):
        save_file(changed, file)
        with pytest.raises(ArtifactError, match=message) as refused:
            open_checkpoint(folder)
        assert "\n" not in str(refused.value)
