"""A corpus encoded in shards: the same bytes as at once, and one line for shards that do not fit together."""

import json
import shutil

import pytest

from moeir.artifacts.shards import Shard, finished_shards, missing_shards
from moeir.errors import UsageError
from tests.conftest import run_in_process
from tests.split_encodings import read_files


@pytest.fixture(scope="module")
def room(tmp_path_factory, came_checkpoint, toy):
    """The toy corpus in windows of three texts, encoded at once (`whole`) and in three shards (`enc`)."""
    folder = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moeir.stages.encode.CHUNK", 3)
        for shard in (None, "2/3", "0/3", "1/3"):
            output = folder / ("whole" if shard is None else "enc")
            assert encode(came_checkpoint, toy, output, *(() if shard is None else ("--shard", shard))).code == 0
    return folder


@pytest.fixture
def spare(room, tmp_path, monkeypatch):
    """A copy of the shards that a test may damage."""
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 3)
    shutil.copytree(room / "enc", tmp_path / "enc")
    return tmp_path / "enc"


def encode(checkpoint, toy, output, *more):
    return run_in_process(
        "encode", "--model", checkpoint, "--corpus", toy / "corpus.jsonl", "--dtype", "float32", *more, "--output", output
    )


def test_shards_are_runs_of_whole_windows_of_which_index_and_export_make_the_bytes_of_one_made_at_once(room, tmp_path, moeir):
    lines = [(room / "enc" / f"{number}-of-3" / "ids.txt").read_text() for number in range(3)]
    assert [len(part.split()) for part in lines] == [3, 3, 6]
    assert "".join(lines) == (room / "whole" / "ids.txt").read_text()
    assert sorted(path.name for path in (room / "enc").iterdir()) == ["0-of-3", "1-of-3", "2-of-3"]
    for command in (("index",), ("export", "--to", "qdrant")):
        for name in ("whole", "enc"):
            result = moeir(*command, "--encodings", room / name, "--output", tmp_path / command[0] / name)
            assert result.code == 0, result.stderr
        assert read_files(tmp_path / command[0] / "enc") == read_files(tmp_path / command[0] / "whole")
    counts = [json.loads((tmp_path / "index" / name / "manifest.json").read_text())["counts"] for name in ("whole", "enc")]
    assert counts[0] == counts[1]


def test_a_shard_that_is_there_is_not_made_again(spare, came_checkpoint, toy):
    again = encode(came_checkpoint, toy, spare, "--shard", "1/3")
    assert again.code == 0 and "1-of-3: already made" in again.stderr
    assert "--force replaces it" in encode(came_checkpoint, toy, spare, "--shard", "1/3", "--keep-empty").stderr


def test_a_damaged_shard_is_named_and_a_missing_one_with_the_command_that_makes_it(spare, tmp_path, moeir, room):
    (spare / "2-of-3" / "ids.txt").write_text("")
    result = moeir("index", "--encodings", spare, "--output", tmp_path / "idx")
    assert result.code == 4 and "2-of-3/ids.txt: damaged: expected" in result.stderr
    shutil.rmtree(spare / "1-of-3")
    result = moeir("index", "--encodings", spare, "--output", tmp_path / "idx")
    words = f"{spare}: shard 1/3 is missing or unfinished; the same moeir encode command with --shard 1/3 makes it"
    assert result.code == 4 and words in result.stderr


def test_shards_of_other_settings_or_of_two_sets_are_refused(spare, came_checkpoint, toy, tmp_path, moeir):
    assert encode(came_checkpoint, toy, spare, "--shard", "1/3", "--terms", 2, "--force").code == 0
    result = moeir("index", "--encodings", spare, "--output", tmp_path / "idx")
    advice = "the same moeir encode command with --shard 1/3 --force makes it like that"
    assert result.code == 4
    assert f"{spare}/1-of-3: made with other settings or sources (terms) than 0-of-3; {advice}" in result.stderr
    shutil.copytree(spare / "0-of-3", spare / "0-of-2")
    assert "has shards of two sets, 0-of-2 and 0-of-3" in moeir("index", "--encodings", spare, "--output", tmp_path / "idx").stderr


def test_what_cannot_be_sharded_is_said_in_a_line(room, spare, came_checkpoint, toy, tmp_path):
    assert "12 texts, 4 blocks of 3; expected at most 4 shards" in encode(came_checkpoint, toy, tmp_path / "new", "--shard", "0/5").stderr
    assert "holds shards of 3; move those away" in encode(came_checkpoint, toy, spare, "--shard", "0/4").stderr
    assert "holds shards, such as 0-of-3; choose one with --shard" in encode(came_checkpoint, toy, spare).stderr
    assert "holds unsharded encodings; write elsewhere" in encode(came_checkpoint, toy, room / "whole", "--shard", "0/4").stderr


def test_info_says_which_shards_there_are(spare, moeir):
    result = moeir("info", spare).stdout
    rows = {line.split("  ")[0].strip(): line.split("  ", 1)[1].strip() for line in result.splitlines() if "  " in line}
    assert (rows["shards"], rows["texts"]) == ("3 of 3", "12") and "missing shards" not in rows and "0-of-3" in result
    shutil.rmtree(spare / "0-of-3")
    facts = json.loads(moeir("info", spare, "--form", "json").stdout)
    assert (facts["counts"]["shards"], facts["counts"]["missing shards"], facts["counts"]["texts"]) == ("2 of 3", ["0/3"], 9)


@pytest.mark.parametrize("name", ["0-of-99999999999999999999", "7-of-3", "0-of-10001"])
def test_a_shard_that_cannot_be_is_named_at_once(name, spare, tmp_path, moeir):
    (spare / "0-of-3").rename(spare / name)
    for command in (("info", spare), ("index", "--encodings", spare, "--output", tmp_path / "idx")):
        result = moeir(*command)
        assert result.code == 4 and f"{spare}/{name}: expected the name of a shard" in result.stderr


def test_what_a_folder_holds(spare, room, tmp_path):
    assert list(finished_shards(spare)) == [Shard(0, 3), Shard(1, 3), Shard(2, 3)]
    assert finished_shards(room / "whole") == {} == finished_shards(tmp_path / "no")
    (spare / "1-of-3" / "manifest.json").unlink()
    assert missing_shards(finished_shards(spare)) == [Shard(1, 3)]
    for text in ("8/8", "3", "-1/3", "1/0", "a/b", "1/3/5", "", "1/10001", f"1/{'9' * 5000}", "\u0661/3"):
        with pytest.raises(UsageError, match="expected I/N, the I-th of N parts"):
            Shard.parse(text)
