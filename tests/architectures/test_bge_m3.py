"""BGE-M3: its three outputs, their weighted sum and its training are FlagEmbedding's own numbers of tiny weights; its files."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers

from moeir.architectures.base import concatenate_outputs
from moeir.architectures.checkpoint import open_checkpoint, read_metadata
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones import torch_files
from moeir.errors import ArtifactError
from moeir.training import dev_sets, objectives
from moeir.training.losses import EncodedBatch
from moeir.training.regularizers import RegularizerWeights
from tests.architectures.folders import ST, assert_refused, check_same, list_modules, write_files
from tests.backbones.tiny_models import make_model
from tests.backbones.tiny_tokenizers import write_xlm_roberta
from tests.conftest import run_moeir
from tests.representations.test_representations import to_lists

HIDDEN = 32
TEXTS = ["owl hunting at night", "the owl, the cat and the owl (in the sea)", "Ω owl 7 the", "", "bread"]
TRAINED_QUERIES = ["owl at night", "cat the sea"]
TRAINED_DOCUMENTS = ["the owl hunting", "bread in whale", "mice the cat", "sea the end"]
WEIGHTS = {"global": 0.4, "lexical": 0.2, "local": 0.4}
HEAD_FILES = ("sparse_linear.pt", "colbert_linear.pt")
SENTENCE_TRANSFORMERS = {
    "modules.json": list_modules((f"{ST}.Transformer", ""), (f"{ST}.Pooling", "1_Pooling"), (f"{ST}.Normalize", "2_Normalize")),
    "1_Pooling/config.json": {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
    "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.2.2"}},
}


def write_folder(folder):
    """A folder as FlagEmbedding lays it out: tiny XLM-RoBERTa weights, two heads, and the files of sentence-transformers."""
    size = write_xlm_roberta(folder)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "max_position_embeddings": 34, "bos_token_id": 0, "eos_token_id": 2}
    make_model("xlm-roberta", head=False, vocab_size=size, **sizes).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        for name, width in zip(HEAD_FILES, (1, HIDDEN), strict=True):
            head = torch.nn.Linear(HIDDEN, width)
            torch.nn.init.constant_(head.bias, 0.3)  # so that many tokens have a weight
            torch.save(head.state_dict(), folder / name)
    write_files(folder, SENTENCE_TRANSFORMERS)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("bge") / "bge-m3")


@pytest.fixture(scope="module")
def model(folder):
    return build_checkpoint(folder, "bge-m3", {})


GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "bge-m3.json").read_text())


def test_outputs_and_scores_are_flagembeddings(model):
    """Its own numbers; `tests/benchmarks/flagembedding_numbers.py` wrote them."""
    assert (model.input_config.query_length, model.input_config.document_length) == (24, 24)  # of sentence-transformers' file
    output = model.encode(TEXTS)
    assert torch.allclose(output["global"].vectors[:, :6], torch.tensor(GOLDEN["global"]), atol=2e-6)
    texts = zip(to_lists(output["lexical"]), to_lists(output["local"]), GOLDEN["lexical"], GOLDEN["local"], strict=True)
    for terms, vectors, golden_weights, golden_vectors in texts:
        assert {str(term): weight for term, weight in terms.items()} == pytest.approx(golden_weights, abs=2e-6)
        assert torch.allclose(torch.tensor(vectors)[:, :2], torch.tensor(golden_vectors), atol=2e-6)
    weighted, plain = model.encode(TEXTS, "query"), model.architecture.eval()(model.tokenize(TEXTS, "query"))
    scores, trained = ({name: one[name].scores(output[name])[1] / 50 for name in WEIGHTS} for one in (weighted, plain))
    for name, values in GOLDEN["scores"].items():
        actual = sum(scores.values()) if name == "sum" else scores[name] / WEIGHTS[name]
        assert torch.allclose(actual, torch.tensor(values), atol=2e-6), name
        assert name == "sum" or torch.allclose(trained[name], torch.tensor(values), atol=2e-6), "training sees no weights"


@pytest.mark.parametrize("start", [0, 1])
def test_self_distillation_is_flagembeddings(start, folder):
    """Texts of one length, where its padding, vectors of zero, plays no part. Its distillation is a cross-entropy: the KL divergence and
    the teacher's entropy, which has no gradient."""
    model = build_checkpoint(folder, "bge-m3", {})
    architecture, golden = model.architecture.eval(), GOLDEN["training"][start]
    tokens = model.tokenize(TRAINED_QUERIES, "query"), model.tokenize(TRAINED_DOCUMENTS, "document")
    assert len({*tokens[0].lengths, *tokens[1].lengths}) == 1
    queries, documents = map(architecture, tokens)
    loss = objectives.self_distillation(EncodedBatch(queries, documents, torch.zeros(2, 4, dtype=torch.bool), 0, 9), start=start).loss
    loss.backward()
    weights = {"global": 1.0, "lexical": 0.3, "local": 1.0}
    teacher = sum(weight * queries[name].scores(documents[name]) for name, weight in weights.items())
    entropy = torch.special.entr(teacher.softmax(1)).sum(1).mean()
    assert loss.item() + (2.1 / 3 * entropy.item() / 2 if start == 0 else 0) == pytest.approx(golden["loss"], rel=1e-5)
    parts = {name: architecture.heads[name].projection for name in ("lexical", "local")} | {"words": architecture.encoder.embeddings.words}
    norms = {name: part.weight.grad.norm().item() for name, part in parts.items()}
    assert norms == pytest.approx({name: golden[name] for name in norms}, rel=5e-5)


