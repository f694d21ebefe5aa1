"""Model card of a checkpoint: metadata for the hub, architecture, input configuration, training, usage.

A checkpoint can be published as it is: the card names no local file or folder.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from moeir import variants
from moeir.architectures.checkpoint import RetrievalModel, is_checkpoint
from moeir.artifacts import atomic_write

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
MIXTURES = ("came", "mote", "taser", "sbmoe", "bge-m3")
RETRIEVER_USAGE = """    moeir encode --model CHECKPOINT --corpus corpus.jsonl --output encodings
    moeir index  --encodings encodings --output index
    moeir search --index index --queries queries.jsonl --output runs/"""
UNTRAINED = "Not trained by moeir: the encoder has the weights of the base model; what it lacks is fitted or drawn: train it before use."
RERANKER_USAGE = "    moeir rerank --model CHECKPOINT --run run.trec --queries queries.jsonl --corpus corpus.jsonl --output reranked.trec"


def write_model_card(folder: Path, checkpoint: RetrievalModel, *, base: Path, training: Mapping[str, Any] | None) -> None:
    """README.md of a checkpoint that was made from the weights `base`, a folder or a name on the hub."""
    name = variants.parse_spec(checkpoint.spec).name
    input_config, architecture = checkpoint.input_config, checkpoint.architecture
    experts = "\n".join(
        f"| {expert} | {kind} | {architecture.scales.get(expert, 1.0):g} |" for expert, kind in architecture.representation_kinds.items()
    )
    summary, *_ = (sys.modules[type(architecture).__module__].__doc__ or name).splitlines()
    pairs, trunk = architecture.reads_pairs, checkpoint.trunk
    base_model = trunk.model if trunk is not None and trunk.revision else _find_hub_name(base)
    noun = "reranker" if pairs else "retriever"
    subject = "Pairs of query and document" if pairs else "Documents"
    training_section = UNTRAINED if training is None else _describe_training(training)
    weights = f"`{base_model}`" if base_model else "local weights"
    if trunk is not None:
        weights += f"{f' at commit `{trunk.revision}`' if trunk.revision else ''} (frozen, and not part of this checkpoint)"
    metadata = _build_metadata(folder, checkpoint, f"{name} {noun}", base_model, (training or {}).get("development"))
    text = f"""---
{metadata.to_yaml()}
---

# A {name} {noun}

Architecture `{checkpoint.spec}` on {weights}, {architecture.parameter_count():,} parameters. {summary}

| expert | representation | scale of its scores |
|---|---|---|
{experts}

## Input

Queries: prefix {input_config.query_prefix!r}, at most {input_config.query_length} tokens. {subject}: prefix
{input_config.document_prefix!r}, at most {input_config.document_length} tokens. These settings are part of the checkpoint; no later
command has a flag for them.

## Training

{training_section}

## Use

{RERANKER_USAGE if pairs else RETRIEVER_USAGE}
"""
    atomic_write.write_text_atomically(folder / "README.md", text)


def _find_hub_name(base: Path) -> str | None:
    """The hub name of the weights `base`, or of those that the checkpoint `base` was made from."""
    if not base.is_dir():
        return str(base) if HUB_NAME.fullmatch(str(base)) and not base.exists() else None
    card = base / "README.md"
    if not is_checkpoint(base) or not card.is_file():
        return None
    match = re.search(r"^base_model: (\S+)$", card.read_text(encoding="utf-8"), re.MULTILINE)
    return None if match is None or Path(match[1]).exists() or not HUB_NAME.fullmatch(match[1]) else match[1]


def _build_metadata(
    folder: Path, checkpoint: RetrievalModel, name: str, base_model: str | None, development: Mapping[str, Any] | None
) -> ModelCardData:
    """What the Hub reads: tags, and the value of the development measure."""
    architecture, reads_pairs = variants.parse_spec(checkpoint.spec).name, checkpoint.architecture.reads_pairs
    tags = ["moeir", "retrieval", *(["mixture-of-experts"] if architecture in MIXTURES else []), architecture]
    if (folder / "modules.json").is_file():
        tags.append("sentence-transformers")
    pipeline_tag = "text-ranking" if reads_pairs else "sentence-similarity"
    data = ModelCardData(library_name="moeir", pipeline_tag=pipeline_tag, base_model=base_model, tags=tags)
    if development is not None:
        task, task_name = ("text-ranking", "Reranking") if reads_pairs else ("information-retrieval", "Information Retrieval")
        dataset, measure = f"development set of {development['queries']:,} queries", development["measure"]
        value = round(development["value"], 6)
        data.model_name = name
        data.eval_results = [EvalResult(task, "unknown", dataset, measure.lower(), value, task_name=task_name, metric_name=measure)]
    return data


def _describe_training(training: Mapping[str, Any]) -> str:
    last = training.get("last", {})
    shares = [f"{key.removeprefix('share.')} {value:.2f}" for key, value in last.items() if key.startswith("share.")]
    text = f"Objective `{training['objective']}`, {training['steps']:,} steps over {training['examples']:,} examples"
    text += f"; shares of the experts at the last step: {', '.join(shares)}." if shares else "."
    if (best := training.get("development")) is not None:
        sizes = f"{best['queries']:,} development queries over {best['documents']:,} documents"
        score = f"{best['measure']} {best['value']:.4f} after step {best['step']:,}"
        text += f" {str(best['kept']).capitalize()} weights of {best['evaluations']} evaluations on {sizes}: {score}."
    return text + " Settings: `settings.yaml`."
