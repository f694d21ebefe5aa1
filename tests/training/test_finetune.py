"""`moeir finetune` on the toy texts: several files, data sets, teachers, rates and a development set, through the command line."""

import json

import pytest

from tests.processes import read_metrics


@pytest.fixture(scope="module")
def shop(tmp_path_factory, toy):
    """a.jsonl and b.jsonl: examples of the toy queries with a teacher's scores."""
    folder = tmp_path_factory.mktemp("shop")
    documents = [json.loads(line)["_id"] for line in (toy / "corpus.jsonl").read_text().splitlines()]
    positives: dict[str, list[str]] = {}
    for query, _, document, _ in map(str.split, (toy / "train.qrels").read_text().splitlines()):
        positives.setdefault(query, []).append(document)
    for name, queries, pool in (("a", list(positives), documents[:7]), ("b", list(positives)[:4], documents[5:])):
        with open(folder / f"{name}.jsonl", "w") as file:
            for query in queries:
                negatives = [document for document in pool if document not in positives[query]]
                scores = {"positive_scores": [5.0] * len(positives[query]), "negative_scores": [float(len(one)) for one in negatives]}
                example = {"query_id": query, "positive_ids": positives[query], "negative_ids": negatives}
                file.write(json.dumps(example | scores) + "\n")
    return folder


@pytest.fixture
def finetune(moeir, toy, two_layers, shop, tmp_path):
    """`finetune(arch, files, …)` -> the command's result, the manifest's counts and the metrics."""

    def run(arch, files, *options, name="out"):
        sources = [part for file in files for part in ("--train", shop / f"{file}.jsonl")]
        sources += ["--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl"]
        sizes = ("--batch-size", 2, "--negatives", 3, "--query-length", 16, "--document-length", 32, "--dtype", "float32")
        result = moeir("finetune", "--model", two_layers, "--arch", arch, *sources, *sizes, *options, "--output", tmp_path / name)
        assert result.code == 0, result.stderr
        counts = json.loads((tmp_path / name / "manifest.json").read_text())["counts"]
        return result, counts, read_metrics(tmp_path / name)

    return run


def dev_flags(toy):
    return ("--dev-queries", toy / "test-queries.tsv", "--dev-qrels", toy / "test-qrels.tsv")


def test_files_are_one_set_or_sets_in_turns(finetune):
    _, united, metrics = finetune("dense", ("a", "b"))
    assert united["examples"] == 6 and len(metrics) == united["steps"] == 3
    _, sets, metrics = finetune("dense", ("a", "b"), "--sampling-rate", 1, "--sampling-rate", 2, name="sets")
    assert sets["examples"] == 10 and len(metrics) == sets["steps"] == 3 + 2 * 2
    alone, rated = (finetune("dense", ("a",), *rate, name=str(len(rate)))[2] for rate in ((), ("--sampling-rate", 1)))
    assert [line["loss"] for line in alone] == [line["loss"] for line in rated]


def test_a_second_training_can_skip_what_the_first_one_read(finetune):
    result, _, first = finetune("dense", ("a",), "--steps", 2, name="first")
    assert "2 steps of 2 queries: 0.67 epochs of 6 queries" in result.stderr
    result, _, _ = finetune("dense", ("a",), "--steps", 2, "--accumulate", 2, "--skip-queries", 4, name="second")
    assert "2 steps of 4 queries, after 4 skipped: 1.33 epochs of 6 queries" in result.stderr
    _, _, skipped = finetune("dense", ("a",), "--steps", 1, "--skip-queries", 3, name="skipped")
    assert skipped[0]["loss"] != first[0]["loss"]
    result, _, _ = finetune("dense", ("a",), "--steps", 1, "--batch-size", 100, "--skip-queries", 12, name="few")
    assert "1 step of 6 queries, after 12 skipped" in result.stderr, "a batch holds them all"


