"""A corpus encoded by several processes: the bytes of one process, and one line for any error."""

import shutil

import pytest

from tests.conftest import run_in_process, run_moeir
from tests.processes import run_captured, run_processes
from tests.split_encodings import read_files
from tests.stage_scenarios import write_long_corpus


@pytest.fixture(scope="module")
def encoded(tmp_path_factory, came_checkpoint):
    """A corpus of three windows, encoded at once and by two processes."""
    folder = tmp_path_factory.mktemp("processes")
    write_long_corpus(folder / "corpus.jsonl")
    run_moeir(*command(folder, came_checkpoint, "whole"))
    encode_twice(folder, came_checkpoint)
    return folder


@pytest.fixture
def room(encoded, tmp_path):
    """A copy, which a test may change."""
    return shutil.copytree(encoded, tmp_path / "room")


def command(folder, checkpoint, output, *more):
    fixed = ("encode", "--model", checkpoint, "--corpus", folder / "corpus.jsonl", "--dtype", "float32", "--device", "cpu")
    return (*fixed, *more, "--output", folder / output)


def encode_twice(folder, checkpoint):
    """Encode by two processes, a shard each, as torchrun starts them."""
    result = run_processes(2, lambda rank: run_captured(*command(folder, checkpoint, "enc")))
    assert [one["code"] for one in result] == [0, 0], result


def test_an_index_of_what_two_processes_made_has_the_bytes_of_one_made_at_once(room):
    assert sorted(path.name for path in (room / "enc").iterdir()) == ["0-of-2", "1-of-2"]
    for name in ("whole", "enc"):
        run_moeir("index", "--encodings", room / name, "--output", room / f"{name}-index")
    assert read_files(room / "enc-index") == read_files(room / "whole-index")


def test_made_again_nothing_changes_and_a_shard_that_was_lost_is_made_anew(encoded, room, came_checkpoint):
    manifest = (room / "enc/1-of-2/manifest.json").read_bytes()
    again = run_moeir(*command(encoded, came_checkpoint, "enc", "--shard", "1/2"))
    assert "1-of-2: already made with these settings and sources" in again.stderr
    shutil.rmtree(room / "enc/0-of-2")
    encode_twice(room, came_checkpoint)
    assert read_files(room / "enc") == read_files(encoded / "enc") and (room / "enc/1-of-2/manifest.json").read_bytes() == manifest
    assert "holds shards of 2; move those away" in run_in_process(*command(room, came_checkpoint, "enc", "--shard", "0/3")).stderr


def test_fewer_windows_than_processes_are_fewer_shards(came_checkpoint, toy, tmp_path):
    shutil.copy(toy / "corpus.jsonl", tmp_path)
    encode_twice(tmp_path, came_checkpoint)
    assert (tmp_path / "enc/manifest.json").is_file()


def test_other_settings_in_one_process_are_named(room, came_checkpoint):
    odd = run_processes(2, lambda rank: run_captured(*command(room, came_checkpoint, "odd", "--terms", 3 + rank)))
    assert [one["code"] for one in odd] == [1, 1] and "".join(one["stderr"] for one in odd).count("error:") == 1
    assert "terms is 4 there, and 3 in process 0" in odd[0]["stderr"] and not (room / "odd").exists()