def test_weights_and_scale_stay_with_the_checkpoint_until_they_are_changed(folder, tmp_path, moeir):
    run_moeir("init", "--model", folder, "--arch", "bge-m3", "--output", tmp_path / "ckpt")
    assert "calibration" not in read_metadata(tmp_path / "ckpt") and open_checkpoint(tmp_path / "ckpt").calibration == WEIGHTS
    again = run_moeir("init", "--model", tmp_path / "ckpt", "--arch", "bge-m3:lexical_weight=0.5", "--output", tmp_path / "again")
    assert "its calibration is left out" not in again.stderr
    before, after = open_checkpoint(tmp_path / "ckpt"), open_checkpoint(tmp_path / "again")
    assert after.calibration == WEIGHTS | {"lexical": 0.5}
    weights = before.architecture.state_dict(), after.architecture.state_dict()
    assert all(torch.equal(one, other) for one, other in zip(*(state.values() for state in weights), strict=True))
    for option, words in (
        ("local_weight=0", "bge-m3:local_weight=0: expected a number above 0; search --expert leaves an expert out"),
        ("experts=dense", "bge-m3:experts=dense: expected some of global+lexical+local, each once"),
    ):
        refused = moeir("init", "--model", folder, "--arch", f"bge-m3:{option}", "--output", tmp_path / "no")
        assert refused.code == 2 and words in refused.stderr


def test_some_of_the_experts_need_only_their_own_heads(folder, model, tmp_path):
    part = shutil.copytree(folder, tmp_path / "bge")
    (part / "colbert_linear.pt").unlink()
    some = build_checkpoint(part, "bge-m3:experts=lexical+global", {})
    outputs = some.encode(TEXTS, "query")
    assert list(outputs.representations) == ["global", "lexical"]
    check_same(outputs, model.encode(TEXTS, "query", experts=["global", "lexical"]))


def save_with(change):
    return lambda path: torch.save(change(dict(torch.load(path, weights_only=True))), path)


def compress(path):
    with zipfile.ZipFile(path) as archive:
        contents = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


class Opener:
    """An object whose unpickling opens a file: what `weights_only` refuses."""

    def __reduce__(self):
        return open, ("opened", "w")


