"""`moeir pull` from a stand-in for the Hub: products as they were, broken downloads, and restarts."""

import hashlib
import json
import shlex
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


@pytest.fixture
def folder(tmp_path, monkeypatch, toy, came_checkpoint, encodings, index, bm25_index):
    """A folder where commands run, with links to products and texts."""
    for name, path in {"came": came_checkpoint, "enc": encodings, "idx": index, "bm25": bm25_index, "toy": toy}.items():
        (tmp_path / name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_failure(result, code, words):
    """One line on stderr with the words and this exit code."""
    assert (result.code, result.stdout) == (code, ""), result.stderr
    *earlier, line = result.stderr.splitlines()
    assert line.startswith("error: ") and words in line, result.stderr
    assert all(one.startswith(("pulled ", "pulled: already", "dtype: ")) for one in earlier), result.stderr
    assert TOKEN not in result.stderr


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


def test_a_chain_of_products_is_pulled_as_it_was_and_searches_as_before(hub, folder, moeir, run):
    for name in ("came", "enc", "idx"):
        run(f"push --input {name} --repo anna/{name}")
    run("pull --repo anna/came --output pulled/came")
    run("pull --repo anna/enc --output pulled/enc --model pulled/came")
    run("pull --repo anna/idx --output pulled/idx --model pulled/came")
    for name in ("came", "enc", "idx"):
        same_content(folder / name, folder / "pulled" / name)
        manifest = json.loads((folder / "pulled" / name / MANIFEST).read_text())
        assert manifest["stage"] == json.loads((folder / name / MANIFEST).read_text())["stage"]
        assert manifest["hub"].startswith(f"anna/{name}@")
    search = "--queries toy/test-queries.tsv --dtype float32 --output"
    run(f"search --index idx {search} before.trec")
    run(f"search --index pulled/idx {search} after.trec")  # finds the checkpoint that --model named
    run("index --encodings pulled/enc --output again")
    run(f"search --index again {search} indexed.trec")
    assert Path("before.trec").read_bytes() == Path("after.trec").read_bytes() == Path("indexed.trec").read_bytes()
    assert list_leftovers(folder / "pulled") == []


def test_shards_are_pulled_one_by_one(hub, folder, run, moeir, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 4)
    for number in range(3):
        run(f"encode --model came --corpus toy/corpus.jsonl --dtype float32 --shard {number}/3 --output shards")
    run("push --input shards --repo anna/shards")
    hub.fail("GET", "1-of-3/ids.txt", "close", RETRY)
    check_failure(moeir("pull", "--repo", "anna/shards", "--output", "pulled"), 1, "run the same command again")
    assert (folder / "pulled" / "0-of-3").exists() and not (folder / "pulled" / "1-of-3").exists()
    check_failure(moeir("index", "--encodings", "pulled", "--output", "x"), 4, "or unfinished; the same moeir pull command makes it")
    hub.faults.clear()
    run("pull --repo anna/shards --output pulled --model came")
    for number in range(3):
        same_content(folder / "shards" / f"{number}-of-3", folder / "pulled" / f"{number}-of-3")
    run("index --encodings pulled --output idx-of-shards")


def test_runs_are_pulled_as_a_folder(hub, folder, run, moeir):
    run("search --index idx --queries toy/test-queries.tsv --output runs")
    run("search --index bm25 --queries toy/test-queries.tsv --output bm25.trec")
    run("search --index bm25 --queries toy/test-queries.tsv --output bm25.trec.gz")
    for name in ("runs", "bm25.trec", "bm25.trec.gz"):
        run(f"push --input {name} --repo anna/{name} --qrels toy/test-qrels.tsv")
        run(f"pull --repo anna/{name} --output pulled/{name}")
    same_content(folder / "runs", folder / "pulled" / "runs")
    assert Path("bm25.trec").read_bytes() == Path("pulled/bm25.trec/run.trec").read_bytes()
    assert moeir("evaluate", "--run", "pulled/bm25.trec.gz/run.trec.gz", "--qrels", "toy/test-qrels.tsv").code == 0


FAULTS = {  # method, path, kind of a fault; exit code and words
    "the weights break off": ("GET", "/model.safetensors", "close", 1, "the Hub or the connection failed"),
    "the Hub is down": ("GET", "/api/models/", 500, 1, "failed (Server error '500"),
    "a file is gone": ("HEAD", "vocab.txt", 404, 4, "404"),
    "a byte flips in the weights": ("GET", "/model.safetensors", "flip", 4, "model.safetensors is not the file of its manifest"),
    "a byte flips in the manifest": ("GET", "manifest.json", "flip", 4, "error: anna/came: has a manifest.json that is damaged"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_pull_that_fails_leaves_no_product_and_the_same_command_again_succeeds(name, hub, folder, run, moeir):
    method, path, kind, code, words = FAULTS[name]
    run("push --input came --repo anna/came")
    hub.fail(method, path, kind, 1 if kind == "flip" else RETRY)
    command = ("pull", "--repo", "anna/came", "--output", "pulled")
    check_failure(moeir(*command), code, words)
    assert not (folder / "pulled").exists()
    result = moeir("info", "pulled")
    assert result.code == 4
    done = [request for request in hub.requests if request.startswith("GET") and "config.json" in request]
    assert not done or "unfinished: run the same pull command again to continue" in result.stderr
    hub.faults.clear()
    hub.requests.clear()
    assert moeir(*command).code == 0
    same_content(folder / "came", folder / "pulled")
    if done:  # what came through is not downloaded again
        assert not [request for request in hub.requests if request.startswith("GET") and "config.json" in request]
    assert list_leftovers(folder) == []


def test_a_pull_that_is_stopped_goes_on_and_a_new_commit_in_between_is_noticed(hub, folder, run, moeir, monkeypatch):
    run("push --input came --repo anna/came")
    download = hub_module.hf_hub_download

    def stop_at_the_weights(repository, name, **options):
        if name == "model.safetensors":
            raise KeyboardInterrupt
        return download(repository, name, **options)

    monkeypatch.setattr(hub_module, "hf_hub_download", stop_at_the_weights)
    for output in ("first", "second"):
        assert moeir("pull", "--repo", "anna/came", "--output", output).code == 130
        assert not (folder / output).exists()
    run("pull --repo anna/came --output first --dry-run")
    monkeypatch.setattr(hub_module, "hf_hub_download", download)
    hub.requests.clear()
    run("pull --repo anna/came --output first")
    assert not [request for request in hub.requests if request.startswith("GET") and "config.json" in request]
    same_content(folder / "came", folder / "first")
    run("push --input came --repo anna/came --license mit")
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "second"), 2, "unfinished work of other settings (hub)")
    run("pull --repo anna/came --output second --force")
    assert list_leftovers(folder) == []


def test_what_is_no_product_is_refused_in_one_line(hub, folder, run, moeir, monkeypatch):
    run("push --input came --repo anna/came")
    hub.repositories["anna/bert"] = StoredRepository(False)
    hub.files("anna/bert")["config.json"] = b"{}"
    pull = ("pull", "--output", "pulled", "--repo")
    check_failure(moeir(*pull, "anna/none"), 4, "anna/none: not accepted: ")
    check_failure(moeir(*pull, "anna/came", "--revision", "v9"), 4, "404")
    check_failure(moeir(*pull, "anna/bert"), 4, "anna/bert: has no manifest.json; expected a repository that moeir push made")
    manifest = json.loads(hub.files("anna/came")[MANIFEST]) | {"format": 9}
    hub.repositories["anna/other"] = StoredRepository(False)
    hub.files("anna/other")[MANIFEST] = manifests.serialize_manifest(manifest).encode()
    check_failure(moeir(*pull, "anna/other"), 4, "a checkpoint of format 9")
    hub.files("anna/other")[MANIFEST] = b"{}"
    check_failure(moeir(*pull, "anna/other"), 4, "has a manifest.json that is damaged, or not made by moeir")
    check_failure(moeir(*pull, "a b"), 2, "a b: not accepted: Repo id must")
    check_failure(moeir(*pull, "anna/came", "--model", "came"), 2, "has no checkpoint that it was made with; leave it out")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_failure(moeir(*pull, "anna/came"), 2, "HF_HUB_OFFLINE")
    assert not (folder / "pulled").exists() and list_leftovers(folder) == []


def test_a_manifest_cannot_name_files_outside(hub, folder, run, moeir):
    run("push --input came --repo anna/came")
    for number, name in enumerate(("../outside", "/etc/outside", "a/../../outside")):
        change_file(hub, "anna/came", name, b"x")
        result = moeir("pull", "--repo", "anna/came", "--output", f"deep/pulled{number}")
        assert result.code == 4 and "has a manifest.json that is damaged, or not made by moeir; expected" in result.stderr
        assert not list(folder.rglob("outside")) and not (folder / "deep" / f"pulled{number}").exists()
        hub.repositories["anna/came"].commits.pop()


def test_what_exists_is_not_replaced_and_what_is_pulled_is_not_pulled_again(hub, folder, run, moeir):
    run("push --input came --repo anna/came")
    run("pull --repo anna/came --output pulled")
    hub.requests.clear()
    assert "already pulled, anna/came@" in run("pull --repo anna/came --output pulled").stderr
    assert not [request for request in hub.requests if "safetensors" in request]
    (folder / "mine").mkdir()
    (folder / "mine" / "letter.txt").write_text("x")
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "mine"), 2, "exists and was not made by moeir")
    first = hub.repositories["anna/came"].commit_name(1)
    run("push --input came --repo anna/came --license mit")
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "pulled"), 2, "other settings or sources (hub); --force replaces it")
    run("pull --repo anna/came --output pulled --force")
    assert "license: mit" in (folder / "pulled" / "README.md").read_text()
    run(f"pull --repo anna/came --revision {first} --output first")
    assert "license" not in (folder / "first" / "README.md").read_text()


