"""Parameter counts of architectures (specs/came §1, exact), what `moeir info` says of them, and options that are refused."""

import pytest
import torch

from moeir import variants
from moeir.architectures import costs
from moeir.architectures.costs import count_parameters, measure_cost
from moeir.architectures.input_config import InputConfig
from moeir.backbones.encoder import Encoder, EncoderConfig
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.errors import ArtifactError, UsageError
from tests.architectures.folders import assert_refused

BERT_BASE = EncoderConfig(vocabulary=30522, hidden=768, layers=12, heads=12, intermediate_size=3072)
TINY = EncoderConfig(vocabulary=50, hidden=16, layers=4, heads=2, intermediate_size=24, positions=32, initializer_range=0.3)
SIGNS = SpecialTokens(1, 2, 3, 4, 5, (6, 7))
EMBEDDINGS, LAYER, HEAD, PROJECTION = 23_837_184, 7_087_872, 622_650, 98_304
BERT, COIL_TOKEN, COIL_CLS, POOLER = 108_891_648, 768 * 32 + 32, 768 * 768 + 768, 768 * 768 + 768
SUBSETS = ["lexical", "local", "global", "lexical+local", "lexical+global", "local+global", "lexical+local+global"]


def bert_base(spec):
    with torch.device("meta"):
        return variants.bind_variant("architectures", spec)(Encoder(BERT_BASE, vocabulary_head=True), SIGNS)


def tiny(spec, seed=0):
    torch.manual_seed(seed)
    return variants.bind_variant("architectures", spec)(Encoder(TINY, vocabulary_head=True), SIGNS).eval()


@pytest.mark.parametrize(
    "spec, count",
    [
        ("came:shared_layers=6", 194_667_066),
        ("came:shared_layers=8", 166_315_578),
        ("came", 137_964_090),
        ("came:shared_layers=12", 109_612_602),
        ("came:shared_layers=0", 279_721_530),
        ("came:shared_layers=0,embeddings=private", 327_395_898),
        ("dense", 109_482_240 - POOLER),
        ("splade", BERT + HEAD),
        ("colbert", BERT + PROJECTION),
        ("coil", BERT + COIL_TOKEN + COIL_CLS),
        ("coil:cls_dim=0", BERT + COIL_TOKEN),
        ("dense:encoders=separate", 218_964_480 - 2 * POOLER),
        ("taser:routing=shared", BERT),
        ("taser", 128_378_112 - POOLER),
        ("taser:experts=4", 166_169_856 - POOLER),
        ("taser:routing=sequence", 127_787_520 + 1_538),
        ("taser:routing=token,gates=per_layer", 127_787_520 + 6_152),
        ("taser:routing=token,experts=4", 165_579_264 + 3_076),
        ("taser:routing=sequence,experts=4,gates=per_layer", 165_579_264 + 12_304),
        ("mote:similarity=dense", 165_579_264),
        ("mote:similarity=dense,encoders=siamese", BERT),
        ("mote:similarity=dense,encoders=separate", 217_783_296),
        ("mote", 165_579_264 + HEAD),
        ("sbmoe", BERT + 3_848_076),
        ("sbmoe:gate=random", BERT + 6 * 590_976),
        ("sbmoe:experts=1", BERT + 590_976),
        ("cross-encoder", 109_483_009),
        ("cross-encoder:head=linear", BERT + 769),
    ],
)
def test_bert_base_counts_are_those_of_the_paper(spec, count):
    """Some papers count the pooler, which no retriever uses."""
    assert bert_base(spec).parameter_count() == count


@pytest.mark.parametrize("width, layers, heads, inner, count", [(312, 4, 12, 1200, 14_350_248), (512, 4, 8, 2048, 28_763_648)])
def test_small_backbones_of_sbmoe_have_the_papers_sizes(width, layers, heads, inner, count):
    with torch.device("meta"):
        encoder = Encoder(EncoderConfig(vocabulary=30522, hidden=width, layers=layers, heads=heads, intermediate_size=inner))
    pooler = width * width + width
    assert sum(parameter.numel() for parameter in encoder.parameters()) + pooler == count


@pytest.mark.parametrize("shared", [0, 10])
@pytest.mark.parametrize("experts", SUBSETS)
def test_every_subset_of_experts_has_the_parameters_of_its_parts(experts, shared):
    chosen = experts.split("+")
    expected = EMBEDDINGS + LAYER * (shared + (12 - shared) * len(chosen)) + HEAD * ("lexical" in chosen) + PROJECTION * ("local" in chosen)
    architecture = bert_base(f"came:shared_layers={shared},experts={experts}")
    assert architecture.parameter_count() == expected and set(architecture.representation_kinds) == set(chosen)
    if shared == 0:
        private = bert_base(f"came:shared_layers=0,experts={experts},embeddings=private")
        assert private.parameter_count() - expected == EMBEDDINGS * (len(chosen) - 1), "one table for each expert"


