"""Architectures over models of transformers: saved, reopened, trained, and equal to our own layers where there are both; sparse experts
over decoders whose tokens attend to all of their text, equal to formulas with all logits, which are never computed."""

import functools
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from moeir import open_checkpoint
from moeir.architectures.costs import measure_cost
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones import transformers_encoder, transformers_model
from moeir.backbones.families import weights_io
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import ArtifactError, UsageError
from moeir.training import objectives
from moeir.training.retrieval_task import RetrievalTask
from moeir.training.sampling import make_sampler
from moeir.training.trainer import Schedule, train
from tests.architectures.folders import assert_refused, change_json, check_same, reopen, save, write_files
from tests.backbones import tiny_models, tiny_tokenizers
from tests.backbones.test_transformers_encoder import difference
from tests.conftest import run_moeir
from tests.training.toy_examples import Killed, animal_text, identical, kill_at, make_examples, take_step, tokenize_in_memory

TEXTS = ["An owl, hunting at night.", "the sea (the end)", "bread in the whale at night"]
RULES = {"query_length": 16, "document_length": 16}
CAME = "came:shared_layers=1,local_dim=8"
ARCHITECTURES = {
    "dense:pooling=last,normalise=true": "qwen3",
    "dense:encoders=separate": "qwen3",
    "dense:pooling=mean,adapters=2": "t5",
    "splade": "gte",
    CAME: "eurobert",
    "colbert:dim=8": "embedding_gemma2_text",
    "coil:cls_dim=8,dim=4": "mistral",
    "sbmoe:experts=2": "qwen3_moe",
    "taser:every=1,routing=sequence": "qwen3",
    "mote": "qwen3",
    f"{CAME},adapters=2,shared_adapters=3": "qwen3",
    "came:shared_layers=1,experts=local+global,adapters=2,adapter_maps=attention": "embedding_gemma2_text",
    "mote:adapters=2": "llama",
    "taser:every=1,routing=token,adapters=2,experts=3": "qwen3",
    "taser:every=1,routing=sequence,adapters=2,gate_input=block_input": "eurobert",
    "cross-encoder:head=linear,adapters=2": "ultrabert",
}


def test_a_head_of_a_model_of_transformers_is_not_read_and_that_is_said(weights, tmp_path, caplog):
    source = shutil.copytree(weights("qwen3"), tmp_path / "source")
    transformers.AutoModelForSequenceClassification.from_pretrained(source, num_labels=1).save_pretrained(source)
    build_checkpoint(source, "cross-encoder:head=linear", RULES | {"document_length": 24})
    assert f"{source}: its head (score.weight …) is not read" in caplog.text and "has no classification head" not in caplog.text


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_saved_checkpoint_says_the_same(arch, weights, tmp_path):
    folder, rules = weights(ARCHITECTURES[arch]), RULES | ({"document_length": 24} if "cross" in arch else {})
    checkpoint = build_checkpoint(folder, arch, rules)
    again = reopen(checkpoint, tmp_path / "saved")
    if not checkpoint.architecture.reads_pairs:
        for side in ("query", "document"):
            check_same(again.encode(TEXTS, side), checkpoint.encode(TEXTS, side))
    side = "pair" if checkpoint.architecture.reads_pairs else "query"
    (few, less), (many, more) = (measure_cost(again.architecture, side, length) for length in (4, 16))
    assert 0 < less < more and 0 < few <= many <= again.architecture.parameter_count()


@pytest.mark.parametrize("arch", [f"{CAME},pooling=mean", "colbert:dim=8,augmentation=true"])
def test_modernbert_by_transformers_is_our_own(arch, tmp_path):
    size = tiny_tokenizers.write_modernbert(tmp_path)
    tiny_models.make_model("modernbert", vocab_size=size).save_pretrained(tmp_path)
    ours, theirs = (build_checkpoint(tmp_path, arch, RULES, backbone=backbone) for backbone in (None, "transformers"))
    assert ours.architecture.encoder.file_names is None
    theirs.architecture.heads.load_state_dict(ours.architecture.heads.state_dict())
    expected = ours.encode(TEXTS)
    check_same(theirs.encode(TEXTS), expected, 1e-5)
    check_same(theirs.encode(TEXTS, "query"), ours.encode(TEXTS, "query"), 1e-5)
    again = open_checkpoint(save(theirs, tmp_path / "saved"))
    assert again.architecture.encoder.file_names is not None
    check_same(again.encode(TEXTS), expected, 1e-5)


