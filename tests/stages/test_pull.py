"""`moeir pull` from a stand-in for the Hub: products as they were, broken downloads, and restarts."""

import hashlib
import json
from pathlib import Path

import pytest

import moeir as package
from moeir import hub as hub_module
from moeir.artifacts import manifests
from moeir.artifacts.manifests import MANIFEST
from tests.hub_server import TOKEN, StoredRepository
from tests.stage_scenarios import list_leftovers

RETRY = 10  # requests after which the client has given up
REWRITTEN = {"README.md", "settings.yaml", MANIFEST}


@pytest.fixture(scope="module")
def commits():
    """What a push of `came`, `enc` or `idx` leaves on the Hub, by name."""
    return {}


@pytest.fixture
def push(hub, work_folder, run, commits):
    """`push(name)`: `came`, `enc` or `idx` is at anna/NAME; the command runs once for all tests."""

    def push_once(name):
        if name not in commits:
            run(f"push --input {name} --repo anna/{name}")
            commits[name] = hub.repositories[f"anna/{name}"].commits
        hub.repositories[f"anna/{name}"] = StoredRepository(False, [dict(files) for files in commits[name]])

    return push_once


@pytest.fixture
def fail(moeir):
    """`fail(code, words, flags)`: a pull with these flags, or another command, ends with this code and one error, which has the words."""

    def check(code, words, flags, command="pull"):
        result = moeir(command, *flags.split())
        assert (result.code, result.stdout) == (code, ""), result.stderr
        *earlier, line = result.stderr.splitlines()
        assert line.startswith("error: ") and words in line, result.stderr
        assert all(one.startswith(("pulled ", "pulled: already", "dtype: ")) for one in earlier), result.stderr
        assert TOKEN not in result.stderr

    return check


def same_content(one, other):
    """The files of two products are the same but for those that push rewrites."""
    manifest = json.loads((one / MANIFEST).read_text())
    for name in manifest["files"].keys() - REWRITTEN:
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert manifest["files"].keys() == json.loads((other / MANIFEST).read_text())["files"].keys()


def change_file(hub, repository, name, content):
    """Change a file on the Hub, in a product under a manifest that is right again: what another version or person would have uploaded."""
    files = dict(hub.files(repository)) | {name: content}
    manifest = json.loads(files[MANIFEST])
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    files[MANIFEST] = manifests.serialize_manifest(manifest).encode()
    hub.repositories[repository].commits.append(files)


def test_a_chain_of_products_is_pulled_as_it_was_and_searches_as_before(work_folder, push, run):
    for name, model in (("came", ""), ("enc", "--model pulled/came"), ("idx", "--model pulled/came")):
        push(name)
        run(f"pull --repo anna/{name} --output pulled/{name} {model}")
        same_content(work_folder / name, work_folder / "pulled" / name)
        manifest = json.loads((work_folder / "pulled" / name / MANIFEST).read_text())
        assert manifest["stage"] == json.loads((work_folder / name / MANIFEST).read_text())["stage"]
        assert manifest["hub"].startswith(f"anna/{name}@")
    run("index --encodings pulled/enc --output again")
    runs = [run(f"search --index {index} --queries toy/test-queries.tsv --dtype float32") for index in ("idx", "pulled/idx", "again")]
    assert runs[0].stdout == runs[1].stdout == runs[2].stdout != "", "the checkpoint that --model named is found"
    assert list_leftovers(work_folder / "pulled") == []


def test_shards_are_pulled_one_by_one(hub, work_folder, run, fail, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 4)
    for number in range(3):
        run(f"encode --model came --corpus toy/corpus.jsonl --dtype float32 --shard {number}/3 --output shards")
    run("push --input shards --repo anna/shards")
    hub.fail("GET", "1-of-3/ids.txt", "close", RETRY)
    fail(1, "run the same command again", "--repo anna/shards --output pulled")
    assert (work_folder / "pulled" / "0-of-3").exists() and not (work_folder / "pulled" / "1-of-3").exists()
    fail(4, "or unfinished; the same moeir pull command makes it", "--encodings pulled --output x", "index")
    hub.faults.clear()
    run("pull --repo anna/shards --output pulled --model came")
    for number in range(3):
        same_content(work_folder / "shards" / f"{number}-of-3", work_folder / "pulled" / f"{number}-of-3")
    run("index --encodings pulled --output idx-of-shards")