def weights_with_gradient(architecture, expert):
    """Names of the weights with a gradient from one expert alone."""
    architecture.zero_grad()
    output = architecture(PackedTokens.from_lists([[1, 11, 12, 2], [1, 13, 2]], "document"))[expert]
    sum(column.square().sum() for column in output.columns().values() if column.is_floating_point()).backward()
    return {
        name for name, parameter in architecture.named_parameters() if parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
    }


def test_training_one_expert_moves_shared_weights_and_its_own():
    experts = ("lexical", "local", "global")
    for expert in experts:
        names = weights_with_gradient(tiny("came:shared_layers=2"), expert)
        assert {name.split(".")[1] for name in names if name.startswith("towers.")} == {expert}
        assert any(name.startswith("encoder.layers.1.") for name in names)
        assert any(name.startswith("heads.local.") for name in names) == (expert == "local")
        assert any(name.startswith("encoder.vocabulary_head.") for name in names) == (expert == "lexical")
    shared, private = tiny("came:shared_layers=0"), tiny("came:shared_layers=0,embeddings=private")
    common = set.intersection(*(weights_with_gradient(shared, expert) for expert in experts))
    assert common and all(name.startswith("encoder.embeddings.") for name in common)
    own = [weights_with_gradient(private, expert) for expert in experts]
    assert not (own[0] & own[1] or own[0] & own[2] or own[1] & own[2])
    moved = set.union(*own)
    assert all(name in moved or ".key.bias" in name or "places" in name or "kinds" in name for name, _ in private.named_parameters())


@pytest.mark.parametrize(
    "spec, message",
    [
        ("came:shared_layers=5", "shared_layers=5: the encoder has 4 layers; expected 0 to 4"),
        ("came:shared_layers=-1", "expected 0 to 4"),
        ("came:shared_layers=2,experts=lexical+sparse", r"experts=lexical\+sparse: expected some of lexical\+local\+global, each once"),
        ("came:shared_layers=2,experts=local+local", "each once"),
        ("came:shared_layers=2,embeddings=own", "embeddings=own: expected one of shared, private"),
        ("came:shared_layers=2,embeddings=private", "embeddings=private needs shared_layers=0, found 2"),
        ("came:shared_layers=2,pooling=first", "pooling=first: expected one of cls, mean"),
        ("dense:pooling=first", "pooling=first: expected one of cls, mean, last"),
        ("dense:encoders=x", "encoders=x: expected one of siamese, separate"),
        ("colbert:dim=0", "local dimension 0"),
        ("colbert:attend_masks=true", "it needs augmentation=true, which adds the .MASK. tokens"),
        ("coil:dim=0", "exact dimension 0: expected at least 1"),
        ("coil:cls_dim=-1", "coil:cls_dim=-1: expected 1 or more, or 0 for no"),
        ("splade:activation=mean", "lexical activation=mean: expected one of relu, log1p_relu"),
        ("came:shared_layers=2,lexical_queries=none", "lexical queries=none: expected one of encoder, tokens"),
        ("taser:routing=x", "routing=x: expected one of"),
        ("taser:gates=two", "gates=two: expected one of one, per_layer"),
        ("taser:routing=token,gate_start=x", "gate_start=x: expected one of centred, drawn"),
        ("taser:routing=token,gate_input=x", "gate_input=x: expected one of ffn_input, block_input"),
        ("taser:routing=token,gradient=x", "gradient=x: expected one of full, pair, switch, none"),
        ("taser:routing=token,temperature=0", "temperature=0.0: expected more than 0"),
        ("taser:every=9", "every=9: no layer of 4 would have experts"),
        ("taser:experts=1", "experts=1"),
        ("mote:encoders=x", "encoders=x: expected one of"),
        ("mote:similarity=x", "similarity=x: expected one of"),
        ("sbmoe:experts=0", "experts=0"),
        ("sbmoe:inference=best", "inference=best: expected one of"),
        ("sbmoe:combine=sum", "combine=sum: expected one of"),
        ("sbmoe:gate=none", "gate=none: expected one of learned, random"),
        ("dense:adapters=-1", "adapters=-1: expected the rank of adapters, 1 or more, or 0 for none"),
        ("dense:adapters=2,adapter_alpha=0", "adapter_alpha=0: expected more than 0"),
        ("dense:adapters=2,adapter_dropout=1", "adapter_dropout=1: expected 0 or more, less than 1"),
        ("dense:adapters=17", "adapters=17: expected a rank of at most 16, the width of the states"),
        ("dense:encoders=separate,adapters=4", "dense:adapters needs encoders=siamese; mote:adapters has .*"),
        ("mote:encoders=separate,adapters=4", "mote:adapters needs encoders=mote, adapters of each side, or siamese, adapters of both"),
        ("came:shared_layers=0,embeddings=private,adapters=4", "came:adapters: .* embeddings=private"),
        ("came:shared_layers=4,adapters=4", "came:adapters: they are for private layers over .*; found shared_layers=4 of 4, .*"),
        ("came:shared_layers=2,shared_adapters=4", "came:shared_adapters=4: they are for shared layers, beside adapters=RANK of private"),
        ("came:shared_layers=0,adapters=4,shared_adapters=4", "came:shared_adapters=4: they are for shared layers, .*"),
        ("taser:adapters=4,routing=token,adapter_maps=query", r"adapter_maps=query: expected all, .*: feedforward\.down, feedforward\.up"),
        ("taser:adapter_dropout=0.1", "options of adapters, and no adapters; set their rank, as in adapters=16"),
        ("mote:adapters=4,adapter_maps=lin1", r"adapter_maps=lin1: expected all, attention, feedforward, or some of the maps .*"),
    ],
)
def test_impossible_architectures_are_refused(spec, message):
    assert_refused(UsageError, message, tiny, spec)


