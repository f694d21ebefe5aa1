"""Arrays of a folder: each check refuses what it should, in whichever block of a long array it is, with the file and both sides."""

import re

import numpy as np
import pytest

from moeir.artifacts import array_folder
from moeir.artifacts.array_folder import ArrayFolder
from moeir.errors import ArtifactError


@pytest.fixture(params=[4, 2**20], ids=["blocks of four", "one block"])
def open_arrays(request, tmp_path, monkeypatch):
    """`open_arrays(name=numbers)` saves the arrays and opens their folder."""
    monkeypatch.setattr(array_folder, "ROWS_AT_ONCE", request.param)

    def save_and_open(**arrays):
        for name, numbers in arrays.items():
            np.save(tmp_path / f"{name}.npy", numbers)
        return ArrayFolder(tmp_path, "make them again")

    return save_and_open


def refused(name, words):
    return pytest.raises(ArtifactError, match=re.escape(f"{name}.npy: damaged: expected {words}; make them again"))


def test_a_sound_array_is_itself(open_arrays):
    numbers = np.arange(12, dtype=np.int64)
    arrays = open_arrays(rows=numbers, vectors=np.ones((3, 2), np.float16), nothing=np.zeros((0, 2), np.uint8))
    assert arrays.read("rows", (np.int32, np.int64), (12,), below=12).tolist() == numbers.tolist()
    assert arrays.read_offsets("rows", 11, 11, "others.npy").tolist() == numbers.tolist()
    assert arrays.read("vectors", "float16", (None, 2)).tolist() == [[1, 1]] * 3
    assert arrays.read("nothing", np.uint8, (0, None), below=1).shape == (0, 2)


def test_another_dtype_shape_or_layout_is_refused(open_arrays):
    arrays = open_arrays(vectors=np.asfortranarray(np.ones((3, 2), np.float16)), swapped=np.ones(2, ">i8"))
    with refused("vectors", "float16 [3, 2], found float16 [3, 2] in column-major order"):
        arrays.read("vectors", np.float16, (3, 2))
    with refused("vectors", "uint8 or float32 [any, 2] by rows.npy, found float16 [3, 2] in column-major order"):
        arrays.read("vectors", (np.uint8, np.float32), (None, 2), by="rows.npy")
    with refused("swapped", "int64 [2], found >i8 [2]"):
        arrays.read("swapped", np.int64, (2,))
    with refused("absent", "an array, found no file"):
        arrays.read("absent", np.int64, (2,))


@pytest.mark.parametrize("position", [0, 4, 11])
def test_a_number_out_of_range_is_refused(open_arrays, position):
    rows = np.full(12, 5)
    rows[position] = -1
    with refused("rows", "numbers from 0 to 8, found -1 to 5"):
        open_arrays(rows=rows).read("rows", np.int64, (12,), below=9)
    rows[position] = 9
    with refused("rows", "numbers from 0 to 8 by texts.npy, found 5 to 9"):
        open_arrays(rows=rows).read("rows", np.int64, (12,), by="texts.npy", below=9)
    codes = np.full(12, 5, np.uint8)
    codes[position] = 255
    with refused("codes", "numbers from 0 to 254, found 5 to 255"):
        open_arrays(codes=codes).read("codes", np.uint8, (12,), below=255)


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([1, *range(2, 13)], "found 1 to 12"),
        ([*range(11), 13], "found 0 to 13"),
        ([0, 1, 2, 3, 9, 5, 6, 7, 8, 9, 10, 12], "found a smaller one after a larger one"),
        ([0, 1, 2, 4, 3, 5, 6, 7, 8, 9, 10, 12], "found a smaller one after a larger one"),
        ([], "found none"),
    ],
)
def test_offsets_that_do_not_cover_an_array_are_refused(open_arrays, offsets, words):
    arrays = open_arrays(starts=np.array(offsets, np.int64))
    with refused("starts", f"ascending offsets from 0 to 12 by rows.npy, {words}"):
        arrays.read_offsets("starts", None, 12, "rows.npy")


def test_order_may_break_where_a_list_begins_only(open_arrays):
    arrays = open_arrays(rows=np.array([1, 2, 2, 0, 5, 6, 7, 3, 3]))
    begins = array_folder.find_nonempty_begins(np.array([0, 0, 3, 3, 7, 9, 9]))
    assert begins.tolist() == [0, 3, 7]
    arrays.check_order("rows", begins)
    for wrong in ([0, 3], [0, 7], [0, 4, 7], []):
        with refused("rows", "ascending numbers in each list, found another order"):
            arrays.check_order("rows", np.array(wrong, np.int64))
    with refused("rows", "descending numbers in each list, found another order"):
        arrays.check_order("rows", begins, descending=True)
    open_arrays(rows=np.array([9, 3, 3, 8, 1], np.uint8)).check_order("rows", np.array([3, 0]), descending=True)


HEADERS = (
    b"{'descr': '<f2', 'fortran_order': False, 'shape': (9,), }",
    b"{'descr': '<f2', 'fortran_order': False, 'shape': (True, 10**30), }",
    b"if 1:\n  1\n 2: '<f2', 'fortran_order': False, 'shape': (3,), }",  # of uneven lines
    b"(((((",
)


@pytest.mark.parametrize(
    "content", [b"", b"numbers", *(b"\x93NUMPY\x01\x00" + bytes([len(header) + 1, 0]) + header + b"\n" for header in HEADERS)]
)
def test_what_is_no_array_is_refused(tmp_path, content):
    (tmp_path / "rows.npy").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"rows.npy: damaged: expected an array, found another file \(.*\); run the stage that made it"):
        ArrayFolder(tmp_path)
