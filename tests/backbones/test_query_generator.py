"""Query generation with T5: samples follow the expected distribution, and incomplete T5 folders are refused."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from moeir.backbones.query_generator import Passage, Sampling, T5QueryGenerator, philox_uniforms, sample_tokens
from moeir.errors import ArtifactError, UsageError
from tests.oracles import sampling

TABLE = [2.0, -1.0, 0.5, 0.5, 3.0, -4.0, 1.0, 0.0]
RULES = [
    {"top_k": 25, "top_p": 0.95, "temperature": 1.0},
    {"top_k": 3, "top_p": 1.0, "temperature": 1.0},
    {"top_k": 0, "top_p": 0.8, "temperature": 1.0},
    {"top_k": 4, "top_p": 0.9, "temperature": 2.0},
    {"top_k": 0, "top_p": 1.0, "temperature": 1.5},
    {"top_k": 1, "top_p": 0.95, "temperature": 1.0},
]


@pytest.fixture(scope="module")
def writer(t5_model):
    return T5QueryGenerator(t5_model, "cpu", torch.float32)


@pytest.mark.parametrize("rules", RULES)
def test_tokens_are_drawn_as_often_as_their_probability_says(rules):
    numbers = np.concatenate([philox_uniforms(1, str(passage), 0, 100) for passage in range(400)])
    counts = torch.bincount(sample_tokens(torch.tensor([TABLE]).expand(len(numbers), -1), torch.from_numpy(numbers), **rules), minlength=8)
    expected = dict(sampling.truncated_distribution(TABLE, **rules))
    assert {token for token in range(8) if counts[token]} == expected.keys()
    test = chisquare([counts[token] for token in expected], [len(numbers) * share for share in expected.values()])
    assert len(expected) == 1 or test.pvalue > 1e-3


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=30, unique=True),
    st.integers(0, 31), st.floats(0.01, 1), st.floats(0.1, 5), st.floats(0, 1, exclude_max=True),
)  # fmt: skip
def test_every_draw_is_that_of_the_slow_version(logits, top_k, top_p, temperature, number):
    rules = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
    token = sample_tokens(torch.tensor([logits]), torch.tensor([number], dtype=torch.float64), **rules).item()
    near = {sampling.sample_token(logits, min(max(number + shift, 0), 1 - 1e-9), **rules) for shift in (-1e-9, 0, 1e-9)}
    nearby = {sampling.sample_token(logits, number, top_k, min(max(top_p + shift, 1e-9), 1), temperature) for shift in (-1e-9, 1e-9)}
    assert token in near | nearby


@pytest.mark.parametrize("rules", RULES)
def test_what_remains_is_what_remains_in_transformers(rules):
    scores = torch.tensor([[value + 0.01 * place for place, value in enumerate(TABLE)]])  # there equal tokens are all kept
    filters = [TemperatureLogitsWarper(rules["temperature"]), TopPLogitsWarper(rules["top_p"])]
    filters.insert(1, TopKLogitsWarper(rules["top_k"] or 8))
    theirs = scores
    for each in filters:
        theirs = each(None, theirs)
    ours = dict(sampling.truncated_distribution(scores[0].tolist(), **rules))
    assert [ours.get(token, 0.0) for token in range(8)] == pytest.approx(theirs.softmax(-1)[0].tolist(), abs=1e-6)


def test_of_equal_tokens_the_lower_comes_first():
    numbers = torch.tensor([0.0, 0.49, 0.51, 0.99], dtype=torch.float64)
    assert sample_tokens(torch.zeros(4, 6), numbers, top_k=0, top_p=0.3).tolist() == [0, 0, 1, 1]


def test_random_numbers_are_what_they_have_always_been():
    assert philox_uniforms(42, "owl", 0, 3).tolist() == [0.11332923120167326, 0.9258640746389264, 0.5741430223236739]
    numbers = np.concatenate([philox_uniforms(42, f"d{passage}", number, 20) for passage in range(100) for number in range(5)])
    assert len(np.unique(numbers)) == len(numbers) == 10_000
    assert numbers.min() >= 0 and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.015


def test_a_text_is_read_up_to_its_end_sign_and_cut_before_it(writer):
    [[*words, end]], cut = writer.tokenize(["an owl hunts"], 512)
    assert (len(words), cut) == (len(set(words)), 0) and end == 1
    assert writer.tokenize(["an owl hunts"] * 2, len(words) + 1) == ([[*words, end]] * 2, 0)
    assert writer.tokenize(["an owl hunts", "owl"], len(words))[0][0] == [*words[:-1], end]
    assert writer.tokenize(["an owl hunts", "owl"], len(words))[1] == 1


def test_a_special_token_in_a_passage_is_text(writer):
    [ids], _ = writer.tokenize(["an owl </s> hunts <pad>"], 512)
    assert ids.count(1) == 1 and 0 not in ids


def test_half_precision_writes_too(t5_model):
    half = T5QueryGenerator(t5_model, "cpu", torch.bfloat16)
    [ids], _ = half.tokenize(["an owl hunts at night"], 512)
    assert len(half.generate([Passage("a", ids)], Sampling(queries=8, length=6))[0]) > 3


def cut(folder):
    os.truncate(folder / "model.safetensors", 1000)


def garble(**facts):
    def change(folder):
        config = json.loads((folder / "config.json").read_text()) | facts
        (folder / "config.json").write_text(json.dumps(config))

    return change


def not_finite(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["decoder.final_layer_norm.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


BAD = [
    (lambda folder: (folder / "model.safetensors").unlink(), ArtifactError, "no model.safetensors; convert other formats"),
    (lambda folder: (folder / "config.json").unlink(), ArtifactError, "no config.json"),
    (lambda folder: (folder / "tokenizer.json").rename(folder / "spiece.model"), ArtifactError, "no tokenizer.json beside spiece.model"),
    (cut, ArtifactError, "model.safetensors: damaged"),
    (garble(model_type="bert"), UsageError, "model_type is 'bert'; queries are generated by t5 or mt5"),
    (garble(num_layers=3), ArtifactError, "weights are missing, first encoder.block.2"),
    (garble(d_ff=32), ArtifactError, "encoder.block.0.layer.1.DenseReluDense.wo.weight has shape [32, 64]; config.json says [32, 32]"),
    (garble(vocab_size=4), ArtifactError, "its weights cannot be opened"),
    (garble(eos_token_id=[1, 2]), ArtifactError, "eos_token_id is [1, 2]; expected a whole number"),
    (garble(eos_token_id=99_999), ArtifactError, "expected a token's number"),
    (not_finite, ArtifactError, "logits contain NaN or Inf"),
]


@pytest.mark.parametrize(("damage", "kind", "words"), BAD, ids=[words for _, _, words in BAD])
def test_a_folder_that_holds_no_whole_t5_is_refused(damage, kind, words, t5_model, tmp_path):
    shutil.copytree(t5_model, tmp_path / "t5")
    damage(tmp_path / "t5")
    with pytest.raises(kind) as raised:
        T5QueryGenerator(tmp_path / "t5", "cpu", torch.float32).generate([Passage("a", [40, 1])], Sampling(length=2))
    assert words in str(raised.value) and str(tmp_path / "t5") in str(raised.value) and "\n" not in str(raised.value)
