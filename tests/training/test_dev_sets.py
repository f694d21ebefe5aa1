"""Evaluation during training: the values are those of search and evaluate, and the development set is read from its files."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from moeir.architectures.initialize import build_checkpoint
from moeir.errors import DataError
from moeir.records.texts import read_texts
from moeir.training import dev_sets, objectives
from moeir.training.dev_sets import DevLoss, DevSet, load_dev_set
from moeir.training.regularizers import RegularizerWeights
from moeir.training.resume_state import BestTracker
from tests.oracles.rank_order import rank_order

RULES = {"query_length": 16, "document_length": 32}
CAME = "came:shared_layers=2,local_dim=8"


@pytest.fixture(scope="module")
def given(toy):
    return load_dev_set(
        toy / "test-queries.tsv", toy / "test-qrels.tsv", [toy / "corpus.jsonl"], training_queries={}, measure="ndcg_cut_10", every=2
    )


def by_loop(checkpoint, given, kinds):
    """Every expert's hits of every query, scored pair by pair."""
    queries = checkpoint.encode(list(given.queries.values()), "query")
    names = list(given.documents)
    documents = checkpoint.encode(list(given.documents.values()), "document")
    hits = {}
    for expert, kind in kinds.items():
        scores = queries[expert].scores(documents[expert]).tolist()
        for query, row in zip(given.queries, scores, strict=True):
            candidates = {name: score for name, score in zip(names, row, strict=True) if kind not in ("sparse", "exact-match") or score > 0}
            hits[expert, query] = rank_order(candidates)
    return hits


@pytest.mark.parametrize(
    "spec, at_once",
    [(CAME, (1, 1)), (CAME, (256, 1024)), *((spec, (2, 5)) for spec in ("mote", "splade", "coil:dim=4,cls_dim=8"))],
)
def test_what_is_searched_is_every_document_in_the_order_of_ranks(spec, at_once, given, tiny_model_with_head, monkeypatch):
    for name, count in zip(("QUERIES_AT_ONCE", "DOCUMENTS_AT_ONCE"), at_once, strict=True):
        monkeypatch.setattr(dev_sets, name, count)
    checkpoint = build_checkpoint(tiny_model_with_head, spec, RULES)
    runs = dev_sets.search_exact(checkpoint, given, torch.float32)
    kinds = checkpoint.architecture.representation_kinds
    alone = len(kinds) == 1
    for (expert, query), hits in by_loop(checkpoint, given, kinds).items():
        assert runs["fused" if alone else expert].documents_of(query) == hits
    assert set(runs) == {"fused"} | (set() if alone else set(kinds))


def test_scores_that_are_trained_as_a_sum_are_added_before_the_cut(given, tiny_model_with_head, monkeypatch):
    monkeypatch.setattr(dev_sets, "DEPTH", 2)
    shallow = DevSet(given.queries, given.documents, given.qrels, "RR@2", 1)
    checkpoint = build_checkpoint(tiny_model_with_head, "mote", RULES)
    runs = dev_sets.search_exact(checkpoint, shallow, torch.float32)
    queries, documents = checkpoint.encode(list(given.queries.values()), "query"), checkpoint.encode(list(given.documents.values()))
    summed_scores = (queries["global"].scores(documents["global"]) + queries["lexical"].scores(documents["lexical"])).tolist()
    for query, row in zip(given.queries, summed_scores, strict=True):
        assert runs["fused"].documents_of(query) == rank_order(dict(zip(given.documents, row, strict=True)))[:2]


def test_the_measure_is_that_of_search_and_evaluate(given, came_checkpoint, toy, tmp_path, moeir):
    from moeir.architectures.checkpoint import open_checkpoint

    values_by_metric, _ = dev_sets.evaluate(open_checkpoint(came_checkpoint), given, torch.float32)
    for command in (
        ("encode", "--model", came_checkpoint, "--corpus", toy / "corpus.jsonl", "--dtype", "float32", "--output", tmp_path / "enc"),
        ("index", "--encodings", tmp_path / "enc", "--output", tmp_path / "idx"),
        ("search", "--index", tmp_path / "idx", "--queries", toy / "test-queries.tsv", "--dtype", "float32", "--output", tmp_path / "runs"),
    ):
        assert moeir(*command).code == 0
    for name in ("lexical", "local", "global", "fused"):
        run = tmp_path / f"runs/{name}.trec"
        table = moeir("evaluate", "--run", run, "--qrels", toy / "test-qrels.tsv", "--measure", "nDCG@10", "--form", "tsv").stdout
        assert values_by_metric[f"dev.{name}.nDCG@10"] == pytest.approx(float(table.split()[-1]), abs=1e-4)


