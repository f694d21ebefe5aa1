"""FlagEmbedding's numbers of the tiny folder of test_bge_m3.py, with `pip install FlagEmbedding==1.4.2` beside moeir's environment:

    python -m tests.benchmarks.flagembedding_numbers > tests/golden/bge-m3.json
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from FlagEmbedding import BGEM3FlagModel
from FlagEmbedding.finetune.embedder.encoder_only.m3 import EncoderOnlyEmbedderM3Model, EncoderOnlyEmbedderM3Runner
from transformers import AutoTokenizer

from tests.architectures.test_bge_m3 import TEXTS, TRAINED_DOCUMENTS, TRAINED_QUERIES, WEIGHTS, write_folder


def inference_numbers(folder: Path) -> dict[str, object]:
    """All outputs of the texts, of vectors the first numbers, and the scores of the second text with each."""
    peer = BGEM3FlagModel(str(folder), use_fp16=False, devices="cpu", query_max_length=24, passage_max_length=24)
    outputs = peer.encode(TEXTS, return_dense=True, return_sparse=True, return_colbert_vecs=True)
    weights = [WEIGHTS[name] for name in ("global", "lexical", "local")]
    scores = peer.compute_score([(TEXTS[1], text) for text in TEXTS], weights_for_different_modes=weights)
    names = {"global": "dense", "lexical": "sparse", "local": "colbert", "sum": "colbert+sparse+dense"}
    return {
        "global": [vector[:6].tolist() for vector in outputs["dense_vecs"]],
        "lexical": [{term: float(weight) for term, weight in terms.items()} for terms in outputs["lexical_weights"]],
        "local": [vectors[:, :2].tolist() for vectors in outputs["colbert_vecs"]],
        "scores": {name: scores[own_name] for name, own_name in names.items()},
    }


def training_numbers(folder: Path) -> list[dict[str, float]]:
    """Its loss and norms of its gradient at a step with self-distillation and at one without."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    options = {"unified_finetuning": True, "use_self_distill": True, "normalize_embeddings": True, "temperature": 0.02}
    model = EncoderOnlyEmbedderM3Model(EncoderOnlyEmbedderM3Runner.get_model(str(folder)), tokenizer=tokenizer, **options).train()
    model.model.eval()  # no dropout
    queries, documents = (dict(tokenizer(texts, return_tensors="pt")) for texts in (TRAINED_QUERIES, TRAINED_DOCUMENTS))
    numbers = []
    for start in (-1, 0):  # of self-distillation: at a step after it
        model.step, model.self_distill_start_step = 0, start
        model.zero_grad()
        loss = model(queries=queries, passages=documents).loss
        loss.backward()
        parts = {"lexical": model.sparse_linear, "local": model.colbert_linear, "words": model.model.embeddings.word_embeddings}
        numbers.append({"loss": loss.item()} | {name: part.weight.grad.norm().item() for name, part in parts.items()})
    return numbers


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = write_folder(Path(name) / "bge-m3")
        json.dump(inference_numbers(folder) | {"training": training_numbers(folder)}, sys.stdout)
        sys.stdout.write("\n")
