"""Folders of weights and examples that several files read."""

import functools
import json

import pytest
import torch

from moeir.backbones import transformers_model
from tests.backbones import tiny_models, tiny_tokenizers
from tests.backbones.test_transformers_encoder import make_config


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """`weights(name, **changes)`: a folder with a tiny model of transformers and a tokenizer; to be read, never written."""

    @functools.cache
    def folder(name, **changes):
        path = tmp_path_factory.mktemp(name)
        size = tiny_tokenizers.write_roberta(path)
        config = make_config(name, **({"vocab_size": size} | changes))
        torch.manual_seed(3)
        transformers_model.choose_class(config)(config).save_pretrained(path)
        return path

    return folder


@pytest.fixture(scope="session")
def family_weights(tmp_path_factory):
    """`family_weights(family, **options)`: a folder with a tiny model of one of our families and a tokenizer; to be read, never written."""

    @functools.cache
    def folder(name, **options):
        path = tmp_path_factory.mktemp(name)
        size = tiny_tokenizers.ALL_WRITERS[name](path)
        tiny_models.make_model(name, vocab_size=size, **options).save_pretrained(path)
        return path

    return folder


@pytest.fixture(scope="session")
def training_files(toy, tmp_path_factory):
    """Flags of finetune for the toy texts, with an example of each training query: its last judged document, and another one."""
    path = tmp_path_factory.mktemp("examples") / "train.jsonl"
    positives = {line.split()[0]: line.split()[2] for line in (toy / "train.qrels").read_text().splitlines()}
    documents = [json.loads(line)["_id"] for line in (toy / "corpus.jsonl").read_text().splitlines()]
    negatives = {query: [next(other for other in documents if other != one)] for query, one in positives.items()}
    lines = [json.dumps({"query_id": query, "positive_ids": [one], "negative_ids": negatives[query]}) for query, one in positives.items()]
    path.write_text("\n".join(lines) + "\n")
    return ("--train", path, "--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
