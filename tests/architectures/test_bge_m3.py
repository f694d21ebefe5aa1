"""BGE-M3: its three outputs and their weighted sum by its formulas, its files, and FlagEmbedding's own numbers of tiny weights."""

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from torch import Tensor

from moeir.architectures.base import concatenate_outputs
from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint, read_metadata
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones import torch_files
from moeir.errors import ArtifactError
from moeir.training import dev_sets, objectives
from moeir.training.losses import EncodedBatch
from moeir.training.regularizers import RegularizerWeights
from tests.architectures.folders import ST, check_same, list_modules, write_files
from tests.backbones.tiny_models import make_model
from tests.backbones.tiny_tokenizers import write_xlm_roberta
from tests.conftest import CommandResult, run_moeir

Moeir = Callable[..., CommandResult]
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


def write_folder(folder: Path) -> Path:
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("bge") / "bge-m3")


@pytest.fixture(scope="module")
def model(folder: Path) -> RetrievalModel:
    return build_checkpoint(folder, "bge-m3", {})


def split(part: Any) -> list[Tensor]:
    return [part.vectors[part.starts[row] : part.starts[row + 1]] for row in range(len(part))]


@torch.no_grad()
def outputs_by_formula(folder: Path, ids: list[list[int]]) -> list[tuple[Tensor, dict[int, float], Tensor]]:
    """Of each text: the vector, the weight of each token id, and the vectors of all tokens but the first."""
    encoder = transformers.AutoModel.from_pretrained(folder).eval()
    sparse, colbert = (torch.load(folder / name, weights_only=True) for name in HEAD_FILES)
    outputs = []
    for text in ids:
        states = encoder(torch.tensor([text])).last_hidden_state[0]
        token_weights: dict[int, float] = {}
        for number, state in zip(text, states, strict=True):
            weight = float(sparse["weight"][0] @ state + sparse["bias"][0])
            if weight > max(0.0, token_weights.get(number, 0.0)) and number not in (0, 1, 2, 3):  # <s> <pad> </s> <unk>
                token_weights[number] = weight
        local = torch.stack([colbert["weight"] @ state + colbert["bias"] for state in states[1:]])
        outputs.append((states[0] / states[0].norm(), token_weights, local / local.norm(dim=1, keepdim=True)))
    return outputs


def test_the_three_outputs_are_those_of_the_formulas(folder: Path, model: RetrievalModel) -> None:
    assert (model.input_config.query_length, model.input_config.document_length) == (24, 24)  # of sentence-transformers' file
    ids = model.token_ids(TEXTS, "document")[0]
    assert 3 in ids[2] and len(ids[3]) == 2  # a token that the vocabulary lacks, and an empty text
    expected = outputs_by_formula(folder, ids)
    for side in ("query", "document"):
        output: Any = model.architecture.eval()(model.tokenize(TEXTS, side))
        scale = 50.0 if side == "query" else 1.0
        for row, (vector, token_weights, local) in enumerate(expected):
            count = len(local) if side == "query" else 1
            assert torch.allclose(output["global"].vectors[row], scale * vector, atol=scale * 1e-6)
            assert torch.allclose(split(output["local"])[row], scale * local / count, atol=scale * 1e-6 / count)
            pairs = slice(int(output["lexical"].starts[row]), int(output["lexical"].starts[row + 1]))
            weights = dict(zip(output["lexical"].terms[pairs].tolist(), output["lexical"].weights[pairs].tolist(), strict=True))
            assert weights == pytest.approx({term: scale * weight for term, weight in token_weights.items()}, abs=scale * 1e-6)
    assert len(expected[1][1]) > 5


def test_the_sum_of_scores_is_the_weighted_one_and_training_sees_no_weights(folder: Path, model: RetrievalModel) -> None:
    outputs = outputs_by_formula(folder, model.token_ids(TEXTS, "query")[0])
    expected: dict[str, list[list[float]]] = {name: [] for name in WEIGHTS}
    for vector, weights, local in outputs:
        expected["global"].append([float(vector @ other) for other, _, _ in outputs])
        expected["lexical"].append([sum(weight * other.get(term, 0.0) for term, weight in weights.items()) for _, other, _ in outputs])
        expected["local"].append([float((local @ other.T).max(1).values.sum()) / len(local) for _, _, other in outputs])
    assert model.calibration == WEIGHTS
    documents, queries = model.encode(TEXTS), model.encode(TEXTS, "query")
    trained = model.architecture.eval()(model.tokenize(TEXTS, "query"))
    for name, weight in WEIGHTS.items():
        scores = torch.tensor(expected[name])
        assert torch.allclose(queries[name].scores(documents[name]) / 50, weight * scores, atol=1e-6), name  # type: ignore[arg-type]
        assert torch.allclose(trained[name].scores(documents[name]) / 50, scores, atol=1e-6), name


GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "bge-m3.json").read_text())


def test_outputs_and_scores_are_flagembeddings(model: RetrievalModel) -> None:
    """Its own numbers; `tests/benchmarks/flagembedding_numbers.py` wrote them."""
    output: Any = model.encode(TEXTS)
    assert torch.allclose(output["global"].vectors[:, :6], torch.tensor(GOLDEN["global"]), atol=2e-6)
    for row, (weights, vectors) in enumerate(zip(GOLDEN["lexical"], GOLDEN["local"], strict=True)):
        pairs = slice(int(output["lexical"].starts[row]), int(output["lexical"].starts[row + 1]))
        found = dict(zip(map(str, output["lexical"].terms[pairs].tolist()), output["lexical"].weights[pairs].tolist(), strict=True))
        assert found == pytest.approx(weights, abs=2e-6)
        assert torch.allclose(split(output["local"])[row][:, :2], torch.tensor(vectors), atol=2e-6)
    query = model.encode(TEXTS[1:2], "query")
    scores = {name: query[name].scores(output[name])[0] / 50 for name in WEIGHTS}
    for name, values in GOLDEN["scores"].items():
        actual = sum(scores.values()) if name == "sum" else scores[name] / WEIGHTS[name]
        assert torch.allclose(actual, torch.tensor(values), atol=2e-6), name  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [0, 1])
def test_self_distillation_is_flagembeddings(start: int, folder: Path) -> None:
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
    entropy = torch.special.entr(teacher.softmax(1)).sum(1).mean()  # type: ignore[union-attr]
    assert loss.item() + (2.1 / 3 * entropy.item() / 2 if start == 0 else 0) == pytest.approx(golden["loss"], rel=1e-5)
    parts = {name: architecture.heads[name].projection for name in ("lexical", "local")} | {"words": architecture.encoder.embeddings.words}
    norms = {name: part.weight.grad.norm().item() for name, part in parts.items()}  # type: ignore[operator, union-attr]
    assert norms == pytest.approx({name: golden[name] for name in norms}, rel=5e-5)


def test_weights_and_scale_stay_with_the_checkpoint_until_they_are_changed(folder: Path, tmp_path: Path, moeir: Moeir) -> None:
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


def test_some_of_the_experts_need_only_their_own_heads(folder: Path, model: RetrievalModel, tmp_path: Path) -> None:
    part = shutil.copytree(folder, tmp_path / "bge")
    (part / "colbert_linear.pt").unlink()
    some = build_checkpoint(part, "bge-m3:experts=lexical+global", {})
    outputs = some.encode(TEXTS, "query")
    assert list(outputs.representations) == ["global", "lexical"]
    check_same(outputs, model.encode(TEXTS, "query", experts=["global", "lexical"]))


