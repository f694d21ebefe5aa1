"""Query generation with T5: queries follow the model's distribution, and incomplete T5 folders are refused."""

import json
import os
import shutil
from collections import Counter

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from moeir.backbones.query_generator import QueryGenerator, Sampling
from moeir.errors import ArtifactError
from moeir.records.texts import Text
from tests.architectures.folders import change_json

OWL = Text("owl", "an owl hunts at night")


def write_queries(folder, sampling, *passages, dtype=torch.float32, **options):
    lines = QueryGenerator(folder, "cpu", dtype, sampling, **options).generate_lines(passages or (OWL,))
    return [json.loads(line)["queries"] for line in lines]


def test_first_words_are_drawn_as_often_as_their_probability_says(t5_model):
    """Of 4,000 queries of one token; a temperature of 0.7 and the 5 likeliest."""
    [queries] = write_queries(t5_model, Sampling(queries=4000, length=1, top_k=5, top_p=1.0, temperature=0.7))
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(t5_model).eval()
    tokenizer = QueryGenerator(t5_model, "cpu", torch.float32, Sampling())._tokenizer
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokenizer.encode(OWL.content).ids]), decoder_input_ids=torch.tensor([[0]])).logits[0, -1]
    best = logits[: tokenizer.get_vocab_size()].topk(5)
    expected = Counter()
    for token, share in zip(best.indices.tolist(), (best.values / 0.7).softmax(0).tolist(), strict=True):
        expected[tokenizer.decode([token]).strip()] += 4000 * share
    expected.pop("", None)  # empty queries are left out
    counts = Counter(queries)
    assert counts.keys() <= expected.keys()
    assert all(abs(counts[word] - count) < 5 * count**0.5 + 1 for word, count in expected.items())


def test_the_likeliest_words_are_those_of_greedy_decoding(t5_model):
    model, tokenizer = (
        transformers.AutoModelForSeq2SeqLM.from_pretrained(t5_model).eval(),
        QueryGenerator(t5_model, "cpu", torch.float32, Sampling())._tokenizer,
    )
    passages = [OWL, Text("bat", "bats are not blind"), Text("long", "an owl hunts mice at night and sleeps in the day")]
    greedy = [model.generate(torch.tensor([tokenizer.encode(one.content).ids]), do_sample=False, max_new_tokens=8)[0] for one in passages]
    expected = [[text] if (text := " ".join(tokenizer.decode(ids.tolist()).split())) else [] for ids in greedy]
    assert write_queries(t5_model, Sampling(queries=1, length=8, top_k=1), *passages) == expected


@pytest.mark.parametrize("options", [{"top_k": 0, "top_p": 1.0}, {"top_k": 0}, {"top_p": 1.0}], ids=str)
def test_half_precision_writes_too_with_and_without_filters(options, t5_model):
    assert len(write_queries(t5_model, Sampling(queries=8, length=6, **options), dtype=torch.bfloat16)[0]) > 3


def test_a_padded_batch_has_at_most_max_tokens(t5_model, monkeypatch):
    sizes = []

    def note(_, passages, __):
        sizes.append(2 * len(passages) * (max(map(len, passages)) + 6))
        return [""] * 2 * len(passages)

    monkeypatch.setattr(QueryGenerator, "_generate", note)
    passages = [Text(str(row), "owl") for row in range(9)] + [Text("long", "an owl hunts at night " * 8)]
    write_queries(t5_model, Sampling(queries=2, length=6), *passages, max_tokens=300)
    assert max(sizes) <= 300 and len(sizes) <= 3


def garble(**facts):
    return lambda folder: change_json(folder / "config.json", **facts)


def not_finite(folder):
    weights = load_file(folder / "model.safetensors")
    weights["decoder.final_layer_norm.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


BAD = [
    (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors; convert other formats"),
    (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    (lambda folder: (folder / "tokenizer.json").rename(folder / "spiece.model"), "no tokenizer.json"),
    (lambda folder: os.truncate(folder / "model.safetensors", 1000), "cannot be opened as a sequence-to-sequence model"),
    (garble(model_type="bert"), "cannot be opened as a sequence-to-sequence model"),
    (garble(num_layers=3), "weights are missing, first encoder.block.2"),
    (garble(eos_token_id=7), "ends no text with the model's eos_token_id"),
    (garble(d_ff=32), "cannot be opened as a sequence-to-sequence model"),
    (garble(vocab_size=4), "cannot be opened as a sequence-to-sequence model"),
    (not_finite, "cannot generate; check its weights"),
]


@pytest.mark.parametrize(("damage", "words"), BAD, ids=[words for _, words in BAD])
def test_a_folder_that_holds_no_whole_t5_is_refused(damage, words, t5_model, tmp_path):
    shutil.copytree(t5_model, tmp_path / "t5")
    damage(tmp_path / "t5")
    with pytest.raises(ArtifactError) as raised:
        write_queries(tmp_path / "t5", Sampling(length=2))
    assert words in str(raised.value) and str(tmp_path / "t5") in str(raised.value) and "\n" not in str(raised.value)
