"""The declared experiments on SB-MoE and CoT-MoTE run whole at toy size; a second run does no work; their controls are what they say."""

from pathlib import Path
from typing import Any

import torch

from moeir.architectures.base import EncoderOutput
from moeir.architectures.checkpoint import open_checkpoint
from moeir.backbones.packed_tokens import PackedTokens
from moeir.mixtures.embedding import EmbeddingMixture
from moeir.records import texts
from moeir.representations.dense import Dense
from moeir.training.losses import EncodedBatch
from moeir.training.objectives import contrastive
from tests.examples.shell import EVIDENCE, Experiment, run_program
from tests.test_evidence_tables import load_program


def run_and_repeat(experiment: Experiment, script: str, rows: list[str], repeated: str, **settings: object) -> None:
    """The rows of a script; then one of them once more, without a command."""
    server = experiment.server
    for calls, names in ((20, rows), (0, [repeated])):
        before = len(server.calls()) if server.journal.exists() else 0
        messages = experiment.run(script, *names, **settings)
        assert len(server.calls()) - before >= calls, messages
    assert len(server.calls()) == before, "the second run does no work"


def test_sbmoe(experiment: Experiment, tmp_path: Path) -> None:
    work, rows = tmp_path / "work", ["shallow-plain-2", "shallow-adapter-2", "shallow-top1-2"]
    run_and_repeat(experiment, "sbmoe.sh", ["prepare", *rows, "choice-deep-random-squad"], rows[0], KEEP="no")
    records = experiment.rows("sbmoe-toy")

    def best_choice(group: str, count: int) -> dict[str, Any]:
        """The tried setting of a group with the highest value."""
        tried = [line for line in experiment.lines("sbmoe-toy") if line.get("group") == group]
        assert len(tried) == count
        return max(tried, key=lambda facts: facts["nDCG@10"])

    assert records.keys() == {"bm25", "shallow-untrained", "deep-untrained", "shallow-all-2", *rows}
    row = records["shallow-top1-2"]
    assert row["sets"].keys() == row["scores"].keys() == row["trainings"].keys() == {"squad", "medquad"}
    for kind in ("plain", "top1"):
        row = records[f"shallow-{kind}-2"]
        for name, of_set in row["sets"].items():
            best = best_choice(f"shallow-{kind}-{name}", 2 if kind == "plain" else 1)
            settings, similarity = row["trainings"][name]["settings"], "20" if best["similarity"] == "cosine" else best["similarity"]
            assert settings["learning-rate"] == best["training"]["settings"]["learning-rate"] == float(best["rate"])
            assert f"scale={similarity}" in settings["arch"] and of_set["questions"] == len(row["scores"][name]["global"]) > 0
    assert records["shallow-top1-2"]["curves"].keys() == {"squad.loss", "medquad.loss"}
    shallow, deep = (best_choice(f"{one}-squad", 1)["training"] for one in ("shallow-top1", "deep-random"))
    assert shallow["counts"]["parameters"] < deep["counts"]["parameters"] and "gate=random" in deep["settings"]["arch"]
    heldout, train, dev = (set(texts.read_texts_by_id(work / f"data/squad-{part}-queries.jsonl")) for part in ("heldout", "train", "dev"))
    assert heldout and train and dev and len(heldout | train | dev) == len(heldout) + len(train) + len(dev), "no question in two parts"


def test_mote(experiment: Experiment) -> None:
    kinds = ("normal", "switched", "separate", "parts")
    run_and_repeat(experiment, "mote.sh", ["prepare", "gate", *(f"{kind}-2" for kind in kinds)], "pre-normal")
    records = experiment.rows("mote-toy")
    assert records.keys() == {"bm25", "gate", "pre-normal", *(f"{kind}-2" for kind in kinds)}
    rows = {kind: records[f"{kind}-2"] for kind in kinds}
    for row in rows.values():
        assert row["sets"].keys() == {"squad", "medquad"}
        assert row["sets"]["squad"]["means"].keys() == {"global", "lexical", "fused"}
    starts = {kind: row["trainings"][""]["sources"]["model"] for kind, row in rows.items()}
    assert starts["normal"] != starts["switched"] and starts["separate"] == starts["parts"]
    assert records["gate"]["curves"]["bottleneck_gain"]
    assert "gate: not passed" in experiment.run("mote.sh", "gate", "normal-7", code=1, GAIN=100)
    assert experiment.rows("mote-toy-custom").keys() == {"gate"}
    records["pre-normal"]["trainings"][""]["weights"] = "others"
    experiment.change_rows("mote-toy", records)
    assert "recorded with other weights than pre/normal" in experiment.run("mote.sh", "switched-7", code=1)
    assert "switched-7" not in experiment.rows("mote-toy")


def test_pretraining(experiment: Experiment) -> None:
    rows = ["prepare", "mote-12", "shuffled-12", "mlm-12", "decoders-12", "raw-12"]
    experiment.run("pretraining.sh", *rows)
    records = experiment.rows("pretraining-toy")
    assert records.keys() == {"bm25", *rows[1:], *(f"pre-{row.replace('12', '1')}" for row in rows[1:-1])}
    losses = {row: records[f"pre-{row}-1"]["trainings"][""]["settings"]["objective"] for row in ("mote", "shuffled", "mlm", "decoders")}
    assert len(set(losses.values())) == 4
    starts = {row: records[row]["trainings"][""]["sources"]["model"][0] for row in rows[1:]}
    assert len(set(starts.values())) == 5, "each row starts from weights of its own"