def test_a_part_of_a_set_of_shards_or_two_sets_are_not_pulled(hub, work_folder, run, fail, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 6)
    for number in range(2):
        run(f"encode --model came --corpus toy/corpus.jsonl --shard {number}/2 --output shards")
    run("push --input shards --repo anna/shards")
    whole, repository = dict(hub.files("anna/shards")), hub.repositories["anna/shards"]
    first = {name: content for name, content in whole.items() if not name.startswith("1-of-2/")}
    odd = {name.replace("1-of-2", "5-of-2"): content for name, content in whole.items()}
    mixed = whole | {name.replace("0-of-2", "0-of-1"): content for name, content in whole.items()}
    for files in (first, odd, mixed):
        repository.commits.append(files)
        fail(4, "expected one whole set; push the folder of all shards again", "--repo anna/shards --output pulled")
    assert not (work_folder / "pulled").exists()
    repository.commits.append(whole)
    (work_folder / "pulled/0-of-3").mkdir(parents=True)
    (work_folder / "pulled/0-of-3" / MANIFEST).write_text((work_folder / "shards/0-of-2" / MANIFEST).read_text())
    fail(2, "has 0-of-3, which is no part of anna/shards; name another folder", "--repo anna/shards --output pulled")


def test_runs_are_pulled_as_a_folder(hub, work_folder, run):
    for index, name in (("idx", "runs"), ("bm25", "bm25.trec"), ("bm25", "bm25.trec.gz")):
        run(f"search --index {index} --queries toy/test-queries.tsv --output {name}")
        run(f"push --input {name} --repo anna/{name} --qrels toy/test-qrels.tsv")
        run(f"pull --repo anna/{name} --output pulled/{name}")
    same_content(work_folder / "runs", work_folder / "pulled" / "runs")
    assert Path("bm25.trec").read_bytes() == Path("pulled/bm25.trec/run.trec").read_bytes()
    run("evaluate --run pulled/bm25.trec.gz/run.trec.gz --qrels toy/test-qrels.tsv")


