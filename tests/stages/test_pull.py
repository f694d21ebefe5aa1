"""`moeir pull` from a stand-in for the Hub: products as they were, broken downloads, restarts, and what --verify compares."""

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import moeir as package
from moeir import hub as hub_module
from moeir.artifacts import manifests
from moeir.artifacts.manifests import MANIFEST
from tests.conftest import run_in_subprocess
from tests.hub_server import TOKEN, StandIn, StoredRepository
from tests.stage_scenarios import list_leftovers

RETRY = 10  # requests after which the client has given up
REWRITTEN = {"README.md", "settings.yaml", MANIFEST}


@pytest.fixture
def room(tmp_path, monkeypatch, toy, came_checkpoint, encodings, index, bm25_index):
    """A folder where commands run, with links to products and texts."""
    for name, path in {"came": came_checkpoint, "enc": encodings, "idx": index, "bm25": bm25_index, "toy": toy}.items():
        (tmp_path / name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(moeir) -> Callable[..., str]:
    """`run(command)` runs a command line that must succeed, and returns what it logs."""

    def run_command(command: str) -> str:
        result = moeir(*shlex.split(command))
        assert result.code == 0, result.stderr
        return result.stderr

    return run_command


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
    """Change a file on the Hub under a manifest that is right again: what another version or another person would have uploaded."""
    files = dict(hub.files(repository))
    prefix = "verification/" if name.startswith("verification/") else ""
    manifest = json.loads(files[f"{prefix}{MANIFEST}"])
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"][name.removeprefix(prefix)] = {"bytes": len(content), "sha256": digest}
    files |= {name: content, f"{prefix}{MANIFEST}": manifests.serialize_manifest(manifest).encode()}
    hub.blobs[digest] = content
    hub.repositories[repository].commits.append(files)


def test_a_chain_of_products_is_pulled_as_it_was_and_searches_as_before(hub, room, moeir, run):
    for name in ("came", "enc", "idx"):
        run(f"push --input {name} --repo anna/{name} --corpus toy/corpus.jsonl")
    assert "global 0, lexical 0, local 0" in run("pull --repo anna/came --output pulled/came --verify")
    report = run("pull --repo anna/enc --output pulled/enc --model pulled/came --verify")
    assert all(float(value) < 1e-3 for value in re.findall(r"(?:global|lexical|local) ([\d.e-]+)", report)), report  # stored in float16
    assert "12 texts again" in run("pull --repo anna/idx --output pulled/idx --model pulled/came --verify")
    for name in ("came", "enc", "idx"):
        same_content(room / name, room / "pulled" / name)
        manifest = json.loads((room / "pulled" / name / MANIFEST).read_text())
        assert manifest["stage"] == json.loads((room / name / MANIFEST).read_text())["stage"]
        assert manifest["hub"].startswith(f"anna/{name}@")
    search = "--queries toy/test-queries.tsv --dtype float32 --output"
    run(f"search --index idx {search} before.trec")
    run(f"search --index pulled/idx {search} after.trec")  # finds the checkpoint that --model named
    run("index --encodings pulled/enc --output again")
    run(f"search --index again {search} indexed.trec")
    assert Path("before.trec").read_bytes() == Path("after.trec").read_bytes() == Path("indexed.trec").read_bytes()
    assert list_leftovers(room / "pulled") == []


def test_without_a_model_the_chain_is_said_to_need_one(hub, room, moeir, run):
    run("push --input idx --repo anna/idx")
    run("pull --repo anna/idx --output pulled")
    search = "search --index pulled --queries toy/test-queries.tsv --output"
    check_failure(moeir(*search.split(), "a.trec"), 4, "say where it is with --model")
    run(f"{search} b.trec --model came")
    check_failure(moeir("pull", "--repo", "anna/idx", "--output", "x", "--model", "enc"), 4, "expected a checkpoint, found encodings")


def test_shards_are_pulled_one_by_one(hub, room, run, moeir, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 4)
    for number in range(3):
        run(f"encode --model came --corpus toy/corpus.jsonl --dtype float32 --shard {number}/3 --output shards")
    run("push --input shards --repo anna/shards --corpus toy/corpus.jsonl")
    hub.fail("GET", "1-of-3/ids.txt", "close", RETRY)
    check_failure(moeir("pull", "--repo", "anna/shards", "--output", "pulled"), 1, "run the same command again")
    assert (room / "pulled" / "0-of-3").exists() and not (room / "pulled" / "1-of-3").exists()
    check_failure(moeir("index", "--encodings", "pulled", "--output", "x"), 4, "or unfinished; the same moeir pull command makes it")
    hub.faults.clear()
    assert "12 texts again" in run("pull --repo anna/shards --output pulled --model came --verify")
    for number in range(3):
        same_content(room / "shards" / f"{number}-of-3", room / "pulled" / f"{number}-of-3")
    run("index --encodings pulled --output idx-of-shards")


def test_runs_are_pulled_as_a_folder_or_a_file_and_scored_again(hub, room, run, moeir):
    run("search --index idx --queries toy/test-queries.tsv --output runs")
    run("search --index bm25 --queries toy/test-queries.tsv --output bm25.trec")
    run("search --index bm25 --queries toy/test-queries.tsv --output bm25.trec.gz")
    for name in ("runs", "bm25.trec", "bm25.trec.gz"):
        run(f"push --input {name} --repo anna/{name} --qrels toy/test-qrels.tsv")
        report = run(f"pull --repo anna/{name} --output pulled-{name} --verify")
        assert ("4 runs" if name == "runs" else "1 run") + " scored again, largest difference of a mean: 0" in report
    same_content(room / "runs", room / "pulled-runs")
    assert Path("bm25.trec").read_bytes() == Path("pulled-bm25.trec").read_bytes()
    assert moeir("evaluate", "--run", "pulled-bm25.trec.gz", "--qrels", "toy/test-qrels.tsv").code == 0
    run("pull --repo anna/bm25.trec --output a-folder --verify")
    for repository, output in (("runs", "out.trec"), ("bm25.trec.gz", "out.trec"), ("bm25.trec", "out.trec.gz")):
        check_failure(moeir("pull", "--repo", f"anna/{repository}", "--output", output), 2, "name a folder, or a file with the suffix")


def test_checkpoints_of_every_kind_compute_what_they_computed(hub, room, run, tiny_model_with_head, moeir):
    for number, arch in enumerate(("cross-encoder", "splade", "coil", "dense:encoders=separate", "sbmoe:experts=2")):
        run(f"init --model {tiny_model_with_head} --arch {arch} --document-length 20 --query-length 12 --output ckpt{number}")
        run(f"push --input ckpt{number} --repo anna/ckpt --corpus toy/corpus.jsonl --seed 7")
        report = run(f"pull --repo anna/ckpt --output pulled{number} --verify")
        assert " 0\n" in report and "12 texts again" in report, report


def test_encodings_in_half_precision_and_shortened_are_compared_as_they_are_stored(hub, room, run):
    run("encode --model came --corpus toy/corpus.jsonl --terms 3 --pool-factor 2 --dtype bfloat16 --output short")
    run("push --input short --repo anna/short --corpus toy/corpus.jsonl")
    report = run("pull --repo anna/short --output pulled --model came --verify")
    assert all(float(value) < 2e-3 for value in re.findall(r"(?:global|lexical|local) ([\d.e-]+)", report)), report  # stored in float16


def test_other_vectors_lists_and_measures_are_errors_with_the_largest_difference(hub, room, run, moeir):
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
    (room / "added.jsonl").write_text('{"_id": "cat", "text": "A cat."}\n{"_id": "heron", "text": "A heron fishes."}\n')
    (room / "cat.txt").write_text("cat\n")
    run("index --index bm25 --delete cat.txt --add added.jsonl --output updated")
    run("push --input updated --repo anna/updated --corpus toy/corpus.jsonl added.jsonl")
    assert b"A cat." in hub.files("anna/updated")["verification/texts.jsonl"] and b"heron" in hub.files("anna/updated")["ids.txt"]
    run("pull --repo anna/updated --output pulled-updated --verify")
    change_file(hub, "anna/bm25", "verification/bm25.trec", hub.files("anna/bm25")["verification/bm25.trec"].split(b"\n", 1)[1])
    assert "differ from those of the upload by inf (bm25)" in moeir("pull", "--repo", "anna/bm25", "--output", "b", "--verify").stderr
    run("search --index bm25 --queries toy/test-queries.tsv --output bm25.trec")
    run("push --input bm25.trec --repo anna/run --qrels toy/test-qrels.tsv --measure RR")
    judgements = hub.files("anna/run")["verification/qrels.tsv"]
    change_file(hub, "anna/run", "verification/qrels.tsv", judgements.replace(b" 1\n", b" 0\n"))
    result = moeir("pull", "--repo", "anna/run", "--output", "c.trec", "--verify")
    check_failure(result, 4, "c.trec: the measures of the runs differ from those of the upload by ")
    assert "(RR of run), expected at most 1e-06" in result.stderr


def test_a_repository_without_a_sample_is_pulled_and_cannot_be_verified(hub, room, run, moeir):
    run("push --input enc --repo anna/enc")
    result = moeir("pull", "--repo", "anna/enc", "--output", "pulled", "--verify")
    assert result.code == 4 and "anna/enc: has no sample to verify; moeir push publishes one" in result.stderr
    same_content(room / "enc", room / "pulled")


def test_a_download_that_breaks_off_goes_on_within_the_file(hub, room, run):
    run("push --input came --repo anna/came")
    hub.fail("GET", "/elsewhere/", "close", 3)
    run("pull --repo anna/came --output pulled")
    same_content(room / "came", room / "pulled")
    assert hub.tokens_elsewhere == []


FAULTS = {  # method, path, kind of a fault; exit code and words
    "the weights break off": ("GET", "/elsewhere/", "close", 1, "the Hub or the connection failed"),
    "a text file breaks off": ("GET", "/resolve/.*vocab.txt", "close", 1, "run the same command again to continue"),
    "the Hub is down": ("GET", "/api/models/", 500, 1, "failed (Server error '500"),
    "a file fails": ("HEAD", "vocab.txt", 503, 1, "run the same command again to continue"),
    "a file is gone": ("HEAD", "vocab.txt", 404, 4, "(404)"),
    "access is lost": ("HEAD", "vocab.txt", 401, 2, "the Hub refuses access (401)"),
    "a byte flips in the weights": ("GET", "/elsewhere/", "flip", 4, "model.safetensors is not the file of its manifest"),
    "a byte flips in a text file": ("GET", "vocab.txt", "flip", 4, "vocab.txt is not the file of its manifest"),
    "a byte flips in the manifest": ("GET", "manifest.json", "flip", 4, "error: anna/came: manifest.json: damaged"),
    "the Hub is silent": ("GET", "/api/models/", "silent", 1, "the Hub or the connection failed (timed out)"),
    "a page answers": ("GET", "/api/models/", b"<html>", 1, "the Hub answered in another form than JSON"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_pull_that_fails_leaves_no_product_and_the_same_command_again_succeeds(name, hub, room, run, moeir, monkeypatch):
    method, path, kind, code, words = FAULTS[name]
    run("push --input came --repo anna/came")
    hub.fail(method, path, kind, 1 if kind == "flip" or isinstance(kind, bytes) else RETRY)
    command = ("pull", "--repo", "anna/came", "--output", "pulled")
    with monkeypatch.context() as patch:
        if kind == "silent":
            patch.setattr("moeir.hub.SECONDS_OF_SILENCE", 2.0)
        check_failure(moeir(*command), code, words)
    assert not (room / "pulled").exists()
    result = moeir("info", "pulled")
    assert result.code == 4
    done = [request for request in hub.requests if request.startswith("GET") and "config.json" in request]
    assert not done or "unfinished: run the same pull command again to continue" in result.stderr
    hub.faults.clear()
    hub.requests.clear()
    assert moeir(*command).code == 0
    same_content(room / "came", room / "pulled")
    if done:  # what came through is not downloaded again
        assert not [request for request in hub.requests if request.startswith("GET") and "config.json" in request]
    assert list_leftovers(room) == []


def test_a_pull_that_is_stopped_goes_on_and_a_new_commit_in_between_is_noticed(hub, room, run, moeir, monkeypatch):
    run("push --input came --repo anna/came")
    download = hub_module.hf_hub_download

    def stop_at_the_weights(repository, name, **options):
        if name == "model.safetensors":
            raise KeyboardInterrupt
        return download(repository, name, **options)

    monkeypatch.setattr(hub_module, "hf_hub_download", stop_at_the_weights)
    for output in ("first", "second"):
        assert moeir("pull", "--repo", "anna/came", "--output", output).code == 130
        assert not (room / output).exists()
    monkeypatch.setattr(hub_module, "hf_hub_download", download)
    hub.requests.clear()
    run("pull --repo anna/came --output first")
    assert not [request for request in hub.requests if request.startswith("GET") and "config.json" in request]
    same_content(room / "came", room / "first")
    run("push --input came --repo anna/came --license mit")
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "second"), 2, "unfinished work of other settings (hub)")
    run("pull --repo anna/came --output second --force")
    assert list_leftovers(room) == []


def test_what_is_no_product_is_refused_in_one_line(hub, room, run, moeir, monkeypatch):
    run("push --input came --repo anna/came")
    hub.repositories["anna/bert"] = StoredRepository(False)
    hub.files("anna/bert")["config.json"] = b"{}"
    pull = ("pull", "--output", "pulled", "--repo")
    check_failure(moeir(*pull, "anna/none"), 4, "anna/none: no such repository, revision or file on the Hub (404)")
    check_failure(moeir(*pull, "anna/came", "--revision", "v9"), 4, "(404)")
    check_failure(moeir(*pull, "anna/bert"), 4, "anna/bert: has no manifest.json; expected a repository that moeir push made")
    none = "has no checkpoint, encodings, index, run"
    odd: list[dict[str, object]] = [{"files": {}}, {"settings": "x"}, {"versions": 5}, {"stage": 7}]
    odd += [{"counts": {"checkpoint": "x"}}, {"counts": {"checkpoint": {"path": 5}}}]
    for change, words in (({"kind": "tea"}, none), ({"format": 9}, "a checkpoint of format 9"), *((change, none) for change in odd)):
        manifest = json.loads(hub.files("anna/came")[MANIFEST]) | change
        hub.repositories["anna/other"] = StoredRepository(False)
        hub.files("anna/other")[MANIFEST] = manifests.serialize_manifest(manifest).encode()
        check_failure(moeir(*pull, "anna/other"), 4, words)
    check_failure(moeir(*pull, "a b"), 2, "--repo a b: not accepted: Repo id must")
    check_failure(moeir(*pull, "anna/came", "--model", "came"), 2, "has no checkpoint that it was made with; leave it out")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_failure(moeir(*pull, "anna/came"), 2, "HF_HUB_OFFLINE")
    assert not (room / "pulled").exists() and list_leftovers(room) == []


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside"])
def test_a_manifest_cannot_name_files_outside(name, hub, room, run, moeir):
    run("push --input came --repo anna/came")
    change_file(hub, "anna/came", name, b"x")
    result = moeir("pull", "--repo", "anna/came", "--output", "deep/pulled")
    assert result.code == 4 and f"has no {name}; expected a repository that moeir push made" in result.stderr
    assert not list(room.rglob("outside")) and not (room / "deep" / "pulled").exists()


def test_what_exists_is_not_replaced_and_what_is_pulled_is_not_pulled_again(hub, room, run, moeir):
    run("push --input came --repo anna/came")
    run("pull --repo anna/came --output pulled")
    hub.requests.clear()
    assert "already pulled, anna/came@" in run("pull --repo anna/came --output pulled")
    assert not [request for request in hub.requests if "safetensors" in request]
    (room / "mine").mkdir()
    (room / "mine" / "letter.txt").write_text("x")
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "mine"), 2, "exists and was not made by moeir")
    first = hub.repositories["anna/came"].commit_name(1)
    run("push --input came --repo anna/came --license mit")
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "pulled"), 2, "other settings or sources (hub); --force replaces it")
    run("pull --repo anna/came --output pulled --force")
    assert "license: mit" in (room / "pulled" / "README.md").read_text()
    run(f"pull --repo anna/came --revision {first} --output first")
    assert "license" not in (room / "first" / "README.md").read_text()


