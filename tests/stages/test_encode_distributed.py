"""A corpus encoded by several processes: the bytes of one process, and one line for any error."""

import shutil

import pytest

from tests.conftest import run_in_process
from tests.processes import run_captured, run_processes
from tests.split_encodings import read_files
from tests.stage_scenarios import write_long_corpus


@pytest.fixture(scope="module")
def room(tmp_path_factory, came_checkpoint):
    """A corpus of three windows, encoded at once and by two processes."""
    folder = tmp_path_factory.mktemp("processes")
    write_long_corpus(folder / "corpus.jsonl")
    assert encode(folder, came_checkpoint, "whole").code == 0
    encode_twice(folder, came_checkpoint)
    return folder


def encode_twice(folder, checkpoint):
    """Encode by two processes, a shard each, as torchrun starts them."""
    result = run_processes(2, lambda rank: run_captured(*command(folder, checkpoint, "enc")))
    assert [one["code"] for one in result] == [0, 0], result


def encode(folder, checkpoint, output, *more):
    return run_in_process(*command(folder, checkpoint, output, *more))


def command(folder, checkpoint, output, *more):
    fixed = ("encode", "--model", checkpoint, "--corpus", folder / "corpus.jsonl", "--dtype", "float32", "--device", "cpu")
    return (*fixed, *more, "--output", folder / output)


def test_an_index_of_what_two_processes_made_has_the_bytes_of_one_made_at_once(room, tmp_path, moeir):
    assert sorted(path.name for path in (room / "enc").iterdir()) == ["0-of-2", "1-of-2"]
    for name in ("whole", "enc"):
        assert moeir("index", "--encodings", room / name, "--output", tmp_path / name).code == 0
    assert read_files(tmp_path / "enc") == read_files(tmp_path / "whole")


def test_made_again_nothing_changes_and_a_shard_that_was_lost_is_made_anew(room, came_checkpoint, tmp_path):
    shutil.copytree(room / "enc", tmp_path / "enc")
    shutil.copy(room / "corpus.jsonl", tmp_path)
    manifest = (tmp_path / "enc/1-of-2/manifest.json").read_bytes()
    result = encode(room, came_checkpoint, "enc", "--shard", "1/2")
    assert result.code == 0 and "1-of-2: already made with these settings and sources" in result.stderr
    shutil.rmtree(tmp_path / "enc/0-of-2")
    encode_twice(tmp_path, came_checkpoint)
    assert read_files(tmp_path / "enc") == read_files(room / "enc") and (tmp_path / "enc/1-of-2/manifest.json").read_bytes() == manifest
    assert "holds shards of 2; move those away" in encode(tmp_path, came_checkpoint, "enc", "--shard", "0/3").stderr


def test_fewer_windows_than_processes_are_fewer_shards(came_checkpoint, toy, tmp_path):
    shutil.copy(toy / "corpus.jsonl", tmp_path)
    result = run_processes(2, lambda rank: run_captured(*command(tmp_path, came_checkpoint, "enc")))
    assert [one["code"] for one in result] == [0, 0], result
    assert (tmp_path / "enc/manifest.json").is_file()


def test_other_settings_in_one_process_are_named(room, came_checkpoint, tmp_path):
    shutil.copy(room / "corpus.jsonl", tmp_path)
    odd = run_processes(2, lambda rank: run_captured(*command(tmp_path, came_checkpoint, "odd", "--terms", 3 + rank)))
    assert [one["code"] for one in odd] == [1, 1] and "".join(one["stderr"] for one in odd).count("error:") == 1
    assert "terms is 4 there, and 3 in process 0" in odd[0]["stderr"] and not (tmp_path / "odd").exists()
