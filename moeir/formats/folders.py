"""Files of collection folders: compressed or not, one file of judgements per split."""

from collections.abc import Iterator
from pathlib import Path

from moeir.errors import ArtifactError
from moeir.formats.base import Conversion
from moeir.formats.reading import read_unique_texts
from moeir.records import lines, qrels
from moeir.records.qrels import Qrels
from moeir.records.texts import Text


def find_file(folder: Path, *names: str) -> Path:
    """The first existing file of these names, compressed or not."""
    for name in names:
        for compression in ("", ".gz", ".zst"):
            if (folder / f"{name}{compression}").is_file():
                return folder / f"{name}{compression}"
    raise ArtifactError(f"{folder}: no {' or '.join(names)}; expected a folder in this format's layout")


def read_qrels_splits(folder: Path, prefix: str, suffixes: tuple[str, ...]) -> dict[str, Qrels]:
    """Judgements by split, from every file named `prefixSPLITsuffix`, in the order of file names."""
    splits = {}
    for file in sorted(folder.glob(f"{prefix}*")) if folder.is_dir() else ():
        name = lines.strip_compression_suffix(file).name
        for suffix in suffixes:
            if file.is_file() and name.endswith(suffix) and len(name) > len(prefix) + len(suffix):
                splits[name[len(prefix) : -len(suffix)]] = qrels.read_qrels(file)
                break
    return splits


def chain_texts(files: list[Path], conversion: Conversion) -> Iterator[Text]:
    """The texts of several files; of equal ids, the first."""
    seen_ids: set[str] = set()
    for file in files:
        for text in read_unique_texts(file, conversion):
            if text.id not in seen_ids:
                seen_ids.add(text.id)
                yield text