@pytest.mark.parametrize("arch, name", [(f"{CAME},adapters=2", "qwen3"), ("dense", "t5")])
def test_a_training_learns_and_a_killed_one_goes_on_to_the_same_bytes(arch, name, weights, tmp_path):
    documents = {f"d{row}": animal_text(row) for row in range(9)}
    queries = {f"q{row}": animal_text(row + 3) for row in range(8)}
    initial = build_checkpoint(weights(name), arch, RULES).architecture.state_dict()

    def train_in(folder, at=None):
        folder.mkdir(exist_ok=True)
        checkpoint = build_checkpoint(weights(name), arch, RULES)
        texts = tokenize_in_memory(checkpoint, queries, documents)
        sampler = make_sampler(make_examples(8), batch_size=4, negatives=1, seed=1, source="toy")
        task = RetrievalTask(checkpoint, sampler, texts, kill_at(at, objectives.contrastive), 3, torch.float32)
        train(task, Schedule(3, 1e-3, save_minutes=0.0), folder, device="cpu")
        return checkpoint.architecture.state_dict()

    expected = train_in(tmp_path / "whole")
    assert all(torch.isfinite(value).all() for value in expected.values()) and not identical(expected, initial)
    with pytest.raises(Killed):
        train_in(tmp_path / "killed", at=2)
    assert identical(train_in(tmp_path / "killed"), expected)


RECOMPUTED = [(f"{CAME},adapters=2,adapter_dropout=0.1", "ultrabert"), ("taser:every=1,routing=token,adapters=2,experts=3", "qwen3")]


@pytest.mark.parametrize("arch, name", [*RECOMPUTED, ("taser:every=1,routing=token", "qwen3")])
def test_recomputed_layers_change_no_byte(arch, name, weights):
    steps = [take_step(build_checkpoint(weights(name), arch, RULES), objectives.contrastive, batch_size=6, recompute=on) for on in (0, 1)]
    (loss, _, _, gradients, _), (recomputed_loss, _, _, recomputed, _) = steps
    assert recomputed_loss == loss and identical(recomputed, gradients)


@pytest.mark.parametrize(
    "name, arch, message",
    [
        ("mpnet", f"{CAME},adapters=2", "came: MPNetModel runs whole"),
        ("qwen3", "came:shared_layers=0,embeddings=private", "embeddings=private is for moeir's own layers"),
        ("t5", "mote:similarity=dense", "mote: T5EncoderModel runs whole"),
        ("t5", "mote:similarity=dense,adapters=2", "mote: T5EncoderModel runs whole"),
        ("lfm2", "taser", "taser: Lfm2Model runs whole"),
        ("t5", "splade", "its lexical expert needs a vocabulary head"),
        ("gemma2", "splade", "its lexical expert needs a vocabulary head"),
        ("qwen3", "cross-encoder", "use head=linear over a model of transformers"),
        ("bert", "mote:similarity=dense", "BertLayer has no feed-forward apart from residual and normalisation"),
    ],
)
def test_what_a_model_cannot_do_is_refused_in_one_line(name, arch, message, weights):
    assert_refused(UsageError, message, build_checkpoint, weights(name), arch, RULES, backbone="transformers")