def test_each_data_set_has_the_prompt_that_is_named_for_its_queries(moeir, toy, shop, two_layers, tmp_path):
    """The losses are those of data sets whose queries have the prompts in their texts; the checkpoint keeps prefix and prompts."""
    prompts = {"first": "owl: ", "second": "a bat in the dark "}
    lines = [json.loads(line) for line in (toy / "train-queries.jsonl").read_text().splitlines()]
    for name, prompt in prompts.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line | {"text": prompt + line["text"]}) + "\n" for line in lines))
    named = [part for name, prompt in prompts.items() for part in ("--prompt", f"{name}={prompt}", "--query-prompt", name)]
    runs = {
        "named": (*named, "--query-prefix", "mice ", "--queries", toy / "train-queries.jsonl"),
        "written": [part for name in prompts for part in ("--queries", tmp_path / f"{name}.jsonl")],
        "one": (*named[:4], "--queries", toy / "train-queries.jsonl"),
        "none": ("--queries", toy / "train-queries.jsonl"),
    }
    sources = [part for name in "ab" for part in ("--train", shop / f"{name}.jsonl", "--sampling-rate", 1)]
    sources += ["--corpus", toy / "corpus.jsonl", "--batch-size", 2, "--negatives", 2, "--dtype", "float32"]
    losses = {}
    for name, flags in runs.items():
        result = moeir("finetune", "--model", two_layers, "--arch", "dense", *sources, *flags, "--output", tmp_path / name)
        assert result.code == 0, result.stderr
        losses[name] = [line["loss"] for line in read_metrics(tmp_path / name)]
    assert losses["named"] == losses["written"] and len({tuple(one) for one in losses.values()}) == 3
    reading = json.loads((tmp_path / "named/moeir.json").read_text())["reading"]
    assert (reading["query_prefix"], reading["prompts"]) == ("mice ", prompts)


def test_a_teacher_is_learned_from(finetune):
    objective = ("--objective", "kl:temperature=2,contrastive=0.5")
    _, _, metrics = finetune("mote", ("a",), *objective, "--epochs", 2, "--learning-rate", 5e-3)
    assert {"loss.hybrid", "flops.lexical.query"} <= metrics[0].keys()
    assert sum(line["loss.hybrid"] for line in metrics[-3:]) < sum(line["loss.hybrid"] for line in metrics[:3])


CAME = "came:shared_layers=1,local_dim=8"


def test_a_development_set_chooses_the_weights_and_the_manifest_says_so(finetune, moeir, toy, tmp_path):
    result, counts, metrics = finetune(CAME, ("a",), *dev_flags(toy), "--epochs", 3, "--learning-rate", 1e-3)
    value_by_step = {line["step"]: line["dev.fused.nDCG@10"] for line in metrics if "dev.fused.nDCG@10" in line}
    assert list(value_by_step) == [3, 6, 9] and result.stderr.count(": development nDCG@10") == 3
    best = counts["development"]
    assert (best["value"], -best["step"]) == max((value, -step) for step, value in value_by_step.items())
    sizes = {"measure": "nDCG@10", "queries": 6, "documents": 12, "kept": "best", "evaluations": 3, "stopped_after": None}
    assert best | sizes == best and best.keys() == {*sizes, "value", "step"}
    assert {f"dev.{name}.nDCG@10" for name in ("fused", "lexical", "local", "global")} <= metrics[2].keys()
    assert not (tmp_path / "out" / "resume").exists()
    assert "to compete" not in result.stderr + moeir("report", "--training", tmp_path / "out").stdout, "of contrastive trainings"


