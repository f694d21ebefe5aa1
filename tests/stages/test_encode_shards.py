"""A corpus encoded in shards: the same bytes as at once, and one line for shards that do not fit together."""

import json
import shutil
from pathlib import Path

import pytest

from moeir.artifacts import manifests
from moeir.artifacts.shards import Shard, finished_shards, missing_shards
from moeir.errors import UsageError
from tests.conftest import run_moeir
from tests.split_encodings import read_files

ENCODE = "encode --model came --corpus toy/corpus.jsonl --dtype float32 --output"
INDEX = "index --encodings enc --output idx"


@pytest.fixture(scope="module")
def encoded(tmp_path_factory, came_checkpoint, toy):
    """The toy corpus in windows of three texts, encoded at once (`whole`) and in three shards (`enc`)."""
    folder = tmp_path_factory.mktemp("shards")
    source = ("encode", "--model", came_checkpoint, "--corpus", toy / "corpus.jsonl", "--dtype", "float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moeir.stages.encode.CHUNK", 3)
        run_moeir(*source, "--output", folder / "whole")
        for number in (2, 0, 1):
            run_moeir(*source, "--shard", f"{number}/3", "--output", folder / "enc")
    return folder


@pytest.fixture(autouse=True)
def room(encoded, work_folder, monkeypatch):
    """Copies of the encodings, which a test may damage, in the working folder."""
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 3)
    Path("enc").unlink()
    for name in ("whole", "enc"):
        shutil.copytree(encoded / name, name)


def test_shards_are_runs_of_whole_windows_of_which_index_and_export_make_the_bytes_of_one_made_at_once(run):
    lines = [Path(f"enc/{number}-of-3/ids.txt").read_text() for number in range(3)]
    assert [len(part.split()) for part in lines] == [3, 3, 6]
    assert "".join(lines) == Path("whole/ids.txt").read_text()
    assert sorted(path.name for path in Path("enc").iterdir()) == ["0-of-3", "1-of-3", "2-of-3"]
    for command in ("index", "export --to qdrant"):
        for name in ("whole", "enc"):
            run(f"{command} --encodings {name} --output {command[:5]}-{name}")
        assert read_files(Path(f"{command[:5]}-enc")) == read_files(Path(f"{command[:5]}-whole"))
    assert manifests.read_counts(Path("index-enc")) == manifests.read_counts(Path("index-whole"))


def test_a_shard_that_is_there_is_not_made_again(run, refuse):
    assert "1-of-3: already made" in run(f"{ENCODE} enc --shard 1/3").stderr
    refuse(2, "--force replaces it", f"{ENCODE} enc --shard 1/3 --keep-empty")


def test_a_damaged_shard_is_named_and_a_missing_one_with_the_command_that_makes_it(refuse):
    Path("enc/2-of-3/ids.txt").write_text("")
    refuse(4, "2-of-3/ids.txt: damaged: expected", INDEX)
    shutil.rmtree("enc/1-of-3")
    refuse(4, "enc: shard 1/3 is missing or unfinished; the same moeir encode command with --shard 1/3 makes it", INDEX)


def test_shards_of_other_settings_or_of_two_sets_are_refused(run, refuse):
    run(f"{ENCODE} enc --shard 1/3 --terms 2 --force")
    advice = "the same moeir encode command with --shard 1/3 --force makes it like that"
    refuse(4, f"enc/1-of-3: made with other settings or sources (terms) than 0-of-3; {advice}", INDEX)
    shutil.copytree("enc/0-of-3", "enc/0-of-2")
    refuse(4, "has shards of two sets, 0-of-2 and 0-of-3", INDEX)


@pytest.mark.parametrize(("flags", "words"), [
    ("new --shard 0/5", "12 texts, 4 blocks of 3; expected at most 4 shards"),
    ("enc --shard 0/4", "holds shards of 3; move those away"),
    ("enc", "holds shards, such as 0-of-3; choose one with --shard"),
    ("whole --shard 0/4", "holds unsharded encodings; write elsewhere"),
])  # fmt: skip
def test_what_cannot_be_sharded_is_refused_in_a_line(flags, words, refuse):
    refuse(2, words, f"{ENCODE} {flags}")


def test_info_says_which_shards_there_are(run):
    result = run("info enc").stdout
    rows = {line.split("  ")[0].strip(): line.split("  ", 1)[1].strip() for line in result.splitlines() if "  " in line}
    assert (rows["shards"], rows["texts"]) == ("3 of 3", "12") and "missing shards" not in rows and "0-of-3" in result
    shutil.rmtree("enc/0-of-3")
    counts = json.loads(run("info enc --form json").stdout)["counts"]
    assert (counts["shards"], counts["missing shards"], counts["texts"]) == ("2 of 3", ["0/3"], 9)


@pytest.mark.parametrize("name", ["0-of-99999999999999999999", "7-of-3", "0-of-10001"])
def test_a_shard_that_cannot_be_is_named_at_once(name, refuse):
    Path("enc/0-of-3").rename(f"enc/{name}")
    for command in ("info enc", INDEX):
        refuse(4, f"enc/{name}: expected the name of a shard", command)


def test_what_a_folder_holds():
    assert list(finished_shards(Path("enc"))) == [Shard(0, 3), Shard(1, 3), Shard(2, 3)]
    assert finished_shards(Path("whole")) == {} == finished_shards(Path("no"))
    Path("enc/1-of-3/manifest.json").unlink()
    assert missing_shards(finished_shards(Path("enc"))) == [Shard(1, 3)]
    for text in ("8/8", "3", "-1/3", "1/0", "a/b", "1/3/5", "", "1/10001", f"1/{'9' * 5000}", "\u0661/3"):
        with pytest.raises(UsageError, match="expected I/N, the I-th of N parts"):
            Shard.parse(text)