def test_a_damaged_product_is_repaired_by_pull(hub, room, run, moeir):
    run("push --input came --repo anna/came")
    run("pull --repo anna/came --output pulled")
    content = bytearray((room / "pulled" / "vocab.txt").read_bytes())
    content[-2] ^= 1
    (room / "pulled" / "vocab.txt").write_bytes(content)
    result = moeir("encode", "--model", "pulled", "--corpus", "toy/corpus.jsonl", "--output", "x")
    check_failure(result, 4, "run moeir pull again with --force")
    run("pull --repo anna/came --output pulled --force")
    same_content(room / "came", room / "pulled")


def test_what_is_here_already_is_verified_and_names_the_checkpoint_that_is_asked_for(hub, room, run, moeir):
    run("push --input idx --repo anna/idx")
    run("pull --repo anna/idx --output pulled")
    pull = ("pull", "--repo", "anna/idx", "--output", "pulled")
    warning = "pulled: is here already and names CHECKPOINT as its checkpoint, not --model came; --force"
    assert warning in run(f"{shlex.join(pull)} --model came")
    run("pull --repo anna/idx --output pulled --model came --force")
    assert "is here already and names" not in run("pull --repo anna/idx --output pulled --model came")
    run("search --index pulled --query mice --output run.trec")
    content = (room / "pulled" / "ids.txt").read_bytes()
    (room / "pulled" / "ids.txt").write_bytes(content.replace(b"owl", b"oil"))
    check_failure(moeir(*pull), 4, "damaged: its checksum is not the one in the manifest; run moeir pull again with --force")
    (room / "pulled" / MANIFEST).write_text("{")
    check_failure(moeir(*pull), 2, "pulled: exists and was not made by moeir; move it away or choose another")
    (room / "pulled").rename(room / "damaged")
    run("pull --repo anna/idx --output pulled")
    same_content(room / "idx", room / "pulled")