@pytest.mark.parametrize("arch, layout", [("dense:pooling=mean", "qwen3"), (CAME, "moeir")])
def test_weights_in_half_precision_stay_so_until_they_are_trained(arch, layout, weights, tmp_path, monkeypatch):
    source = shutil.copytree(weights("qwen3"), tmp_path / "source")
    transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(source)
    checkpoint = build_checkpoint(source, arch, RULES)
    monkeypatch.setattr(weights_io, "SHARD_BYTES", 20_000)
    for number in range(2):
        folder = save(checkpoint, tmp_path / str(number))
        shards = [load_file(path) for path in folder.glob("model-*.safetensors")]
        assert len(shards) > 2 and not (folder / "model.safetensors").exists()
        dtypes = {key: value.dtype for shard in shards for key, value in shard.items()}
        config = json.loads((folder / "config.json").read_text())
        if number:
            assert torch.float32 in dtypes.values() and config["dtype"] == "float32", "a trained weight has more digits"
        else:
            assert {dtype for key, dtype in dtypes.items() if not key.startswith("heads.")} == {torch.bfloat16}
            assert config["dtype"] == ("bfloat16" if layout == "qwen3" else "float32") and config["model_type"] == layout
        check_same(open_checkpoint(folder).encode(TEXTS), checkpoint.encode(TEXTS))
        with torch.no_grad():
            next(checkpoint.architecture.encoder.layers[0].parameters()).add_(1e-6)
    if layout == "qwen3":
        again = transformers.AutoModel.from_pretrained(tmp_path / "1")
        ids = checkpoint.tokenizer.encode(TEXTS[:1])
        expected = again(input_ids=torch.tensor(ids)).last_hidden_state[0].mean(0)
        assert float((checkpoint.encode(TEXTS[:1])["global"].vectors[0] - expected).detach().abs().max()) <= 1e-5


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda w: {k: v for k, v in w.items() if "1.mlp.up" not in k}, r"weights are missing, first .*layers.1.mlp.up_proj.weight \(1 in"),
        (lambda w: w | {"model.layers.1.mlp.router.weight": torch.zeros(2)}, r"does not have, first layers.1.mlp.router.weight \(1 in all"),
        (lambda w: w | {"model.norm.weight": torch.zeros(5)}, "cannot be opened by transformers: .*"),
        (lambda w: w | {"model.norm.weight": torch.full((32,), torch.nan)}, "model.norm.weight holds NaN"),
        (lambda w: w | {"model.norm.weight": torch.ones(32, dtype=torch.int32)}, "model.norm.weight holds whole numbers"),
    ],
)
def test_faulty_weights_are_refused_by_name(change, message, weights, tmp_path):
    shutil.copytree(weights("qwen3"), tmp_path, dirs_exist_ok=True)
    save_file(change(load_file(tmp_path / "model.safetensors")), tmp_path / "model.safetensors", {"format": "pt"})
    assert_refused(ArtifactError, message, build_checkpoint, tmp_path, "dense", RULES)


SMALL = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
HASHED = {"axial_pos_embds": False, "attn_layers": ["lsh", "lsh"], "lsh_attn_chunk_length": 4, "attention_head_size": 8}


@pytest.mark.parametrize(
    "config, message",
    [
        (SMALL | HASHED | {"model_type": "reformer"}, "ReformerModel: the states of a text depend on others, or on chance"),
        (SMALL | {"model_type": "big_bird"}, "attention_type is 'block_sparse'"),
        (SMALL | {"model_type": "opt"}, "its lexical expert needs a vocabulary head"),
        (SMALL | {"model_type": "esm", "pad_token_id": 1}, "its lexical expert needs a vocabulary head"),
        (SMALL | {"model_type": "llama", "num_attention_heads": 0}, r"integer division or modulo by zero|heads is 0"),
        (SMALL | {"model_type": "llama", "num_hidden_layers": 10**7}, "layers is 10000000; expected 1 to"),
        (SMALL | {"model_type": "llama", "moeir_backbone": {"packed": "no"}}, "packed is 'no'; expected true or false"),
    ],
)
def test_configurations_that_would_give_wrong_numbers_or_fail_later_are_refused(config, message, weights, tmp_path):
    shutil.copytree(weights("qwen3"), tmp_path, dirs_exist_ok=True)
    write_files(tmp_path, {"config.json": config})
    assert_refused((UsageError, ArtifactError), message, build_checkpoint, tmp_path, "splade", RULES, random_weights=True)


def test_sizes_of_a_checkpoint_are_compared_before_they_are_allocated(weights, tmp_path, monkeypatch):
    build_checkpoint(weights("qwen3"), CAME, RULES).save(tmp_path)
    change_json(tmp_path / "config.json", intermediate_size=65_536)
    devices, make = [], weights_io.make_encoder
    monkeypatch.setattr(weights_io, "make_encoder", lambda *a, **o: devices.append(torch.get_default_device().type) or make(*a, **o))
    assert_refused(ArtifactError, "says", open_checkpoint, tmp_path)
    assert devices == ["meta"]


@torch.no_grad()
def test_threads_at_once_in_a_model_that_is_cut_compute_what_one_does_and_take_turns_in_one_that_runs_whole(weights):
    checkpoint = build_checkpoint(weights("qwen3_moe"), CAME, RULES)
    assert checkpoint.is_stateless and not build_checkpoint(weights("phi3"), "dense", RULES).is_stateless
    batches = [checkpoint.tokenize([f"owl {number} " * (1 + (number * row) % 5) for row in range(3)], "document") for number in range(8)]
    architecture = checkpoint.architecture.eval()
    expected = [architecture(tokens) for tokens in batches]
    with ThreadPoolExecutor(4) as threads:
        for one, other in zip(threads.map(torch.no_grad()(architecture), batches * 2), expected * 2, strict=True):
            check_same(one, other)


