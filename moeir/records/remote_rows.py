"""Rows of the sources that libraries read: `hf:NAME[/CONFIG][@SPLIT]` and `hf:FOLDER` (datasets), `irds:NAME#PART` (ir_datasets)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from moeir.errors import UsageError


def read_hf(source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Location and fields of each row."""
    import datasets

    location, _, split = source.removeprefix("hf:").partition("@")
    try:
        if Path(location).is_dir():
            is_saved = any((Path(location) / file).is_file() for file in ("dataset_dict.json", "state.json"))
            dataset = datasets.load_from_disk(location) if is_saved else datasets.load_dataset(location)
        else:
            owner, name, *config = location.split("/", 2) if "/" in location else ("", location)
            dataset = datasets.load_dataset(f"{owner}/{name}" if owner else name, *config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as fault:
        raise UsageError(f"{source}: cannot be loaded: {(str(fault).splitlines() or [type(fault).__name__])[0]}") from fault
    if isinstance(dataset, dict):
        if not split and len(dataset) > 1:
            raise UsageError(f"{source}: has the splits {', '.join(dataset)}; name one: {source}@{next(iter(dataset))}")
        if split and split not in dataset:
            raise UsageError(f"{source}: has no split {split!r}; it has {', '.join(dataset)}")
        dataset = dataset[split or next(iter(dataset))]
    for number, row in enumerate(dataset, 1):
        yield f"{source}: row {number}", row


def read_irds(source: str, parts: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Location and named tuple of each row of a part, which is one of `parts`: docs, queries or qrels."""
    try:
        import ir_datasets
    except ImportError:
        raise UsageError(f"{source}: needs the package ir-datasets; pip install 'moeir[irds]'") from None
    name, _, part = source.removeprefix("irds:").partition("#")
    if part not in parts:
        marks, examples = (" or ".join(f"{start}#{part}" for part in parts) for start in ("", f"irds:{name}"))
        raise UsageError(f"{source}: expected {marks}; write {examples}")
    try:
        dataset = ir_datasets.load(name)
    except KeyError:
        raise UsageError(f"{source}: ir_datasets has no {name!r}") from None
    if not getattr(dataset, f"has_{part}")():
        raise UsageError(f"{source}: {name} has no {part}; name a data set or a split that has some, as in irds:beir/scifact/test")
    for number, row in enumerate(getattr(dataset, f"{part}_iter")(), 1):
        yield f"{source}: row {number}", row
