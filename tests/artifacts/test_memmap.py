"""Mapped arrays: pages beyond the limit are released, and the values stay the same."""

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from moeir.artifacts import atomic_write, memmap

SMAPS = Path("/proc/self/smaps")


def resident_bytes(path) -> int:
    """Resident bytes of a mapped file."""
    sizes = re.findall(rf"{re.escape(str(path))}\n(?:[A-Za-z_]+:.*\n)*?Rss: +(\d+) kB", SMAPS.read_text())
    return 1024 * sum(map(int, sizes))


@pytest.fixture
def written(tmp_path):
    np.save(tmp_path / "numbers.npy", np.arange(2**20, dtype=np.int64))
    return tmp_path / "numbers.npy"


def test_an_array_is_what_was_saved_and_writing_to_it_changes_nothing_on_disk(written):
    before = written.read_bytes()
    array = memmap.open_memmap(written)
    array[3] = 7
    assert array[3] == 7 and array.sum() == 2**19 * (2**20 - 1) + 4
    assert written.read_bytes() == before


def test_an_array_that_is_larger_than_memory_and_swap_is_mapped(tmp_path):
    size = 4 * sum(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "Total:" in line[:10]) * 1024
    np.lib.format.open_memmap(tmp_path / "numbers.npy", mode="w+", dtype=np.uint8, shape=(size,))[-1] = 7  # a sparse file
    array = memmap.open_memmap(tmp_path / "numbers.npy")
    assert (len(array), array[0], array[-1]) == (size, 0, 7)


@pytest.mark.skipif(not SMAPS.exists(), reason="memory of a mapping is looked up in /proc")
@pytest.mark.parametrize(("kept", "left"), [(0, False), (2**30, True)])
def test_pages_go_when_enough_was_read_of_much(written, monkeypatch, kept, left):
    monkeypatch.setattr(memmap, "MAX_RESIDENT_BYTES", kept)
    monkeypatch.setattr(memmap, "RELEASE_INTERVAL_BYTES", 2**22)
    monkeypatch.setattr(memmap, "_bytes_read", 0)
    array = memmap.open_memmap(written)
    first = int(array[: 2**18].sum())
    memmap.note_pages_read(2**21)
    assert resident_bytes(written) >= 2**21  # not enough was read yet
    whole = int(array.sum())
    memmap.note_pages_read(2**23)
    assert (resident_bytes(written) >= 2**23) == left
    assert (int(array[: 2**18].sum()), int(array.sum())) == (first, whole)  # released pages are read again


def test_rows_in_parts_are_the_rows_and_count_as_read(monkeypatch):
    monkeypatch.setattr(memmap, "RELEASE_INTERVAL_BYTES", 3 * memmap.ROW_READ_BYTES)
    counted = []
    monkeypatch.setattr(memmap, "note_pages_read", counted.append)
    parts = list(memmap.bounded_chunks(np.arange(7)))
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert sum(counted) == 7 * memmap.ROW_READ_BYTES
    assert list(memmap.bounded_chunks(np.arange(0))) == []


@pytest.mark.parametrize("position", [0, 127, 128, 700, -1])
def test_a_cache_with_a_changed_bit_is_made_again(tmp_path, caplog, position):
    calls = []

    def fill(folder):
        calls.append(folder)
        np.save(folder / "ids.npy", np.arange(100))
        return {"texts": 100}

    record = {"stage": "finetune", "settings": {}, "sources": {"corpus": ["1"]}}
    path = memmap.get_or_build(tmp_path, "texts", record, fill)
    assert memmap.get_or_build(tmp_path, "texts", record, fill) == path and len(calls) == 1
    content = bytearray((path / "ids.npy").read_bytes())
    content[position] ^= 1
    (path / "ids.npy").write_bytes(content)
    assert memmap.get_or_build(tmp_path, "texts", record, fill) == path and len(calls) == 2
    assert f"{path / 'ids.npy'}: damaged: its checksum is not the one in the manifest; the cache is made again" in caplog.text
    assert memmap.open_memmap(path / "ids.npy").tolist() == list(range(100))
    assert memmap.get_or_build(tmp_path, "texts", record, fill) == path and len(calls) == 2


def test_a_cache_that_another_process_writes_is_waited_for_and_used(tmp_path, caplog):
    record, calls = {"stage": "finetune", "settings": {}, "sources": {}}, []
    caplog.set_level(logging.INFO, "moeir")
    is_filling, is_seen = threading.Event(), threading.Event()

    def fill(folder):
        calls.append(folder)
        is_filling.set()
        assert is_seen.wait(60)
        (folder / "ids.txt").write_text("1\n")
        return {"texts": 1}

    def wait_as_well(path):
        is_seen.set()
        wait(path)

    wait = atomic_write.wait_for_writer
    with ThreadPoolExecutor() as threads, pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_write, "wait_for_writer", wait_as_well)
        first = threads.submit(memmap.get_or_build, tmp_path, "texts", record, fill)
        assert is_filling.wait(60)
        second = threads.submit(memmap.get_or_build, tmp_path, "texts", record, fill)
        assert first.result() == second.result()
    assert len(calls) == 1 and "another process is writing it; waiting" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.result().name]


@pytest.mark.parametrize("array", [np.arange(5), np.zeros((0, 3), np.float16), np.arange(6.0).reshape(2, 3), np.arange(8)[::2]])
def test_a_saved_array_has_the_bytes_of_numpy(tmp_path, array):
    memmap.save_array(tmp_path / "ours.npy", array)
    np.save(tmp_path / "numpy.npy", array)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_an_error_of_the_last_write_is_no_truncated_array():
    with pytest.raises(OSError, match="No space left"):
        memmap.save_array(Path("/dev/full"), np.arange(5))
