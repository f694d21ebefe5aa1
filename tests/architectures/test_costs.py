"""What `moeir info` says of an architecture: parameters by owner, and parameters and operations of a text."""

import pytest
import torch

from moeir import variants
from moeir.architectures import costs
from moeir.architectures.costs import count_parameters, measure_cost
from moeir.backbones.config import EncoderConfig
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens

SIZES = {"vocabulary": 50, "hidden": 16, "layers": 4, "heads": 2, "intermediate_size": 24, "positions": 32}
TINY, SIGNS = EncoderConfig(**SIZES), SpecialTokens(1, 2, 3, 4, 5, (6, 7))
WORDS, EXPERT, HEAD = 50 * 16, 2 * 16 * 24 + 24 + 16 + 2 * 16, 16 * 16 + 16 + 2 * 16 + 50  # feed-forward with its normalisation


def build(spec):
    torch.manual_seed(0)
    return variants.bind_variant("architectures", spec)(Encoder(TINY, vocabulary_head=True), SIGNS)


def active(spec):
    """Parameters of all, of a query and of a document."""
    architecture = build(spec)
    return (architecture.parameter_count(), *(measure_cost(architecture, side, 10)[0] for side in ("query", "document")))


@pytest.mark.parametrize(
    ("spec", "idle", "of_query"),
    [
        ("dense", 0, 0),
        ("came:shared_layers=2", 0, 0),
        ("taser:every=1", 2 * EXPERT, 0),
        ("taser:every=1,experts=4,routing=sequence", 6 * EXPERT, 0),
        ("mote", 4 * EXPERT, 0),
        ("sbmoe:experts=3,inference=all", 3 * 16 + 3, 0),  # the noise of training
        ("splade:queries=tokens", 50, 50),
    ],
)
def test_a_text_uses_what_its_side_and_routers_choose(spec, idle, of_query):
    total, query, document = active(spec)
    assert document == total - idle and query == (of_query or document)


def test_operations_of_a_dense_text_are_those_of_its_matrices_and_attention():
    matrices = 4 * (4 * 16 * 16 + 2 * 16 * 24)
    assert measure_cost(build("dense"), "query", 10)[1] == 2 * 10 * matrices + 4 * 4 * 16 * 10 * 10
    assert measure_cost(build("splade"), "query", 10)[1] == 2 * 10 * (matrices + 16 * 16 + WORDS) + 4 * 4 * 16 * 10 * 10
    assert measure_cost(build("mote:similarity=dense"), "query", 10) == measure_cost(build("taser:every=0"), "query", 10)
    assert measure_cost(build("splade:queries=tokens"), "query", 10)[1] == 0


def test_each_parameter_has_one_owner():
    for spec in (
        "came:shared_layers=2",
        "taser:every=1,routing=token",
        "mote:encoders=separate",
        "sbmoe:experts=2",
        "came:shared_layers=2,adapters=4",
    ):
        architecture = build(spec)
        assert sum(count_parameters(architecture).values()) == architecture.parameter_count()
    owners = count_parameters(build("came:shared_layers=2"))
    layer = 4 * (16 * 16 + 16) + 2 * 16 + EXPERT
    assert (owners["global"], owners["local"], owners["vocabulary head"]) == (2 * layer, 2 * layer + 16 * 128, HEAD)
    assert count_parameters(build("taser:every=1,routing=token"))["router"] == 2 * 17
    assert count_parameters(build("mote:similarity=dense"))["expert 1"] == 4 * EXPERT


@pytest.mark.parametrize("spec", ["came:shared_layers=2,local_dim=4", "taser:every=1,routing=token", "mote", "sbmoe:experts=3"])
def test_the_operations_of_a_long_text_follow_from_three_shorter_ones(spec, monkeypatch):
    architecture = build(spec)
    direct = measure_cost(architecture, "document", 31)
    monkeypatch.setattr(costs, "LONGEST_RUN", 16)
    assert measure_cost(architecture, "document", 31)[1] == direct[1] > 0
