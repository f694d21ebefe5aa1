"""Noise of each text's own: spread as it should be, and the same whatever lies beside the text."""

import pytest
import torch

from moeir.backbones.encoder import Encoder, Shape
from moeir.backbones.tokens import Tokens
from moeir.kernels import noise
from moeir.kernels.attention import Layout, _masked, attention
from moeir.kernels.forgetful import forgetful
from moeir.kernels.noise import Dropout, Forgetting

KEYS = noise.scattered(torch.arange(4000))
SHAPE = Shape(vocabulary=40, hidden=16, layers=3, heads=2, inner=24, positions=32, dropout=0.2, attention_dropout=0.3)
TEXTS = [[1, 5, 6, 7, 2], [1, 8, 2], [1, 9, 10, 11, 2], [1, 5, 2]]


def test_lanes_are_spread_evenly_and_do_not_follow_one_another():
    drawn = noise.lanes(KEYS, 256, 3).double()
    assert abs(float(drawn.mean())) < 100 and float(drawn.var()) == pytest.approx(2**32 / 12, rel=0.01)
    counts = torch.histc(drawn, 64, -32768, 32767)
    assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 120, "chi squared of 63 degrees"
    others = {"place": drawn[:, 1:] * drawn[:, :-1], "key": drawn[1:] * drawn[:-1], "site": drawn * noise.lanes(KEYS, 256, 4)}
    for name, products in others.items():
        assert abs(float(products.mean() / drawn.var())) < 0.005, name


@pytest.mark.parametrize("count", [1, 3, 4, 7, 64])
def test_a_number_depends_on_its_place_and_not_on_how_many_there_are(count):
    assert torch.equal(noise.lanes(KEYS, count, 2), noise.lanes(KEYS, 64, 2)[:, :count])
    assert torch.equal(noise.uniform(KEYS, count, 2), noise.uniform(KEYS, 64, 2)[:, :count])


def test_uniform_numbers_lie_between_0_and_1_and_never_on_them():
    drawn = noise.uniform(KEYS, 50, 1)
    assert 0 < float(drawn.min()) < 1e-4 and 1 - 1e-4 < float(drawn.max()) <= 1 and float(drawn.mean()) == pytest.approx(0.5, abs=0.003)
    extreme = torch.tensor([0, (1 << 23) - 1]).float()
    assert bool(torch.special.ndtri((extreme + 0.5) / (1 << 23)).isfinite().all()), "the least and the largest that can come"


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_as_often_as_it_says_and_keeps_the_mean_and_its_gradient(rate):
    drop, states = Dropout(rate), torch.ones(4000, 64, requires_grad=True)
    made = drop(states, KEYS)
    made.sum().backward()
    made = made.detach()
    assert torch.equal(states.grad, made)
    assert float((made == 0).float().mean()) == pytest.approx(rate, abs=0.005) and float(made.mean()) == pytest.approx(1, abs=0.02)
    assert drop.eval()(states, None) is states and Dropout(0.0)(states, None) is states


def test_every_place_of_a_model_is_noisy_in_its_own_way():
    model = Encoder(SHAPE)
    noise.numbered(model)
    sites = [module.site for module in model.modules() if isinstance(module, noise.Noisy)]
    assert sites == list(range(1, 2 + 3 * SHAPE.layers))


def test_another_seed_another_text_or_another_place_is_another_number():
    def drawn(seed, text):
        torch.manual_seed(seed)
        return Tokens.pack([text], "query").layout.noise().tolist()

    found = [drawn(1, [1, 5, 5, 2]), drawn(2, [1, 5, 5, 2]), drawn(1, [1, 5, 6, 2])]
    assert len({number for numbers in found for number in numbers}) == 12
    assert drawn(1, [1, 5, 5, 2]) == found[0]


def test_a_layout_follows_the_seed():
    place = Tokens.pack(TEXTS, "query").layout
    torch.manual_seed(1)
    first = place.noise()
    torch.manual_seed(2)
    second = place.noise()
    torch.manual_seed(1)
    assert torch.equal(place.noise(), first) and not torch.equal(first, second)


@pytest.mark.parametrize("beside", [[0, 1, 2, 3], [2, 0], [3], [1, 1, 1]])
def test_a_text_is_dropped_alike_in_any_batch(beside):
    torch.manual_seed(0)
    model = Encoder(SHAPE).train()
    noise.numbered(model)
    alone = [model(Tokens.pack([text], "query")) for text in TEXTS]
    together = model(Tokens.pack([TEXTS[number] for number in beside], "query")).split([len(TEXTS[number]) for number in beside])
    for number, states in zip(beside, together, strict=True):
        assert torch.allclose(states, alone[number], atol=1e-5)
    assert not torch.allclose(alone[0], model.eval()(Tokens.pack(TEXTS[:1], "query")), atol=1e-2)


def test_dropped_attention_is_that_of_the_kept_weights_in_both_layouts():
    lengths = (3, 3, 5, 1)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    silent = torch.zeros(sum(lengths), dtype=torch.bool).index_fill(0, torch.tensor([2, 9]), True)
    place = Layout(lengths, starts, silent)
    made = torch.Generator().manual_seed(1)
    forgetting = Forgetting(0.4, 5, noise.scattered(torch.arange(sum(lengths)) * 7))
    weigh, found = torch.randn(sum(lengths), 2, 4, generator=made), []
    parts = [torch.randn(sum(lengths), 2, 4, generator=made) for _ in range(3)]
    for form in (plain, attention, _masked):
        given = [part.clone().requires_grad_() for part in parts]
        mixed = form(*given, place, None, forgetting)
        (mixed * weigh).sum().backward()
        found.append([mixed.detach(), *(part.grad for part in given)])
    for other in found[1:]:
        for expected, value in zip(found[0], other, strict=True):
            assert torch.allclose(value, expected, atol=1e-5)


def plain(query, key, value, place, window, forgetting):
    """Text by text, head by head, with autograd's own gradients; every head of a token has its own keys."""
    mixed, first = [], 0
    for length in place.lengths:
        own = slice(first, first + length)
        heads = []
        for head in range(query.shape[1]):
            scores = query[own, head] @ key[own, head].T / query.shape[-1] ** 0.5
            weights = scores.masked_fill(place.silent[own], float("-inf")).softmax(-1)
            keys = forgetting.keys[own] + head * -0x5851F42D4C957F2D
            stay = noise.kept(keys, length, forgetting.rate, forgetting.site)
            heads.append((weights * stay * noise.scale(forgetting.rate)) @ value[own, head])
        mixed.append(torch.stack(heads, 1))
        first += length
    return torch.cat(mixed)


def test_dropped_weights_keep_their_mean():
    made = torch.Generator().manual_seed(1)
    parts = [torch.randn(200, 2, 6, 4, generator=made) for _ in range(2)]
    value = torch.ones(200, 2, 6, 4)
    mixed = forgetful(*parts, value, None, noise.scattered(torch.arange(1200)).view(200, 6), 0.3, 1)
    assert float(mixed.mean()) == pytest.approx(1, abs=0.02) and float(mixed.std()) > 0.05
