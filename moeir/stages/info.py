"""`moeir info`: describe a checkpoint, another artifact or a data file: contents, size, cost per text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import data_sources
from moeir.errors import ArtifactError, UsageError
from moeir.parsing import dump_json, escape_controls
from moeir.settings import argument, option
from moeir.stages.base import STREAM, TEXT_KINDS, Counts, Stage, is_stream

if TYPE_CHECKING:
    from moeir.analysis.flops import ParameterAccount
    from moeir.artifacts.shards import Shard

FLOAT32_BYTES = 4
POOLED_FAMILIES = ("bert", "roberta", "xlm-roberta")
SIDES = ("query", "document")


@dataclass(frozen=True, kw_only=True)
class Info(Stage):
    """Describe an artifact or data: experts, parameters, size and FLOPs of a checkpoint; counts, lengths and first ids of data."""

    path: Path = argument(
        "A checkpoint, encodings, an index, texts, judgements, a run, examples, a folder in the layout of BEIR, MS MARCO, …, "
        "irds:NAME#docs or hf:NAME."
    )
    source_format: str | None = option(
        "Format of data [default: detected from the first lines].", None, package="formats", aliases=("--from",)
    )
    form: str = option("table or json.", "table", choices=("table", "json"), aliases=("--format",))

    def work(self) -> Counts:
        from moeir.artifacts import manifests, shards
        from moeir.artifacts.unfinished import describe_unfinished

        if data_sources.is_remote(self.path):
            from moeir.formats import summary

            self._write_facts(summary.summarize_remote(str(self.path)))
            return None
        if not manifests.manifest_path(self.path).is_file() and (words := describe_unfinished(self.path)):
            raise ArtifactError(f"{self.path}: {words}")
        if not self.path.exists():
            raise ArtifactError(f"{self.path}: no such file or folder")
        if is_stream(self.path) and self.source_format is None:
            raise UsageError(f"{self.path}: a pipe can be read once; give its format with --from")
        if finished_shards := shards.finished_shards(self.path):
            for shard in finished_shards.values():
                manifests.verify_artifact(shard, "encodings")
            self._write_facts(_describe_shards(self.path, finished_shards))
            return None
        if (self.path / "config.json").is_file() and not (self.path / manifests.MANIFEST).is_file():
            manifests.verify_artifact(self.path, "checkpoint")
        if not manifests.manifest_path(self.path).is_file() or self.source_format is not None:
            self._write_facts(self._describe_data())
            return None
        manifest = manifests.read_manifest(self.path)
        if self.path.is_dir():
            manifests.verify_artifact(self.path, manifest["kind"])
        else:
            try:
                manifests.verify_file(self.path)
            except ArtifactError as problem:
                raise ArtifactError(f"{problem}; if you have edited the file, --from FORMAT reads it as it is") from None
        facts = {"path": str(self.path), "kind": manifest["kind"], "stage": manifest.get("stage")}
        names = ("settings", "counts", "sources", "seconds", "versions")
        described = {name: manifest[name] for name in names if manifest.get(name)}
        facts |= _describe_checkpoint(self.path) if manifest["kind"] == "checkpoint" else described
        facts["bytes"] = _bytes_by_folder(manifest["files"])
        is_collection = manifest["kind"] == "converted" and (self.path / "corpus.jsonl").is_file()
        if is_collection or (manifest["kind"] in TEXT_KINDS and manifest["kind"] != "fusion" and self.path.is_file()):
            facts |= {"holds": {name: value for name, value in self._describe_data().items() if name not in ("path", "kind", "bytes")}}
        self._write_facts(facts)
        return None

    def _describe_data(self) -> dict[str, Any]:
        from moeir.formats import summary

        facts = summary.summarize(self.path, self.source_format)
        if is_stream(self.path):
            return facts
        files = [file for file in self.path.rglob("*") if file.is_file()] if self.path.is_dir() else [self.path]
        return facts | {"bytes": {"all": sum(file.stat().st_size for file in files)}}

    def _write_facts(self, facts: Mapping[str, Any]) -> None:
        from moeir.records import lines

        blocks = [dump_json(facts, indent=2)] if self.form == "json" else list(_format_tables(facts))
        lines.write_lines(["\n\n".join(blocks)], STREAM)


def _describe_shards(path: Path, finished_shards: "Mapping[Shard, Path]") -> dict[str, Any]:
    """The facts of sharded encodings: settings of the first shard, which shards exist, and total texts and bytes."""
    from moeir.artifacts import manifests, shards

    shard_manifests = [manifests.read_manifest(shard) for shard in finished_shards.values()]
    first, missing_shards = shard_manifests[0], [str(shard) for shard in shards.missing_shards(finished_shards)]
    by_shard = zip(finished_shards, shard_manifests, strict=True)
    sizes = {shard.folder_name: _bytes_by_folder(manifest["files"])["all"] for shard, manifest in by_shard}
    counts = {name: value for name, value in first["counts"].items() if name != "checkpoint"}
    counts |= {
        "texts": sum(manifest["counts"]["texts"] for manifest in shard_manifests),
        "shards": f"{len(finished_shards)} of {len(finished_shards) + len(missing_shards)}",
    }
    return {
        "path": str(path),
        "kind": first["kind"],
        "stage": first.get("stage"),
        "settings": {name: value for name, value in first["settings"].items() if name != "shard"},
        "counts": counts | ({"missing shards": missing_shards} if missing_shards else {}),
        "seconds": round(sum(manifest.get("seconds", 0) for manifest in shard_manifests), 3),
        "bytes": sizes | {"all": sum(sizes.values())},
    }


def _bytes_by_folder(files: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Bytes per top-level folder or file, and in total."""
    sizes: dict[str, int] = {}
    for name, facts in files.items():
        top = name.split("/")[0]
        sizes[top] = sizes.get(top, 0) + int(facts["bytes"])
    return sizes | {"all": sum(sizes.values())}


