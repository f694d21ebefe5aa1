"""`moeir push` on a stand-in for the Hub: the card, paths of the machine, one commit or none, and one line for what goes wrong."""

import getpass
import json
import shutil
import socket
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from moeir.artifacts import manifests
from moeir.stages.push import hide_paths
from tests.hub_server import TOKEN, StoredRepository


@pytest.fixture
def folder(tmp_path, monkeypatch, toy, tiny_model_with_head, came_checkpoint, encodings, index):
    """A folder of a private name where commands run, with copies of a checkpoint, its encodings, its index, texts and judgements."""
    folder = tmp_path / "home-of-anna"
    folder.mkdir()
    for name, path in {"came": came_checkpoint, "enc": encodings, "idx": index, "tiny": tiny_model_with_head}.items():
        shutil.copytree(path, folder / f"secret-{name}" if name == "tiny" else folder / name)
    (folder / "encodings").symlink_to("enc")
    for name in ("corpus.jsonl", "test-queries.tsv", "test-qrels.tsv"):
        shutil.copy(toy / name, folder / f"secret-{name}")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    return folder


CORPUS, QRELS, QUERIES = "--corpus secret-corpus.jsonl", "--qrels secret-test-qrels.tsv", "--queries secret-test-queries.tsv"
CHAIN = {  # what makes a product, with relative or absolute paths, and the flags of its push
    "checkpoint": ("init --model {folder}/secret-tiny --arch dense --output {folder}/secret-dense", "secret-dense", ""),
    "trained": (
        "finetune --model secret-tiny --arch dense --train secret-train.jsonl --steps 1 --batch-size 2 --negatives 0 --document-length 20 "
        "--query-length 12 --cache {folder}/secret-cache --corpus {folder}/secret-corpus.jsonl " + QUERIES + " --output secret-dense",
        "secret-dense",
        "",
    ),
    "encodings": ("encode --model {folder}/came --corpus {folder}/secret-corpus.jsonl --output secret-enc", "secret-enc", ""),
    "shards": (f"encode --model came {CORPUS} --shard 0/1 --output secret-enc", "secret-enc", ""),
    "index": ("index --encodings {folder}/enc --output secret-idx", "secret-idx", ""),
    "a smaller index": ("index --encodings {folder}/enc --delete secret-ids.txt --output secret-idx", "secret-idx", ""),
    "search": (f"search --index idx {QUERIES} --explain secret-why.jsonl --output {{folder}}/secret.trec", "secret.trec", QRELS),
    "rerank": (f"rerank --model secret-lce --run secret-bm25.trec {QUERIES} {CORPUS} --output secret.trec", "secret.trec", QRELS),
}


@pytest.mark.parametrize("name", CHAIN)
def test_nothing_of_this_machine_is_in_any_byte_that_is_sent(name, hub, folder, run):
    command, product, flags = CHAIN[name]
    examples = [{"query_id": query, "positive_ids": [positive], "negative_ids": []} for query, positive in (("q1", "cat"), ("q2", "bat"))]
    (folder / "secret-train.jsonl").write_text("".join(f"{json.dumps(example)}\n" for example in examples))
    (folder / "secret-ids.txt").write_text("owl\nbee\n")
    if name == "rerank":
        run("init --model secret-tiny --arch cross-encoder --query-length 12 --document-length 20 --output secret-lce")
        run(f"search --index idx {QUERIES} --output secret-bm25.trec")
    run(command.format(folder=folder))
    run(f"push --input {product} --repo anna/product {flags}")
    private = [str(folder), "home-of-anna", "secret", "../came", f"/{getpass.getuser()}/"]
    private += [host] if len(host := socket.gethostname()) > 4 else []
    sent = b"\n".join(hub.bodies)
    assert [word for word in private if word.encode() in sent] == []
    if name in ("trained", "encodings", "rerank"):
        files = [file for file in (Path(product, "settings.yaml"), manifests.manifest_path(Path(product))) if file.is_file()]
        assert any(word in file.read_text() for file in files for word in ("secret", "came")), "on disk are such words"


def test_a_path_inside_an_option_stays_here():
    local = ("/srv/w.npy", "/w.npy", "~/w.npy", "~anna/w.npy", "../w.npy", "a/../../w.npy", "C:\\\\w.npy", "file:///srv/w.npy")
    for value in (*local, "x:file=/srv/w.npy,depth=3"):
        hidden = hide_paths({"arch": value.replace("\\\\", "\\"), "list": [value]}, {})
        assert hidden["arch"].removeprefix("x:file=").removesuffix(",depth=3") == "w.npy"


def test_a_card_that_the_hub_does_not_read_is_one_line(hub, folder, refuse):
    for content in (b"---\nx: [\n---", b"\xff\xfe", b"---\nmodel-index: 5\n---", b"---\ntags: 5\n---", b"---\n- a\n---"):
        (folder / "came" / "README.md").write_bytes(content)
        result = refuse(4, "error: came/README.md: not a card of the Hub: ", "push --input came --repo anna/came")
        assert result.stderr.count("\n") == 1 and hub.repositories == {}