def test_shuffled_vectors_are_those_of_other_texts() -> None:
    kind = load_program("shuffled_vectors").ShuffledMote
    objective, vectors = kind.__new__(kind), torch.arange(6.0).view(3, 2).requires_grad_()
    decoded = objective.decoder_loss(vectors, lambda shuffled: shuffled)
    assert torch.equal(decoded, vectors[[1, 2, 0]]) and decoded.requires_grad, "gradients cost as much as those of the true vectors"


def test_the_switched_pretraining_is_the_normal_one_with_its_experts_exchanged(
    articles: Path, shallow_model: Path, moeir, tmp_path: Path
) -> None:
    spans = tmp_path / "spans"
    assert run_program("pretraining_texts.py", spans, articles / "squad", folder=EVIDENCE.parent).code == 0
    files = ("--corpus", spans / "corpus.jsonl", "--queries", spans / "queries.jsonl", "--document-length", 24, "--query-length", 12)
    settings = ("--steps", 6, "--batch-size", 4, "--learning-rate", 1e-3, "--clip", 0, "--short-spans", 0)
    states = {}
    for name, objective in (("normal", "mote"), ("switched", "mote:switch_corpus=true")):
        arguments = ("--arch", "mote:pooling=mean", "--objective", objective, *files, *settings, "--output", tmp_path / name)
        assert moeir("pretrain", "--model", shallow_model, *arguments).code == 0
        states[name] = open_checkpoint(tmp_path / name).architecture.state_dict()
    load_program("exchange_experts").exchange_experts(tmp_path / "normal", tmp_path / "exchanged")
    states["exchanged"] = open_checkpoint(tmp_path / "exchanged").architecture.state_dict()

    def same(one: str, other: str) -> bool:
        return all(torch.equal(tensor, states[other][name]) for name, tensor in states[one].items())

    assert same("exchanged", "switched") and not same("normal", "switched")


def test_a_cut_model_has_the_first_layers_as_they_are(tiny_model: Path, moeir, tmp_path: Path) -> None:
    assert run_program("cut_layers.py", tiny_model, tmp_path / "cut", 2, folder=EVIDENCE).code == 0
    refused = run_program("cut_layers.py", tiny_model, tmp_path / "more", 5, folder=EVIDENCE)
    assert refused.code == 1 and "found 4 layers, expected at least 5" in refused.stderr
    states = {}
    for name, folder in (("whole", tiny_model), ("cut", tmp_path / "cut")):
        assert moeir("init", "--model", folder, "--arch", "dense:pooling=mean", "--output", tmp_path / "ckpt" / name).code == 0
        states[name] = open_checkpoint(tmp_path / "ckpt" / name).architecture.state_dict()
    assert states["cut"].keys() == {name for name in states["whole"] if ".layers.2." not in name and ".layers.3." not in name}
    assert all(torch.equal(tensor, states["whole"][name]) for name, tensor in states["cut"].items())


def test_a_tied_adapter_is_a_block_whose_experts_are_equal() -> None:
    tied = load_program("tied_adapter").TiedMixture(8, experts=3)
    block = EmbeddingMixture(8, experts=3)
    block.gate.load_state_dict(tied.gate.state_dict())
    block.noise.load_state_dict(tied.noise.state_dict())
    for expert in block.experts:
        expert.load_state_dict(tied.experts[0].state_dict())
    assert len(tied.experts) == 1
    vectors, tokens = torch.randn(16, 8), PackedTokens.from_lists([[1, 2]] * 16, "query")
    for training in (True, False):
        outputs = []
        for mixture in (tied, block):
            torch.manual_seed(1)
            outputs.append(mixture.train(training)(vectors, tokens))
        assert torch.allclose(*outputs)
    lengths = (outputs[0] - vectors).norm(dim=1)
    assert bool((lengths < 0.6).all()), "a correction starts at the gate's weight, not at 1"
    outputs[0].sum().backward()
    assert tied.gate.down.weight.grad.abs().sum() > 0, "the gate learns its weight"


def test_the_loss_of_sum_and_parts() -> None:
    torch.manual_seed(0)
    queries, documents = (
        EncoderOutput({name: Dense(torch.randn(count, 4)) for name in ("global", "lexical")}, {}, {"hybrid": ("global", "lexical")})
        for count in (3, 6)
    )
    batch = EncodedBatch(queries, documents, torch.zeros(3, 6, dtype=torch.bool), 0, 1)
    output = load_program("sum_and_parts").sum_and_parts(batch, parts=0.5)
    both = contrastive(batch).metrics["loss"]
    alone = [
        contrastive(EncodedBatch(*(EncoderOutput({"global": one[name]}) for one in (queries, documents)), batch.ignore_mask, 0, 1)).loss
        for name in ("global", "lexical")
    ]
    assert torch.isclose(output.loss, both + 0.5 * (alone[0] + alone[1]) / 2)
    assert {"loss.hybrid", "loss.global", "loss.lexical"} <= output.metrics.keys()