def change_sample(hub: StandIn, repository: str, measures: object = None, **files: bytes | None) -> None:
    """Change the sample on the Hub under a manifest that is right again; a file that is None is gone."""
    contents = dict(hub.files(repository))
    manifest = json.loads(contents["verification/manifest.json"])
    for name, content in files.items():
        contents.pop(f"verification/{name}", None)
        manifest["files"].pop(name, None)
        if content is not None:
            contents[f"verification/{name}"] = content
            manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            hub.blobs[hashlib.sha256(content).hexdigest()] = content
    manifest["counts"]["measures"] = {} if measures is None else measures
    contents["verification/manifest.json"] = manifests.serialize_manifest(manifest).encode()
    hub.repositories[repository].commits.append(contents)


def test_another_sample_than_push_makes_is_one_line_that_names_the_repository(hub, room, run, moeir):
    run("search --index bm25 --queries toy/test-queries.tsv --output bm25.trec")
    lists, gone = b"owl Q0 owl 1 1 x\n", {"texts.jsonl": None, "bm25.trec": None}
    cases = [
        (None, {"other.trec": lists}, "anna/bm25: verification/other.trec: pulled has bm25"),
        (None, {"bm25.trec": None}, "the scores of the sample: the upload has none to compare with"),
        (None, {"bm25.trec": b""}, "anna/bm25: verification/bm25.trec: holds no line"),
        (None, {"texts.jsonl": b"{"}, "anna/bm25: verification/texts.jsonl:1: "),
        (None, gone, "has nothing to verify in its sample"),
        (5, {}, "measures are not numbers by run and measure"),
        ({"x": {"RR": 10**400}}, gone, "measures are not numbers by run and measure"),
        ({"x": {"RR": "high"}}, gone, "measures are not numbers by run and measure"),
        ({"x": {"RR": 0.5}}, gone, "the upload has measures of x, and no such run"),
    ]
    run("push --input bm25 --repo anna/bm25 --corpus toy/corpus.jsonl")
    first = hub.repositories["anna/bm25"].commits[:]
    for measures, files, words in cases:
        hub.repositories["anna/bm25"].commits[:] = first
        change_sample(hub, "anna/bm25", measures, **files)
        run("pull --repo anna/bm25 --output pulled --force")
        check_failure(moeir("pull", "--repo", "anna/bm25", "--output", "pulled", "--verify"), 4, words)