@pytest.mark.parametrize(
    "objective, options, message",
    [
        ("lce", (), "--objective lce needs teacher scores or a query's own negatives, which judgements lack; name a measure"),
        ("kl:temperature=2", (), "--objective kl:temperature=2 needs teacher scores or a query's own negatives"),
        ("competitive:shares=learnability", (), "goes by how fast losses fall in training; name a measure, such as nDCG@10"),
        ("contrastive", ("--batch-size", 1), "the queries of a batch are each other's negatives, and --batch-size is 1"),
        ("competitive:permuted=true", None, "a batch of one query has no other's shares; expected --batch-size 2 or more"),
    ],
)
def test_an_objective_that_cannot_be_is_refused(objective, options, message, moeir, toy, tiny_model, shop, tmp_path):
    """A loss that judgements do not have, and a competition of one query."""
    sources = ("--train", shop / "a.jsonl", "--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
    model = ("--model", tiny_model, "--arch", "dense", "--objective", objective)
    flags = ("--batch-size", 1) if options is None else (*dev_flags(toy), "--dev-measure", "loss", *options)
    result = moeir("finetune", *model, *sources, *flags, "--output", tmp_path / "out")
    assert result.code == 2 and message in result.stderr and not (tmp_path / "out").exists()
    assert ("error: --dev-measure loss: " in result.stderr) == (options is not None)


def test_rates_of_groups_and_layers_reach_the_optimiser(finetune):
    rates = ("--learning-rate", 1e-6, "--group-rate", "mixture=1e-4", "--schedule", "constant", "--warmup", 0)
    result, _, metrics = finetune("sbmoe:experts=2", ("a",), *rates)
    assert "learning rate up to 1e-06: " in result.stderr and "learning rate up to 0.0001: " in result.stderr
    assert {line["learning_rate"] for line in metrics} == {1e-6}
    result, _, metrics = finetune("taser:routing=sequence,every=1", ("a",), "--layer-decay", 0.8, name="taser")
    assert result.stderr.count("learning rate up to") == 3  # embeddings, two layers; the gate has the depth of the first
    assert {"entropy.layer2", "usage.layer2.0", "usage.layer2.1"} <= metrics[0].keys()


def test_a_competitive_training_says_whether_to_compete_by_what_experts_gained_before_it(finetune, moeir, toy, tmp_path):
    flags = (*dev_flags(toy), "--evaluate-every", 2, "--objective")
    result, _, metrics = finetune(CAME, ("a",), *flags, "competitive:standardised=0.7", "--steps", 6)
    names = [f"competition.{name}.nDCG@10" for name in ("lost", "difference", "low", "high")]
    assert [line["step"] for line in metrics if set(names) <= line.keys()] == [4], "2 is the first, and from step 5 on they compete"
    lost, difference, low, high = (metrics[3][name] for name in names)
    words = f"learning alike, experts gain {difference:+.4f} nDCG@10 on queries they lose, less what the owners gain (95 %: {low:+.4f} "
    sentence = f"no advice: {words}to {high:+.4f}), from {lost:g} lost queries, fewer than 30"
    assert lost > 0 and sentence in result.stderr
    assert f"out: {sentence}" in moeir("report", "--training", tmp_path / "out").stdout
    assert moeir("report", "--training", tmp_path / "out", "--output", tmp_path / "page.html").code == 0
    assert sentence in (tmp_path / "page.html").read_text()
    result, _, metrics = finetune(CAME, ("a",), *flags, "competitive:standardised=0", "--steps", 2, name="at-once")
    assert not any(name in line for line in metrics for name in names)
    assert "whether to compete is not known: it needs two evaluations of --dev-queries before it begins" in result.stderr


def test_the_gains_of_a_training_are_those_of_its_runs_also_if_it_resumes(tmp_path):
    from moeir.analysis.competition import analyze_competition
    from moeir.training.dev_sets import CompetitionWatch, DevSet
    from tests.analysis.test_competition import QRELS, draw_runs

    first, second = (draw_runs(seed) | {"fused": draw_runs(9)["one"]} for seed in (1, 2))
    dev = DevSet({}, {}, QRELS, "RR@10", 2)
    for step, runs in ((2, first), (4, second), (2, first)):  # killed before the state of step 2 was saved: it is evaluated again
        CompetitionWatch(tmp_path, 2, 6).compare(step, runs, dev)
    row = analyze_competition(*({name: run for name, run in runs.items() if name != "fused"} for runs in (first, second)), QRELS, "RR@10")
    expected = dict(zip(row.columns, row.rows[-1], strict=True))
    for _ in range(2):
        gains = CompetitionWatch(tmp_path, 2, 6).compare(6, second, dev)
        assert gains == {f"competition.{name}.RR@10": expected[name] for name in ("lost", "difference", "low", "high")}
    assert CompetitionWatch(tmp_path, 2, 6).compare(8, second, dev) == {}
    for step in (1, 2):  # a training that ends before the first evaluation; tokens in --cache, so that nothing has made the folder
        assert CompetitionWatch(tmp_path / "resume", 2, 6).compare(step, first, dev) == {}
    assert CompetitionWatch(tmp_path, 2, 6).compare(4, {"fused": second["fused"], "one": second["one"]}, dev) == {}


def test_shares_by_learnability_train(finetune):
    objective = ("--objective", "competitive:standardised=0.5,shares=learnability,temperature=0.001")
    _, _, metrics = finetune(CAME, ("a", "b"), "--epochs", 2, *objective)
    assert metrics[0]["share.lexical"] == metrics[0]["share.global"] == pytest.approx(1 / 3), "nothing is known yet"
    assert max(abs(line["share.lexical"] - 1 / 3) for line in metrics) > 0.01