FAULTS = {  # method, path, kind of a fault; exit code and words
    "the weights break off": ("GET", "/model.safetensors", "close", 1, "the Hub or the connection failed"),
    "the Hub is down": ("GET", "/api/models/", 500, 1, "failed (Server error '500"),
    "a file is gone": ("HEAD", "vocab.txt", 404, 4, "404"),
    "a byte flips in the weights": ("GET", "/model.safetensors", "flip", 4, "model.safetensors is not the file of its manifest"),
    "a byte flips in the manifest": ("GET", "manifest.json", "flip", 4, "error: anna/came: has a manifest.json that is damaged"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_pull_that_fails_leaves_no_product_and_the_same_command_again_succeeds(name, hub, work_folder, push, run, fail, moeir):
    method, path, kind, code, words = FAULTS[name]
    push("came")
    hub.fail(method, path, kind, 1 if kind == "flip" else RETRY)
    fail(code, words, "--repo anna/came --output pulled")
    assert not (work_folder / "pulled").exists()
    result = moeir("info", "pulled")
    assert result.code == 4
    done = list_downloads(hub)
    assert not done or "unfinished: run the same pull command again to continue" in result.stderr
    hub.faults.clear()
    hub.requests.clear()
    run("pull --repo anna/came --output pulled")
    same_content(work_folder / "came", work_folder / "pulled")
    assert not (done and list_downloads(hub)), "what came through is not downloaded again"
    assert list_leftovers(work_folder) == []


def list_downloads(hub, name="config.json"):
    """The requests for the content of a file."""
    return [request for request in hub.requests if request.startswith("GET") and name in request]


def test_a_pull_that_is_stopped_goes_on_and_a_new_commit_in_between_is_noticed(hub, work_folder, push, run, fail, moeir, monkeypatch):
    push("came")
    download = hub_module.hf_hub_download

    def stop_at_the_weights(repository, name, **options):
        if name == "model.safetensors":
            raise KeyboardInterrupt
        return download(repository, name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(hub_module, "hf_hub_download", stop_at_the_weights)
        for output in ("first", "second"):
            assert moeir("pull", "--repo", "anna/came", "--output", output).code == 130
            assert not (work_folder / output).exists()
        run("pull --repo anna/came --output first --dry-run")
    hub.requests.clear()
    run("pull --repo anna/came --output first")
    assert list_downloads(hub) == []
    same_content(work_folder / "came", work_folder / "first")
    run("push --input came --repo anna/came --license mit")
    fail(2, "unfinished work of other settings (hub)", "--repo anna/came --output second")
    run("pull --repo anna/came --output second --force")
    assert list_leftovers(work_folder) == []


def test_what_is_no_product_is_refused_in_one_line(hub, work_folder, push, fail, monkeypatch):
    push("came")
    manifest = json.loads(hub.files("anna/came")[MANIFEST])
    contents = {"bert": {"config.json": b"{}"}, "new": {MANIFEST: manifests.serialize_manifest(manifest | {"format": 9}).encode()}}
    for name, files in (contents | {"odd": {MANIFEST: b"{}"}}).items():
        hub.repositories[f"anna/{name}"] = StoredRepository(False, [files])
    for code, words, source in (
        (4, "anna/none: not accepted: ", "anna/none"),
        (4, "404", "anna/came --revision v9"),
        (4, "anna/bert: has no manifest.json; expected a repository that moeir push made", "anna/bert"),
        (4, "a checkpoint of format 9", "anna/new"),
        (4, "has a manifest.json that is damaged, or not made by moeir", "anna/odd"),
        (2, "a//b: not accepted: Repo id must", "a//b"),
        (2, "has no checkpoint that it was made with; leave it out", "anna/came --model came"),
    ):
        fail(code, words, f"--output pulled --repo {source}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    fail(2, "HF_HUB_OFFLINE", "--output pulled --repo anna/came")
    assert not (work_folder / "pulled").exists() and list_leftovers(work_folder) == []


def test_a_manifest_cannot_name_files_outside(hub, work_folder, push, fail):
    push("came")
    for number, name in enumerate(("../outside", "/etc/outside", "a/../../outside")):
        change_file(hub, "anna/came", name, b"x")
        fail(4, "has a manifest.json that is damaged, or not made by moeir; expected", f"--repo anna/came --output deep/pulled{number}")
        assert not list(work_folder.rglob("outside")) and not (work_folder / "deep" / f"pulled{number}").exists()
        hub.repositories["anna/came"].commits.pop()


def test_what_is_larger_than_it_may_be_is_not_downloaded(hub, work_folder, push, fail, monkeypatch):
    push("came")
    hub.files("anna/came")["vocab.txt"] += b"x" * 1000
    fail(4, "vocab.txt has ", "--repo anna/came --output other")
    monkeypatch.setattr(hub_module, "MAX_MANIFEST_BYTES", 100)
    fail(4, "has a manifest.json that is damaged", "--repo anna/came --output other")
    assert list_downloads(hub, "vocab.txt") == [] and not (work_folder / "other").exists()


def test_what_exists_is_not_replaced_and_what_is_pulled_is_not_pulled_again(hub, work_folder, push, run, fail):
    push("came")
    run("pull --repo anna/came --output pulled")
    hub.requests.clear()
    assert "already pulled, anna/came@" in run("pull --repo anna/came --output pulled").stderr
    assert list_downloads(hub, "safetensors") == []
    (work_folder / "mine").mkdir()
    (work_folder / "mine" / "letter.txt").write_text("x")
    fail(2, "exists and was not made by moeir", "--repo anna/came --output mine")
    fail(2, "exists and was not made by moeir", "--repo anna/came --output mine --dry-run")
    assert "pulled exists; only the Hub knows whether it is up to date" in run("pull --repo anna/came --output pulled --dry-run").stdout
    first = hub.repositories["anna/came"].commit_name(1)
    run("push --input came --repo anna/came --license mit")
    fail(2, "other settings or sources (hub); --force replaces it", "--repo anna/came --output pulled")
    run("pull --repo anna/came --output pulled --force")
    assert "license: mit" in (work_folder / "pulled" / "README.md").read_text()
    run("push --input pulled --repo bob/came")
    one, other = (json.loads(hub.files(name)[MANIFEST]) for name in ("anna/came", "bob/came"))
    assert all(one[name] == other[name] for name in ("stage", "settings", "sources", "counts")), "it is the product that it was"
    assert "hub" not in other and "license: mit" in hub.files("bob/came")["README.md"].decode()
    run(f"pull --repo anna/came --revision {first} --output first")
    assert "license" not in (work_folder / "first" / "README.md").read_text()


def test_the_checkpoint_of_a_pulled_index_is_named_and_what_is_here_already_is_verified(work_folder, push, run, fail):
    push("idx")
    pull, search = "--repo anna/idx --output", "--index pulled --query mice --output"
    run(f"pull {pull} pulled")
    fail(4, "say where it is with --model", f"{search} a.trec", "search")
    run(f"search {search} b.trec --model came")
    fail(4, "expected a checkpoint, found encodings", f"{pull} x --model enc")
    assert "pulled: already pulled" in run(f"pull {pull} pulled --model came").stderr
    run(f"pull {pull} pulled --model came --force")
    run(f"search {search} run.trec")
    content = (work_folder / "pulled" / "ids.txt").read_bytes()
    (work_folder / "pulled" / "ids.txt").write_bytes(content.replace(b"owl", b"oil"))
    fail(4, "damaged: its checksum is not the one in the manifest; run moeir pull again with --force", f"{pull} pulled")
    (work_folder / "pulled" / MANIFEST).write_text("{")
    fail(2, "pulled: exists and was not made by moeir; move it away or choose another", f"{pull} pulled")
    (work_folder / "pulled").rename(work_folder / "damaged")
    run(f"pull {pull} pulled")
    same_content(work_folder / "idx", work_folder / "pulled")


def test_the_functions_return_the_address_and_the_product(hub, work_folder, push):
    assert package.push(input="came", repo="anna/came").startswith(f"{hub.address}/anna/came/commit/")
    push("idx")
    checkpoint = package.pull(repo="anna/came", output="pulled")
    assert repr(checkpoint).startswith("RetrievalModel(pulled: came")
    searcher = package.pull(repo="anna/idx", model=checkpoint, output="pulled-idx")
    assert searcher.search(["who hunts mice"], 1)[0]
