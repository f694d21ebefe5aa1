"""Experts as adapters: against full copies with merged weights, what trains, and on disk: PEFT's files for each expert, a trunk that is
named, compared and never copied."""

import json
import re
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
from moeir.mixtures.adapters import AdaptedLinear
from moeir.training import objectives
from moeir.training.param_groups import make_param_groups
from moeir.training.regularizers import RegularizerWeights
from tests.architectures.folders import assert_refused, change_json, save
from tests.architectures.test_expert_architectures import RULES, TEXTS, build, scores
from tests.backbones.tiny_models import draw_model
from tests.conftest import run_moeir
from tests.mixtures.test_adapters import draw_adapters, list_adapters
from tests.training.toy_examples import take_step

CAME = "came:shared_layers=2,local_dim=8"
ADAPTED = [
    "dense:adapters=4,adapter_maps=query+value", f"{CAME},adapters=4", f"{CAME},adapters=4,shared_adapters=3", "mote:adapters=4",
    "mote:encoders=siamese,adapters=4", "taser:adapters=4,every=1", "taser:adapters=4,experts=3,routing=token",
    "taser:adapters=4,routing=sequence,gate_input=block_input,gates=per_layer,every=1", "splade:adapters=4", "colbert:adapters=4,dim=8",
    "cross-encoder:adapters=4",
]  # fmt: skip


def build_any(model, spec):
    """A checkpoint with random adapters."""
    checkpoint = build(model, spec)
    draw_adapters(checkpoint.architecture)
    return checkpoint


def difference(actual, expected):
    """The largest difference of scores, relative to the largest score."""
    return max(float((actual[name] - one).abs().max() / one.abs().max()) for name, one in expected.items())


def merged_state(checkpoint, expert):
    """The encoder's weights by the plain names, W + 2 B A of an expert."""
    state = {}
    for name, module in checkpoint.architecture.encoder.named_modules():
        if isinstance(module, AdaptedLinear):
            number = expert if len(module.experts) > 1 else 0
            state[f"{name}.weight"] = module.weight.double() + 2.0 * module.up[number].double() @ module.down[number].double()
    plain = {key: value for key, value in checkpoint.architecture.encoder.state_dict().items() if not key.endswith((".down", ".up"))}
    return plain | {key: value.float() for key, value in state.items()}


TOWERS = ["adapters=4,shared_adapters=3", "adapters=4,lexical_queries=tokens"]


@pytest.mark.parametrize("options", TOWERS)
def test_towers_as_one_batch_are_towers_of_merged_weights(tiny_model_with_head, options):
    """Also in the form for inference."""
    checkpoint = build_any(tiny_model_with_head, f"{CAME},{options}")
    copies = build(tiny_model_with_head, ",".join([CAME, *(one for one in options.split(",") if "adapters" not in one)]))
    copies.architecture.heads.load_state_dict(checkpoint.architecture.heads.state_dict())
    for number, name in enumerate(("lexical", "local", "global")):
        state = merged_state(checkpoint, number)
        shared = {key: value for key, value in state.items() if not key.startswith(("layers.2.", "layers.3."))}
        copies.architecture.encoder.load_state_dict(shared)
        own = {key: value for key, value in state.items() if key.startswith(("layers.2.", "layers.3."))}
        copies.architecture.towers[name].load_state_dict({f"{int(key[7]) - 2}{key[8:]}": value for key, value in own.items()})
    expected = scores(copies)
    assert difference(scores(checkpoint), expected) <= 5e-6
    checkpoint.architecture.merge_adapters()
    assert not list_adapters(checkpoint.architecture) and difference(scores(checkpoint), expected) <= 5e-6
    assert len(checkpoint.architecture.encoder.layers) == 2 and list(checkpoint.architecture.towers) == ["lexical", "local", "global"]


@pytest.mark.parametrize(
    "spec", ["mote:adapters=4", "mote:adapters=4,layers=2+4", "taser:adapters=4,every=1", "taser:adapters=4,experts=4,every=0"]
)
def test_roles_are_two_encoders_of_merged_weights(tiny_model_with_head, spec):
    checkpoint = build_any(tiny_model_with_head, spec)
    plain = {"mote": "mote:encoders=separate", "taser": "dense:encoders=separate"}[spec.split(":")[0]]
    copies = build(tiny_model_with_head, plain).architecture
    copies.encoder.load_state_dict(merged_state(checkpoint, 0))
    copies.document_encoder.load_state_dict(merged_state(checkpoint, 2 if "experts=4" in spec else 1))
    plain = build(tiny_model_with_head, plain)
    plain.architecture = copies
    expected, architecture = scores(plain), checkpoint.architecture
    assert difference(scores(checkpoint), expected) <= 5e-6
    architecture.merge_adapters()
    assert difference(scores(checkpoint), expected) <= 5e-6 and not list_adapters(architecture)
    assert architecture.document_encoder.embeddings is architecture.encoder.embeddings, "what has no adapters is not copied"
    frozen = [number for number in range(4) if architecture.document_encoder.layers[number] is architecture.encoder.layers[number]]
    assert frozen == {"layers=2+4": [0, 2], "every=1": [0, 2]}.get(spec.split(",")[1] if "," in spec else "", [])


