"""`moeir info`: what a checkpoint, another artifact or a file of data is, how large, and what a text costs."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.errors import ArtifactError, UsageError
from moeir.settings import argument, option
from moeir.stages.base import TEXT_KINDS, Counts, Stage

if TYPE_CHECKING:
    from moeir.analysis.parameters import Account
    from moeir.architectures.base import Architecture
    from moeir.artifacts.shards import Shard

FLOAT32_BYTES = 4
POOLED_FAMILIES = ("bert", "roberta", "xlm-roberta")
SIDES = ("query", "document")


@dataclass(frozen=True, kw_only=True)
class Info(Stage):
    """Say what something is: of a checkpoint its experts, parameters, size and FLOPs; of data counts, lengths, first ids."""

    path: Path = argument("A checkpoint, encodings, an index, texts, judgements, a run, examples, or a folder of BEIR's, MS MARCO's …")
    source_format: str | None = option("Format of data [default: what the first lines say].", None, names=("--from",))
    form: str = option("table or json.", "table", names=("--format",))

    def check(self) -> None:
        if self.form not in ("table", "json"):
            raise UsageError(f"--form {self.form}: expected table or json")

    def work(self) -> Counts:
        from moeir.artifacts import manifests, shards

        if not self.path.exists():
            raise ArtifactError(f"{self.path}: no such file or folder")
        if held := shards.finished(self.path):
            self._show(_shards_facts(self.path, held))
            return None
        if (self.path / "config.json").is_file() and not (self.path / manifests.MANIFEST).is_file():
            manifests.verify(self.path, "checkpoint")
        if not manifests.manifest_path(self.path).is_file() or self.source_format is not None:
            self._show(self._data_facts())
            return None
        manifest = manifests.read_manifest(self.path)
        facts = {"path": str(self.path), "kind": manifest["kind"], "stage": manifest.get("stage")}
        facts |= _checkpoint_facts(self.path) if manifest["kind"] == "checkpoint" else _manifest_facts(manifest)
        facts["bytes"] = _sizes(manifest["files"])
        if manifest["kind"] in TEXT_KINDS and self.path.is_file():
            facts |= {"holds": {name: value for name, value in self._data_facts().items() if name not in ("path", "kind")}}
        self._show(facts)
        return None

    def _data_facts(self) -> dict[str, Any]:
        from moeir.formats import described

        facts = described.facts(self.path, self.source_format)
        files = [file for file in self.path.rglob("*") if file.is_file()] if self.path.is_dir() else [self.path]
        return facts | {"bytes": {"all": sum(file.stat().st_size for file in files)}}

    def _show(self, facts: Mapping[str, Any]) -> None:
        shown = [json.dumps(facts, indent=2, ensure_ascii=False)] if self.form == "json" else list(_tables(facts))
        sys.stdout.write("\n\n".join(shown) + "\n")


def _shards_facts(path: Path, held: "Mapping[Shard, Path]") -> dict[str, Any]:
    """Of encodings in shards: what the first says of itself, which there are, and their texts and bytes together."""
    from moeir.artifacts import manifests, shards

    said = [manifests.read_manifest(part) for part in held.values()]
    first, absent = said[0], [str(one) for one in shards.missing(held)]
    counts = {name: value for name, value in first["counts"].items() if name != "checkpoint"}
    counts |= {"texts": sum(one["counts"]["texts"] for one in said), "shards": f"{len(held)} of {len(held) + len(absent)}"}
    return {
        "path": str(path),
        "kind": first["kind"],
        "stage": first.get("stage"),
        "settings": {name: value for name, value in first["settings"].items() if name != "shard"},
        "counts": counts | ({"missing shards": absent} if absent else {}),
        "seconds": round(sum(one.get("seconds", 0) for one in said), 3),
        "bytes": _sizes(
            {f"{part.folder}/{name}": facts for part, one in zip(held, said, strict=True) for name, facts in one["files"].items()}
        ),
    }


def _manifest_facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("settings", "counts", "sources", "seconds", "versions")
    return {name: manifest[name] for name in kept if manifest.get(name)}


def _sizes(files: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Bytes of the product files: of each folder or file at the top, and of all."""
    sizes: dict[str, int] = {}
    for name, facts in files.items():
        top = name.split("/")[0]
        sizes[top] = sizes.get(top, 0) + int(facts["bytes"])
    return sizes | {"all": sum(sizes.values())}


def _checkpoint_facts(path: Path) -> dict[str, Any]:
    from moeir.architectures.checkpoint import open_checkpoint

    opened = open_checkpoint(path)
    account, shape, rules = account_of(opened.architecture), opened.architecture.encoder.shape, opened.rules
    family = str(opened.config.get("moeir_family", opened.config.get("model_type")))
    pooler = any(name.startswith(("encoder.pooler.", "pooler.")) for name in account.shapes)
    encoders = 1 + any(name.startswith("document_encoder.") for name in account.shapes)
    with_pooler = account.total + (0 if pooler else encoders * shape.hidden * (shape.hidden + 1))
    parameters = {
        "total": account.total,
        "float32_bytes": account.total * FLOAT32_BYTES,
        "pooler": pooler,
        "with_pooler": with_pooler if family in POOLED_FAMILIES else None,
        "parts": [{"part": part.name, "parameters": part.parameters} | dict(part.active) for part in account.parts(SIDES)],
    }
    return {
        "architecture": opened.spec,
        "encoder": {"family": family, "layers": shape.layers, "hidden": shape.hidden, "vocabulary": shape.vocabulary},
        "reading": {side: {"prefix": getattr(rules, f"{side}_prefix"), "tokens": rules.length(side)} for side in SIDES},
        "experts": {
            name: {"representation": kind, "scale": opened.architecture.scales.get(name, 1.0)}
            for name, kind in opened.architecture.kinds.items()
        },
        "parameters": parameters,
        "cost": {side: _cost(account, side, rules.length(side)) for side in SIDES},
    }


