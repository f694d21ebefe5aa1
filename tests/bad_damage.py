"""Damaged, exchanged and outdated encodings and indexes."""

import json
import shutil
from pathlib import Path

from tests.bad_input import INDEX, SEARCH, BadInput, Setup, damaged_copy, flip_bit, set_keys, overwrite

REPAIR = "run moeir index again with --force"


def make_other_checkpoint(folder: Path) -> None:
    shutil.copytree(folder / "came", folder / "other")
    files = json.loads((folder / "came/manifest.json").read_text())["files"]
    set_keys(files={"moeir.json": files["moeir.json"]})(folder / "other/manifest.json")


def swap_file(name: str, other: str) -> Setup:
    """Copy the index and replace one of its files by another."""

    def setup(folder: Path) -> None:
        shutil.copytree(folder / "idx", folder / "bad")
        shutil.copy(folder / other, folder / "bad" / name)

    return setup


def remove_seal(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["seal"]
    path.write_text(json.dumps(content))


def change_word(path: Path) -> None:
    path.write_text(path.read_text().replace('"flat"', '"flap"'))


manifest, encoded = ("idx", "manifest.json"), ("enc", "manifest.json")
OLD_FORMAT = "bad: an index of format 1, made by version"
DAMAGE = [
    BadInput("queries of another checkpoint", make_other_checkpoint, SEARCH + "idx --model other", 4, "and moeir index again"),
    BadInput("an older index", damaged_copy(*manifest, set_keys(format=1)), SEARCH + "bad", 4, f"{OLD_FORMAT} 0.1.0 of moeir; this one reads format 2; {REPAIR}"),
    BadInput("an index of nobody's", damaged_copy(*manifest, set_keys(format=None, versions=None)), SEARCH + "bad", 4, f"{OLD_FORMAT} unknown of moeir"),
    BadInput("a later index", damaged_copy(*manifest, set_keys(format=3)), SEARCH + "bad", 4, "this one reads format 2; update moeir"),
    BadInput("later encodings", damaged_copy(*encoded, set_keys(format=2)), INDEX + "bad", 4, "bad: encodings of format 2, made by version"),
    BadInput("a manifest without its seal", damaged_copy(*manifest, remove_seal), SEARCH + "bad", 4, "bad/manifest.json: damaged: manifest checksum"),
    BadInput("a word of the manifest", damaged_copy(*manifest, change_word), SEARCH + "bad", 4, f"manifest checksum mismatch; {REPAIR}"),
    BadInput("a manifest of encodings", damaged_copy(*encoded, flip_bit), INDEX + "bad", 4, "bad/manifest.json: damaged"),
    BadInput("another expert's", swap_file("global/vectors.npy", "idx/local/vectors.npy"), SEARCH + "bad", 4, "global/vectors.npy: damaged"),
    BadInput("ids of another index", swap_file("ids.txt", "queries.tsv"), SEARCH + "bad", 4, REPAIR),
    BadInput("another manifest", swap_file("manifest.json", "bm25/manifest.json"), SEARCH + "bad", 4, f"the file is missing; {REPAIR}"),
    BadInput("encodings of nothing", damaged_copy("enc", "lexical/terms.npy", overwrite("")), INDEX + "bad", 4, "moeir encode again with --force"),
]
