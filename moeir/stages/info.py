"""`moeir info`: describe a checkpoint or another artifact: contents, size, cost per text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.errors import ArtifactError
from moeir.parsing import dump_json, escape_controls
from moeir.settings import argument, option
from moeir.stages.base import STREAM, Stage

if TYPE_CHECKING:
    from moeir.artifacts.shards import Shard

SIDES = ("query", "document")


@dataclass(frozen=True, kw_only=True)
class Info(Stage):
    """Describe what moeir made: experts, parameters, size and FLOPs of a checkpoint; settings, sources and counts of anything else."""

    path: Path = argument("A checkpoint, encodings, an index, a run, or anything else with a manifest.")
    form: str = option("Form of the facts.", "table", choices=("table", "json"), aliases=("--format",))

    def work(self) -> None:
        from moeir.records import lines

        facts = self._describe()
        lines.write_lines([dump_json(facts, indent=2) if self.form == "json" else _format_facts(facts)], STREAM)

    def _describe(self) -> dict[str, Any]:
        from moeir.artifacts import manifests, shards
        from moeir.artifacts.unfinished import describe_unfinished

        has_manifest = manifests.manifest_path(self.path).is_file()
        if not has_manifest and (words := describe_unfinished(self.path)):
            raise ArtifactError(f"{self.path}: {words}")
        if not self.path.exists():
            raise ArtifactError(f"{self.path}: no such file or folder")
        if finished_shards := shards.finished_shards(self.path):
            return _describe_shards(self.path, finished_shards)
        if not has_manifest and not (self.path / "config.json").is_file():
            raise ArtifactError(f"{self.path}: moeir did not make it; moeir check reads data, moeir convert knows its format")
        kind = manifests.read_manifest(self.path)["kind"] if has_manifest else "checkpoint"
        if self.path.is_file():
            manifests.verify_file(self.path)
        manifest = manifests.verify_artifact(self.path, kind) if self.path.is_dir() else manifests.read_manifest(self.path)
        if kind == "checkpoint":
            described = _describe_checkpoint(self.path)
        else:
            names = ("settings", "counts", "sources", "seconds", "versions")
            described = {name: manifest[name] for name in names if manifest.get(name)}
        facts = described | {"kind": kind, "path": str(self.path), "stage": manifest.get("stage")}
        return facts | {"bytes": _sum_bytes(manifest["files"])}


def _describe_shards(path: Path, finished_shards: "Mapping[Shard, Path]") -> dict[str, Any]:
    """The facts of sharded encodings: settings of the first shard, which shards exist, and total texts and bytes."""
    from moeir.artifacts import manifests, shards

    by_shard = {shard.folder_name: manifests.verify_artifact(folder, "encodings") for shard, folder in finished_shards.items()}
    first, missing_shards = next(iter(by_shard.values())), list(map(str, shards.missing_shards(finished_shards)))
    sizes = {name: _sum_bytes(manifest["files"])["all"] for name, manifest in by_shard.items()}
    counts = {name: value for name, value in first["counts"].items() if name != "checkpoint"}
    counts |= {
        "texts": sum(manifest["counts"]["texts"] for manifest in by_shard.values()),
        "shards": f"{len(by_shard)} of {len(by_shard) + len(missing_shards)}",
    } | ({"missing shards": missing_shards} if missing_shards else {})
    facts = {"kind": first["kind"], "path": str(path), "stage": first.get("stage"), "settings": first["settings"], "counts": counts}
    return facts | {"bytes": sizes | {"all": sum(sizes.values())}}


def _sum_bytes(files: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Bytes per top-level folder or file, and in total."""
    sizes: dict[str, int] = {}
    for name, entry in files.items():
        top = name.split("/")[0]
        sizes[top] = sizes.get(top, 0) + int(entry["bytes"])
    return sizes | {"all": sum(sizes.values())}


def _describe_checkpoint(path: Path) -> dict[str, Any]:
    from moeir.architectures.checkpoint import open_checkpoint
    from moeir.architectures.costs import count_parameters, measure_cost

    checkpoint = open_checkpoint(path)
    architecture = checkpoint.architecture
    config, input_config, trunk = architecture.encoder.config, checkpoint.input_config, checkpoint.trunk
    size = 0 if trunk is None else _sum_bytes(trunk.files)["all"]
    family = str(checkpoint.config.get("moeir_family", checkpoint.config.get("model_type")))
    cost = {}
    for side in ("pair",) if architecture.reads_pairs else SIDES:
        length = input_config.max_length(side)
        active, flops = measure_cost(architecture, side, length)
        cost[side] = {"tokens": length, "active_parameters": active, "flops_per_token": round(flops / length), "flops_per_text": flops}
    return {
        "architecture": checkpoint.spec,
        "encoder": {"family": family, "layers": config.layers, "hidden": config.hidden, "vocabulary": config.vocabulary},
        **({} if trunk is None else {"trunk": {"model": trunk.model, "revision": trunk.revision, "dtype": trunk.dtype, "bytes": size}}),
        "parameters": architecture.parameter_count(),
        **({"prompts": input_config.prompts} if input_config.prompts else {}),
        "reading": {side: {"prefix": getattr(input_config, f"{side}_prefix"), "tokens": input_config.max_length(side)} for side in SIDES},
        "experts": {
            name: {"representation": kind, "scale": architecture.scales.get(name, 1.0)}
            | ({"calibration": checkpoint.calibration[name]} if checkpoint.calibration else {})
            for name, kind in architecture.representation_kinds.items()
        },
        "parts": {owner: {"parameters": count} for owner, count in count_parameters(architecture).items()},
        "cost": cost,
    }


def _format_facts(facts: Mapping[str, Any]) -> str:
    """A line for each fact, then a table for each fact that is a mapping of mappings."""
    from moeir.evaluation import tables

    made_by = f" (made by moeir {facts['stage']})" if facts.get("stage") else ""
    rows, blocks = [(str(facts["kind"]), f"{facts['path']}{made_by}")], list[str]()
    for name, value in facts.items():
        if name in ("kind", "path", "stage"):
            continue
        if isinstance(value, Mapping) and value and all(isinstance(one, Mapping) for one in value.values()):
            columns = list(next(iter(value.values())))
            cells = [[key, *(_format_value(one.get(column)) for column in columns)] for key, one in value.items()]
            blocks.append(tables.format_table([name, *columns], cells))
        elif isinstance(value, Mapping) and name in ("settings", "counts", "bytes"):
            prefix = "bytes of " if name == "bytes" else ""
            rows += [(f"{prefix}{key}", _format_value(one)) for key, one in value.items()]
        else:
            rows.append((name, _format_value(value)))
    width = max(len(name) for name, _ in rows)
    return "\n\n".join(["\n".join(escape_controls(f"{name:<{width}}  {value}".rstrip()) for name, value in rows), *blocks])


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_value(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, str):
        return value or "''"
    if value is None or isinstance(value, bool):
        return "-" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