def _cost(account: "Account", side: str, length: int) -> dict[str, int]:
    """Of the longest text of a side."""
    flops = account.flops(side, length)
    return {
        "tokens": length,
        "active_parameters": account.active(side),
        "flops_per_token": round(flops / length),
        "flops_per_text": flops,
    }


def account_of(architecture: "Architecture") -> "Account":
    """The parameters of an architecture, each once, and which of its mixtures' experts run for whom."""
    from moeir.analysis.parameters import Account, Mixture
    from moeir.backbones.layers import RotaryAttention
    from moeir.mixtures.embedding import EmbeddingMixture
    from moeir.mixtures.feedforward import LEARNED, RoutedFeedForward

    mixtures, idle, windows, narrow = [], [], {}, []
    narrowed = [layer for layer in architecture.narrow_layers() if layer.plain]
    for place, module in architecture.named_modules():
        if module in narrowed:
            narrow.append(place)
        elif isinstance(module, RoutedFeedForward):
            everyone = tuple(range(len(module.experts)))
            learned = module.routing in LEARNED
            documents = (0,) if learned else (len(everyone) // 2,)
            both = everyone if learned and module.gradient == "full" else None
            runs = {"query": both or (0,), "document": both or documents}
            mixtures.append(Mixture(place, runs, routed=learned, gate_once=module.routing == "sequence"))
        elif isinstance(module, EmbeddingMixture):
            chance = module.gate is None or module.inference == "random"
            every = module.inference == "all" and not chance
            runs = dict.fromkeys(SIDES, tuple(range(len(module.experts))) if every else (0,))
            mixtures.append(Mixture(place, runs, routed=True, once=True, gate_once=True))
            idle += [f"{place}.noise."] + ([f"{place}.gate."] if chance else [])
        elif isinstance(module, RotaryAttention) and module.window is not None:
            windows[place] = module.window // 2
    shapes = {name: tuple(parameter.shape) for name, parameter in architecture.named_parameters()}
    return Account(shapes, architecture.kinds, tuple(mixtures), tuple(idle), windows, tuple(narrow))


def _tables(facts: Mapping[str, Any]) -> Iterator[str]:
    from moeir.evaluation import tables

    made = f"{facts['path']} (made by moeir {facts['stage']})" if "stage" in facts else str(facts["path"])
    sizes = facts["bytes"]
    if facts["kind"] != "checkpoint":
        plain = {name: value for name, value in facts.items() if name not in ("path", "kind", "bytes")} if "stage" not in facts else {}
        groups = (*(facts.get(group, {}) for group in ("settings", "counts", "holds")), plain)
        rows = [[name, _words(value)] for group in groups for name, value in group.items()]
        rows += [["seconds", str(facts["seconds"])]] if "seconds" in facts else []
        rows += [[f"bytes of {name}", f"{size:,}"] for name, size in sizes.items()]
        yield _listed([[facts["kind"], made], *rows])
        return
    encoder, parameters = facts["encoder"], facts["parameters"]
    rows = [["architecture", facts["architecture"]], ["encoder", _words(encoder)]]
    rows += [[f"reads a {side}", f"prefix {rule['prefix']!r}, at most {rule['tokens']} tokens"] for side, rule in facts["reading"].items()]
    pooled = "" if parameters["pooler"] or parameters["with_pooler"] is None else f"; {parameters['with_pooler']:,} with one"
    rows += [["parameters", f"{parameters['total']:,} {'with' if parameters['pooler'] else 'without'} pooler{pooled}"]]
    rows += [["bytes as float32", f"{parameters['float32_bytes']:,}"], ["bytes on disk", f"{sizes['all']:,}"]]
    yield _listed([["checkpoint", made], *rows])
    experts = [[name, said["representation"], f"{said['scale']:g}"] for name, said in facts["experts"].items()]
    yield tables.text(["expert", "representation", "scale of its scores"], experts)
    yield _parameter_table(parameters["parts"], parameters["total"], facts["cost"])
    names = ["tokens", "flops_per_token", "flops_per_text"]
    costs = [[f"longest {side}", *(f"{cost[name]:,}" for name in names)] for side, cost in facts["cost"].items()]
    yield tables.text(["cost", "tokens", "FLOPs a token", "FLOPs a text"], costs)


def _listed(rows: list[list[str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {words}".rstrip() for name, words in rows)


def _parameter_table(parts: list[dict[str, Any]], total: int, cost: Mapping[str, Mapping[str, int]]) -> str:
    from moeir.evaluation import tables

    rows = [[part["part"], f"{part['parameters']:,}", *(_active(part[side]) for side in SIDES)] for part in parts]
    rows.append(["total", f"{total:,}", *(f"{cost[side]['active_parameters']:,}" for side in SIDES)])
    return tables.text(["part", "parameters", *(f"active in a {side}" for side in SIDES)], rows)


def _active(count: int | None) -> str:
    return "if chosen" if count is None else f"{count:,}"


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    if value is None or value == []:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