def test_what_was_pulled_is_pushed_as_the_product_that_it_was(hub, room, run):
    run("push --input came --repo anna/came --license mit")
    run("pull --repo anna/came --output pulled")
    run("push --input pulled --repo bob/came")
    one, other = (json.loads(hub.files(name)[MANIFEST]) for name in ("anna/came", "bob/came"))
    assert {name: one[name] for name in ("stage", "settings", "sources", "counts")} == {
        name: other[name] for name in ("stage", "settings", "sources", "counts")
    }
    assert "hub" not in other and "license: mit" in hub.files("bob/came")["README.md"].decode()


def test_the_functions_return_the_address_and_the_product(hub, room):
    assert package.push(input="came", repo="anna/came").startswith(f"{hub.address}/anna/came/commit/")
    package.push(input="idx", repo="anna/idx")
    checkpoint = package.pull(repo="anna/came", output="pulled")
    assert repr(checkpoint).startswith("RetrievalModel(pulled: came")
    searcher = package.pull(repo="anna/idx", model=checkpoint, output="pulled-idx")
    assert searcher.search(["who hunts mice"], 1)[0]


def test_the_environment_leads_to_the_hub(hub, room):
    environment = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}
    for command in ("push --input bm25 --repo anna/bm25 --corpus toy/corpus.jsonl", "pull --repo anna/bm25 --output pulled --verify"):
        result = run_in_subprocess(*command.split(), **environment)
        assert result.code == 0, result.stderr
    assert result.stdout == "" and "12 texts again, largest difference of a score over the largest score: bm25 0" in result.stderr
    assert sys.modules["huggingface_hub"].constants.HF_HUB_DISABLE_XET is True


