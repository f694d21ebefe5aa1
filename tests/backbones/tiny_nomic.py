"""A tiny folder in the layout of nomic-embed-text-v2-moe, with random weights, and its formula written token by token."""

import math

import torch
from safetensors.torch import save_file

from tests.architectures.folders import ST, list_modules, write_files
from tests.backbones.tiny_tokenizers import write_xlm_roberta

H, LAYERS, HEADS, INNER, EXPERTS = 24, 4, 3, 40, 5
CONFIG = {  # the published one with other sizes, but for settings of the libraries around it
    "activation_function": "gelu", "add_pooling_layer": False, "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "bos_token_id": None, "causal": False, "embd_pdrop": 0.1, "eos_token_id": None, "expert_choice_router": False, "ffn_div": 1,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "max_trained_positions": 2048, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
    "model_type": "nomic_bert", "moe_every_n_layers": 2, "moe_impl": "megablocks", "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0, "moe_top_k": 2, "n_embd": H, "n_head": HEADS, "n_inner": INNER, "n_layer": LAYERS, "n_positions": 2048,
    "num_experts": EXPERTS, "num_shared_experts": 0, "pad_token_id": 1, "pad_vocab_size_multiple": 64, "parallel_block": False,
    "prenorm": False, "qkv_proj_bias": True, "resid_pdrop": 0.0, "rotary_emb_base": 10000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "router_aux_loss_coef": 0.1,
    "scale_attn_weights": True, "torch_dtype": "float32", "type_vocab_size": 1, "use_rms_norm": None, "vocab_size": 60,
}  # fmt: skip
PROMPTS = {"query": "search_query: ", "passage": "search_document: ", "Classification": "classification: "}


def make_weights():
    """Random weights under the published names; the vocabulary is filled up to 64 rows."""
    shapes = {"embeddings.word_embeddings.weight": (64, H), "embeddings.token_type_embeddings.weight": (1, H)}
    shapes |= {"emb_ln.weight": (H,), "emb_ln.bias": (H,)}
    for number in range(LAYERS):
        layer = {"attn.Wqkv.weight": (3 * H, H), "attn.Wqkv.bias": (3 * H,), "attn.out_proj.weight": (H, H), "attn.out_proj.bias": (H,)}
        layer |= dict.fromkeys(("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"), (H,))
        if number % 2:
            layer |= dict.fromkeys(("mlp.experts.mlp.w1", "mlp.experts.mlp.w2"), (EXPERTS * INNER, H))
            layer |= {"mlp.experts.bias": (H,), "mlp.router.layer.weight": (EXPERTS, H)}
        else:
            layer |= {"mlp.fc1.weight": (INNER, H), "mlp.fc1.bias": (INNER,), "mlp.fc2.weight": (H, INNER), "mlp.fc2.bias": (H,)}
        shapes |= {f"encoder.layers.{number}.{name}": shape for name, shape in layer.items()}
    generator = torch.Generator().manual_seed(5)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_folder(folder, weights=None, **changes):
    """The published folder: config.json, weights, tokenizer and the files of sentence-transformers."""
    write_xlm_roberta(folder)
    files = {
        "config.json": CONFIG | changes,
        "config_sentence_transformers.json": {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"},
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": H, "pooling_mode_mean_tokens": True},
        "modules.json": list_modules((f"{ST}.Transformer", ""), (f"{ST}.Pooling", "1_Pooling"), (f"{ST}.Normalize", "2_Normalize")),
    }
    write_files(folder, files)
    save_file(make_weights() if weights is None else weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def encode_text(weights, ids, top_k=2):
    """States [L, H] of one text by the published formula, token after token, and by router the experts of each."""

    def norm(state, name):
        centred = state - state.mean()
        return centred / (centred.square().mean() + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def rotate(vector, position):
        half = len(vector) // 2
        angles = torch.tensor([position / 10000 ** (2 * i / len(vector)) for i in range(half)], dtype=vector.dtype)
        first, second = vector[:half], vector[half:]
        return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()])

    def gelu(inner):
        return 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))

    words, kinds = weights["embeddings.word_embeddings.weight"], weights["embeddings.token_type_embeddings.weight"]
    states, experts_of, width = [norm(words[token] + kinds[0], "emb_ln") for token in ids], {}, H // HEADS
    for number in range(LAYERS):
        own = {name.removeprefix(f"encoder.layers.{number}."): value for name, value in weights.items()}
        projected = [(own["attn.Wqkv.weight"] @ state + own["attn.Wqkv.bias"]).view(3, HEADS, width) for state in states]
        keys = [torch.stack([rotate(head, there) for head in key]) for there, (_, key, _) in enumerate(projected)]
        attended = []
        for here, (query, _, _) in enumerate(projected):
            heads = []
            for head in range(HEADS):
                turned = rotate(query[head], here)
                scores = torch.stack([turned @ key[head] for key in keys]) / math.sqrt(width)
                heads.append(sum(weight * value[head] for weight, (_, _, value) in zip(scores.softmax(0), projected, strict=True)))
            attended.append(own["attn.out_proj.weight"] @ torch.cat(heads) + own["attn.out_proj.bias"])
        states = [norm(update + state, f"encoder.layers.{number}.norm1") for update, state in zip(attended, states, strict=True)]
        updates, chosen = [], []
        for state in states:
            if number % 2 == 0:
                updates.append(own["mlp.fc2.weight"] @ gelu(own["mlp.fc1.weight"] @ state + own["mlp.fc1.bias"]) + own["mlp.fc2.bias"])
                continue
            chances = (own["mlp.router.layer.weight"] @ state).softmax(0)
            best = sorted(range(EXPERTS), key=lambda expert: -chances[expert].item())[:top_k]
            update = own["mlp.experts.bias"]
            for expert in best:
                rows = slice(expert * INNER, (expert + 1) * INNER)
                update = update + chances[expert] * (gelu(own["mlp.experts.mlp.w1"][rows] @ state) @ own["mlp.experts.mlp.w2"][rows])
            updates.append(update)
            chosen.append(best)
        if chosen:
            experts_of[f"layer{number + 1}"] = chosen
        states = [norm(update + state, f"encoder.layers.{number}.norm2") for update, state in zip(updates, states, strict=True)]
    return torch.stack(states), experts_of
