"""SB-MoE's block: what each combination adds, which gates get gradients, and that a random gate is deterministic."""

import pytest
import torch
import torch.nn.functional as F

from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
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


def gradients(combine, noise=True):
    mixture, x = make_mixture(combine=combine, noise=noise).train(), vectors()
    targets = torch.randn_like(x)
    (mixture(x, TOKENS) @ targets.T).log_softmax(-1).diag().mean().backward()
    norms_by_part = {name: [p.grad.norm() for p in part.parameters() if p.grad is not None] for name, part in mixture.named_children()}
    return {name: float(torch.stack(norms).norm()) for name, norms in norms_by_part.items() if norms}


@pytest.mark.parametrize("combine, learns", [("norm_expert", True), ("weighted", True), ("release", False)])
def test_the_gate_learns_unless_the_weight_cancels(combine, learns):
    norms_by_part = gradients(combine)
    ratio = norms_by_part["gate"] / norms_by_part["experts"]
    assert ratio > 1e-3 if learns else ratio < 1e-5, f"gate {norms_by_part['gate']:.2e}, experts {norms_by_part['experts']:.2e}"
    assert (norms_by_part["noise"] / norms_by_part["experts"] > 1e-4) == learns


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
    assert make_mixture(noise=False).noise is None


def test_top_1_and_all_are_one_training():
    names = [list(make_mixture(inference=inference).state_dict()) for inference in embedding.INFERENCES]
    assert names[0] == names[1] == names[2]


@pytest.mark.parametrize("options", [{"gate": "random"}, {"inference": "random"}])
def test_a_random_gate_depends_on_the_text_alone_and_spreads_evenly(options):
    mixture = make_mixture(experts=3, **options).eval()
    first, again = mixture(vectors(), TOKENS), mixture(vectors(), TOKENS)
    assert torch.equal(first, again) and mixture.last_routing is None
    back = list(range(len(TEXTS)))[::-1]
    permuted = mixture(vectors()[back], PackedTokens.from_lists([TEXTS[row] for row in back], "query"))
    assert torch.allclose(permuted[back], first, atol=1e-6)
    many = PackedTokens.from_lists([[1, one, other] for one in range(60) for other in range(50)], "document")
    numbers = embedding.hash_uniform(many, 3)
    share = torch.bincount(numbers.argmax(-1), minlength=3) / len(many)
    assert ((share - 1 / 3).abs() < 0.03).all() and float(numbers.min()) >= 0 and float(numbers.max()) < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.02


def test_a_random_gate_owns_no_weights():
    assert not [name for name in make_mixture(gate="random").state_dict() if not name.startswith("experts.")]


@pytest.mark.parametrize("wrong", [{"experts": 1}, {"inference": "best"}, {"combine": "sum"}, {"gate": "none"}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError):
        make_mixture(**wrong)


@pytest.mark.parametrize(
    "width, experts, count",
    [
        (312, 3, 343_674), (312, 6, 638_520), (312, 9, 933_366), (312, 12, 1_228_212),
        (512, 3, 922_374), (512, 6, 1_713_420), (512, 9, 2_504_466), (512, 12, 3_295_512),
        (768, 3, 2_071_686), (768, 6, 3_848_076), (768, 9, 5_624_466), (768, 12, 7_400_856),
    ],
)  # fmt: skip
def test_the_block_has_the_parameters_of_the_specification(width, experts, count):
    with torch.device("meta"):
        mixture = EmbeddingMixture(width, experts=experts)
    assert sum(parameter.numel() for parameter in mixture.parameters()) == count