def test_signs_that_the_vocabulary_lacks_are_refused():
    bare = SpecialTokens(1, 2, None, None, 5, ())
    for option, sign in (("markers", "unused0"), ("augmentation", "MASK")):
        with pytest.raises(UsageError, match=rf"{option}=true: the vocabulary has no .*{sign}"):
            variants.bind_variant("architectures", f"colbert:{option}=true")(Encoder(TINY), bare)


def test_lengths_that_cannot_be_read_are_refused():
    InputConfig(query_length=3, document_length=32).check(32)
    for rules in (InputConfig(query_length=2), InputConfig(query_length=33, document_length=3)):
        assert_refused(UsageError, r"--query-length [0-9]+: expected 3 to 32, the encoder's positions", rules.check, 32)
    assert_refused(ArtifactError, r"x: `reading` has the fields \['query_prefix'\]", InputConfig.from_dict, {"query_prefix": ""}, "x")


WORDS, EXPERT, TRANSFORM = 50 * 16, 2 * 16 * 24 + 24 + 16 + 2 * 16, 16 * 16 + 16 + 2 * 16 + 50  # feed-forward with its normalisation


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
    architecture = tiny(spec)
    query, document = (measure_cost(architecture, side, 10)[0] for side in ("query", "document"))
    assert document == architecture.parameter_count() - idle and query == (of_query or document)


def test_operations_of_a_dense_text_are_those_of_its_matrices_and_attention():
    matrices = 4 * (4 * 16 * 16 + 2 * 16 * 24)
    assert measure_cost(tiny("dense"), "query", 10)[1] == 2 * 10 * matrices + 4 * 4 * 16 * 10 * 10
    assert measure_cost(tiny("splade"), "query", 10)[1] == 2 * 10 * (matrices + 16 * 16 + WORDS) + 4 * 4 * 16 * 10 * 10
    assert measure_cost(tiny("mote:similarity=dense"), "query", 10) == measure_cost(tiny("taser:every=0"), "query", 10)
    assert measure_cost(tiny("splade:queries=tokens"), "query", 10)[1] == 0


def test_each_parameter_has_one_owner():
    for spec in (
        "came:shared_layers=2",
        "taser:every=1,routing=token",
        "mote:encoders=separate",
        "sbmoe:experts=2",
        "came:shared_layers=2,adapters=4",
    ):
        architecture = tiny(spec)
        assert sum(count_parameters(architecture).values()) == architecture.parameter_count()
    owners = count_parameters(tiny("came:shared_layers=2"))
    layer = 4 * (16 * 16 + 16) + 2 * 16 + EXPERT
    assert (owners["global"], owners["local"], owners["vocabulary head"]) == (2 * layer, 2 * layer + 16 * 128, TRANSFORM)
    assert count_parameters(tiny("taser:every=1,routing=token"))["router"] == 2 * 17
    assert count_parameters(tiny("mote:similarity=dense"))["expert 1"] == 4 * EXPERT


@pytest.mark.parametrize("spec", ["came:shared_layers=2,local_dim=4", "taser:every=1,routing=token", "mote", "sbmoe:experts=3"])
def test_the_operations_of_a_long_text_follow_from_three_shorter_ones(spec, monkeypatch):
    architecture = tiny(spec)
    direct = measure_cost(architecture, "document", 31)
    monkeypatch.setattr(costs, "LONGEST_RUN", 16)
    assert measure_cost(architecture, "document", 31)[1] == direct[1] > 0
