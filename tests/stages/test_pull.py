"""`moeir pull` from a stand-in for the Hub: products as they were, broken downloads, restarts, and what --verify compares."""

import hashlib
import json
import shlex
from pathlib import Path

import pytest

import moeir as package
from moeir import hub as hub_module
from moeir.artifacts import manifests
from moeir.artifacts.manifests import MANIFEST
from tests.hub_server import TOKEN, StandIn, StoredRepository
from tests.stage_scenarios import list_leftovers

RETRY = 10  # requests after which the client has given up
SCORED = "texts scored again, largest difference over the largest score: "
REWRITTEN = {"README.md", "settings.yaml", MANIFEST}


@pytest.fixture
def folder(tmp_path, monkeypatch, toy, came_checkpoint, encodings, index, bm25_index):
    """A folder where commands run, with links to products and texts."""
    for name, path in {"came": came_checkpoint, "enc": encodings, "idx": index, "bm25": bm25_index, "toy": toy}.items():
        (tmp_path / name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_failure(result, code: int, words: str) -> None:
    """One line on stderr with the words and this exit code."""
    assert (result.code, result.stdout) == (code, ""), result.stderr
    *earlier, line = result.stderr.splitlines()
    assert line.startswith("error: ") and words in line, result.stderr
    assert all(one.startswith(("pulled ", "pulled: already", "dtype: ")) for one in earlier), result.stderr
    assert TOKEN not in result.stderr


def same_content(one: Path, other: Path) -> None:
    """The files of two products are the same but for those that push rewrites."""
    manifest = json.loads((one / MANIFEST).read_text())
    for name in manifest["files"].keys() - REWRITTEN:
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert manifest["files"].keys() == json.loads((other / MANIFEST).read_text())["files"].keys()


def change_file(hub: StandIn, repository: str, name: str, content: bytes) -> None:
    """Change a file on the Hub, in a product under a manifest that is right again: what another version or person would have uploaded."""
    files = dict(hub.files(repository)) | {name: content}
    if not name.startswith("verification/"):
        manifest = json.loads(files[MANIFEST])
        manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        files[MANIFEST] = manifests.serialize_manifest(manifest).encode()
    hub.repositories[repository].commits.append(files)


def test_a_chain_of_products_is_pulled_as_it_was_and_searches_as_before(hub, folder, moeir, run):
    for name, corpus in (("came", "--corpus toy/corpus.jsonl"), ("enc", ""), ("idx", "--corpus toy/corpus.jsonl")):
        run(f"push --input {name} --repo anna/{name} {corpus}")
    assert "global 0, lexical 0, local 0" in run("pull --repo anna/came --output pulled/came --verify").stderr
    run("pull --repo anna/enc --output pulled/enc --model pulled/came")
    assert SCORED in run("pull --repo anna/idx --output pulled/idx --model pulled/came --verify").stderr
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


def test_runs_are_pulled_as_a_folder_or_a_file(hub, folder, run, moeir):
    run("search --index idx --queries toy/test-queries.tsv --output runs")
    run("search --index bm25 --queries toy/test-queries.tsv --output bm25.trec")
    run("search --index bm25 --queries toy/test-queries.tsv --output bm25.trec.gz")
    for name in ("runs", "bm25.trec", "bm25.trec.gz"):
        run(f"push --input {name} --repo anna/{name} --qrels toy/test-qrels.tsv")
        run(f"pull --repo anna/{name} --output pulled-{name}")
    same_content(folder / "runs", folder / "pulled-runs")
    assert Path("bm25.trec").read_bytes() == Path("pulled-bm25.trec").read_bytes()
    assert moeir("evaluate", "--run", "pulled-bm25.trec.gz", "--qrels", "toy/test-qrels.tsv").code == 0
    run("pull --repo anna/bm25.trec --output a-folder")
    for repository, output in (("runs", "out.trec"), ("bm25.trec.gz", "out.trec"), ("bm25.trec", "out.trec.gz")):
        check_failure(moeir("pull", "--repo", f"anna/{repository}", "--output", output), 2, "name a folder, or a file with the suffix")


def test_checkpoints_of_every_kind_compute_what_they_computed(hub, folder, run, tiny_model_with_head, moeir):
    for number, arch in enumerate(("cross-encoder", "dense:encoders=separate")):
        run(f"init --model {tiny_model_with_head} --arch {arch} --document-length 20 --query-length 12 --output ckpt{number}")
        run(f"push --input ckpt{number} --repo anna/ckpt --corpus toy/corpus.jsonl --seed 7")
        report = run(f"pull --repo anna/ckpt --output pulled{number} --verify").stderr
        assert " 0\n" in report and SCORED in report, report


def test_other_vectors_and_lists_are_errors_with_the_largest_difference(hub, folder, run, moeir):
    run("push --input came --repo anna/came --corpus toy/corpus.jsonl")
    lists = hub.files("anna/came")["verification/global.trec"].decode()
    for factor, code in ((1.0005, 0), (1.01, 4)):
        rows = [line.split() for line in lists.splitlines()]
        changed = "".join(f"{' '.join(row[:4])} {float(row[4]) * factor:.9g} x\n" for row in rows)
        change_file(hub, "anna/came", "verification/global.trec", changed.encode())
        result = moeir("pull", "--repo", "anna/came", "--output", f"came{code}", "--verify")
        assert result.code == code
    check_failure(result, 4, "came4: the scores of the sample differ from those of the upload by 0.0")
    assert "(global), expected at most 0.001" in result.stderr
    run("push --input bm25 --repo anna/bm25 --corpus toy/corpus.jsonl")
    run("pull --repo anna/bm25 --output pulled-bm25 --verify")
    change_file(hub, "anna/bm25", "verification/bm25.trec", hub.files("anna/bm25")["verification/bm25.trec"].split(b"\n", 1)[1])
    assert "differ from those of the upload by inf (bm25)" in moeir("pull", "--repo", "anna/bm25", "--output", "b", "--verify").stderr


def test_a_repository_without_a_sample_is_pulled_and_cannot_be_verified(hub, folder, run, moeir):
    run("push --input enc --repo anna/enc")
    result = moeir("pull", "--repo", "anna/enc", "--output", "pulled-enc", "--verify")
    assert result.code == 4 and "anna/enc: has no sample to verify; moeir push publishes one" in result.stderr
    same_content(folder / "enc", folder / "pulled-enc")


FAULTS = {  # method, path, kind of a fault; exit code and words
    "the weights break off": ("GET", "/elsewhere/", "close", 1, "the Hub or the connection failed"),
    "the Hub is down": ("GET", "/api/models/", 500, 1, "failed (Server error '500"),
    "a file is gone": ("HEAD", "vocab.txt", 404, 4, "(404)"),
    "a byte flips in the weights": ("GET", "/elsewhere/", "flip", 4, "model.safetensors is not the file of its manifest"),
    "a byte flips in the manifest": ("GET", "manifest.json", "flip", 4, "error: anna/came: manifest.json: damaged"),
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
    assert hub.tokens_elsewhere == []
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
    check_failure(moeir(*pull, "anna/none"), 4, "anna/none: no such repository, revision or file on the Hub (404)")
    check_failure(moeir(*pull, "anna/came", "--revision", "v9"), 4, "(404)")
    check_failure(moeir(*pull, "anna/bert"), 4, "anna/bert: has no manifest.json; expected a repository that moeir push made")
    none = "has no checkpoint, encodings, index, run"
    for change, words in (({"kind": "tea"}, none), ({"format": 9}, "a checkpoint of format 9")):
        manifest = json.loads(hub.files("anna/came")[MANIFEST]) | change
        hub.repositories["anna/other"] = StoredRepository(False)
        hub.files("anna/other")[MANIFEST] = manifests.serialize_manifest(manifest).encode()
        check_failure(moeir(*pull, "anna/other"), 4, words)
    for name in ("stage", "settings", "sources"):
        manifest = json.loads(hub.files("anna/came")[MANIFEST])
        del manifest[name]
        hub.files("anna/other")[MANIFEST] = manifests.serialize_manifest(manifest).encode()
        check_failure(moeir(*pull, "anna/other"), 4, none)
    check_failure(moeir(*pull, "a b"), 2, "--repo a b: not accepted: Repo id must")
    check_failure(moeir(*pull, "anna/came", "--model", "came"), 2, "has no checkpoint that it was made with; leave it out")
    with monkeypatch.context() as patch:
        patch.setenv("HF_TOKEN", "t\u00f6k\u0435n")
        check_failure(moeir(*pull, "anna/came"), 2, "HF_TOKEN: has a character that no token has")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_failure(moeir(*pull, "anna/came"), 2, "HF_HUB_OFFLINE")
    assert not (folder / "pulled").exists() and list_leftovers(folder) == []


def test_a_manifest_cannot_name_files_outside(hub, folder, run, moeir):
    run("push --input came --repo anna/came")
    for number, name in enumerate(("../outside", "/etc/outside", "a/../../outside")):
        change_file(hub, "anna/came", name, b"x")
        result = moeir("pull", "--repo", "anna/came", "--output", f"deep/pulled{number}")
        assert result.code == 4 and f"has no {name}; expected a repository that moeir push made" in result.stderr
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


def test_another_sample_than_push_makes_is_one_line_that_names_the_repository(hub, folder, run, moeir):
    run("push --input bm25 --repo anna/bm25 --corpus toy/corpus.jsonl")
    run("pull --repo anna/bm25 --output pulled")
    first, lists = dict(hub.files("anna/bm25")), b"owl Q0 owl 1 1 x\n"
    many = "".join(f'{{"_id": "d{number}", "text": "an owl"}}\n' for number in range(257)).encode()
    cases = [
        ({"other.trec": lists}, "anna/bm25: verification: has lists of bm25, other, expected lists of bm25"),
        ({"bm25.trec": None}, "anna/bm25: verification: has lists of no expert"),
        ({"bm25.trec": b""}, "anna/bm25: verification/bm25.trec: holds no line"),
        ({"texts.jsonl": b"{"}, "anna/bm25: verification/texts.jsonl:1: "),
        ({"texts.jsonl": many}, "anna/bm25: verification/texts.jsonl: expected at most 256 texts"),
    ]
    for files, words in cases:
        changed = first | {f"verification/{name}": content for name, content in files.items()}
        hub.repositories["anna/bm25"].commits.append({name: content for name, content in changed.items() if content is not None})
        run("pull --repo anna/bm25 --output pulled --force")
        check_failure(moeir("pull", "--repo", "anna/bm25", "--output", "pulled", "--verify"), 4, words)


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
    run("push --input came --repo anna/came --corpus toy/corpus.jsonl")
    run("pull --repo anna/came --output pulled")
    monkeypatch.setattr(hub_module, "MAX_BYTES", 50_000)
    change_file(hub, "anna/came", "verification/texts.jsonl", b"x" * 100_000)
    run("pull --repo anna/came --output pulled --force")
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "pulled", "--verify"), 4, "texts.jsonl has 100,000 bytes, expected at")
    hub.files("anna/came")["vocab.txt"] += b"x" * 1000
    hub.requests.clear()
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "other"), 4, "vocab.txt has ")
    monkeypatch.setattr(hub_module, "MAX_BYTES", 100)
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "other"), 4, "manifest.json has ")
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
    for files in (first, odd, mixed, whole | {"manifest.json": whole["0-of-2/manifest.json"]}):
        repository.commits.append(files)
        check_failure(moeir(*pull), 4, "expected one whole set and nothing else; push the folder of all shards again")
    other = json.loads(whole["1-of-2/manifest.json"])
    other["settings"]["terms"] = 3
    repository.commits.append(whole | {"1-of-2/manifest.json": manifests.serialize_manifest(other).encode()})
    check_failure(moeir(*pull), 4, "1-of-2 and 0-of-2 were made with other settings or sources")
    assert not (folder / "pulled").exists()
    repository.commits.append(whole)
    run("encode --model came --corpus toy/corpus.jsonl --shard 0/3 --output pulled")
    check_failure(moeir(*pull), 2, "has 0-of-3, which is no part of anna/shards; name another folder")