def test_the_checkpoint_of_a_pulled_index_is_named_and_what_is_here_already_is_verified(hub, folder, run, moeir):
    run("push --input idx --repo anna/idx")
    run("pull --repo anna/idx --output pulled")
    pull, search = ("pull", "--repo", "anna/idx", "--output", "pulled"), "search --index pulled --query mice --output"
    check_failure(moeir(*search.split(), "a.trec"), 4, "say where it is with --model")
    run(f"{search} b.trec --model came")
    check_failure(moeir(*pull[:-1], "x", "--model", "enc"), 4, "expected a checkpoint, found encodings")
    assert "pulled: already pulled" in run(f"{shlex.join(pull)} --model came").stderr
    run("pull --repo anna/idx --output pulled --model came --force")
    run(f"{search} run.trec")
    content = (folder / "pulled" / "ids.txt").read_bytes()
    (folder / "pulled" / "ids.txt").write_bytes(content.replace(b"owl", b"oil"))
    check_failure(moeir(*pull), 4, "damaged: its checksum is not the one in the manifest; run moeir pull again with --force")
    (folder / "pulled" / MANIFEST).write_text("{")
    check_failure(moeir(*pull), 2, "pulled: exists and was not made by moeir; move it away or choose another")
    (folder / "pulled").rename(folder / "damaged")
    run("pull --repo anna/idx --output pulled")
    same_content(folder / "idx", folder / "pulled")