def _describe_checkpoint(path: Path) -> dict[str, Any]:
    from moeir.architectures.base import count_parameters
    from moeir.architectures.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    account = count_parameters(checkpoint.architecture)
    config, input_config = checkpoint.architecture.encoder.config, checkpoint.input_config
    family = str(checkpoint.config.get("moeir_family", checkpoint.config.get("model_type")))
    pooler = any(name.startswith(("encoder.pooler.", "pooler.")) for name in account.shapes)
    encoders = 1 + any(name.startswith("document_encoder.") for name in account.shapes)
    with_pooler = account.total + (0 if pooler else encoders * config.hidden * (config.hidden + 1))
    parameters = {
        "total": account.total,
        "float32_bytes": account.total * FLOAT32_BYTES,
        "pooler": pooler,
        "with_pooler": with_pooler if family in POOLED_FAMILIES else None,
        "parts": [{"part": part.name, "parameters": part.parameters} | dict(part.active) for part in account.groups(SIDES)],
    }
    return {
        "architecture": checkpoint.spec,
        "encoder": {"family": family, "layers": config.layers, "hidden": config.hidden, "vocabulary": config.vocabulary},
        "reading": {side: {"prefix": getattr(input_config, f"{side}_prefix"), "tokens": input_config.max_length(side)} for side in SIDES},
        "experts": {
            name: {"representation": kind, "scale": checkpoint.architecture.scales.get(name, 1.0)}
            | ({"calibration": checkpoint.calibration[name]} if checkpoint.calibration else {})
            for name, kind in checkpoint.architecture.representation_kinds.items()
        },
        "parameters": parameters,
        "cost": {side: _estimate_cost(account, side, input_config.max_length(side)) for side in SIDES},
    }


def _estimate_cost(account: "ParameterAccount", side: str, length: int) -> dict[str, int]:
    """The cost of a text of the maximum length of a side."""
    flops = account.flops(side, length)
    return {"tokens": length, "active_parameters": account.active(side), "flops_per_token": round(flops / length), "flops_per_text": flops}


def _format_tables(facts: Mapping[str, Any]) -> Iterator[str]:
    made_by = f" (made by moeir {facts['stage']})" if "stage" in facts else ""
    rows = [[facts["kind"], f"{facts['path']}{made_by}"]]
    if facts["kind"] == "checkpoint":
        yield from _format_checkpoint(facts, rows)
        return
    data_facts = {} if made_by else {name: value for name, value in facts.items() if name not in ("path", "kind", "bytes")}
    groups = (*(facts.get(group, {}) for group in ("settings", "counts", "holds")), data_facts)
    rows += [[name, _format_value(value)] for group in groups for name, value in group.items()]
    rows += [["seconds", str(facts["seconds"])]] if "seconds" in facts else []
    yield _format_rows([*rows, *([f"bytes of {name}", f"{size:,}"] for name, size in facts.get("bytes", {}).items())])


def _format_checkpoint(facts: Mapping[str, Any], rows: list[list[str]]) -> Iterator[str]:
    """The tables of a checkpoint: its description after `rows`, its experts, its parameters by part, its cost per text."""
    from moeir.evaluation import tables

    parameters, cost = facts["parameters"], facts["cost"]
    rows += [["architecture", facts["architecture"]], ["encoder", _format_value(facts["encoder"])]]
    rows += [[f"reads a {side}", f"prefix {rule['prefix']!r}, at most {rule['tokens']} tokens"] for side, rule in facts["reading"].items()]
    pooled = "" if parameters["pooler"] or parameters["with_pooler"] is None else f"; {parameters['with_pooler']:,} with one"
    rows += [["parameters", f"{parameters['total']:,} {'with' if parameters['pooler'] else 'without'} pooler{pooled}"]]
    rows += [["bytes as float32", f"{parameters['float32_bytes']:,}"], ["bytes on disk", f"{facts['bytes']['all']:,}"]]
    yield _format_rows(rows)
    columns = [name for name in ("scale", "calibration") if any(name in expert for expert in facts["experts"].values())]
    experts = [
        [name, expert["representation"], *(f"{expert[column]:g}" for column in columns)] for name, expert in facts["experts"].items()
    ]
    yield tables.format_table(["expert", "representation", "scale of its scores", "calibration"][: 2 + len(columns)], experts)
    active = [["if chosen" if part[side] is None else f"{part[side]:,}" for side in SIDES] for part in parameters["parts"]]
    parts = [[part["part"], f"{part['parameters']:,}", *counts] for part, counts in zip(parameters["parts"], active, strict=True)]
    total = ["total", f"{parameters['total']:,}", *(f"{cost[side]['active_parameters']:,}" for side in SIDES)]
    yield tables.format_table(["part", "parameters", *(f"active in a {side}" for side in SIDES)], [*parts, total])
    names = ("tokens", "flops_per_token", "flops_per_text")
    costs = [[f"longest {side}", *(f"{cost[side][name]:,}" for name in names)] for side in cost]
    yield tables.format_table(["cost", "tokens", "FLOPs a token", "FLOPs a text"], costs)


def _format_rows(rows: list[list[str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(escape_controls(f"{name:<{width}}  {value}".rstrip()) for name, value in rows)


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_value(item)}" for name, item in value.items())
    if value is None or value == []:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
