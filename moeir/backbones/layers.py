"""The layers of an encoder: attention, then feed-forward or experts, normalised after each (BERT's family, Nomic) or before each
(ModernBERT)."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.config import ACTIVATIONS, EncoderConfig, ExpertsConfig, PreNormConfig
from moeir.backbones.dispatch import RouterOutput, choose_adapters, dispatch_to_experts
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.attention import PackedLayout, apply_rotary, attention
from moeir.kernels.grouped_linear import ExpertGroups, grouped_linear, supports_grouped_linear
from moeir.kernels.packed_linear import add_linear, fused_activations, pack_linear


class Attention(nn.Module):
    """Multi-head self-attention, its residual and normalisation."""

    compiled_methods = ("_project", "_add_and_norm")

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(config.hidden, config.hidden) for _ in range(4))
        self.qkv: nn.Module | None = None  # query, key and value of the form for inference
        self.norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.dropout, self.attention_dropout = nn.Dropout(config.dropout), config.attention_dropout
        self.heads = config.heads

    def forward(self, states: Tensor, layout: PackedLayout) -> Tensor:
        """states [T, H] -> [T, H]."""
        qkv = self._project(states, self.query, self.key, self.value) if self.qkv is None else self.qkv(states)
        query, key, value = qkv.unflatten(-1, (3, self.heads, -1)).unbind(-3)
        mixed = attention(query, key, value, layout, dropout=self.attention_dropout if self.training else 0.0).flatten(-2)
        return self._add_and_norm(states, mixed)

    def _project(self, states: Tensor, *maps: nn.Linear) -> Tensor:
        """The outputs of some maps side by side, of plain ones by a single matrix product: [n, H] -> [n, maps · H]."""
        if not all(map(is_plain_linear, maps)):
            return torch.cat([part(states) for part in maps], -1)
        return F.linear(states, _join_rows([part.weight for part in maps]), _join_rows([part.bias for part in maps]))

    def _add_and_norm(self, states: Tensor, mixed: Tensor) -> Tensor:
        normalized: Tensor = self.norm(add_linear(self.output, mixed, states, self.dropout))
        return normalized


class _AdjacentRows(torch.autograd.Function):
    """Tensors that lie one after the other in memory as one, without a copy; each has its rows of the gradient."""

    @staticmethod
    def forward(context: Any, *parts: Tensor) -> Tensor:
        context.counts = [len(part) for part in parts]
        return parts[0].detach().as_strided((sum(context.counts), *parts[0].shape[1:]), parts[0].stride())

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient.split(context.counts)


def _join_rows(parts: list[Tensor]) -> Tensor:
    """The rows of all parts; a copy unless they are adjacent. A compiled region reads the parts one by one, as it casts them anyway."""
    if torch.compiler.is_compiling() or not _are_adjacent(parts):
        return torch.cat(parts)
    joined: Tensor = _AdjacentRows.apply(*parts)
    return joined


def _are_adjacent(parts: list[Tensor]) -> bool:
    storages = {part.untyped_storage().data_ptr() for part in parts}
    return len(storages) == 1 and all(part.data_ptr() + part.nbytes == after.data_ptr() for part, after in pairwise(parts))


class RotaryAttention(nn.Module):
    """Multi-head self-attention with rotary positions, over all tokens of a text or a window of them, with residual and normalisation.

    The normalisation is before the sub-layer with `prenorm`, else after it. The first layer of `prenorm` has none, since the embeddings
    are normalised.
    """

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        hidden, prenorm = config.hidden, config.prenorm
        bias, self.is_prenorm = prenorm is None or prenorm.attention_bias, prenorm is not None
        has_norm, norm_bias = prenorm is None or number > 0, prenorm is None or prenorm.norm_bias
        self.norm = nn.LayerNorm(hidden, eps=config.epsilon, bias=norm_bias) if has_norm else nn.Identity()
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=bias)  # query, key and value
        self.output = nn.Linear(hidden, hidden, bias=bias)
        self.dropout = nn.Dropout(config.dropout if prenorm is None else config.attention_dropout)
        self.attention_dropout, self.heads = config.attention_dropout, config.heads
        window, self.theta = (None, config.theta) if prenorm is None else (prenorm.windows[number], prenorm.thetas[number])
        self.reach = (None, None) if window is None else (window // 2, window // 2)

    def forward(self, states: Tensor, layout: PackedLayout) -> Tensor:
        """states [T, H] -> [T, H]."""
        query, key, value = self.qkv(self.norm(states) if self.is_prenorm else states).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        angles = layout.rotary_angles(self.theta, query.shape[-1])
        query, key = apply_rotary(query, *angles), apply_rotary(key, *angles)
        mixed = attention(query, key, value, layout, self.reach, self.attention_dropout if self.training else 0.0).flatten(-2)
        updated = add_linear(self.output, mixed, states, self.dropout)
        return updated if self.is_prenorm else self.norm(updated)


class FeedForward(nn.Module):
    """Two linear maps around an activation, with residual and normalisation; mixtures of experts replace it."""

    last_routing: object = None  # routing of the last forward pass, set by a mixture of experts
    supports_groups = True  # whether its maps are `up` and `down`, for grouped products of experts
    hidden: int  # H, the width of states
    compiled_methods = ("transform",)

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.up = nn.Linear(config.hidden, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.activation, self.activation_name = ACTIVATIONS[config.activation], config.activation

    def expand(self, states: Tensor) -> Tensor:
        """The activated inner states: [n, H] -> [n, I]."""
        return self.activation(self.up(states))

    def compute_update(self, states: Tensor) -> Tensor:
        """The update of the states before dropout and residual: [n, H] -> [n, H]."""
        update: Tensor = self.down(self.expand(states))
        return update

    def add_and_norm(self, states: Tensor, update: Tensor) -> Tensor:
        """Dropout, residual and normalisation: [n, H] -> [n, H]."""
        normalized: Tensor = self.norm(states + self.dropout(update))
        return normalized

    def transform(self, states: Tensor) -> Tensor:
        """The whole layer: [n, H] -> [n, H]."""
        normalized: Tensor = self.norm(add_linear(self.down, self.expand(states), states, self.dropout))
        return normalized

    def forward(self, states: Tensor, tokens: PackedTokens, layer_input: Tensor) -> Tensor:
        """states [T, H] after attention; `layer_input` [T, H], the states before attention, is for mixtures whose gate reads it."""
        return self.transform(states)


class GatedFeedForward(FeedForward):
    """GEGLU (Shazeer 2020): one half of the up projection, activated, times its other half; pre-normalised, with a plain residual."""

    compiled_methods = ("transform",)

    def __init__(self, config: EncoderConfig, prenorm: PreNormConfig) -> None:
        nn.Module.__init__(self)
        self.hidden = config.hidden
        self.norm = nn.LayerNorm(config.hidden, eps=config.epsilon, bias=prenorm.norm_bias)
        self.up = nn.Linear(config.hidden, 2 * config.intermediate_size, bias=prenorm.feedforward_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden, bias=prenorm.feedforward_bias)
        self.dropout = nn.Dropout(config.dropout)
        self.activation, self.activation_name = ACTIVATIONS[config.activation], config.activation

    def expand(self, states: Tensor) -> Tensor:
        """The gated inner states, after dropout: [n, H] -> [n, I]."""
        value, gate = self.up(self.norm(states)).chunk(2, dim=-1)
        inner: Tensor = self.dropout(self.activation(value) * gate)
        return inner

    def add_and_norm(self, states: Tensor, update: Tensor) -> Tensor:
        """The residual alone: [n, H] -> [n, H]."""
        return states + update

    def transform(self, states: Tensor) -> Tensor:
        """The whole layer: [n, H] -> [n, H]."""
        return add_linear(self.down, self.expand(states), states)


class TopKFeedForward(FeedForward):
    """The experts an encoder was trained with: Σ p_i W₂ᵢᵀ activation(W₁ᵢ x) over the `top_k` experts of each token, then one bias for all,
    residual and normalisation (nomic-embed-text-v2-moe, Nussbaum and Duderstadt 2025).

    p is the softmax of the gate over all experts, not divided by the sum of the chosen ones. It is how the gate learns.
    """

    def __init__(self, config: EncoderConfig, experts: ExpertsConfig) -> None:
        nn.Module.__init__(self)
        rows = experts.count * config.intermediate_size  # an expert's are contiguous
        self.gate = nn.Linear(config.hidden, experts.count, bias=False)
        weights = (torch.randn(rows, config.hidden) * config.initializer_range for _ in range(2))
        self.expert_up, self.expert_down = map(nn.Parameter, weights)
        self.packed_maps: list[tuple[nn.Module, nn.Module]] | None = None  # of each expert, of the form for inference
        self.bias = nn.Parameter(torch.zeros(config.hidden))
        self.norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.dropout, self.top_k = nn.Dropout(config.dropout), experts.top_k
        self.activation, self.activation_name = ACTIVATIONS[config.activation], config.activation

    def forward(self, states: Tensor, tokens: PackedTokens, layer_input: Tensor) -> Tensor:
        """states [T, H] after attention -> [T, H]; stores the gate's output in `last_routing`."""
        with torch.autocast(states.device.type, enabled=False):
            probabilities = F.linear(states.float(), self.gate.weight.float()).softmax(-1)
        self.last_routing = RouterOutput(probabilities, tokens.starts, self.top_k)
        weights, choice = probabilities.topk(self.top_k)  # [T, K]
        outputs = self._apply_experts(states.repeat_interleave(self.top_k, 0), choice.flatten()).unflatten(0, choice.shape)
        return self.add_and_norm(states, (weights[:, :, None] * outputs).sum(1) + self.bias)

    def split_maps(self) -> tuple[Tensor, Tensor]:
        """The weights of all experts' maps: W₁ [E, I, H] and W₂ᵀ [E, H, I]."""
        experts = self.gate.out_features
        return self.expert_up.unflatten(0, (experts, -1)), self.expert_down.unflatten(0, (experts, -1)).mT

    def _apply_experts(self, rows: Tensor, choice: Tensor) -> Tensor:
        """The output of each row's expert: rows [n, H], choice [n] -> [n, H]."""
        experts, maps = self.gate.out_features, self.packed_maps
        if maps is None:
            up, down = self.split_maps()
            if supports_grouped_linear(rows, up.shape[1]):
                groups = ExpertGroups.from_choice(choice, experts)
                return grouped_linear(self.activation(grouped_linear(rows, up, None, groups)), down, None, groups)
            maps = [tuple(partial(F.linear, weight=weight) for weight in pair) for pair in zip(up.unbind(), down.unbind(), strict=True)]

        def apply(expert: int, own: Tensor, _: Tensor | None) -> Tensor:
            up, down = maps[expert]
            return down(self.activation(up(own)))

        return dispatch_to_experts(rows, choice, experts, apply)