@pytest.mark.parametrize("spec", ADAPTED)
def test_adapters_routers_and_heads_train_and_nothing_else(tiny_model_with_head, spec):
    checkpoint = build_any(tiny_model_with_head, spec)
    architecture = checkpoint.architecture
    balanced = RegularizerWeights(load_balance=0.01)
    objective = objectives.lce if "cross" in spec else lambda batch: objectives.contrastive(batch, regularizers=balanced)
    gradients = take_step(checkpoint, objective, batch_size=6)[3]
    trained = {name for name, parameter in architecture.named_parameters() if parameter.requires_grad}
    expected = re.compile(r".*\.(down|up)|(router|.*\.router\.gate)\.(weight|bias)|heads\..*|encoder\.(vocabulary_head|pooler)\..*")
    assert all(expected.fullmatch(name) for name in trained) and gradients.keys() <= trained
    unused = {name for name in trained - gradients.keys() if "vocabulary_head" not in name}
    assert not unused and all(bool(gradients[name].any()) for name in gradients if name.endswith((".down", ".up")))
    assert bool(re.search("routing=(sequence|token)", spec)) == any("router" in name for name in trained)
    members = {id(parameter) for group in make_param_groups(architecture, learning_rate=1e-3) for parameter in group["params"]}
    assert members == {id(parameter) for name, parameter in architecture.named_parameters() if name in trained}
    frozen = [parameter for name, parameter in architecture.named_parameters() if name not in trained]
    assert sum(map(torch.numel, frozen)) > 25_000 and architecture.encoder.embeddings.words.weight.grad is None


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
    """Without config.json, by which transformers would take the folder for the whole model."""
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
    assert_refused(ArtifactError, "are gone", open_checkpoint, moved)


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


def write_peft(folder, base, *, layers=4, **config):
    """An adapter in the layout of peft, written here by its documentation; returns A and B of each map."""
    folder.mkdir()
    generator, width = torch.Generator().manual_seed(7), moeir.open_checkpoint(base).architecture.encoder.config.hidden
    weights = {}
    for layer in range(layers):
        for name in ("query", "value"):
            path = f"base_model.model.encoder.layer.{layer}.attention.self.{name}"
            weights[f"{path}.lora_A.weight"] = torch.randn(4, width, generator=generator)
            weights[f"{path}.lora_B.weight"] = torch.randn(width, 4, generator=generator) * 0.2
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 4, "lora_alpha": 6.0, "lora_dropout": 0.05}
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": ["query", "value"], "bias": "none"} | config))
    return weights


@pytest.fixture
def base(tiny_model, tmp_path):
    checkpoint = build_checkpoint(tiny_model, "dense", RULES)
    return save(checkpoint, tmp_path / "base")


@pytest.mark.parametrize("rslora", [False, True])
def test_a_published_adapter_is_its_merged_weights(base, tmp_path, moeir, rslora):
    weights = write_peft(tmp_path / "adapter", base, use_rslora=rslora)
    run_moeir("init", "--model", tmp_path / "adapter", "--arch", "dense", "--output", tmp_path / "opened")
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


@pytest.mark.parametrize("arch", ["splade", "colbert:dim=8", "mote:encoders=siamese,similarity=dense", "cross-encoder:head=linear"])
def test_a_published_adapter_is_that_of_the_only_expert(arch, base, tmp_path, moeir):
    weights = write_peft(tmp_path / "adapter", base)
    assert moeir("init", "--model", tmp_path / "adapter", "--arch", arch, "--output", tmp_path / "opened").code == 0
    down = open_checkpoint(tmp_path / "opened").architecture.encoder.layers[0].attention.query.down[0]
    assert torch.equal(down, weights["base_model.model.encoder.layer.0.attention.self.query.lora_A.weight"])


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
        ({"base_model_name_or_path": "/nowhere"}, "/nowhere: not a folder, and it cannot be loaded from the hub"),
        ({"base_model_name_or_path": "nobody/nothing"}, "nobody/nothing: not a folder, and it cannot be loaded from the hub"),
    ],
)
def test_what_is_more_than_a_low_rank_update_is_refused_by_name(base, tmp_path, config, message):
    write_peft(tmp_path / "adapter", base, **config)
    assert_refused((ArtifactError, UsageError), message, build_checkpoint, tmp_path / "adapter", "dense", {})


