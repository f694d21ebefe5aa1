"""Model card of a checkpoint: architecture, input configuration, training, usage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeir.architectures.checkpoint import RetrievalModel
from moeir.artifacts import atomic_write

PAPERS = {
    "came": "CAME: Competitively Learning a Mixture-of-Experts Model for First-stage Retrieval (Cai et al., 2023)",
    "mote": "CoT-MoTE: Exploring ConTextual Masked Auto-Encoder Pre-training with Mixture-of-Textual-Experts (Ma et al., 2023)",
    "taser": "Task-Aware Specialization for Efficient and Robust Dense Retrieval for Open-Domain Question Answering (Cheng et al., 2023)",
    "sbmoe": "Mixture of Experts Approaches in Dense Retrieval Tasks (Sokli et al., 2025)",
    "coil": "COIL: Contextualized Inverted List (Gao et al., 2021)",
    "dense": "Dense Passage Retrieval (Karpukhin et al., 2020)",
    "splade": "SPLADE: Sparse Lexical and Expansion Model (Formal et al., 2021)",
    "cross-encoder": "Rethink Training of BERT Rerankers in Multi-Stage Retrieval Pipeline (Gao et al., 2021)",
    "colbert": "ColBERT: Late Interaction over BERT (Khattab and Zaharia, 2020)",
}
RETRIEVER_USAGE = """    moeir encode --model {place} --corpus corpus.jsonl --output encodings
    moeir index  --encodings encodings --output index
    moeir search --index index --queries queries.jsonl --output runs/"""
RERANKER_USAGE = "    moeir rerank --model {place} --run run.trec --queries queries.jsonl --corpus corpus.jsonl --output reranked.trec"


def write_model_card(folder: Path, checkpoint: RetrievalModel, *, base: str, training: Mapping[str, Any] | None) -> None:
    """README.md of a checkpoint."""
    name = checkpoint.spec.split(":")[0]
    input_config, architecture = checkpoint.input_config, checkpoint.architecture
    experts = "\n".join(
        f"| {expert} | {kind} | {architecture.scales.get(expert, 1.0):g} |" for expert, kind in architecture.representation_kinds.items()
    )
    pairs, name_on_disk = architecture.reads_pairs, folder.name.strip(".").removesuffix(".partial")
    task, noun = ("text-ranking", "reranker") if pairs else ("sentence-similarity", "retriever")
    use = RERANKER_USAGE if pairs else RETRIEVER_USAGE
    subject = "Pairs of query and document" if pairs else "Documents"
    training_section = "Not trained by moeir: the weights are those of the base model." if training is None else _training_section(training)
    text = f"""---
library_name: moeir
pipeline_tag: {task}
base_model: {base}
tags: [moeir, retrieval, mixture-of-experts, {name}]
---

# A {name} {noun}

Architecture `{checkpoint.spec}` on `{base}`, {architecture.parameter_count():,} parameters. Paper: {PAPERS.get(name, name)}.

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

{use.format(place=name_on_disk)}
"""
    atomic_write.write_text_atomically(folder / "README.md", text)


def _training_section(training: Mapping[str, Any]) -> str:
    last = training.get("last", {})
    shares = [f"{key.removeprefix('share.')} {value:.2f}" for key, value in last.items() if key.startswith("share.")]
    text = f"Objective `{training['objective']}`, {training['steps']:,} steps over {training['examples']:,} examples"
    text += f"; shares of the experts at the last step: {', '.join(shares)}." if shares else "."
    if (best := training.get("development")) is not None:
        sizes = f"{best['queries']:,} development queries over {best['documents']:,} documents"
        score = f"{best['measure']} {best['value']:.4f} after step {best['step']:,}"
        text += f" {str(best['kept']).capitalize()} weights of {best['evaluations']} evaluations on {sizes}: {score}."
    return text + " Settings: `settings.yaml`."
