import json
from pathlib import Path

import pytest

from moeir.architectures.base import Architecture
from moeir.records import texts

LENGTHS = ("--query-length", 16, "--document-length", 32)
ARCHITECTURES = {
    "token": "taser:routing=token,every=1", "sequence": "taser:routing=sequence,every=0,experts=3", "gated": "sbmoe:experts=3",
    "random": "sbmoe:gate=random", "single": "sbmoe:experts=1", "role": "mote:every=1,similarity=dense", "plain": "dense",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model, came_checkpoint, toy, moeir) -> Path:
    """The working folder: one checkpoint per way of routing, and the toy texts."""
    folder = tmp_path_factory.mktemp("analyze")
    for name, arch in ARCHITECTURES.items():
        result = moeir("init", "--model", tiny_model, "--arch", arch, *LENGTHS, "--output", folder / name)
        assert result.code == 0, result.stderr
    (folder / "came").symlink_to(came_checkpoint)
    for file in toy.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "one.trec").write_text("q1 Q0 owl 1 2.0 t\nq1 Q0 cat 2 1.0 t\n")
    (folder / "two.trec").write_text("q1 Q0 cat 1 9 t\n")
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def parse_rows(result) -> list[dict]:
    assert (result.code, result.messages) == (0, []), result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_overlap_needs_no_name_and_reads_as_ever(moeir):
    result = moeir("analyze", "--run", "one.trec", "--run", "two.trec", "--overlap", "overlap:depth=2")
    assert result == (0, "run  run  queries  overlap:depth=2\n---  ---  -------  ---------------\none  two        1           0.5000\n", "")
    assert moeir("analyze", "overlap", "--run", "one.trec", "--run", "two.trec", "--overlap", "overlap:depth=2") == result


def test_a_finding_goes_to_a_file_as_its_name_says(moeir, tmp_path):
    command = ("analyze", "--run", "one.trec", "--run", "two.trec", "--overlap", "overlap:depth=2", "--output")
    for name in ("found.tsv", "found.jsonl"):
        assert moeir(*command, tmp_path / name).messages == []
    assert (tmp_path / "found.tsv").read_text() == "run\tother\tqueries\toverlap:depth=2\none\ttwo\t1\t0.5\n"
    assert json.loads((tmp_path / "found.jsonl").read_text()) == {"run": "one", "other": "two", "queries": 1, "overlap:depth=2": 0.5}
    assert "already made" in moeir(*command, tmp_path / "found.tsv").stderr


@pytest.mark.parametrize(("name", "routers", "unit"), [
    ("token", ["layer2", "layer4"], "tokens"), ("sequence", [f"layer{number}" for number in (1, 2, 3, 4)], "texts"),
    ("gated", ["gate"], "texts"),
])  # fmt: skip
def test_usage_counts_what_the_routers_say_once_in_any_batches(name, routers, unit, folder, moeir, monkeypatch):
    from moeir import open_checkpoint

    monkeypatch.setattr("moeir.stages.analysis_inputs.CHUNK", 5)
    command = ("analyze", "usage", "--model", name, "--corpus", "corpus.jsonl", "--queries", "test-queries.tsv", "--form", "jsonl")
    records = parse_rows(moeir(*command, "--max-tokens", 40, "--dtype", "float32"))
    sums = [(row["side"], row["router"]) for row in records if row["expert"] == "all"]
    assert sums == [(side, router) for side in ("query", "document") for router in routers]
    checkpoint = open_checkpoint(folder / name)
    for side, file in (("query", "test-queries.tsv"), ("document", "corpus.jsonl")):
        encoded = checkpoint.encode([text.content for text in texts.read_texts(folder / file)], side)
        for router in routers:
            probabilities = encoded.routing[router].probabilities
            router_rows = [row for row in records if (row["side"], row["router"]) == (side, router)]
            assert [row["chosen"] for row in router_rows[:-1]] == probabilities.argmax(1).bincount(
                minlength=probabilities.shape[1]
            ).tolist()
            assert [row["probability"] for row in router_rows[:-1]] == pytest.approx(probabilities.mean(0).tolist(), rel=1e-5)
            assert (router_rows[-1]["chosen"], router_rows[-1]["of"]) == (len(probabilities), unit)
            assert router_rows[-1]["share"] == pytest.approx(1.0)
            assert router_rows[-1]["entropy"] == pytest.approx(sum(row["entropy"] for row in router_rows[:-1]))


def test_usage_is_the_default_of_its_flags(moeir):
    table = moeir("analyze", "--model", "sequence", "--corpus", "corpus.jsonl").stdout.splitlines()
    assert table[0].split() == ["side", "router", "of", "expert", "chosen", "share", "probability", "entropy"]
    assert len(table) == 2 + 4 * 4


def test_a_router_of_any_architecture_is_counted(moeir, monkeypatch):
    """Usage depends on the router output only, not on the architecture."""
    import torch

    from moeir.backbones.dispatch import RouterOutput

    def routing(self: Architecture, side: str) -> dict[str, RouterOutput]:
        return {"other": RouterOutput.from_text_probabilities(torch.tensor([[0.25, 0.75]]).repeat(self.seen, 1))}

    def states(self, tokens, plain=Architecture.forward):
        self.seen = len(tokens)
        return plain(self, tokens)

    monkeypatch.setattr(Architecture, "_take_routing", routing)
    monkeypatch.setattr(Architecture, "forward", states)
    rows = parse_rows(moeir("analyze", "usage", "--model", "plain", "--corpus", "corpus.jsonl", "--form", "jsonl"))
    assert [(row["router"], row["expert"], row["chosen"]) for row in rows] == [("other", "0", 0), ("other", "1", 12), ("other", "all", 12)]


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("", 2, "expected two runs or more, found 0; repeat --run"),
        ("--run one.trec", 2, "expected two runs or more, found 1"),
        ("usages --model token", 2, "analyze usages: expected one of overlap, usage, wins"),
        ("competition --run one.trec --run two.trec --qrels test-qrels.tsv", 2, "analyze competition: needs --after"),
        ("usage --model token", 2, "analyze usage: needs --corpus, --queries or both"),
        ("usage --corpus corpus.jsonl", 2, "analyze usage: needs --model"),
        ("--run one.trec --run two.trec --model token", 2, "does not read --model; it belongs to analyze usage or projection"),
        ("usage --model role --corpus corpus.jsonl", 2, "role: mote has no learned router; there is no usage to count"),
        ("usage --model single --corpus corpus.jsonl", 2, "single: sbmoe has no learned router"),
        ("usage --model random --corpus corpus.jsonl", 2, "random: sbmoe has no learned router"),
        ("usage --model plain --corpus corpus.jsonl", 2, "plain: dense has no learned router"),
        ("projection --model came --corpus corpus.jsonl --expert local", 2, "--expert local: expected global"),
        ("usage --model token --corpus absent", 3, "absent: no such file (--corpus)"),
        ("usage --model corpus.jsonl --corpus corpus.jsonl", 4, "expected a folder with checkpoint, found a file"),
        ("--run one.trec --run two.trec --form xml", 2, "--form xml: expected auto, table, tsv or jsonl"),
    ],
)
def test_what_cannot_be_analysed_is_refused_in_a_line(command, code, words, moeir):
    result = moeir("analyze", *command.split())
    assert (result.code, result.stdout) == (code, "") and words in result.stderr and len(result.messages) == 1, result.stderr
