"""Parameter groups: multipliers by hand, groups by name, and errors."""

import logging

import pytest

from moeir.architectures.initialize import build_checkpoint
from moeir.errors import UsageError
from moeir.training import param_groups

RULES = {"query_length": 10, "document_length": 20}


@pytest.fixture(scope="module")
def architectures(tiny_model_with_head):
    specs = ("came:shared_layers=2,local_dim=8", "taser:routing=token,every=1", "sbmoe:experts=2", "dense", "splade")
    return {spec.split(":")[0]: build_checkpoint(tiny_model_with_head, spec, RULES).architecture for spec in specs}


@pytest.mark.parametrize(
    "arch, name, depth",
    [
        ("dense", "encoder.embeddings.words.weight", 0),
        ("dense", "encoder.layers.0.attention.query.weight", 1),
        ("splade", "encoder.vocabulary_head.transform.weight", 6),
        ("came", "towers.lexical.0.attention.key.weight", 3),
        ("came", "towers.global.1.attention.key.weight", 4),
        ("came", "heads.local.projection.weight", 6),
        ("taser", "encoder.layers.3.feedforward.experts.1.up.weight", 4),
        ("taser", "router.weight", 3),  # two thirds of four
        ("sbmoe", "mixture.experts.0.up.weight", 6),
    ],
)
def test_depths_and_multipliers_by_hand(arch, name, depth, architectures):
    assert name in dict(architectures[arch].named_parameters())
    assert param_groups.layer_depth(architectures[arch], name) == depth
    assert group_settings(architectures[arch], layer_decay=0.8)[name][0] == pytest.approx(1e-3 * 0.8 ** (6 - depth))


def group_settings(architecture, **options):
    """name -> (peak, weight decay), each parameter in one group."""
    names = {id(parameter): name for name, parameter in architecture.named_parameters()}
    groups = param_groups.make_param_groups(architecture, learning_rate=1e-3, **options)
    settings = {names[id(one)]: (group["peak"], group["weight_decay"]) for group in groups for one in group["params"]}
    assert len(settings) == len(names) == sum(len(group["params"]) for group in groups)
    return settings


def test_without_more_words_there_are_matrices_and_the_rest(architectures):
    groups = param_groups.make_param_groups(architectures["dense"], learning_rate=1e-3, weight_decay=0.1)
    assert [(group["peak"], group["weight_decay"]) for group in groups] == [(1e-3, 0.1), (1e-3, 0.0)]
    assert {parameter.ndim for parameter in groups[0]["params"]} == {2} and {parameter.ndim for parameter in groups[1]["params"]} == {1}


def test_a_named_rate_is_not_decayed_and_the_last_pattern_wins(architectures):
    rates = {"mixture": 1e-4, "mixture.gate.*.bias": 7e-4, "layers.0": 3e-5}
    settings = group_settings(architectures["sbmoe"], weight_decay=0.1, layer_decay=0.5, group_rates=rates)
    assert settings["mixture.experts.1.down.weight"] == (1e-4, 0.1)
    assert settings["mixture.gate.up.weight"] == (1e-4, 0.1) and settings["mixture.gate.up.bias"] == (7e-4, 0.0)
    assert settings["encoder.layers.0.attention.query.weight"] == (3e-5, 0.1)
    assert settings["encoder.layers.1.attention.query.weight"][0] == pytest.approx(1e-3 * 0.5**4)
    assert settings["encoder.embeddings.words.weight"][0] == pytest.approx(1e-3 * 0.5**6)


def test_a_pattern_that_fits_nothing_is_refused_with_those_there_are(architectures):
    with pytest.raises(UsageError, match=r"--group-rate mixtrue: matches no parameter name; the names begin with .*mixture"):
        param_groups.make_param_groups(architectures["sbmoe"], learning_rate=1e-3, group_rates={"mixtrue": 1.0})


def test_people_are_told_how_many_parameters_learn_how_fast(architectures, caplog):
    caplog.set_level(logging.INFO)
    architecture = architectures["sbmoe"]
    param_groups.make_param_groups(architecture, learning_rate=1e-6, group_rates={"mixture": 1e-4})
    mixture = sum(one.numel() for one in architecture.mixture.parameters())
    names = [name for name, _ in architecture.mixture.named_parameters(prefix="mixture")]
    first, second = (line.getMessage() for line in caplog.records)
    assert first.startswith(f"learning rate up to 1e-06: {architecture.parameter_count() - mixture:,} parameters in ")
    assert second == f"learning rate up to 0.0001: {mixture:,} parameters in {len(names)} tensors ({names[0]} to {names[-1]})"
    param_groups.make_param_groups(architectures["dense"], learning_rate=1e-6, group_rates={"embeddings.words": 1e-4})
    assert caplog.records[-1].getMessage().endswith(" in 1 tensors (encoder.embeddings.words.weight)")


def test_shared_and_frozen_parameters_are_counted_once_or_not_at_all(architectures):
    words = architectures["taser"].encoder.embeddings.words.weight.requires_grad_(False)
    groups = param_groups.make_param_groups(architectures["taser"], learning_rate=1e-3)
    words.requires_grad_(True)
    members = [id(one) for group in groups for one in group["params"]]
    assert len(set(members)) == len(members) and id(words) not in members
