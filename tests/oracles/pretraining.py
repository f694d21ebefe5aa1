"""Slow, obvious pre-training objectives: text by text or padded, all logits at once, masks filled by loops."""

import math

import torch
import torch.nn.functional as F

from moeir.backbones.packed_tokens import PackedTokens


def encode_text(encoder, ids, side="document"):
    """States [L, H] of one text alone: after the lower half of the layers, and after all."""
    tokens = PackedTokens.from_lists([ids], side)
    states, middle = encoder.embeddings(tokens), []
    for number, layer in enumerate(encoder.layers):
        middle += [states] if number == len(encoder.layers) // 2 else []
        states = layer(states, tokens, tokens.layout)
    return middle[0], states


def split_batch(texts):
    """(original ids, input ids, masked positions) of each text."""
    bounds = list(zip(texts.tokens.starts[:-1].tolist(), texts.tokens.starts[1:].tolist(), strict=True))
    plain, masked_ids, hidden = texts.original_ids.tolist(), texts.tokens.ids.tolist(), texts.masked_positions.tolist()
    return [(plain[a:b], masked_ids[a:b], [position - a for position in hidden if a <= position < b]) for a, b in bounds]


def token_losses(encoder, states, targets):
    """-log softmax over all words of states [n, H] at targets [n]."""
    return F.cross_entropy(encoder.logits(states), torch.tensor(targets), reduction="none")


def mlm_loss(encoder, states, texts):
    """Mean loss over all masked tokens; `states` holds the states of each text."""
    losses = [
        token_losses(encoder, own[hidden], [plain[position] for position in hidden])
        for own, (plain, _, hidden) in zip(states, texts)
        if hidden
    ]
    return torch.cat(losses).mean()


def window_mask(length, window):
    """0 where token i may attend to token j, else −∞."""
    mask = torch.full((length, length), -math.inf)
    for i in range(length):
        for j in range(i + 1):
            if j == 0 or window == -1 or i - j < window:
                mask[i, j] = 0.0
    return mask


def masked_attention(query, key, value, mask, heads):
    """query, key, value [B, L, H], mask [L, L] or [B, L, L] to be added -> [B, L, H]."""
    parts = []
    for q, k, v in zip(query.chunk(heads, -1), key.chunk(heads, -1), value.chunk(heads, -1), strict=True):
        parts.append((q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + mask).softmax(-1) @ v)
    return torch.cat(parts, -1)


def embed_padded(encoder, texts, vectors):
    """Embeddings of texts padded with word 0, each text's first one replaced by its vector: [B, L, H]."""
    longest = max(map(len, texts))
    rows = [encoder.embeddings(PackedTokens.from_lists([ids + [0] * (longest - len(ids))], "document")) for ids in texts]
    return torch.stack([torch.cat([vector[None], row[1:]]) for vector, row in zip(vectors, rows, strict=True)])


def causal_decoder_loss(decoder, encoder, vectors, texts, window):
    """Mean loss of all tokens but the first, with GPT-2's block over a padded batch; no dropout."""
    states = embed_padded(encoder, texts, vectors)
    mask = window_mask(states.shape[1], window)
    for block in decoder.blocks:
        parts = block.qkv(block.before_attention(states)).chunk(3, -1)
        states = states + block.output(masked_attention(*parts, mask, block.heads))
        states = states + block.down(F.gelu(block.up(block.before_feedforward(states))))
    logits = encoder.logits(decoder.norm(states))
    targets = torch.tensor([[*ids[1:], *[-100] * (states.shape[1] - len(ids) + 1)] for ids in texts])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def run_layers(layers, vector, states):
    """[vector; states but the first] of one text through layers like the encoder's."""
    tokens = PackedTokens.from_lists([[0] * len(states)], "document")
    mixed = torch.cat([vector[None], states[1:]])
    for layer in layers:
        mixed = layer(mixed, tokens, tokens.layout)
    return mixed


def sparse_bottleneck(encoder, states):
    """Σ w E / (Σ w + 1e-4), w the log-saturated maximum over all but the first and last token; E without gradient."""
    weights = torch.log1p(torch.relu(encoder.logits(states[1:-1]))).amax(0)  # [V]
    return weights @ encoder.embeddings.words.weight.detach() / (weights.sum() + 1e-4)


def in_batch_contrastive(vectors):
    """Contrastive loss of each of 2 B vectors against all others, by loops."""
    count, losses = len(vectors), []
    for one in range(count):
        others = [vectors[one] @ vectors[other] for other in range(count) if other != one]
        partner = vectors[one] @ vectors[(one + count // 2) % count]
        losses.append(torch.logsumexp(torch.stack(others), 0) - partner)
    return torch.stack(losses).mean()
