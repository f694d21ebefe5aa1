"""Rows of the sources that libraries read: `hf:NAME[/CONFIG][@SPLIT]` and `hf:FOLDER` (datasets), `irds:NAME#PART`, parquet."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from moeir.errors import DataError, UsageError

PARQUET_ROWS = 1024  # in memory at a time


def read_hf(source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Location and fields of each row."""
    location, _, split = source.removeprefix("hf:").partition("@")
    dataset = _load_hf(source, location)
    if isinstance(dataset, dict):
        if not split and len(dataset) > 1:
            raise UsageError(f"{source}: has the splits {', '.join(dataset)}; name one: {source}@{next(iter(dataset))}")
        if split and split not in dataset:
            raise UsageError(f"{source}: has no split {split!r}; it has {', '.join(dataset)}")
        split = split or next(iter(dataset))
        dataset = dataset[split]
    for number, row in enumerate(dataset, 1):
        yield f"hf:{location}{'@' if split else ''}{split}: row {number}", row


def is_columnar(source: Path | str) -> bool:
    """Whether a source is rows of columns: `hf:NAME`, or a parquet file by its name."""
    return str(source).startswith("hf:") or Path(source).suffix == ".parquet"


def read_columnar(source: Path | str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Location and fields of each row of such a source, without those that are null."""
    rows = read_hf(str(source)) if str(source).startswith("hf:") else _read_parquet(source)
    return ((where, {name: value for name, value in row.items() if value is not None}) for where, row in rows)


def _read_parquet(path: Path | str) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            rows = (row for batch in table.iter_batches(PARQUET_ROWS) for row in batch.to_pylist())
            yield from ((f"{path}: row {number}", row) for number, row in enumerate(rows, 1))
    except (OSError, pyarrow.ArrowException) as fault:
        reason = (str(fault).splitlines() or [type(fault).__name__])[0]
        raise DataError(f"{path}: cannot be read as parquet: {reason}") from None


def read_irds(source: str, parts: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Location and named tuple of each row of a part, which is one of `parts`."""
    name, _, part = source.removeprefix("irds:").partition("#")
    if part not in parts:
        marks, examples = (" or ".join(f"{start}#{part}" for part in parts) for start in ("", f"irds:{name}"))
        raise UsageError(f"{source}: expected {marks}; write {examples}")
    dataset = _load_irds(source, name)
    if not getattr(dataset, f"has_{part}")():
        raise UsageError(f"{source}: {name} has no {part}; name a data set or a split that has some, as in irds:beir/scifact/test")
    for number, row in enumerate(getattr(dataset, f"{part}_iter")(), 1):
        yield f"{source}: row {number}", row


def _load_irds(source: str, name: str) -> Any:
    try:
        import ir_datasets
    except ImportError:
        raise UsageError(f"{source}: needs the package ir-datasets; pip install 'moeir[irds]'") from None
    try:
        return ir_datasets.load(name)
    except KeyError:
        raise UsageError(f"{source}: ir_datasets has no {name!r}") from None


def _load_hf(source: str, location: str) -> Any:
    """A table, or tables by split."""
    import datasets

    if not location.strip("/"):
        raise UsageError(f"{source}: expected the name of a data set behind it")
    try:
        if any((Path(location) / file).is_file() for file in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(location)
        names = location.split("/", 2)
        path = [location] if Path(location).is_dir() else ["/".join(names[:2]), *names[2:]]
        tables = datasets.load_dataset(*path)
        first = next(iter(tables.values())) if isinstance(tables, dict) else tables
        if first.info.builder_name == "csv":  # again, as written: pandas makes the number 7 of 007, and null of NA
            as_written = datasets.Features({name: datasets.Value("string") for name in first.column_names})
            tables = datasets.load_dataset(*path, features=as_written, keep_default_na=False)
        return tables
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as fault:
        raise UsageError(f"{source}: cannot be loaded: {(str(fault).splitlines() or [type(fault).__name__])[0]}") from fault