def test_heads_of_other_tasks_are_neither_missing_nor_left_over(weights, tmp_path):
    shutil.copytree(weights("qwen3"), tmp_path, dirs_exist_ok=True)
    score = {"score.weight": torch.zeros(1, 32)}
    whole = load_file(tmp_path / "model.safetensors")
    expected = build_checkpoint(tmp_path, "dense", RULES).encode(TEXTS)
    bare = {key.removeprefix("model."): value for key, value in whole.items() if "lm_head" not in key}
    for tensors in (whole | score, bare | score):
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        check_same(build_checkpoint(tmp_path, "dense", RULES).encode(TEXTS), expected)


def test_a_checkpoint_that_was_not_probed_is_probed_when_it_is_opened(weights, tmp_path, caplog):
    build_checkpoint(weights("lfm2"), "dense", RULES).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("moeir_backbone") == {"packed": False, "transformers": transformers.__version__}
    (tmp_path / "config.json").write_text(json.dumps(config))
    caplog.clear()
    assert open_checkpoint(tmp_path).architecture.encoder.config.packed is False
    assert "runs whole over texts of one length" in caplog.text


@pytest.mark.parametrize("arch", ["dense", CAME])
def test_a_checkpoint_that_another_transformers_probed_is_probed_again(arch, weights, tmp_path, monkeypatch, caplog):
    build_checkpoint(weights("qwen3"), arch, RULES).save(tmp_path)
    probes, check = [], transformers_model.check_packing
    monkeypatch.setattr(transformers_model, "check_packing", lambda *arguments: probes.append(check(*arguments)))
    expected = open_checkpoint(tmp_path).encode(TEXTS)
    assert probes == []
    monkeypatch.setattr(transformers_model.transformers, "__version__", "5.99.0")  # transformers may be another object by now
    checkpoint = open_checkpoint(tmp_path)
    assert probes == [None]
    check_same(checkpoint.encode(TEXTS), expected)
    open_checkpoint(save(checkpoint, tmp_path / "again"))
    assert probes == [None]

    def fail(*_):
        raise transformers_model.NotPackableError("texts mix")

    monkeypatch.setattr(transformers_model, "check_packing", fail)
    if arch == CAME:
        assert_refused(ArtifactError, "texts do not stay apart in it", open_checkpoint, tmp_path)
    else:
        check_same(open_checkpoint(tmp_path).encode(TEXTS), expected, 1e-5)
    assert "do not stay apart in packed batches (texts mix)" in caplog.text


def test_a_layer_of_a_packed_model_that_does_not_call_our_attention_is_an_error(weights):
    checkpoint = build_checkpoint(weights("qwen3"), "dense", RULES)
    checkpoint.architecture.encoder.embeddings.model.set_attn_implementation("sdpa")
    assert_refused(transformers_model.NotPackableError, "layer 1 does not call the attention that is registered", checkpoint.encode, TEXTS)


