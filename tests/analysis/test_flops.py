"""Counts of BERT-base by hand (specs/taser §1, sb_moe §1, cot_mote §1, came §1), and operations against torch's own counter."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from moeir import variants
from moeir.architectures.base import count_parameters
from moeir.backbones.config import EncoderConfig, ExpertsConfig, PreNormConfig
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens

BERT_BASE = EncoderConfig(vocabulary=30522, hidden=768, layers=12, heads=12, intermediate_size=3072)
TINY = EncoderConfig(vocabulary=50, hidden=16, layers=4, heads=2, intermediate_size=24, positions=32)
SIGNS = SpecialTokens(1, 2, 3, 4, 5, (6, 7))
SIDES = ("query", "document")
BERT, FEEDFORWARD, HEAD, LAYER, BLOCK_EXPERT = 108_891_648, 4_723_968, 622_650, 7_087_872, 590_976
TOWER = 2 * LAYER


WINDOWED = EncoderConfig(50, 16, 3, 2, 24, "gelu", 1e-5, 32, 0, prenorm=PreNormConfig((None, 8, 128), (1e4,) * 3))
NARROW = EncoderConfig(vocabulary=50, hidden=16, layers=2, heads=2, intermediate_size=24, positions=32, factorized_embedding_size=6)
ROUTED = EncoderConfig(50, 16, 4, 2, 24, segments=1, theta=1e4, experts=ExpertsConfig(5, 2, 2))


def account(spec, shape=BERT_BASE):
    with torch.device("meta"):
        return count_parameters(variants.bind_variant("architectures", spec)(Encoder(shape, vocabulary_head=True), SIGNS))


def parts(spec):
    return {part.name: (part.parameters, *(part.active[side] for side in SIDES)) for part in account(spec).groups(SIDES)}


@pytest.mark.parametrize(
    ("spec", "total", "active"),
    [
        ("dense", BERT, BERT),
        ("splade", BERT + HEAD, BERT + HEAD),
        ("dense:encoders=separate", 217_783_296, BERT),
        ("taser", 127_787_520, BERT),
        ("taser:routing=token", 127_787_520 + 1_538, BERT + 1_538),
        ("taser:routing=token,experts=4", 165_579_264 + 3_076, BERT + 3_076),
        ("taser:routing=sequence,experts=4,gates=per_layer", 165_579_264 + 12_304, BERT + 12_304),
        ("taser:experts=4", 165_579_264, BERT),
        ("mote:similarity=dense", 165_579_264, BERT),
        ("mote:similarity=dense,expert_ln=false", 165_560_832, BERT),
        ("mote", 165_579_264 + HEAD, BERT + HEAD),
        ("mote:encoders=separate,similarity=dense", 217_783_296, BERT),
        ("sbmoe", BERT + 3_848_076, BERT + 3_848_076 - 5 * BLOCK_EXPERT - 4_614),
        ("sbmoe:inference=all", BERT + 3_848_076, BERT + 3_848_076 - 4_614),
        ("sbmoe:gate=random", BERT + 6 * BLOCK_EXPERT, BERT + BLOCK_EXPERT),
        ("came", 137_964_090, 137_964_090),
    ],
)
def test_bert_base_counts_are_those_of_the_papers(spec, total, active):
    counts = account(spec)
    assert (counts.total, counts.active("query"), counts.active("document")) == (total, active, active)


def test_parts_say_what_is_shared_and_what_each_expert_has():
    experts = 4 * FEEDFORWARD
    shared = BERT - experts
    assert parts("taser") == {"shared": (shared, shared, shared), "expert 0": (experts, experts, 0), "expert 1": (experts, 0, experts)}
    assert parts("taser:routing=token") == {
        "shared": (shared, shared, shared),
        "expert 0": (experts, None, None),
        "expert 1": (experts, None, None),
        "router": (1_538, 1_538, 1_538),
    }
    assert parts("dense:encoders=separate") == {"query encoder": (BERT, BERT, 0), "document encoder": (BERT, 0, BERT)}
    assert parts("sbmoe:experts=2,inference=all")["block expert 1"] == (BLOCK_EXPERT,) * 3
    assert {name: count for name, (count, *_) in parts("came").items()} == {
        "shared": BERT - TOWER, "lexical": TOWER + HEAD, "local": TOWER + 98_304, "global": TOWER,
    }  # fmt: skip


def test_of_the_experts_of_an_encoder_as_many_are_active_as_a_token_has():
    dense = account("dense", ROUTED)
    expert = 2 * 2 * 24 * 16  # two maps in two layers
    assert dense.active("query") == dense.total - 3 * expert
    groups = {part.name: (part.parameters, part.active["query"]) for part in dense.groups(SIDES)}
    assert groups == {
        "shared": (dense.total - 5 * expert - 2 * 5 * 16,) * 2,
        "router": (2 * 5 * 16,) * 2,
        **{f"expert {number}": (expert, None) for number in range(5)},
    }


def test_an_encoder_that_reads_no_query_is_not_active_for_one():
    assert parts("splade:queries=tokens") == {"shared": (BERT, 0, BERT), "lexical": (HEAD + 30_522, 30_522, HEAD)}
    came, tokens = parts("came"), parts("came:lexical_queries=tokens")
    assert tokens["lexical"] == (TOWER + HEAD + 30_522, 30_522, TOWER + HEAD)
    assert {name: tokens[name] for name in ("shared", "local", "global")} == {name: came[name] for name in ("shared", "local", "global")}


def test_adapters_and_private_embeddings_belong_to_their_experts_and_an_adapter_for_all_is_shared():
    size = 4 * 2 * 768 + 2 * (768 + 3072)  # numbers of one rank in a layer: four maps of attention, two of the feed-forward
    assert parts("dense:adapters=16") == {"shared": (BERT + 12 * 16 * size,) * 3}
    rank = 2 * 16 * size
    came = parts("came:adapters=16,shared_adapters=4")
    assert came["shared"][0] == BERT + 10 * 4 * size and came["global"] == (rank,) * 3
    assert (came["lexical"][0], came["local"][0]) == (rank + HEAD, rank + 98_304)
    assert parts("came:adapters=16,lexical_queries=tokens")["lexical"] == (rank + HEAD + 30_522, 30_522, rank + HEAD)
    mote = parts("mote:adapters=8,similarity=dense")
    assert mote == {"shared": (BERT,) * 3, "expert 0": (96 * size, 96 * size, 0), "expert 1": (96 * size, 0, 96 * size)}
    feedforward = 4 * 8 * 2 * (768 + 3072)  # of each fourth layer's
    taser = parts("taser:adapters=8,experts=3,routing=token")
    assert taser["router"] == (3 * 769,) * 3 and [taser[f"expert {number}"] for number in range(3)] == [(feedforward,) * 3] * 3
    groups = parts("came:shared_layers=0,embeddings=private")
    assert "shared" not in groups and sum(count for count, *_ in groups.values()) == 327_395_898
    assert groups["global"][0] == BERT and groups["lexical"][0] == BERT + HEAD


SPECS = """
dense dense:encoders=separate splade colbert:dim=8 came:shared_layers=2,local_dim=8 mote mote:sparse_head=raw mote:encoders=separate
taser:every=1,experts=4 taser:routing=token,every=0,experts=3 taser:routing=token,every=1,gates=per_layer taser:routing=sequence,every=1
taser:routing=sequence,gates=per_layer,every=0 taser:routing=token,gradient=full,every=0
taser:routing=token,gradient=pair,every=0,experts=3 taser:expert_ln=false,every=0 sbmoe:experts=3 sbmoe:experts=3,inference=all
sbmoe:gate=random sbmoe:experts=1,normalise=true sbmoe:inference=random coil:cls_dim=0,dim=8,separator=true
came:shared_layers=2,local_dim=8,routing=token,global_experts=3 splade:queries=tokens
came:shared_layers=2,local_dim=8,lexical_queries=tokens came:shared_layers=2,experts=lexical,lexical_queries=tokens dense:adapters=4
mote:adapters=4 mote:encoders=siamese,adapters=4 taser:adapters=4,experts=4,every=0 taser:adapters=4,experts=3,routing=token
taser:adapters=3,routing=sequence,gate_input=block_input,gates=per_layer,every=0 came:shared_layers=2,adapters=4,local_dim=8
came:shared_layers=1,adapters=4,shared_adapters=3,lexical_queries=tokens"""
OTHERS = [(NARROW, 10, "splade"), (WINDOWED, 5, "splade"), (ROUTED, 9, "dense:encoders=separate"), (ROUTED, 9, "came:shared_layers=2")]


@pytest.mark.parametrize(("shape", "length", "spec"), [*((TINY, 10, spec) for spec in SPECS.split()), *OTHERS])
def test_operations_are_those_that_torch_counts(shape, length, spec):
    architecture = variants.bind_variant("architectures", spec)(Encoder(shape, vocabulary_head=True), SIGNS).eval()
    skipped = 2 * 16 * 8 if spec.startswith("coil") else 0  # the [CLS] of exact matches
    for side in SIDES:
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter, sdpa_kernel(SDPBackend.MATH):
            architecture(PackedTokens.from_lists([[1, *range(11, 9 + length), 2]], side))
        assert count_parameters(architecture).flops(side, length) - skipped == counter.get_total_flops(), side


def test_a_window_is_as_many_pairs_as_it_shows():
    """Of 10 tokens and 4 on either side: 10 · 9 pairs less 2 · (4 + 3 + 2 + 1) beyond the ends."""
    full = EncoderConfig(50, 16, 3, 2, 24, "gelu", 1e-5, 32, 0, prenorm=PreNormConfig((None,) * 3, (1e4,) * 3))
    assert account("dense", full).flops("query", 10) - account("dense", WINDOWED).flops("query", 10) == 4 * 16 * (100 - 70)