def test_what_was_pulled_is_pushed_as_the_product_that_it_was(hub, folder, run):
    run("push --input came --repo anna/came --license mit")
    run("pull --repo anna/came --output pulled")
    run("push --input pulled --repo bob/came")
    one, other = (json.loads(hub.files(name)[MANIFEST]) for name in ("anna/came", "bob/came"))
    assert {name: one[name] for name in ("stage", "settings", "sources", "counts")} == {
        name: other[name] for name in ("stage", "settings", "sources", "counts")
    }
    assert "hub" not in other and "license: mit" in hub.files("bob/came")["README.md"].decode()


def test_the_functions_return_the_address_and_the_product(hub, folder):
    assert package.push(input="came", repo="anna/came").startswith(f"{hub.address}/anna/came/commit/")
    package.push(input="idx", repo="anna/idx")
    checkpoint = package.pull(repo="anna/came", output="pulled")
    assert repr(checkpoint).startswith("RetrievalModel(pulled: came")
    searcher = package.pull(repo="anna/idx", model=checkpoint, output="pulled-idx")
    assert searcher.search(["who hunts mice"], 1)[0]


def test_what_is_larger_than_it_may_be_is_not_downloaded(hub, folder, run, moeir, monkeypatch):
    run("push --input came --repo anna/came")
    hub.files("anna/came")["vocab.txt"] += b"x" * 1000
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "other"), 4, "vocab.txt has ")
    monkeypatch.setattr(hub_module, "MAX_MANIFEST_BYTES", 100)
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "other"), 4, "has a manifest.json that is damaged")
    assert not [request for request in hub.requests if "vocab.txt" in request] and not (folder / "other").exists()


def test_a_part_of_a_set_of_shards_or_two_sets_are_not_pulled(hub, folder, run, moeir, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 4)
    for number in range(2):
        run(f"encode --model came --corpus toy/corpus.jsonl --shard {number}/2 --output shards")
    run("push --input shards --repo anna/shards")
    whole, pull = dict(hub.files("anna/shards")), ("pull", "--repo", "anna/shards", "--output", "pulled")
    repository = hub.repositories["anna/shards"]
    first = {name: content for name, content in whole.items() if not name.startswith("1-of-2/")}
    odd = {name.replace("1-of-2", "5-of-2"): content for name, content in whole.items()}
    mixed = whole | {name.replace("0-of-2", "0-of-1"): content for name, content in whole.items()}
    for files in (first, odd, mixed):
        repository.commits.append(files)
        check_failure(moeir(*pull), 4, "expected one whole set; push the folder of all shards again")
    assert not (folder / "pulled").exists()
    repository.commits.append(whole)
    run("encode --model came --corpus toy/corpus.jsonl --shard 0/3 --output pulled")
    check_failure(moeir(*pull), 2, "has 0-of-3, which is no part of anna/shards; name another folder")