def write_gguf(file, layers=2):
    """A tiny Llama in GGUF, with a byte-level tokenizer whose tokens are letters."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    tokens = ["<pad>", "<s>", "</s>", *map(chr, range(33, 127)), "Ġ", "ow", "wl"]  # transformers adds <|endoftext|>, without a row
    writer = gguf.GGUFWriter(file, "llama")
    for add, value in {
        writer.add_context_length: 64, writer.add_embedding_length: 32, writer.add_block_count: layers, writer.add_feed_forward_length: 48,
        writer.add_head_count: 4, writer.add_head_count_kv: 2, writer.add_layer_norm_rms_eps: 1e-5, writer.add_rope_dimension_count: 8,
        writer.add_vocab_size: len(tokens), writer.add_tokenizer_model: "gpt2", writer.add_token_list: tokens,
        writer.add_token_merges: ["o w", "w l"], writer.add_bos_token_id: 1, writer.add_eos_token_id: 2, writer.add_pad_token_id: 0,
    }.items():  # fmt: skip
        add(value)
    generator = torch.Generator().manual_seed(0)
    layer = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32), "ffn_gate": (48, 32), "ffn_up": (48, 32)}
    layer |= {"ffn_down": (32, 48), "attn_norm": (32,), "ffn_norm": (32,)}
    shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,)}
    shapes |= {f"blk.{number}.{name}": shape for number in range(layers) for name, shape in layer.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_becomes_a_checkpoint_that_opens_without_gguf(tmp_path, monkeypatch):
    (source := tmp_path / "source").mkdir()
    write_gguf(source / "tiny.gguf")
    expected = transformers.AutoModel.from_pretrained(source, gguf_file="tiny.gguf")
    result = run_moeir("init", "--model", source / "tiny.gguf", "--arch", "dense:pooling=last", "--output", tmp_path / "0")
    assert result.messages == []
    write_gguf(source / "tiny.gguf", layers=3)  # one that is replaced is read anew
    assert build_checkpoint(source / "tiny.gguf", "dense", RULES).architecture.encoder.config.layers == 3
    monkeypatch.setitem(sys.modules, "gguf", None)
    checkpoint = open_checkpoint(tmp_path / "0")
    config = json.loads((tmp_path / "0" / "config.json").read_text())
    assert "quantization_config" not in config and config["model_type"] == "llama"
    ids = checkpoint.tokenizer.encode(["owl"])
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "0")) == config["vocab_size"]
    vector = checkpoint.encode(["owl"])["global"].vectors[0]
    assert float((vector - expected(input_ids=torch.tensor(ids)).last_hidden_state[0, -1]).detach().abs().max()) <= 1e-5


@pytest.mark.parametrize("name, pooling, warns", [("qwen3", "cls", True), ("qwen3", "last", False), ("gemma3_text", "cls", False)])
def test_the_first_token_of_a_decoder_is_warned_of(name, pooling, warns, weights, caplog):
    checkpoint = build_checkpoint(weights(name), f"dense:pooling={pooling}", RULES)
    assert ("its first token reads nothing; set pooling=last" in caplog.text) is warns
    assert checkpoint.architecture.encoder.is_causal is (name == "qwen3")


DECODERS = ["qwen3", "qwen3_moe", "mistral", "gemma3_text", "smollm3", "granite"]


@functools.cache
def open_causal_model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


@torch.no_grad()
def all_logits(folder, ids):
    """Logits [L, V] of transformers with a mask: tokens attend to all others, in layers with a window to so many of both sides."""
    model = open_causal_model(folder)
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"]
    window = getattr(model.config, "sliding_window", None) or len(ids)
    distance = (torch.arange(len(ids))[:, None] - torch.arange(len(ids))).abs()
    masks = {"full_attention": torch.zeros(1, 1, len(ids), len(ids))}
    masks["sliding_attention"] = torch.where(distance > window, torch.finfo(torch.float32).min, 0.0)[None, None]
    kind = "sliding_attention" if model.config.model_type == "mistral" else kinds[0]
    mask = masks if len({*kinds}) > 1 else masks[kind]
    return model(input_ids=torch.tensor([ids]), attention_mask=mask).logits[0]


@pytest.mark.parametrize("name", DECODERS)
def test_the_weights_of_a_bidirectional_decoder_are_those_of_all_its_logits(name, weights):
    folder = weights(name, **({"use_bidirectional_attention": False} if name == "gemma3_text" else {}))
    checkpoint = build_checkpoint(folder, "splade", RULES, backbone="bidirectional")
    ids = checkpoint.token_ids(TEXTS, "document")[0]
    saturated = [torch.log1p(all_logits(folder, text).relu()) for text in ids]
    expected = torch.stack([part.amax(0) for part in saturated])
    assert difference(checkpoint.encode(TEXTS)["lexical"].to_matrix(), expected) <= 1e-5
    causal = build_checkpoint(folder, "splade", RULES)
    assert difference(causal.encode(TEXTS)["lexical"].to_matrix(), expected) > 1e-2


def test_cames_lexical_expert_over_a_decoder_is_equal_to_the_formula_and_keeps_that_its_tokens_attend_to_later_ones(weights, tmp_path):
    """With the bias that it is given, since the logits of a decoder have none."""
    folder = weights("qwen3", tie_word_embeddings=False)
    checkpoint = build_checkpoint(folder, CAME, RULES, backbone="bidirectional")
    ids, bias = checkpoint.token_ids(TEXTS, "document")[0], checkpoint.architecture.heads["lexical"].bias.detach()
    expected = torch.stack([torch.log1p((all_logits(folder, text) + bias).relu().amax(0)) for text in ids])
    checkpoint.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["is_causal"] is False
    for model in (checkpoint, open_checkpoint(tmp_path)):
        assert not model.architecture.encoder.is_causal
        assert difference(model.encode(TEXTS)["lexical"].to_matrix(), expected) <= 1e-5
    checkpoint.architecture.train()(checkpoint.tokenize(TEXTS, "document"))["lexical"].weights.sum().backward()
    bias = checkpoint.architecture.heads["lexical"].bias
    assert bias.requires_grad and bias.grad.count_nonzero() > 0


@pytest.mark.parametrize("arch", ["came:shared_layers=1,local_dim=8", "came:shared_layers=1,adapters=2", "mote", "splade:adapters=2"])
def test_the_lexical_expert_of_a_decoder_starts_with_few_terms(arch, weights):
    folder = weights("qwen3", vocab_size=700)
    texts = [*TEXTS, *(" ".join(text.split()[::-1]) for text in TEXTS)] * 4
    checkpoint = build_checkpoint(folder, arch, RULES, texts, backbone="bidirectional")
    plain = build_checkpoint(folder, "splade", RULES, texts, backbone="bidirectional")
    assert "bias" not in dict(plain.architecture.heads["lexical"].named_parameters())  # its layout has no place for one
    tokens = sum(map(len, checkpoint.token_ids(TEXTS, "document")[0]))
    active, usual = ((model.encode(TEXTS)["lexical"].to_matrix() > 0).sum().item() for model in (checkpoint, plain))
    assert len(TEXTS) <= active <= 8 * tokens and usual > 100 * len(TEXTS)


def test_transformers_opens_what_is_written_as_bidirectional(weights, tmp_path):
    checkpoint = build_checkpoint(weights("llama"), "dense:pooling=mean", RULES, backbone="bidirectional")
    checkpoint.save(tmp_path)
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        means = [model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in checkpoint.token_ids(TEXTS, "document")[0]]
    assert difference(checkpoint.encode(TEXTS)["global"].vectors, torch.stack(means)) <= 1e-5


def peak_memory(work):
    """The most bytes of tensors that torch's allocator holds at once, besides those from before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())))


