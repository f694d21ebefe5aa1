"""A corpus encoded in shards: the same bytes as at once, and one line for shards that do not fit together."""

import json
import shutil
from pathlib import Path

import pytest

from moeir.artifacts.shards import Shard, finished_shards, missing_shards, shard_folders
from moeir.errors import ArtifactError, UsageError
from tests.conftest import run_in_process

SEARCH = ("search", "--dtype", "float32")  # as the documents
ENGINES = ("global=flat", "lexical=inverted", "local=maxsim")


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


def read_files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_an_index_of_shards_has_the_bytes_of_one_made_at_once(room, tmp_path, moeir):
    for name in ("whole", "enc"):
        result = moeir("index", "--encodings", room / name, "--output", tmp_path / name)
        assert result.code == 0, result.stderr
    assert read_files(tmp_path / "enc") == read_files(tmp_path / "whole")
    counts = [json.loads((tmp_path / name / "manifest.json").read_text())["counts"] for name in ("whole", "enc")]
    assert counts[0] == counts[1]


def test_shards_are_runs_of_whole_windows_in_the_order_of_the_corpus(room):
    lines = [(room / "enc" / f"{number}-of-3" / "ids.txt").read_text() for number in range(3)]
    assert [len(part.split()) for part in lines] == [3, 3, 6]
    assert "".join(lines) == (room / "whole" / "ids.txt").read_text()
    assert sorted(path.name for path in (room / "enc").iterdir()) == ["0-of-3", "1-of-3", "2-of-3"]


def test_a_shard_that_is_there_is_not_made_again(spare, came_checkpoint, toy):
    again = encode(came_checkpoint, toy, spare, "--shard", "1/3")
    assert again.code == 0 and "1-of-3: already made" in again.stderr
    assert "--force replaces it" in encode(came_checkpoint, toy, spare, "--shard", "1/3", "--keep-empty").stderr


def test_a_missing_shard_is_named_with_the_command_that_makes_it(spare, tmp_path, moeir, room):
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


def test_a_damaged_shard_is_named(spare, tmp_path, moeir):
    (spare / "2-of-3" / "ids.txt").write_text("")
    result = moeir("index", "--encodings", spare, "--output", tmp_path / "idx")
    assert result.code == 4 and "2-of-3/ids.txt: damaged: expected" in result.stderr


def test_an_export_takes_a_folder_of_shards(room, toy, tmp_path, moeir):
    for name in ("whole", "enc"):
        result = moeir("export", "--to", "qdrant", "--encodings", room / name, "--output", tmp_path / name)
        assert result.code == 0, result.stderr
    assert read_files(tmp_path / "enc") == read_files(tmp_path / "whole")


@pytest.mark.parametrize("shard", ["3", "3/3", "-1/3", "1/0", "a/b", "1/3/5", "", "1/10001", f"1/{'9' * 5000}", "\u0661/3"])
def test_a_shard_is_a_number_of_a_number(shard, came_checkpoint, toy, tmp_path):
    result = encode(came_checkpoint, toy, tmp_path / "enc", f"--shard={shard}")
    assert result.code == 2 and "expected I/N, the I-th of N parts" in result.stderr


def test_what_cannot_be_sharded_is_said_in_a_line(room, spare, came_checkpoint, toy, tmp_path, moeir):
    assert "12 texts, 4 blocks of 3; expected at most 4 shards" in encode(came_checkpoint, toy, tmp_path / "new", "--shard", "0/5").stderr
    assert "holds shards of 3; move those away" in encode(came_checkpoint, toy, spare, "--shard", "0/4").stderr
    assert "holds shards, such as 0-of-3; choose one with --shard" in encode(came_checkpoint, toy, spare).stderr
    assert "holds unsharded encodings; write elsewhere" in encode(came_checkpoint, toy, room / "whole", "--shard", "0/4").stderr
    assert "the output is a folder" in encode(came_checkpoint, toy, "-").stderr
    result = moeir("encode", "--model", came_checkpoint, "--corpus", "-", "--shard", "0/2", "--output", tmp_path / "new")
    assert result.code == 2 and "read; - is a pipe" in result.stderr


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
    for command in (("info", spare), ("index", "--encodings", spare, "--output", tmp_path / "idx"), ("check", "--encodings", spare)):
        result = moeir(*command)
        assert result.code == 4 and f"{spare}/{name}: expected the name of a shard" in result.stderr


def test_what_a_folder_holds(spare, room, tmp_path):
    assert list(finished_shards(spare)) == [Shard(0, 3), Shard(1, 3), Shard(2, 3)] and finished_shards(
        room / "whole"
    ) == {} == finished_shards(tmp_path / "no")
    assert [path.name for path in shard_folders(spare)] == ["0-of-3", "1-of-3", "2-of-3"] and shard_folders(room / "whole") == [
        room / "whole"
    ]
    (spare / "1-of-3" / "manifest.json").unlink()
    assert missing_shards(finished_shards(spare)) == [Shard(1, 3)]
    with pytest.raises(ArtifactError, match="shard 1/3 is missing"):
        shard_folders(spare)
    with pytest.raises(UsageError, match="expected I/N"):
        Shard.parse("8/8")


SEARCH_OPTIONS = (("--threads", 1), ("--threads", 2, "--batch-size", 1))


def test_whatever_the_shards_a_search_gives_the_same_bytes(came_checkpoint, toy, tmp_path, monkeypatch, moeir):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 1)
    files_by_count: dict[int, list[dict[str, bytes]]] = {}
    for count in (1, 4):
        encodings, index = tmp_path / f"enc{count}", tmp_path / f"idx{count}"
        for number in reversed(range(count)):
            result = encode(came_checkpoint, toy, encodings, *(("--shard", f"{number}/{count}") if count > 1 else ()))
            assert result.code == 0, result.stderr
        assert moeir("index", "--encodings", encodings, "--output", index).code == 0
        files_by_count[count] = []
        for number, options in enumerate(SEARCH_OPTIONS):
            run_folder = tmp_path / f"runs{count}-{number}"
            result = moeir(*SEARCH, "--index", index, "--queries", toy / "test-queries.tsv", "--depth", 5, *options, "--output", run_folder)
            assert result.code == 0, result.stderr
            files_by_count[count].append(read_files(run_folder))
    assert sorted(files_by_count[1][0]) == ["fused.trec", "global.trec", "lexical.trec", "local.trec"]
    assert files_by_count[1] == files_by_count[4]
    ranks = [[line.split()[:4] for name in sorted(runs) for line in runs[name].decode().splitlines()] for runs in files_by_count[1]]
    assert ranks == [ranks[0]] * len(SEARCH_OPTIONS)  # the same documents; queries read in another batch differ by rounding