def test_the_card_has_measures_with_intervals_and_a_licence(hub, folder, moeir, run):
    run("search --index idx --queries secret-test-queries.tsv --output runs")
    runs, judged = "--run all=runs/fused.trec runs/lexical.trec --measure nDCG@10 R@5", "--qrels secret-test-qrels.tsv"
    result = run(f"push --input came --repo anna/came --license mit {runs} {judged} --dataset-name toys")
    assert result.stdout.strip().startswith(f"{hub.address}/anna/came/commit/")
    text = hub.files("anna/came")["README.md"].decode()
    card = ModelCard(text)
    assert card.data.license == "mit" and {"moeir", "mixture-of-experts", "came"} <= set(card.data.tags)
    evaluated = json.loads(moeir("evaluate", *runs.split(), *judged.split(), "--form", "json").stdout)["runs"]
    assert len(card.data.eval_results) == 4
    for one in card.data.eval_results:
        expected = evaluated[one.metric_args["run"]]["all"][one.metric_name]
        assert one.metric_value == pytest.approx(expected["mean"], abs=1e-4) and one.dataset_name == "toys"
        assert one.metric_args["interval_95"] == pytest.approx(expected["interval"], abs=1e-6)
    assert "made by `moeir init`" in text and "moeir pull --repo anna/came --output came" in text


def test_a_card_names_no_licence_that_is_not_given(hub, folder, run):
    run("push --input idx --repo anna/idx")
    text = hub.files("anna/idx")["README.md"].decode()
    metadata = yaml.safe_load(text.split("---")[1])
    assert "license" not in metadata and "index" in metadata["tags"] and "12 documents" in text


def test_a_product_replaces_the_one_before_it_in_one_commit_and_an_equal_one_makes_none(hub, folder, run):
    run("push --input enc --repo anna/product")
    hub.repositories["anna/product"].commits[-1]["LICENSE"] = b"mine"
    run("push --input idx --repo anna/product")
    assert hub.files("anna/product")["LICENSE"] == b"mine", "what no push has put there stays"
    listed = {name for name in hub.files("anna/product") if not name.startswith((".", "README", "LICENSE"))}
    assert listed == {*json.loads((folder / "idx" / "manifest.json").read_text())["files"], "manifest.json"}
    assert len(hub.repositories["anna/product"].commits) == 3
    run("push --input idx --repo anna/product")
    assert len(hub.repositories["anna/product"].commits) == 3


def test_files_of_another_tool_are_not_replaced(hub, folder, refuse):
    for name in ("pytorch_model.bin", "web/asset-manifest.json", "manifest.json"):
        hub.repositories["anna/bert"] = StoredRepository(False, [{name: b"{}"}])
        words = "has files, and moeir push did not make them; name another repository, or delete them there"
        result = refuse(2, f"error: --repo anna/bert: {words}", "push --input came --repo anna/bert")
        assert result.stderr.count("\n") == 1 and len(hub.repositories["anna/bert"].commits) == 1


FAULTS = {  # method, path, kind and times of a fault; exit code and words
    "the Hub is down": ("POST", "/api/repos/create", 500, 1, 1, "the Hub or the connection failed (Server error '500"),
    "the upload breaks off": ("POST", "/commit/main", "close", 1, 1, "the Hub or the connection failed"),
    "the upload is refused": ("POST", "/commit/main", 403, 1, 2, "not accepted: 403"),
    "the commit fails": ("POST", "/commit/main", 500, 1, 1, "run the same command again to continue"),
    "another push came between": ("POST", "/commit/main", 412, 1, 2, "412"),
    "something else answers": ("POST", "/api/repos/create", b"<html>", 1, 1, "the Hub or the connection failed (Expecting value"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_push_that_fails_says_so_in_one_line_and_the_same_command_again_succeeds(name, hub, folder, run, refuse):
    *fault, code, words = FAULTS[name]
    hub.fail(*fault)
    result = refuse(code, words, "push --input came --repo anna/came")
    assert result.stdout == "" and result.stderr.count("\n") == 1 and result.stderr.startswith("error: anna/came: "), result.stderr
    assert TOKEN not in result.stderr
    assert all(len(repository.commits) == 1 for repository in hub.repositories.values())  # nothing of the product is visible
    run("push --input came --repo anna/came")
    assert "model.safetensors" in hub.files("anna/came")


def test_a_token_is_needed_and_a_private_repository_is_not_for_others(hub, folder, monkeypatch, run, refuse):
    run("push --input came --repo anna/came --private")
    assert hub.repositories["anna/came"].private
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    for command in ("push --input came --repo anna/other", "pull --repo anna/came --output pulled"):
        result = refuse(2, "not accepted: ", command)
        assert "401" in result.stderr
    assert "anna/other" not in hub.repositories and not (folder / "pulled").exists()


REFUSED = [  # flags, exit code and words, before anything is sent
    ("--input secret-corpus.jsonl", 4, "has no manifest.json"),
    ("--input page.html", 2, "expected a checkpoint, encodings, an index or runs, found report"),
    ("--input damaged", 4, "damaged"),
    ("--input came --run a.trec", 2, "--run needs --qrels"),
    (f"--input came {QRELS}", 2, "--qrels needs --run"),
    (f"--input came --run a.trec b/a.trec {QRELS}", 2, "two runs have the same name"),
    (f"--input a.trec {QRELS} --measure nDGC@10", 2, "nDGC@10"),
]


def test_what_cannot_be_pushed_is_refused_before_anything_is_sent(hub, folder, refuse, run):
    run("search --index idx --queries secret-test-queries.tsv --output a.trec")
    run(f"report --run a.trec {QRELS} --output page.html")
    (folder / "b").mkdir()
    shutil.copy("a.trec", "b")
    shutil.copytree("came", "damaged")
    (folder / "damaged" / "vocab.txt").write_bytes((folder / "came" / "vocab.txt").read_bytes()[:-2] + b"x\n")
    for flags, code, words in REFUSED:
        refuse(code, words, f"push {flags} --repo anna/x")
        assert hub.requests == []
    for flags, words in (("--license gpl-99", '"license" must be one of'), ("--repo a//b", "not accepted: Repo id must")):
        refuse(2, words, f"push --input came --repo anna/came {flags}")