def save_with(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return lambda path: torch.save(change(dict(torch.load(path, weights_only=True))), path)


def compress(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        contents = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


class Opener:
    """An object whose unpickling opens a file: what `weights_only` refuses."""

    def __reduce__(self) -> Any:
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
def test_a_head_file_that_is_not_one_is_refused(case: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    damage, words = WRONG[case]
    damage(shutil.copytree(folder, tmp_path / "bge") / HEAD_FILES[1])
    with pytest.raises(ArtifactError, match=words):
        build_checkpoint(tmp_path / "bge", "bge-m3", {})
    assert not (tmp_path / "opened").exists()


def test_a_head_file_is_bounded_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(ArtifactError, match=r"head.pt: more than 0 MiB"):
        torch_files.read_torch_file(path)


def test_terms_of_a_texts_own_have_no_flops_penalty_unless_it_is_set(model: RetrievalModel) -> None:
    architecture = model.architecture.eval()
    queries = architecture(model.tokenize(TRAINED_QUERIES, "query"))
    documents = concatenate_outputs([architecture(model.tokenize([text], "document")) for text in TRAINED_DOCUMENTS]).map(lambda part: part)
    batch = EncodedBatch(queries, documents, torch.zeros(2, 4, dtype=torch.bool), 0, 9)
    free, penalised = (objectives.contrastive(batch, regularizers=RegularizerWeights(flops_document=weight)) for weight in (None, 1.0))
    assert free.loss.item() == pytest.approx(sum(float(free.metrics[f"loss.{name}"]) for name in WEIGHTS), rel=1e-6)
    assert penalised.loss.item() - free.loss.item() == pytest.approx(float(free.metrics["flops.lexical.document"]), rel=1e-4)


@pytest.mark.parametrize("arch", ["bge-m3:fresh_heads=true,local_dim=8", "bge-m3:local_dim=8"])
def test_heads_are_drawn_only_when_it_is_said(arch: str, folder: Path) -> None:
    """With all weights drawn, as by --from-scratch, the heads are drawn too."""
    scratch = "fresh" not in arch
    drawn = build_checkpoint(folder, arch, {}, random_weights=scratch)
    assert drawn.encode(["owl"])["local"].vectors.shape == (2, 8)  # type: ignore[attr-defined]
    with pytest.raises(ArtifactError, match=r"local_dim sets the width"):
        build_checkpoint(folder, "bge-m3:local_dim=8", {})


def test_the_hub_is_asked_for_head_files_by_this_architecture_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = []

    def download(name: str, *, allow_patterns: list[str], revision: str | None = None) -> str:
        patterns.append([pattern for pattern in allow_patterns if ".pt" in pattern])
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for arch in ("bge-m3", "dense"):
        build_checkpoint(Path("BAAI/bge-m3"), arch, {})
    assert patterns == [list(HEAD_FILES), []]


def test_it_is_written_as_flagembedding_reads_it_and_read_back(folder: Path, tmp_path: Path, moeir: Moeir) -> None:
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
    arch = "bge-m3:fresh_heads=true"  # their heads are written too
    run_moeir("init", "--model", folder, "--arch", arch, "--output", tmp_path / "fresh")
    run_moeir("convert", "--input", tmp_path / "fresh", "--to", "bge-m3", "--output", tmp_path / "fresh-out")
    fresh = build_checkpoint(tmp_path / "fresh-out", "bge-m3", {}).architecture.state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in open_checkpoint(tmp_path / "fresh").architecture.state_dict().items())
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


def test_it_trains_by_self_distillation_and_goes_through_every_stage(folder: Path, toy: Path, training_files: Any, tmp_path: Path) -> None:
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
    run_moeir(*search, "--fuse", "exact-sum", "--output", tmp_path / "exact")
    texts = [json.loads(line) for line in (toy / "corpus.jsonl").read_text().splitlines()]
    queries = dict(line.split("\t") for line in (toy / "test-queries.tsv").read_text().splitlines())
    sides = opened.encode(list(queries.values()), "query"), opened.encode([f"{one['title']} {one['text']}".strip() for one in texts])
    scores = sum(sides[0][name].scores(sides[1][name]) for name in WEIGHTS)  # type: ignore[arg-type]
    for line in (tmp_path / "exact/fused.trec").read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        expected = scores[list(queries).index(query), [one["_id"] for one in texts].index(document)]  # type: ignore[index]
        assert float(score) == pytest.approx(float(expected), abs=2e-3)
    judged = ("--queries", toy / "test-queries.tsv", "--qrels", toy / "test-qrels.tsv")
    result = run_moeir("calibrate", "--index", tmp_path / "idx", *judged, "--output", tmp_path / "calibrated")
    assert "not applied" in result.stderr and read_metadata(tmp_path / "calibrated")["calibration"] == WEIGHTS


def test_the_development_loss_is_that_of_training_without_the_weights(folder: Path, toy: Path) -> None:
    model, loss = build_checkpoint(folder, "bge-m3", {}), dev_sets.DevLoss(objectives.self_distillation, 4, 10)
    files = (toy / "test-queries.tsv", toy / "test-qrels.tsv", [toy / "corpus.jsonl"])
    dev_set = dev_sets.load_dev_set(*files, training_queries={}, measure="loss", every=1)
    value = dev_sets.evaluate_loss(model, dev_set, loss, torch.float32)
    model.architecture.fusion_weights = model.calibration = dict.fromkeys(WEIGHTS, 1.0)
    assert dev_sets.evaluate_loss(model, dev_set, loss, torch.float32) == value and "dev.sum.loss" in value