@pytest.mark.parametrize(("values", "lower", "is_best"), [
    ((0.0, 0.5, 0.5, 0.4), False, [True, True, False, False]),
    ((3.0, 2.0, 2.0, 2.5), True, [True, True, False, False]),
    ((float("nan"), 2.0, float("nan"), 3.0), True, [True, True, False, False]),  # a first value that is no number is not the best for ever
])  # fmt: skip
def test_of_equal_values_the_earlier_is_best_and_patience_counts_the_others(values, lower, is_best):
    best = BestTracker()
    assert [best.update(step, value, lower_is_better=lower) for step, value in enumerate(values)] == is_best
    assert (best.step, best.value, best.since, best.evaluations) == (1, values[1], 2, 4)
    assert best.should_stop(2) and not best.should_stop(3) and not best.should_stop(None)


def test_the_development_set_is_what_is_judged_and_warns_of_leaks(toy, tmp_path, caplog):
    queries = {text.id: text.content for text in read_texts(toy / "test-queries.tsv")}
    files = (toy / "test-queries.tsv", toy / "test-qrels.tsv", [toy / "corpus.jsonl"])
    dev_set = load_dev_set(
        *files, training_queries={"q1": queries["q1"], "q2": "another text", "t1": queries["q3"]}, measure="RR@10", every=3
    )
    assert "1 of 6 queries are trained on, with the same id and text" in caplog.text
    assert dev_set.queries.keys() == dev_set.qrels.keys() and dev_set.measure == "RR@10" and dev_set.depth == 100
    (tmp_path / "few.jsonl").write_text('{"_id": "owl", "text": "an owl"}\n')
    load_dev_set(*files[:2], [tmp_path / "few.jsonl"], training_queries={}, measure="RR@10", every=3)
    assert "relevant documents are missing from the development corpus" in caplog.text
    (tmp_path / "few.jsonl").write_text('{"_id": "yak", "text": "a yak"}\n')
    with pytest.raises(DataError, match=r"few\.jsonl: holds no document that .*test-qrels\.tsv calls relevant"):
        load_dev_set(*files[:2], [tmp_path / "few.jsonl"], training_queries={}, measure="RR@10", every=3)
    assert load_dev_set(*files, training_queries={}, measure="R@1000", every=1).depth == 1000


def plain_losses(checkpoint, queries, documents, relevant):
    """For each expert the mean over queries of the cross-entropy of the first relevant document among those of four queries at a time."""
    losses = {name: [] for name in checkpoint.architecture.representation_kinds}
    names = list(queries)
    for batch in (names[:4], names[4:]):
        encoded = checkpoint.encode([queries[name] for name in batch], "query")
        positives = checkpoint.encode([documents[relevant[name][0]] for name in batch], "document")
        for expert, values in losses.items():
            scores = encoded[expert].scores(positives[expert])
            for row, query in enumerate(batch):
                columns = [column for column, other in enumerate(batch) if column == row or relevant[other][0] not in relevant[query]]
                values.append(torch.nn.functional.cross_entropy(scores[row, columns], torch.tensor(columns.index(row))).item())
    return {name: sum(values) / len(names) for name, values in losses.items()}


NO_FLOPS = {"regularizers": RegularizerWeights(flops_query=0.0, flops_document=0.0)}


@pytest.fixture(scope="module")
def loss_set(toy, tmp_path_factory):
    """Six queries over the toy documents; q1 and q2 share their relevant documents, which differ in grade."""
    relevant = {"q1": ["owl", "bat"], "q2": ["bat", "owl"], "q3": ["bee"], "q4": ["fox"], "q5": ["cat"], "q6": ["hen"]}
    path = tmp_path_factory.mktemp("loss") / "dev.qrels"
    lines = [f"{query} 0 {name} {1 + (name == names[0])}\n" for query, names in relevant.items() for name in reversed(names)]
    path.write_text("".join(lines))
    files = (toy / "test-queries.tsv", path, [toy / "corpus.jsonl"])
    return load_dev_set(*files, training_queries={}, measure="loss", every=2), relevant