class Layer(nn.Module):
    """Attention, then feed-forward: [T, H] -> [T, H]. `number` is its index in the encoder, from 0.

    With pre-normalisation the last layer also holds the encoder's final normalisation, `final_norm`, so that every tower that ends with a
    copy of the last layer ends normalised.
    """

    gradient_checkpointing = False  # whether only its input is stored and the layer is recomputed for its gradient

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        prenorm, self.hidden = config.prenorm, config.hidden
        self.attention = Attention(config) if config.has_position_embeddings else RotaryAttention(config, number)
        self.feedforward = _make_feedforward(config, number)
        self.final_norm: nn.LayerNorm | None = None
        if prenorm is not None and number == config.layers - 1:
            self.final_norm = nn.LayerNorm(config.hidden, eps=config.epsilon, bias=prenorm.norm_bias)
        self.router: nn.Module | None = None  # of several adapters on each of its maps; `gate_input` says when it is asked

    def separate_feedforward(self) -> None:
        """Make `feedforward` a module that experts can replace; it always is one here."""

    def route(self, gate_input: str, states: Tensor, tokens: PackedTokens, layer_input: Tensor) -> AbstractContextManager[None]:
        """A context in which adapted maps take the experts that the router chooses, if it reads this `gate_input`."""
        if self.router is None or self.router.gate_input != gate_input:
            return nullcontext()
        return choose_adapters(self.router(states, tokens, layer_input), len(states))

    def forward(self, states: Tensor, tokens: PackedTokens, layout: PackedLayout) -> Tensor:
        with self.route("block_input", states, tokens, states):
            attended = self.attention(states, layout)
            with self.route("ffn_input", attended, tokens, states):
                output: Tensor = self.feedforward(attended, tokens, states)
        return output if self.final_norm is None else self.final_norm(output)


