"""Damaged, exchanged and outdated encodings and indexes."""

import json
import shutil
from pathlib import Path

from tests.bad_input import INDEX, SEARCH, Bad, Setup, damaged, flip, says, writes

AGAIN = "run moeir index again with --force"


def another_checkpoint(folder: Path) -> None:
    shutil.copytree(folder / "came", folder / "other")
    files = json.loads((folder / "came/manifest.json").read_text())["files"]
    says(files={"moeir.json": files["moeir.json"]})(folder / "other/manifest.json")


def exchanged(name: str, other: str) -> Setup:
    """Copy the index and replace one of its files by another."""

    def setup(folder: Path) -> None:
        shutil.copytree(folder / "idx", folder / "bad")
        shutil.copy(folder / other, folder / "bad" / name)

    return setup


def unsealed(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["seal"]
    path.write_text(json.dumps(content))


def one_word(path: Path) -> None:
    path.write_text(path.read_text().replace('"flat"', '"flap"'))


manifest, encoded = ("idx", "manifest.json"), ("enc", "manifest.json")
OLD = "bad: an index of format 1, made by version"
DAMAGE = [
    Bad("queries of another checkpoint", another_checkpoint, SEARCH + "idx --model other", 4, "and moeir index again"),
    Bad("an older index", damaged(*manifest, says(format=1)), SEARCH + "bad", 4, f"{OLD} 0.1.0 of moeir; this one reads format 2; {AGAIN}"),
    Bad("an index of nobody's", damaged(*manifest, says(format=None, versions=None)), SEARCH + "bad", 4, f"{OLD} unknown of moeir"),
    Bad("a later index", damaged(*manifest, says(format=3)), SEARCH + "bad", 4, "this one reads format 2; update moeir"),
    Bad("later encodings", damaged(*encoded, says(format=2)), INDEX + "bad", 4, "bad: encodings of format 2, made by version"),
    Bad("a manifest without its seal", damaged(*manifest, unsealed), SEARCH + "bad", 4, "bad/manifest.json: damaged: manifest checksum"),
    Bad("a word of the manifest", damaged(*manifest, one_word), SEARCH + "bad", 4, f"manifest checksum mismatch; {AGAIN}"),
    Bad("a manifest of encodings", damaged(*encoded, flip), INDEX + "bad", 4, "bad/manifest.json: damaged"),
    Bad("another expert's", exchanged("global/vectors.npy", "idx/local/vectors.npy"), SEARCH + "bad", 4, "global/vectors.npy: damaged"),
    Bad("ids of another index", exchanged("ids.txt", "queries.tsv"), SEARCH + "bad", 4, AGAIN),
    Bad("another manifest", exchanged("manifest.json", "bm25/manifest.json"), SEARCH + "bad", 4, f"the file is missing; {AGAIN}"),
    Bad("encodings of nothing", damaged("enc", "lexical/terms.npy", writes("")), INDEX + "bad", 4, "moeir encode again with --force"),
]