@pytest.mark.parametrize("spec", ["dense:adapters=4,adapter_maps=attention", "came:shared_layers=2,local_dim=8,adapters=4"])
def test_a_trunk_in_bfloat16_is_held_and_opened_so(tiny_model_with_head, tmp_path, spec):
    reference = build_any(tiny_model_with_head, spec)
    plain, model = scores(reference), shutil.copytree(tiny_model_with_head, tmp_path / "model")
    change_json(model / "config.json", dtype="bfloat16")
    checkpoint = build_checkpoint(model, spec, RULES, TEXTS, 0)
    adapters = {name: value for name, value in reference.architecture.state_dict().items() if name.endswith((".down", ".up"))}
    checkpoint.architecture.load_state_dict(adapters, strict=False)
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
        assert_refused(ArtifactError, r"moeir.json: damaged: not what moeir writes of a trunk", open_checkpoint, file.parent)


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
        assert_refused(ArtifactError, message, open_checkpoint, folder)


TASKS = ("retrieval_query", "retrieval_passage", "text_matching")
JINA_MAPS = ["word_embeddings", "token_type_embeddings", "q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2", "dense"]


@pytest.fixture
def jina(tiny_model, tmp_path):
    """A tiny model with a folder of PEFT for each task, laid out, configured and named as jinaai/jina-embeddings-v3-hf; `pooler` is adapted
    too, and no base is named."""
    folder, size = tmp_path / "jina", len(json.loads((tiny_model / "tokenizer.json").read_text())["model"]["vocab"])
    sizes = {"vocab_size": size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.JinaEmbeddingsV3Config(**sizes, max_position_embeddings=66, type_vocab_size=1, layer_norm_eps=1e-5)
    model = draw_model(transformers.JinaEmbeddingsV3Model, config)
    model.save_pretrained(folder)
    shutil.copy(tiny_model / "tokenizer.json", folder)
    published = {"lora_adaptations": ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]}
    published |= {"lora_alpha": 1, "lora_rank": 4, "position_embedding_type": "rotary", "rotary_emb_base": 20000.0, "use_flash_attn": True}
    change_json(folder / "config.json", **published)
    for task in TASKS:
        (folder / task).mkdir()
        weights = {}
        for path, part in model.named_modules():
            if path.rpartition(".")[2] in JINA_MAPS:
                is_table = isinstance(part, torch.nn.Embedding)
                outputs, inputs = part.weight.mT.shape if is_table else part.weight.shape
                name = f"base_model.model.{path}.{'lora_embedding_{}' if is_table else 'lora_{}.weight'}"
                weights |= {name.format("A"): torch.randn(4, inputs) * 0.3, name.format("B"): torch.randn(outputs, 4) * 0.3}
        save_file(weights, folder / task / "adapter_model.safetensors")
        settings = {"peft_type": "LORA", "base_model_name_or_path": None, "r": 4, "lora_alpha": 1, "lora_dropout": 0.0}
        (folder / task / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": JINA_MAPS}))
    return folder


def encode_merged(folder, task, ids):
    """Mean states, normalised, of transformers' own model with an adapter added to its weights, for each text alone."""
    model, adapter = transformers.AutoModel.from_pretrained(folder).eval(), load_file(folder / task / "adapter_model.safetensors")
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name in adapter:
            if (path := name.removeprefix("base_model.model.")).endswith("lora_A.weight"):
                modules[path.removesuffix(".lora_A.weight")].weight += 0.25 * adapter[name.replace("lora_A", "lora_B")] @ adapter[name]
            elif path.endswith("lora_embedding_A"):
                product = adapter[name.replace("_A", "_B")] @ adapter[name]
                modules[path.removesuffix(".lora_embedding_A")].weight += 0.25 * product.T
        states = [model(input_ids=torch.tensor([one])).last_hidden_state[0].mean(0) for one in ids]
    return torch.nn.functional.normalize(torch.stack(states), dim=1)


def test_two_task_adapters_of_a_published_model_are_the_roles_of_mote(jina, tmp_path, moeir):
    spec = "mote:similarity=dense,pooling=mean,normalise=true,adapters=4"
    run_moeir("init", "--model", jina, "--arch", spec, "--output", tmp_path / "opened")
    opened = open_checkpoint(tmp_path / "opened")
    assert "adapter_alpha=1" in opened.spec and "word_embeddings" in opened.spec and "dense+" not in opened.spec
    sides = {"query": "retrieval_query", "document": "retrieval_passage"}
    expected = {side: encode_merged(jina, task, opened.token_ids(TEXTS, side)[0]) for side, task in sides.items()}
    for _ in range(2):  # as it is trained, and in its form for inference
        for side, one in expected.items():
            assert (opened.encode(TEXTS, side)["global"].vectors - one).abs().max() <= 2e-6
        opened.pack_for_inference(torch.float32)
    assert (expected["query"] - expected["document"]).abs().max() > 0.01
    folders = {"query": tmp_path / "opened/adapters/query", "document": tmp_path / "opened/adapters/document"}
    for side, task in sides.items():  # written as they were read
        theirs, ours = (load_file(one / "adapter_model.safetensors") for one in (jina / task, folders[side]))
        assert ours.keys() == {name for name in theirs if "pooler" not in name}
        assert all(torch.equal(theirs[name], one) for name, one in ours.items())


def test_one_task_adapter_is_a_dense_model_and_its_tables_are_merged(jina, tmp_path, moeir):
    opened = tmp_path / "opened"
    run_moeir("init", "--model", jina / "text_matching", "--arch", "dense:pooling=mean,normalise=true", "--output", opened)
    checkpoint = open_checkpoint(opened)
    expected = encode_merged(jina, "text_matching", checkpoint.token_ids(TEXTS, "document")[0])
    assert (checkpoint.encode(TEXTS)["global"].vectors - expected).abs().max() <= 2e-6
    assert json.loads((opened / "moeir.json").read_text())["trunk"]["model"] == "../jina"
    half, tokens = open_checkpoint(opened).architecture, checkpoint.tokenize(TEXTS, "document")
    half.merge_adapters(torch.bfloat16)  # as for inference in bfloat16, in which states are float32 between products
    assert half.encoder.embeddings.words.weight.dtype == torch.bfloat16 and half.encoder.embed(tokens).dtype == torch.float32
    run_moeir("convert", "--input", opened, "--to", "sentence-transformers", "--output", tmp_path / "whole")
    merged = build_checkpoint(tmp_path / "whole", "dense", {})
    assert (merged.encode(TEXTS)["global"].vectors - expected).abs().max() <= 2e-6


def test_finetune_trains_task_adapters_and_tables_with_them(jina, training_files, tmp_path, moeir):
    output, spec = tmp_path / "trained", "mote:similarity=dense,pooling=mean,normalise=true,adapters=4"
    before = {path.name: path.read_bytes() for path in jina.glob("*.safetensors")}
    steps = ("--steps", 1, "--batch-size", 4, "--negatives", 0, "--learning-rate", 1e-2, "--device", "cpu", "--dtype", "float32")
    run_moeir("finetune", "--model", jina, "--arch", spec, *training_files, *steps, "--output", output)
    trained, fresh = (list_adapters(one.architecture) for one in (open_checkpoint(output), build_checkpoint(jina, spec, {})))
    for expert, maps in fresh.items():
        assert {"embeddings.word_embeddings", "layers.1.mlp.fc2"} <= maps.keys()
        for path, (down, up) in maps.items():
            assert not torch.equal(trained[expert][path][0], down) and not torch.equal(trained[expert][path][1], up), path
    assert before == {path.name: path.read_bytes() for path in jina.glob("*.safetensors")}
    account = json.loads(moeir("info", output, "--form", "json").stdout)
    assert account["parameters"] == sum(one.numel() for one in open_checkpoint(output).architecture.parameters())


def test_other_adapters_than_a_folder_has_those_that_differ_and_tables_that_a_vocabulary_head_reads_are_refused(jina, tiny_model_with_head):
    for spec, message in (
        ("mote:similarity=dense,adapters=8", "retrieval_query: an adapter with adapters=4, where 8 is expected; leave adapters out"),
        ("mote:similarity=dense,adapters=4,adapter_maps=attention", "where attention is expected; leave adapter_maps out"),
        ("taser:every=1,adapters=4,routing=token,adapter_maps=word_embeddings", "adapter_maps=word_embeddings: expected all"),
    ):
        assert_refused(UsageError, message, build_checkpoint, jina, spec, {})
    change_json(jina / "retrieval_passage/adapter_config.json", lora_alpha=2)
    with pytest.raises(UsageError, match="retrieval_passage: an adapter with adapter_alpha=2, where 1 is expected"):
        build_checkpoint(jina, "mote:similarity=dense,adapters=4", {})
    with pytest.raises(UsageError, match=r"embeddings\.word_embeddings can have no adapters, as the vocabulary head"):
        build_any(tiny_model_with_head, "splade:adapters=4,adapter_maps=query+word_embeddings")