def _make_feedforward(config: EncoderConfig, number: int) -> nn.Module:
    if config.experts is not None and number % config.experts.every == 1:
        return TopKFeedForward(config, config.experts)
    return FeedForward(config) if config.prenorm is None else GatedFeedForward(config, config.prenorm)


def pack_layers(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace the linear maps of all layers by packed ones, for inference on a CPU; states are in `dtype` from the first of them on (for
    int8 in `inference_dtype`).

    Query, key and value become one product, an activation part of the product before it, a residual part of the product before it.
    """
    for module in model.modules():
        kind = type(module)  # own code may derive its layers from these: those stay as they are
        if kind is Attention:
            maps = [module.query, module.key, module.value]
            if all(map(is_plain_linear, maps)):
                weight, bias = torch.cat([part.weight for part in maps]), torch.cat([part.bias for part in maps])
                module.qkv = pack_linear(weight, bias, dtype)
                del module.query, module.key, module.value
            else:
                module.query, module.key, module.value = (_pack_map(part, dtype) for part in maps)
            module.output = _pack_map(module.output, dtype)
        elif kind is RotaryAttention:
            module.qkv, module.output = (_pack_map(part, dtype) for part in (module.qkv, module.output))
        elif kind in (FeedForward, GatedFeedForward, TopKFeedForward):
            activations = fused_activations(dtype, next(module.parameters()).device)
            can_fuse = module.activation_name in activations and (kind is TopKFeedForward or is_plain_linear(module.up))
            fused = module.activation_name if can_fuse and kind is not GatedFeedForward else None
            if kind is TopKFeedForward:
                maps = zip(*module.split_maps(), strict=True)
                module.packed_maps = [(pack_linear(up, None, dtype, fused), pack_linear(down, None, dtype)) for up, down in maps]
                del module.expert_up, module.expert_down
            else:
                module.up, module.down = _pack_map(module.up, dtype, fused), _pack_map(module.down, dtype)
            if fused is not None:
                module.activation = nn.Identity()


def is_plain_linear(part: nn.Module) -> bool:
    """Whether a map is its weight and bias alone; one with adapters computes more."""
    return type(part) is nn.Linear


class FrozenLinear(nn.Linear):
    """A linear map that does not train, in whatever dtype it is held; what derives from it adds to its output."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.requires_grad_(False)
        self.packed: nn.Module | None = None  # its form for inference, in place of weight and bias

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., K] -> [..., N], in the dtype of products."""
        if self.packed is not None:
            output: Tensor = self.packed(inputs)
            return output
        if torch.is_autocast_enabled(inputs.device.type):
            return F.linear(inputs, self.weight, self.bias)
        return F.linear(inputs, self.weight.to(inputs.dtype), None if self.bias is None else self.bias.to(inputs.dtype))


class FrozenEmbedding(nn.Embedding):
    """A table that does not train, in whatever dtype it is held; its rows are float32."""

    def __init__(self, table: nn.Embedding) -> None:
        nn.Module.__init__(self)
        self.__dict__ |= {name: value for name, value in vars(table).items() if name not in vars(self)}
        self.weight = table.weight

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., H]."""
        return super().forward(ids).float()