def test_a_sample_of_more_texts_than_push_draws_is_not_ranked(hub, room, run, moeir, monkeypatch):
    run("push --input came --repo anna/came --corpus toy/corpus.jsonl")
    many = "".join(f'{{"_id": "d{number}", "text": "an owl"}}\n' for number in range(257)).encode()
    run("pull --repo anna/came --output pulled")
    for content, words in (
        (many, "verification/texts.jsonl: expected at most 256 texts and"),
        (None, "expected at most 100: not the file of its"),
    ):
        if content is None:
            monkeypatch.setattr("moeir.hub.MAX_SAMPLE_BYTES", 100)
        else:
            change_file(hub, "anna/came", "verification/texts.jsonl", content)
            run("pull --repo anna/came --output pulled --force")
        monkeypatch.setattr("moeir.hub.open_checkpoint", lambda *_: pytest.fail("the model reads the texts"))
        check_failure(moeir("pull", "--repo", "anna/came", "--output", "pulled", "--verify"), 4, words)
    monkeypatch.setattr("moeir.hub.MAX_MANIFEST_BYTES", 100)
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "other"), 4, "manifest.json has ")


def test_a_file_that_is_larger_than_its_manifest_says_is_not_downloaded(hub, room, run, moeir):
    run("push --input came --repo anna/came")
    hub.files("anna/came")["vocab.txt"] += b"x" * 1000
    hub.requests.clear()
    check_failure(moeir("pull", "--repo", "anna/came", "--output", "pulled"), 4, "vocab.txt has ")
    assert not [request for request in hub.requests if "vocab.txt" in request] and not (room / "pulled").exists()


def test_a_part_of_a_set_of_shards_or_two_sets_are_not_pulled(hub, room, run, moeir, monkeypatch):
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
    assert not (room / "pulled").exists()
    repository.commits.append(whole)
    run("encode --model came --corpus toy/corpus.jsonl --shard 0/3 --output pulled")
    check_failure(moeir(*pull), 2, "has 0-of-3, which is no part of anna/shards; name another folder")