def test_a_step_of_a_sparse_decoder_has_memory_for_less_than_an_eighth_of_all_logits(weights):
    """Two texts of 800 tokens, 20,000 words: 128 MB of logits, which the plain formula has, and as much for their gradient."""
    folder, vocabulary = weights("qwen3", vocab_size=20_000, max_position_embeddings=2048), 20_000
    checkpoint = build_checkpoint(folder, "splade", RULES, backbone="bidirectional")
    architecture, peaks, logits = checkpoint.architecture.train(), {}, 2 * 800 * vocabulary * 4
    for length in (100, 800):
        ids = torch.randint(10, vocabulary, (2, length), generator=torch.Generator().manual_seed(0)).tolist()
        tokens = PackedTokens.from_lists(ids, "document")
        peaks[length] = peak_memory(lambda tokens=tokens: architecture(tokens)["lexical"].weights.sum().backward())
    assert 0 < peaks[800] - peaks[100] < logits / 8


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5_text", "gemma2", "t5"])
def test_a_model_that_runs_whole_is_not_made_bidirectional(name, weights):
    with pytest.raises(UsageError, match=r"--backbone bidirectional: \w+ runs whole, as texts do not stay apart in it"):
        build_checkpoint(weights(name), "dense:pooling=mean", RULES, backbone="bidirectional")


def test_a_model_whose_layers_ignore_it_is_refused(weights, monkeypatch):
    attention = transformers_encoder.attention

    def causal_attention(query, key, value, layout, reach, dropout, scale=None):
        return attention(query, key, value, layout, (reach[0], 0), dropout, scale)

    monkeypatch.setattr(transformers_encoder, "attention", causal_attention)
    monkeypatch.setattr(transformers_model, "check_packing", lambda *arguments: None)
    with pytest.raises(UsageError, match="in layer 1 of LlamaModel tokens do not attend to later ones"):
        build_checkpoint(weights("llama"), "splade", RULES, backbone="bidirectional")


def test_a_bidirectional_trunk_stays_so_below_adapters(weights, tmp_path):
    """Its own config.json, which the checkpoint does not hold, says nothing of it."""
    checkpoint = build_checkpoint(weights("qwen3"), f"{CAME},adapters=2", RULES, backbone="bidirectional")
    checkpoint.save(tmp_path)
    with pytest.raises(UsageError, match="--backbone bidirectional is for plain weights, from which its checkpoint is made"):
        build_checkpoint(tmp_path, None, {}, backbone="bidirectional")
    again = open_checkpoint(tmp_path)
    assert not again.architecture.encoder.is_causal
    assert difference(again.encode(TEXTS)["lexical"].to_matrix(), checkpoint.encode(TEXTS)["lexical"].to_matrix()) <= 1e-6
