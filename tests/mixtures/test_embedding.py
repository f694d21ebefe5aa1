"""SB-MoE's block: what each combination adds, which gates get gradients, and that a random gate is deterministic."""

import pytest
import torch
import torch.nn.functional as F

from moeir.backbones.packed_tokens import PackedTokens
from moeir.mixtures import embedding
from moeir.mixtures.embedding import EmbeddingMixture
from tests.oracles import routing as oracles

TEXTS = [[1, number, number * 7 % 31, 2] for number in range(3, 23)]
TOKENS = PackedTokens.from_lists(TEXTS, "query")


def make_mixture(seed=0, width=12, experts=4, **options):
    torch.manual_seed(seed)
    return EmbeddingMixture(width, experts=experts, **options)


def vectors(seed=1, width=12):
    torch.manual_seed(seed)
    return torch.randn(len(TEXTS), width)


@pytest.mark.parametrize("combine", embedding.COMBINES)
@pytest.mark.parametrize("inference", ["top1", "all"])
def test_in_use_a_vector_is_refined_as_by_hand(combine, inference):
    mixture, x = make_mixture(combine=combine, inference=inference).eval(), vectors()
    refined = mixture(x, TOKENS)
    for row in range(len(x)):
        weights = (mixture.gate.down(F.relu(mixture.gate.up(x[row])))).softmax(-1)
        chosen = [int(weights.argmax())] if inference == "top1" else range(4)
        assert torch.allclose(refined[row], oracles.gated_block(mixture, x[row], weights, combine, chosen), atol=1e-5)
    if combine == "release":
        assert torch.allclose((refined - x).norm(dim=-1), torch.ones(len(x)), atol=1e-5), "a correction of length 1, whatever experts say"


def test_training_is_noisy_and_takes_one_expert():
    mixture, x = make_mixture(combine="weighted").train(), vectors()
    torch.manual_seed(5)
    logits = mixture.gate(x)
    noisy = (logits + torch.randn_like(logits) * F.softplus(mixture.noise(x))).softmax(-1)
    torch.manual_seed(5)
    refined = mixture(x, TOKENS)
    for row in range(len(x)):
        assert torch.allclose(
            refined[row], oracles.gated_block(mixture, x[row], noisy[row], "weighted", [int(noisy[row].argmax())]), atol=1e-5
        )
    assert torch.allclose(mixture.last_routing.probabilities, logits.softmax(-1), atol=1e-6), "what is reported is without noise"
    assert (noisy.argmax(-1) != logits.argmax(-1)).any()


MANY = PackedTokens.from_lists([[1, one, other] for one in range(60) for other in range(50)], "document")


def refine(mixture, texts=TOKENS, seed=5):
    torch.manual_seed(seed)
    return mixture(torch.ones(len(texts), 12), texts)


def is_even(choice, experts):
    return bool(((torch.bincount(choice, minlength=experts) / len(choice) - 1 / experts).abs() < 0.03).all())


def test_a_random_gate_draws_anew_in_each_training_call():
    mixture = make_mixture(gate="random").train()
    first, again, other = (refine(mixture, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first, again) and mixture.last_routing is None
    assert not torch.equal(first, other)
    torch.manual_seed(0)
    assert is_even(mixture._choose(torch.full((3000, 4), 0.25), MANY)[1], 4)


def test_at_inference_a_random_expert_is_repeatable_in_any_batch():
    mixture = make_mixture(experts=3, gate="random").eval()
    first = refine(mixture)
    assert torch.equal(first, refine(mixture, seed=9)) and mixture.last_routing is None
    back = PackedTokens.from_lists(TEXTS[::-1], "query")
    assert torch.allclose(refine(mixture, back).flip(0), first, atol=1e-6)
    assert not torch.equal(refine(mixture, PackedTokens.from_lists(TEXTS, "document")), first), "query and document are drawn apart"
    assert is_even(mixture._choose(torch.full((3000, 3), 1 / 3), MANY)[1], 3)


def mix_by_hand(number):
    """SplitMix64's finaliser, Steele et al. 2014."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) % 2**64
    return number ^ (number >> 31)


@pytest.mark.parametrize("seed", [0, 1, 6, 2**31 - 1])
def test_hashed_numbers_of_any_seed_are_those_of_whole_numbers_of_64_bits(seed):
    """A checkpoint with a random gate keeps each text's expert in later versions."""
    expected = []
    for text in TEXTS:
        key = sum((word + 1) * mix_by_hand(place + 1) for place, word in enumerate(text))
        expected.append([(mix_by_hand((key + mix_by_hand(expert + seed * 2**32)) % 2**64) >> 40) / 2**24 for expert in (1, 2, 3)])
    assert embedding.hash_to_uniform(TOKENS, 3, seed).tolist() == expected


@pytest.mark.parametrize("experts", [3, 6, 12])
def test_corrections_of_all_gates_start_equally_long(experts):
    """`norm_expert`: the length is the weight."""
    torch.manual_seed(0)
    x = 3 * F.normalize(torch.randn(3000, 64), dim=-1)
    lengths = {}
    for gate in embedding.GATES:
        mixture = make_mixture(experts=experts, gate=gate, width=64)
        for training in (True, False):
            lengths[gate, training] = (mixture.train(training)(x, MANY) - x).norm(dim=-1).mean().item()
    for training in (True, False):
        assert lengths["random", training] == pytest.approx(lengths["learned", training], rel=0.2)
    assert lengths["random", False] == pytest.approx(1 / experts, abs=1e-5)


@pytest.mark.parametrize("gate", embedding.GATES)
@pytest.mark.parametrize("inference", embedding.INFERENCES)
def test_a_single_expert_is_an_adapter_of_weight_1(gate, inference):
    x = vectors()
    for combine in embedding.COMBINES:
        mixture = make_mixture(experts=1, gate=gate, inference=inference, combine=combine)
        assert {name.split(".")[0] for name in mixture.state_dict()} == {"experts"} and len(mixture.experts) == 1
        update = mixture.experts[0](x)
        expected = x + (update if combine == "weighted" else F.normalize(update, dim=-1))
        for training in (True, False):
            assert torch.allclose(mixture.train(training)(x, TOKENS), expected, atol=1e-5)


def test_a_normalised_vector_is_the_refined_one_at_length_1():
    x = vectors()
    plain, unit = (make_mixture(normalise=normalise).eval()(x, TOKENS) for normalise in (False, True))
    assert torch.allclose(unit, plain / plain.norm(dim=-1, keepdim=True), atol=1e-6)


@pytest.mark.parametrize(
    "width, experts, count",
    [
        (312, 1, 97_812), (768, 1, 590_976),
        (312, 3, 343_674), (312, 6, 638_520), (312, 9, 933_366), (312, 12, 1_228_212),
        (512, 3, 922_374), (512, 6, 1_713_420), (512, 9, 2_504_466), (512, 12, 3_295_512),
        (768, 3, 2_071_686), (768, 6, 3_848_076), (768, 9, 5_624_466), (768, 12, 7_400_856),
    ],
)  # fmt: skip
def test_the_block_has_the_parameters_of_the_specification(width, experts, count):
    with torch.device("meta"):
        mixture = EmbeddingMixture(width, experts=experts)
    assert sum(parameter.numel() for parameter in mixture.parameters()) == count
