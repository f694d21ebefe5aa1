"""Where the corpus, the queries and the judgements of a data set are.

A data set is a folder in BEIR's layout (corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, each also with .gz or .zst), `irds:NAME`
(ir_datasets) or `hf:NAME` (Hugging Face hub). `FOLDER#SPLIT` names a split of a folder, and `TEXTS#QRELS` the texts that QRELS judges.
What a call in Python passes as values has a path, too: that of a file in memory.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from moeir.errors import DataError, UsageError

PARTS = ("corpus", "queries", "qrels")
REMOTE_PREFIXES = ("hf:", "irds:")
COMPRESSIONS = ("", ".gz", ".zst")
QRELS_SUFFIXES = (".tsv", ".txt", ".qrels", ".trec")
_memory_folders: dict[str, dict[str, bytes]] = {}
_memory_lock = threading.Lock()
_IRDS_PARTS = {"corpus": "docs", "queries": "queries", "qrels": "qrels"}


def is_remote(source: Path | str) -> bool:
    """Whether a source is read by a library instead of from a file.

    >>> is_remote("irds:beir/scifact/test#qrels"), is_remote("qrels.tsv")
    (True, False)
    """
    return str(source).startswith(REMOTE_PREFIXES)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """The path of a folder whose files are in memory: `records.lines` reads and writes them as it does files on a disk."""
    with _memory_lock:
        name = next(name for number in count(1) if (name := f"in-memory-{number}" if number > 1 else "in-memory") not in _memory_folders)
        _memory_folders[name] = {}
    try:
        yield Path(name)
    finally:
        del _memory_folders[name]


def memory_files(path: Path | str) -> dict[str, bytes] | None:
    """The files by name of the folder in memory that a path is in; None for any other path."""
    return _memory_folders.get(os.path.dirname(path))


def read_memory(path: Path | str) -> bytes | None:
    """The content of a file in memory; None for any other path."""
    return (memory_files(path) or {}).get(os.path.basename(path))


def find_file(folder: Path, *names: str) -> Path | None:
    """The file of one of these names, compressed or not; DataError if there are two."""
    return require_single([file for name in names for compression in COMPRESSIONS if (file := folder / f"{name}{compression}").is_file()])


def require_single(files: Sequence[Path]) -> Path | None:
    """The only file, or None; DataError that names two, of which either could be meant."""
    if len(files) > 1:
        raise DataError(f"{files[0]}: beside it stands {files[1].name}, and either could be meant; expected one of them: move the other")
    return files[0] if files else None


def split_files(folder: Path, prefix: str = "", suffixes: tuple[str, ...] = QRELS_SUFFIXES) -> dict[str, Path]:
    """The files of judgements by split: those named `prefixSPLITsuffix`, compressed or not, in the order of file names."""
    endings = [f"{suffix}{compression}" for suffix in suffixes for compression in COMPRESSIONS]
    files = [file for file in sorted(folder.glob(f"{prefix}*")) if file.is_file()] if folder.is_dir() else []
    named = [(file, ending) for file in files for ending in endings if file.name.endswith(ending)]
    splits: dict[str, list[Path]] = {}
    for file, ending in named:
        splits.setdefault(file.name[len(prefix) : -len(ending)], []).append(file)
    return {split: file for split, files in splits.items() if split and (file := require_single(files))}


def split_judged(source: Path | str) -> tuple[str, str | None]:
    """The two sides of `TEXTS#QRELS`; None for QRELS if the source is not of this form.

    >>> split_judged("hf:BeIR/scifact/queries#hf:BeIR/scifact-qrels@test"), split_judged("irds:beir/scifact/test#queries")
    (('hf:BeIR/scifact/queries', 'hf:BeIR/scifact-qrels@test'), ('irds:beir/scifact/test#queries', None))
    """
    words = str(source).split("#")
    if len(words) > 1 and not str(source).startswith("irds:") and not Path(source).exists():
        sides = [("#".join(words[:count]), "#".join(words[count:])) for count in range(1, len(words))]
        for texts, qrels in sides:
            if texts.startswith("hf:") or Path(texts).is_file():
                if not qrels:
                    raise UsageError(f"{source}: expected the judgements after #")
                return texts, qrels
    return str(source), None


def find_judgements(queries: Path | None) -> Path | None:
    """The judgements of queries that a source names with them: QRELS of TEXTS#QRELS, or those of the same `irds:` data set.

    >>> find_judgements(Path("irds:beir/scifact/test#queries"))
    PosixPath('irds:beir/scifact/test#qrels')
    """
    name = str(queries)
    qrels = f"{name.removesuffix('queries')}qrels" if name.startswith("irds:") and name.endswith("#queries") else split_judged(name)[1]
    return None if qrels is None else Path(qrels)


def split_folder(source: str) -> tuple[str, str | None]:
    """The two sides of `FOLDER#SPLIT`; None for SPLIT if the source is not of this form."""
    folder, mark, split = source.rpartition("#")
    if not mark or not Path(folder).is_dir() or Path(source).exists():
        return source, None
    if not split:
        raise UsageError(f"{source}: expected the name of a split after #")
    return folder, split


def locate_source(source: str, part: str, split: str | None, default: str) -> tuple[str, ...]:
    """The sources that a user's source means for a part: its files if it is a folder, else itself.

    The queries of a folder are all of them, unless there is a `split`.
    """
    if source.startswith("irds:"):
        return (source if "#" in source else f"{source}#{_IRDS_PARTS[part]}",)
    folder, name = split_folder(source)
    if source.startswith("hf:") or not Path(folder).is_dir():
        return (source,)
    return _locate_in_folder(Path(folder), part, name or split, default if part == "qrels" else "")


def locate_part(dataset: str, part: str, split: str | None, default: str) -> tuple[str, ...]:
    """The sources of a part of a data set. Queries are those judged in the split, `default` if none is named; "" for all splits.

    >>> locate_part("irds:beir/scifact", "queries", "test", "train"), locate_part("hf:mteb/scifact", "qrels", None, "test")
    (('irds:beir/scifact/test#queries',), ('hf:mteb/scifact/default@test',))
    """
    if dataset.startswith("irds:"):
        name = f"{dataset}/{split}" if split and part != "corpus" and not dataset.endswith(f"/{split}") else dataset
        return (f"{name}#{_IRDS_PARTS[part]}",)
    if dataset.startswith("hf:"):
        return (_locate_on_hub(dataset, part, split or default),)
    if not Path(dataset).is_dir():
        what = "is a file" if Path(dataset).exists() else "no such folder"
        raise DataError(f"{dataset}: {what}; expected a folder in BEIR's layout, irds:NAME or hf:NAME (--dataset)")
    return _locate_in_folder(Path(dataset), part, split, default)


def _locate_on_hub(dataset: str, part: str, split: str) -> str:
    """BEIR's data sets have the judgements in a repository of their own, the others (as MTEB's) in the configuration `default`."""
    qrels = f"{dataset}-qrels" if dataset.lower().startswith("hf:beir/") else f"{dataset}/default"
    qrels += f"@{split}" if split else ""
    return {"corpus": f"{dataset}/corpus", "queries": f"{dataset}/queries#{qrels}" if split else f"{dataset}/queries", "qrels": qrels}[part]


def _locate_in_folder(folder: Path, part: str, split: str | None, default: str) -> tuple[str, ...]:
    splits = split_files(folder / "qrels")
    if part == "qrels":
        if not splits:
            raise DataError(f"{folder}: expected a file for --qrels, found a folder without qrels/SPLIT.tsv")
        return (
            tuple(map(str, splits.values())) if not split and not default else (str(splits[_choose_split(folder, splits, split, default)]),)
        )
    if (file := find_file(folder, f"{part}.jsonl")) is None:
        raise DataError(f"{folder}: expected a file for --{part}, found a folder without {part}.jsonl")
    if part == "queries" and (split or (default and splits)):
        return (f"{file}#{splits[_choose_split(folder, splits, split, default)]}",)
    return (str(file),)


def _choose_split(folder: Path, splits: dict[str, Path], split: str | None, default: str) -> str:
    """The split that is named, else the default, else the only one."""
    if split and split not in splits:
        raise UsageError(f"{folder}: has no split {split!r}; it has {', '.join(splits) or 'none'}")
    if split or default in splits:
        return split or default
    if len(splits) > 1:
        raise UsageError(f"{folder}: has the splits {', '.join(splits)} and no {default!r}; name one with --split")
    return next(iter(splits))
