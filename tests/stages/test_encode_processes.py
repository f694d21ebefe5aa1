"""A corpus encoded by several processes: the bytes of one process, no process left over, and one line for any error."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moeir.errors import DataError, MoeirError
from moeir.stages import worker_pool
from tests.conftest import run_in_process
from tests.fake_shards import child_pids, is_alive, make_shard_jobs
from tests.processes import run_captured, run_processes
from tests.stage_scenarios import write_long_corpus

TEXTS = 600  # three windows
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def room(tmp_path_factory, came_checkpoint, toy):
    """A corpus of three windows, encoded at once and by two processes."""
    folder = tmp_path_factory.mktemp("processes")
    write_long_corpus(folder / "corpus.jsonl")
    assert encode(folder, came_checkpoint, "whole").code == 0
    result = encode(folder, came_checkpoint, "enc", "--processes", 2)
    assert result.code == 0, result.stderr
    assert "enc: 2 processes, each with a shard" in result.stderr and "enc: 2 shards, 600 texts" in result.stderr
    return folder


def encode(folder, checkpoint, output, *more):
    return run_in_process(*command(folder, checkpoint, output, *more))


def command(folder, checkpoint, output, *more):
    fixed = ("encode", "--model", checkpoint, "--corpus", folder / "corpus.jsonl", "--dtype", "float32", "--device", "cpu")
    return (*fixed, *more, "--output", folder / output)


def read_files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


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
    assert encode(tmp_path, came_checkpoint, "enc", "--processes", 2).code == 0
    assert read_files(tmp_path / "enc") == read_files(room / "enc") and (tmp_path / "enc/1-of-2/manifest.json").read_bytes() == manifest
    assert "holds shards of 2; move those away" in encode(tmp_path, came_checkpoint, "enc", "--processes", 3).stderr


def test_fewer_windows_than_processes_are_fewer_shards(room, came_checkpoint, toy, tmp_path):
    result = encode(room, came_checkpoint, "many", "--processes", 8, "--dry-run")
    assert result.stdout.count("a process on cpu for shard") == 3 and "shard 2/3: 88 texts" in result.stdout
    shutil.copy(toy / "corpus.jsonl", tmp_path)
    assert encode(tmp_path, came_checkpoint, "enc", "--processes", 2).code == 0
    assert (tmp_path / "enc/manifest.json").is_file()


def test_an_error_of_a_process_is_told_once_with_its_code(room, tmp_path):
    (tmp_path / "came").mkdir()
    result = encode(room, tmp_path / "came", "none", "--processes", 2)
    assert result.code == 4 and result.stderr.count("error:") == 1 and "came: has no manifest.json" in result.stderr


def test_ranks_of_torchrun_make_a_shard_each(room, came_checkpoint, tmp_path):
    shutil.copy(room / "corpus.jsonl", tmp_path)
    result = run_processes(2, lambda rank: run_captured(*command(tmp_path, came_checkpoint, "enc")))
    assert [one["code"] for one in result] == [0, 0], result
    assert read_files(tmp_path / "enc") == read_files(room / "enc")
    odd = run_processes(2, lambda rank: run_captured(*command(tmp_path, came_checkpoint, "odd", "--terms", 3 + rank)))
    assert [one["code"] for one in odd] == [1, 1] and "".join(one["stderr"] for one in odd).count("error:") == 1
    assert "terms is 4 there, and 3 in process 0" in odd[0]["stderr"] and not (tmp_path / "odd").exists()
    more = run_processes(2, lambda rank: run_captured(*command(tmp_path, came_checkpoint, "odd", "--processes", 2)))
    assert more[0]["code"] == 2 and "2 processes are started already" in more[0]["stderr"]


def test_what_another_process_says_or_does_not_say_ends_all(tmp_path):
    for behaviour, words in (("fails", "corpus.jsonl:7: broken"), ("dies", r"was killed \(SIGKILL\)"), ("errs", "exited with code 1")):
        folder = tmp_path / behaviour
        folder.mkdir()
        with pytest.raises(DataError if behaviour == "fails" else MoeirError, match=words):
            worker_pool.run_shards(make_shard_jobs(folder, "sleeps", behaviour), "faking", force=False, stuck_minutes=5)
        assert not any(map(is_alive, child_pids(folder)))


def test_a_process_that_goes_on_no_more_is_named(tmp_path):
    with pytest.raises(MoeirError, match=r"shard 1/2 on cpu: process \d+ has made no progress for 0.01 minutes; run the same"):
        worker_pool.run_shards(make_shard_jobs(tmp_path, "ends", "sleeps"), "faking", force=False, stuck_minutes=0.01)
    assert not any(map(is_alive, child_pids(tmp_path)))


SIGINT_PROGRAM = """
import signal, sys
from multiprocessing import process
from pathlib import Path
from moeir.stages import worker_pool
from tests.fake_shards import make_shard_jobs
start = process.BaseProcess.start
def started(one):
    start(one)
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
process.BaseProcess.start = started
worker_pool.run_shards(make_shard_jobs(Path(sys.argv[1]), "ends", "ends"), "faking", force=False, stuck_minutes=5)
"""


def test_ctrl_c_is_held_back_while_each_process_starts(tmp_path):
    completed = subprocess.run(
        [sys.executable, "-c", SIGINT_PROGRAM, tmp_path], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert (completed.returncode, completed.stderr, len(child_pids(tmp_path))) == (0, "", 2)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_one_that_started_it(signal_number, tmp_path):
    program = "import sys; from pathlib import Path; from moeir.stages import worker_pool; from tests.fake_shards import make_shard_jobs\n"
    program += "worker_pool.run_shards(make_shard_jobs(Path(sys.argv[1]), 'sleeps', 'sleeps'), 'faking', force=False, stuck_minutes=5)"
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # the child of a background job would inherit that SIGINT is ignored
    parent = subprocess.Popen([sys.executable, "-c", program, tmp_path], start_new_session=True, stderr=subprocess.PIPE, cwd=REPOSITORY)
    signal.signal(signal.SIGINT, handler)
    while len(child_pids(tmp_path)) < 2:
        time.sleep(0.05)
        assert parent.poll() is None
    if signal_number == signal.SIGINT:
        os.killpg(parent.pid, signal_number)  # as a terminal does
    else:
        parent.send_signal(signal_number)
    result = parent.communicate(timeout=120)[1].decode()
    deadline = time.monotonic() + 60
    while any(map(is_alive, child_pids(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, child_pids(tmp_path)))
    assert result.count("Traceback") == (signal_number == signal.SIGINT)  # of the parent only
    assert parent.returncode == -signal_number