@pytest.mark.parametrize("spec", [CAME, "dense", "mote"])
def test_the_loss_is_that_of_plain_torch(spec, loss_set, tiny_model_with_head):
    dev_set, relevant = loss_set
    checkpoint = build_checkpoint(tiny_model_with_head, spec, RULES)
    loss = DevLoss(partial(objectives.contrastive, **NO_FLOPS), 4, 10)
    state = torch.get_rng_state()
    checkpoint.architecture.train()
    values = dev_sets.evaluate_loss(checkpoint, dev_set, loss, torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    if spec == "mote":  # trained as a sum
        assert list(values) == ["dev.loss"]
        return
    expected = plain_losses(checkpoint, dev_set.queries, dev_set.documents, relevant)
    assert values["dev.loss"] == pytest.approx(sum(expected.values()), rel=1e-5)
    if spec == "dense":
        assert list(values) == ["dev.loss"]
    else:
        assert [values[f"dev.{name}.loss"] for name in expected] == pytest.approx(list(expected.values()), rel=1e-5)


def test_the_loss_of_a_competition_is_that_of_its_last_step_at_every_step(loss_set, tiny_model_with_head):
    """The queries of a dev batch have no negatives of their own: all experts rank first and share equally."""
    dev_set, relevant = loss_set
    checkpoint = build_checkpoint(tiny_model_with_head, CAME, RULES)
    values = dev_sets.evaluate_loss(checkpoint, dev_set, DevLoss(partial(objectives.competitive, **NO_FLOPS), 4, 10), torch.float32)
    assert values["dev.loss"] == pytest.approx(sum(plain_losses(checkpoint, dev_set.queries, dev_set.documents, relevant).values()) / 3)


@dataclass(frozen=True)
class RecordedGroup:
    """One of two processes: keeps what it sends, and receives what the other has sent."""

    rank: int
    sent: dict
    size: int = 2

    def all_gather(self, own, moment):
        self.sent[self.rank] = own
        return [self.sent.get(rank, own) for rank in range(2)]


def test_processes_share_the_batches_of_the_loss(loss_set, tiny_model):
    dev_set, _ = loss_set
    checkpoint = build_checkpoint(tiny_model, "dense", RULES)
    loss, sent = DevLoss(objectives.contrastive, 2, 10), {}
    alone = dev_sets.evaluate_loss(checkpoint, dev_set, loss, torch.float32)
    both = [dev_sets.evaluate_loss(checkpoint, dev_set, loss, torch.float32, RecordedGroup(rank, sent)) for rank in (1, 0)][-1]
    assert both == pytest.approx(alone, rel=1e-6) and len(sent) == 2 and not torch.equal(*(part for (part,) in sent.values()))
    assert dev_sets.evaluate_loss(checkpoint, dev_set, loss, torch.bfloat16) != alone, "the precision is that of the training"


def test_queries_without_a_pair_are_left_out_of_the_loss(toy, tmp_path, caplog):
    (tmp_path / "few.jsonl").write_text("".join(f'{{"_id": "{name}", "text": "{name}"}}\n' for name in ("owl", "bat", "cat")))
    (tmp_path / "dev.qrels").write_text("q1 0 owl 1\nq2 0 cat 0\nq3 0 yak 1\nq4 0 bat 1\n")
    options = {"training_queries": {}, "measure": "loss", "every": 1}
    dev_set = load_dev_set(toy / "test-queries.tsv", tmp_path / "dev.qrels", [tmp_path / "few.jsonl"], **options)
    assert list(dev_set.queries) == ["q1", "q4"] and list(dev_set.documents) == ["owl", "bat"], "others are not loaded"
    assert "2 of 4 queries lack a positive, and are left out of the loss" in caplog.text


def test_a_loss_needs_two_positives(toy, tmp_path):
    """The loss of a single positive, which has no negative, is 0 whatever the weights are."""
    (tmp_path / "one.qrels").write_text("q1 0 owl 1\nq2 0 owl 1\n")
    sources = (toy / "test-queries.tsv", tmp_path / "one.qrels", [toy / "corpus.jsonl"])
    with pytest.raises(DataError, match="have one positive in --dev-corpus; expected two or more, which are each other's negatives"):
        load_dev_set(*sources, training_queries={}, measure="loss", every=2)
    assert load_dev_set(*sources, training_queries={}, measure="RR@10", every=2).queries