WRONG = {
    "missing": (Path.unlink, "no colbert_linear.pt, the head of the local expert; fresh_heads=true draws the heads at random"),
    "empty": (lambda path: path.write_bytes(b""), "colbert_linear.pt: damaged, or no file of weights alone"),
    "half": (lambda path: path.write_bytes(path.read_bytes()[:900]), "colbert_linear.pt: damaged, or no file of weights alone"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"weight": 1})), "colbert_linear.pt: damaged, or no file of weights alone"),
    "code": (save_with(lambda weights: weights | {"weight": Opener()}), r"damaged, or no file of weights alone.*UnpicklingError"),
    "compressed": (compress, "colbert_linear.pt: more than 128 MiB, or compressed; expected the weights of one linear map"),
    "other things": (save_with(lambda weights: weights | {"step": 1}), "colbert_linear.pt: holds something else than weights by name"),
    "a list": (save_with(lambda weights: list(weights.values())), "colbert_linear.pt: holds something else than weights by name"),
    "without bias": (save_with(lambda weights: {"weight": weights["weight"]}), r"has the weights \{'weight': \[32, 32\]\}; expected"),
    "narrow": (save_with(lambda weights: {name: value[:8] for name, value in weights.items()}), "local_dim sets the width of token vec"),
    "repeated": (
        save_with(lambda weights: weights | {"weight": torch.zeros(1).expand(2**20, 2**20)}),
        r"has the weights .*'weight': \[1048576, 1048576\]",
    ),
    "whole": (save_with(lambda weights: {name: value.long() for name, value in weights.items()}), "is of torch.int64; moeir reads weights"),
    "NaN": (save_with(lambda weights: weights | {"bias": weights["bias"] / 0}), "bias holds NaN, infinity"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_head_file_that_is_not_one_is_refused(case, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    damage, words = WRONG[case]
    damage(shutil.copytree(folder, tmp_path / "bge") / HEAD_FILES[1])
    assert_refused(ArtifactError, words, build_checkpoint, tmp_path / "bge", "bge-m3", {})
    assert not (tmp_path / "opened").exists()


def test_a_head_file_is_bounded_before_it_is_read(tmp_path, monkeypatch):
    """By its size, and by the sizes that it says its parts have."""
    path, part = tmp_path / "head.pt", zipfile.ZipInfo("data")
    torch.save({"weight": torch.zeros(8, 32), "bias": torch.zeros(8)}, path)
    part.file_size = torch_files.MAX_BYTES + 1
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("the file was read"))
    with monkeypatch.context() as patch, pytest.raises(ArtifactError, match=r"head.pt: more than 128 MiB"):
        patch.setattr(zipfile.ZipFile, "infolist", lambda _: [part])
        torch_files.read_torch_file(path)
    monkeypatch.setattr(torch_files, "MAX_BYTES", path.stat().st_size - 1)
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("the file was opened"))
    assert_refused(ArtifactError, r"head.pt: more than 0 MiB", torch_files.read_torch_file, path)


def test_terms_of_a_texts_own_have_no_flops_penalty_unless_it_is_set(model):
    architecture = model.architecture.eval()
    queries = architecture(model.tokenize(TRAINED_QUERIES, "query"))
    documents = concatenate_outputs([architecture(model.tokenize([text], "document")) for text in TRAINED_DOCUMENTS]).map(lambda part: part)
    batch = EncodedBatch(queries, documents, torch.zeros(2, 4, dtype=torch.bool), 0, 9)
    free, penalised = (objectives.contrastive(batch, regularizers=RegularizerWeights(flops_document=weight)) for weight in (None, 1.0))
    assert free.loss.item() == pytest.approx(sum(float(free.metrics[f"loss.{name}"]) for name in WEIGHTS), rel=1e-6)
    assert penalised.loss.item() - free.loss.item() == pytest.approx(float(free.metrics["flops.lexical.document"]), rel=1e-4)


@pytest.mark.parametrize("arch", ["bge-m3:fresh_heads=true,local_dim=8", "bge-m3:local_dim=8"])
def test_heads_are_drawn_only_when_it_is_said(arch, folder):
    """With all weights drawn, as by --from-scratch, the heads are drawn too."""
    scratch = "fresh" not in arch
    drawn = build_checkpoint(folder, arch, {}, random_weights=scratch)
    assert drawn.encode(["owl"])["local"].vectors.shape == (2, 8)
    assert_refused(ArtifactError, r"local_dim sets the width", build_checkpoint, folder, "bge-m3:local_dim=8", {})


def test_the_hub_is_asked_for_head_files_by_this_architecture_alone(folder, monkeypatch):
    patterns = []

    def download(name, *, allow_patterns, revision=None):
        patterns.append([pattern for pattern in allow_patterns if ".pt" in pattern])
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for arch in ("bge-m3", "dense"):
        build_checkpoint(Path("BAAI/bge-m3"), arch, {})
    assert patterns == [list(HEAD_FILES), []]