def list_frozen(model: nn.Module) -> set[str]:
    """Names of the weights that do not train, under every name that a weight has."""
    return {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}


def _pack_map(part: nn.Module, dtype: torch.dtype, activation: str | None = None) -> nn.Module:
    packed = pack_linear(part.weight, part.bias, dtype, activation)
    if not isinstance(part, FrozenLinear):
        return packed
    part.packed, part.weight, part.bias = packed, None, None
    return part


def init_weights(module: nn.Module, std: float) -> None:
    """Initialise every linear map and embedding of a module from N(0, std); biases are zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


def make_projection(hidden: int, dimension: int, name: str, *, bias: bool = True) -> nn.Linear:
    """A linear map from N(0, 0.02) to vectors of an option's dimension; UsageError if that is below 1."""
    if dimension < 1:
        raise UsageError(f"{name} dimension {dimension}: expected at least 1")
    projection = nn.Linear(hidden, dimension, bias=bias)
    init_weights(projection, 0.02)
    return projection


def set_attention_dropout(model: nn.Module, rate: float) -> None:
    """Set the dropout probability of attention weights in every layer of a model, overriding its configuration."""
    for module in model.modules():
        if "attention_dropout" in vars(module):
            module.attention_dropout = rate


def store_adjacent(model: nn.Module) -> None:
    """Store the weights of each layer's query, key and value one after the other in memory, so that their product copies none of them;
    parameters, names and gradients stay."""
    for module in model.modules():
        if isinstance(module, Attention) and all(map(is_plain_linear, maps := (module.query, module.key, module.value))):
            for parts in ([part.weight for part in maps], [part.bias for part in maps]):
                for part, rows in zip(parts, torch.cat([part.data for part in parts]).chunk(len(parts)), strict=True):
                    part.data = rows


def compile_layers(model: nn.Module, **options: Any) -> None:
    """Compile the parts of a layer before and after attention, and the loss of a vocabulary head; `options` are those of `torch.compile`.

    Attention itself is already a single kernel. Shapes are dynamic, since the number of tokens differs from batch to batch.
    """
    for module in model.modules():
        for name in vars(type(module)).get("compiled_methods", ()):  # its own, as a subclass may compute otherwise
            setattr(module, name, torch.compile(getattr(module, name), dynamic=True, **options))
