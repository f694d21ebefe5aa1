"""Identities: what counts as replaced or changed, and what does not."""

import os
import time

import pytest

from moeir.artifacts import identity, manifests
from moeir.errors import ArtifactError, DataError


@pytest.fixture
def product(tmp_path):
    return write_product(tmp_path / "product", "one")


def write_product(folder, content):
    folder.mkdir()
    (folder / "ids.txt").write_text(content)
    manifest = manifests.build_manifest(folder, "run", {"stage": "search", "settings": {}, "sources": {}}, folder.name)
    (folder / "manifest.json").write_text(manifests.serialize_manifest(manifest | {"counts": {}}))
    return folder


def confirm_after(path, change):
    with identity.hold_sources():
        identity.hold(path)
        time.sleep(0.02)  # the clock of file systems has ticks
        change()
        identity.confirm_held()


def test_a_file_that_is_rewritten_replaced_or_put_back_has_changed(tmp_path):
    path, other = tmp_path / "corpus.jsonl", tmp_path / "other"

    def write_the_same():
        path.write_text("text")

    def write_with_the_old_time():
        times = path.stat()
        path.write_text("mine")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def put_back():
        path.rename(other)
        path.write_text("mine")
        other.rename(path)

    for change in (write_the_same, write_with_the_old_time, put_back, path.unlink):
        path.write_text("text")
        with pytest.raises(DataError, match=r"corpus.jsonl: was replaced, or has changed, while it was read; run the command again"):
            confirm_after(path, change)


def test_a_product_that_is_replaced_by_an_equal_one_or_put_back_has_changed(product, tmp_path):
    def put_back():
        product.rename(tmp_path / "elsewhere")
        write_product(tmp_path / "other", "two").rename(product)
        product.rename(tmp_path / "other")
        (tmp_path / "elsewhere").rename(product)

    def replace():
        product.rename(tmp_path / "earlier")
        write_product(product, "one")

    for change in (put_back, replace):
        with pytest.raises(ArtifactError, match="product: was replaced"):
            confirm_after(product, change)


def test_what_lies_beside_the_files_of_a_product_and_links_to_them_are_no_change(product, tmp_path):
    confirm_after(product, lambda: (product / "note.txt").write_text("mine"))
    confirm_after(product, lambda: (tmp_path / "link").hardlink_to(product / "ids.txt"))
    confirm_after(tmp_path / "missing", lambda: None)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/model.safetensors").write_text("one")
    with pytest.raises(DataError, match="weights: was replaced, or has changed"):  # the files of a folder that is no product are compared
        confirm_after(tmp_path / "weights", lambda: (tmp_path / "weights/model.safetensors").write_text("two"))


def test_what_is_released_may_change(product):
    with identity.hold_sources():
        identity.hold(product)
        identity.release_held(products_only=False)
        (product / "manifest.json").unlink()
        identity.confirm_held()


def test_a_reader_reads_again_until_nothing_is_replaced_and_then_its_error_counts(product, tmp_path):
    seen = []

    @identity.read_unchanged
    def read(path, changes=3):
        seen.append((path / "ids.txt").read_text())
        if len(seen) <= changes:
            product.rename(tmp_path / f"earlier{len(seen)}")
            write_product(product, str(len(seen)))
            raise ValueError("of two products")
        if seen[-1] == "3":
            raise ArtifactError("its own")
        return seen[-1]

    with pytest.raises(ArtifactError, match="its own"):
        read(path=product)
    assert seen == ["one", "1", "2", "3"]
    assert read(write_product(tmp_path / "next", "five")) == "five"


def test_a_checkpoint_that_a_reader_verifies_is_held_for_the_stage_around_it(product, tmp_path):
    with pytest.raises(ArtifactError, match="product: was replaced"), identity.hold_sources():
        manifests.verify_artifact(product, "run")
        product.rename(tmp_path / "earlier")
        write_product(product, "two")
        identity.confirm_held()