def test_it_is_written_as_flagembedding_reads_it_and_read_back(folder, tmp_path, moeir):
    run_moeir("init", "--model", folder, "--arch", "bge-m3", "--output", tmp_path / "ckpt")
    assert not list((tmp_path / "ckpt").glob("*.pt"))
    run_moeir("convert", "--input", tmp_path / "ckpt", "--to", "bge-m3", "--output", tmp_path / "out")
    for name in HEAD_FILES:
        written, original = (torch.load(path / name, weights_only=True) for path in (tmp_path / "out", folder))
        assert written.keys() == original.keys() and all(torch.equal(written[key], original[key]) for key in original)
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["XLMRobertaModel"]
    theirs, ours = (transformers.AutoModel.from_pretrained(path).state_dict() for path in (folder, tmp_path / "out"))
    assert all(torch.equal(theirs[name], ours[name]) for name in ours if not name.startswith("pooler."))  # which BGE-M3 does not use
    assert [part["path"] for part in json.loads((tmp_path / "out/modules.json").read_text())] == ["", "1_Pooling", "2_Normalize"]
    again = build_checkpoint(tmp_path / "out", "bge-m3", {})
    before = open_checkpoint(tmp_path / "ckpt")
    assert (again.spec, again.input_config) == (before.spec, before.input_config)
    assert all(torch.equal(one, other) for one, other in zip(again.encode(TEXTS).tensors(), before.encode(TEXTS).tensors(), strict=True))
    run_moeir("init", "--model", tmp_path / "ckpt", "--query-prefix", "query: ", "--output", tmp_path / "prefixed")
    run_moeir("init", "--model", folder, "--arch", "bge-m3:experts=global+local", "--output", tmp_path / "two")
    for source, words in (
        ("prefixed", "query prefix 'query: ': the prefix of texts would be lost"),
        ("two", "experts=global+local is not supported there; it computes with experts=global+lexical+local"),
        ("out", "moeir init --model"),
    ):
        flags = ("--from", "bge-m3") if source == "out" else ()
        refused = moeir("convert", "--input", tmp_path / source, *flags, "--to", "bge-m3", "--output", tmp_path / "no")
        assert refused.code == 2 and words in refused.stderr and not (tmp_path / "no").exists()


def test_it_trains_by_self_distillation_and_goes_through_every_stage(folder, toy, training_files, tmp_path):
    """The fused run is the weighted sum, also by moeir fuse of the experts' runs, whose scores have their weights."""
    sizes = ("--steps", 3, "--batch-size", 2, "--negatives", 1, "--learning-rate", 1e-3, "--dtype", "float32")
    model, objective = ("--model", folder, "--arch", "bge-m3"), ("--objective", "self-distillation:start=1,block=1")
    run_moeir("finetune", *model, *objective, *training_files, *sizes, "--temperature", 0.1, "--output", tmp_path / "ckpt")
    rows = [json.loads(line) for line in (tmp_path / "ckpt/metrics.jsonl").read_text().splitlines()]
    assert ["kl.local" in row for row in rows if "loss.sum" in row] == [False, True, True]
    opened = open_checkpoint(tmp_path / "ckpt")
    assert opened.architecture.scales == dict.fromkeys(WEIGHTS, pytest.approx(10.0)) and opened.calibration == WEIGHTS
    run_moeir("encode", "--model", tmp_path / "ckpt", "--corpus", toy / "corpus.jsonl", "--dtype", "float32", "--output", tmp_path / "enc")
    run_moeir("index", "--encodings", tmp_path / "enc", "--output", tmp_path / "idx")
    search = ("search", "--index", tmp_path / "idx", "--queries", toy / "test-queries.tsv", "--dtype", "float32", "--depth", 50)
    run_moeir(*search, "--output", tmp_path / "runs", "--explain", tmp_path / "why.jsonl", "--corpus", toy / "corpus.jsonl")
    pieces = json.loads((tmp_path / "why.jsonl").read_text().splitlines()[0])["experts"]["local"]["tokens"]
    assert pieces[-1]["query"] == "</s>" and all(piece["document"] for piece in pieces)
    runs = [flag for name in ("global", "lexical", "local") for flag in ("--run", tmp_path / f"runs/{name}.trec")]
    run_moeir("fuse", *runs, "--output", tmp_path / "fused.trec")
    fused, searched = ((tmp_path / name).read_text().splitlines() for name in ("fused.trec", "runs/fused.trec"))
    assert [line.split()[:5] for line in fused] == [line.split()[:5] for line in searched]
    judged = ("--queries", toy / "test-queries.tsv", "--qrels", toy / "test-qrels.tsv")
    result = run_moeir("calibrate", "--index", tmp_path / "idx", *judged, "--output", tmp_path / "calibrated")
    assert "not applied" in result.stderr and read_metadata(tmp_path / "calibrated")["calibration"] == WEIGHTS


def test_the_development_loss_is_that_of_training_without_the_weights(folder, toy):
    model, loss = build_checkpoint(folder, "bge-m3", {}), dev_sets.DevLoss(objectives.self_distillation, 4, 10)
    files = (toy / "test-queries.tsv", toy / "test-qrels.tsv", [toy / "corpus.jsonl"])
    dev_set = dev_sets.load_dev_set(*files, training_queries={}, measure="loss", every=1)
    value = dev_sets.evaluate_loss(model, dev_set, loss, torch.float32)
    model.architecture.fusion_weights = model.calibration = dict.fromkeys(WEIGHTS, 1.0)
    assert dev_sets.evaluate_loss(model, dev_set, loss, torch.float32) == value and "dev.sum.loss" in value
