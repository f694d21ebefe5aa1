"""The best weights are saved and become the checkpoint, also after a kill: two data sets, evaluated every second step."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from moeir.analysis.training_monitor import replay
from moeir.architectures.initialize import build_checkpoint
from moeir.artifacts.atomic_write import RESUME
from moeir.errors import ArtifactError
from moeir.records.examples import Example
from moeir.training import objectives, resume_state
from moeir.training.dev_sets import DevEvaluator, DevLoss, DevSet, load_dev_set
from moeir.training.regularizers import RegularizerWeights
from moeir.training.retrieval_task import RetrievalTask
from moeir.training.sampling import MultiDatasetSampler, make_sampler
from moeir.training.trainer import BEST_FOLDER, STATE_FOLDER, Schedule, train
from tests.training.toy_examples import Killed, identical, kill_at, tokenize_in_memory, untimed_metrics

NO_FLOPS = RegularizerWeights(flops_query=0.0, flops_document=0.0)
RULES = {"query_length": 16, "document_length": 32}
STEPS = 6
SPARSE = partial(objectives.contrastive, regularizers=RegularizerWeights(flops_query=1e-4, flops_document=1e-4))


@pytest.fixture(scope="module")
def learning(toy, tiny_model_with_head):
    """`learning(folder, …)` trains on two interleaved data sets, evaluated every second step -> weights and counts."""
    dev_set = load_dev_set(
        toy / "test-queries.tsv", toy / "test-qrels.tsv", [toy / "corpus.jsonl"], training_queries={}, measure="nDCG@10", every=2
    )
    documents = dev_set.documents
    queries = {name: text.split(".")[0] for name, text in documents.items()}
    examples = [Example(name, (name,), tuple(other for other in documents if other != name)) for name in documents]
    samplers = tuple(make_sampler(part, batch_size=2, negatives=3, seed=1, source="toy") for part in (examples[:6], examples[6:]))

    def learned(folder, *, at=None, patience=None, keep="best", measure="nDCG@10", rate=1e-3, **options):
        folder.mkdir(exist_ok=True)
        checkpoint = build_checkpoint(tiny_model_with_head, "came:shared_layers=2,local_dim=8", RULES)
        dev = DevSet(dev_set.queries, dev_set.documents, dev_set.qrels, measure, 2, patience, keep)
        schedule = Schedule(STEPS, rate, layer_decay=0.8, group_rates={"towers": 2e-3}, save_minutes=0.0, **options)
        texts, plan = tokenize_in_memory(checkpoint, queries, documents, datasets=2), MultiDatasetSampler(samplers, (1.0, 0.5), 1)
        task = RetrievalTask(checkpoint, plan, texts, kill_at(at, SPARSE), schedule.steps, torch.float32)
        loss = DevLoss(partial(objectives.contrastive, regularizers=NO_FLOPS), 3, STEPS) if measure == "loss" else None
        counts = train(task, schedule, folder, device="cpu", evaluator=DevEvaluator(checkpoint, dev, torch.float32, loss=loss))
        return {name: value.clone() for name, value in checkpoint.architecture.state_dict().items()}, counts

    return learned


def without_speed(counts):
    return counts | {"last": {key: value for key, value in counts["last"].items() if key != "tokens_per_second"}}


@pytest.fixture(scope="module")
def undisturbed(learning, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, *learning(folder)


def test_a_killed_training_goes_on_to_the_same_bytes_and_the_same_best(learning, undisturbed, tmp_path, monkeypatch):
    """Killed between the best weights and the state of step 2, and then within step 5."""
    save_state = resume_state.save_state

    def save_or_die(folder, model, optimiser, state, *others):
        if state.step == 2:
            raise Killed
        save_state(folder, model, optimiser, state, *others)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(resume_state, "save_state", save_or_die)
        learning(tmp_path)
    assert (tmp_path / RESUME / BEST_FOLDER).exists()
    with pytest.raises(Killed):
        learning(tmp_path, at=4)
    weights, counts = learning(tmp_path)
    folder, whole, counts_of_whole = undisturbed
    assert identical(weights, whole) and untimed_metrics(tmp_path) == untimed_metrics(folder)
    assert without_speed(counts) == without_speed(counts_of_whole)


def test_best_weights_of_another_step_are_refused(learning, tmp_path, tiny_model):
    model = build_checkpoint(tiny_model, "dense", RULES).architecture
    resume_state.save_best(tmp_path / BEST_FOLDER, model, 3)
    resume_state.load_best(tmp_path / BEST_FOLDER, model, 3)
    with pytest.raises(ArtifactError, match="holds the weights of step 3, step 5 was the best; start over with --force"):
        resume_state.load_best(tmp_path / BEST_FOLDER, model, 5)


@pytest.mark.parametrize("name", ["state.json", "weights.safetensors", "optimiser.safetensors"])
def test_a_saved_state_with_a_changed_bit_is_refused(tmp_path, tiny_model, name):
    model, folder = build_checkpoint(tiny_model, "dense", RULES).architecture, tmp_path / STATE_FOLDER
    optimiser = torch.optim.AdamW(model.parameters())
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimiser.step()
    resume_state.save_state(folder, model, optimiser, resume_state.TrainingState(3, 120, steps=8))
    assert resume_state.load_state(folder, model, optimiser).step == 3
    whole = (folder / name).read_bytes()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for position in {0, 9, len(whole) // 2, len(whole) - 2}:
        (folder / name).write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ArtifactError, match=f"{name}: damaged: .*; --force starts the training over"):
            resume_state.load_state(folder, model, optimiser)
    (folder / name).unlink()
    if name != "state.json":
        with pytest.raises(ArtifactError, match=f"{name}: damaged"):
            resume_state.load_state(folder, model, optimiser)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_weights_of_the_lowest_loss_become_the_checkpoint_or_the_last_ones(learning, tmp_path):
    """At this rate the loss is lowest after the first evaluation."""
    falling = {"measure": "loss", "rate": 0.02}
    weights, counts = learning(tmp_path / "best", **falling)
    lines, best = [line for line in untimed_metrics(tmp_path / "best") if "dev.loss" in line], counts["development"]
    losses = {line["step"]: line["dev.loss"] for line in lines}
    assert best["measure"] == "loss" and (best["step"], best["value"]) == min(losses.items(), key=lambda pair: pair[1])
    assert best["step"] == 2 and best["stopped_after"] is None
    names = [f"dev.{name}.loss" for name in ("lexical", "local", "global")]
    assert all(sum(line[name] for name in names) == pytest.approx(line["dev.loss"], rel=1e-6) for line in lines)
    monitor = replay(untimed_metrics(tmp_path / "best"))
    assert monitor.best["dev.loss"] == (best["value"], best["step"])
    assert [monitor.best[name][0] for name in names] == [min(line[name] for line in lines) for name in names]
    with pytest.raises(Killed):
        learning(tmp_path / "two", at=2, **falling)
    two = load_file(tmp_path / "two" / RESUME / STATE_FOLDER / resume_state.WEIGHTS_FILE)
    assert identical(weights, two), "the weights of step 2 are the checkpoint's"
    last, counts = learning(tmp_path / "last", keep="last", patience=1, **falling)
    assert counts["steps"] == len(untimed_metrics(tmp_path / "last")) == counts["development"]["stopped_after"] == 4
    assert counts["development"]["kept"] == "last" and not (tmp_path / "last" / RESUME / BEST_FOLDER).exists()
    assert not identical(weights, last)
