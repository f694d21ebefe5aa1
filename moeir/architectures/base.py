"""Base class of architectures: packed tokens in, one representation per expert out."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from moeir.backbones.dispatch import RouterOutput
from moeir.backbones.encoder import Encoder, Layer
from moeir.backbones.layers import TopKFeedForward
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.errors import UsageError
from moeir.heads.pooling import PoolingHead
from moeir.mixtures.adapters import AdapterRouter, merge_adapters
from moeir.mixtures.embedding import EmbeddingMixture
from moeir.mixtures.feedforward import find_routers
from moeir.mixtures.router import ExpertRouter
from moeir.parsing import check_choice
from moeir.representations.base import ByExpert, Representation, check_finite
from moeir.representations.dense import Dense

ENCODER_SHARING = ("siamese", "separate")
Router = ExpertRouter | TopKFeedForward | EmbeddingMixture
StepMetrics = dict[str, float | Tensor]  # of a training step, by name; tensors stay on the device until they are logged


@dataclass(frozen=True, eq=False, repr=False)
class EncoderOutput(ByExpert):
    """Output of an architecture for B texts: a mapping of experts to their representations, and the decisions of the routers.

    `routing` has an entry for each learned router (`layer2`, … for routed feed-forward experts, `gate` for a block over a pooled
    vector). `summed_experts` maps the name of a score that is trained as one to the experts whose scores it adds; if it is empty, each
    expert is trained on its own score. `token_terms` names experts whose terms are a text's tokens: no FLOPS regulariser keeps them few.
    """

    representations: dict[str, Representation]
    routing: dict[str, RouterOutput] = field(default_factory=dict)
    summed_experts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    token_terms: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"EncoderOutput({self.summary})"

    @property
    def score_groups(self) -> dict[str, tuple[str, ...]]:
        """Scores on which a loss is computed, each with the experts it sums."""
        return self.summed_experts or {name: (name,) for name in self.representations}

    def select(self, rows: Tensor, *, permutation: bool = False) -> "EncoderOutput":
        """The texts `rows` [n], in that order; differentiable. A `permutation` of all texts needs no device synchronisation for sizes."""
        return self._map_parts(lambda part: part.select(rows, permutation=permutation))

    def map(self, change: Callable[[Tensor], Tensor]) -> "EncoderOutput":
        """A copy with `change` applied to every tensor, always in the same order."""
        return self._map_parts(lambda part: part.map(change))

    def scale(self, factors: Mapping[str, float]) -> "EncoderOutput":
        """A copy with the scores of each expert multiplied by its factor, 1 if it has none."""
        return replace(self, representations={name: part.scale(factors.get(name, 1.0)) for name, part in self.representations.items()})

    def _map_parts(self, change: Callable[[Any], Any]) -> "EncoderOutput":
        representations = {name: change(part) for name, part in self.representations.items()}
        return replace(self, representations=representations, routing={name: change(part) for name, part in self.routing.items()})

    def drop_zero_weights(self) -> "EncoderOutput":
        """A copy without weights of 0, which sparse representations hold on CUDA until a point that synchronises anyway."""
        return replace(self, representations={name: part.drop_zero_weights() for name, part in self.representations.items()})

    def check_finite(self, label: Callable[[int], str]) -> "EncoderOutput":
        """The output itself; DataError for NaN or infinity in what experts and routers say of a text, which `label` names by its number."""
        for name, part in self.representations.items():
            part.check_finite(lambda text, name=name: f"{label(text)}: {name}")
        for name, routing in self.routing.items():
            check_finite(routing.probabilities, routing.starts, lambda text, name=name: f"{label(text)}: router {name}")
        return self

    def drop_bounds(self) -> "EncoderOutput":
        """A copy without cached sizes, for an output that `map` derived from a batch of other sizes."""
        return replace(self, representations={name: part.drop_bounds() for name, part in self.representations.items()})

    def tensors(self) -> list[Tensor]:
        """Every tensor, in the order of `map`."""
        tensors: list[Tensor] = []
        self.map(lambda part: tensors.append(part) or part)  # type: ignore[func-returns-value]
        return tensors


class Architecture(nn.Module):
    """An encoder with heads, one for each expert, by name.

    `scales` multiply an expert's scores; they are applied to queries, so that training, search and fusion see the same score.
    """

    is_hf_compatible: ClassVar[bool] = True  # whether the encoder's own Hugging Face files describe it completely
    default_fusion: ClassVar[str] = "came-sum"  # default method by which search fuses the experts' lists
    reads_pairs: ClassVar[bool] = False  # whether it is a cross-encoder
    default_lengths: ClassVar[tuple[int, int]] = (64, 256)  # default maximum tokens of queries and of documents
    head_files: ClassVar[Mapping[str, str]] = {}  # files of torch.save beside plain weights, each the `projection` of an expert's head

    def __init__(self, encoder: Encoder, special_tokens: SpecialTokens) -> None:
        super().__init__()
        self.encoder, self.special_tokens = encoder, special_tokens
        encoder.__dict__.pop("word_head", None)  # an architecture that does not take it lets go of its weights
        self.heads = nn.ModuleDict()
        self.document_encoder: Encoder | None = None  # second encoder, if documents have a separate one
        self.mixture: EmbeddingMixture | None = None  # a block of experts over the global vector
        self.scales: dict[str, float] = {}
        self.fusion_weights: dict[str, float] = {}  # of the experts' scores in search, unless a calibration has others; not in training
        self.dimension: int | None = None  # of the dense expert's vectors, if it is less than all that the head gives
        self.token_experts: tuple[str, ...] = ()  # those that read the tokens of a query alone, without the encoder
        self.summed_experts: dict[str, tuple[str, ...]] = {}  # scores that are trained as one, each with its experts
        self.token_terms: tuple[str, ...] = ()  # experts whose terms are the tokens of a text
        self.markers = False  # whether a text has one more token, which says its side

    @property
    def representation_kinds(self) -> dict[str, str]:
        """expert -> kind of representation."""
        return {name: str(head.kind) for name, head in self.heads.items()}

    def encode_states(self, tokens: PackedTokens, experts: Sequence[str]) -> dict[str, Tensor]:
        """expert -> states [T, H], the input of its head: those of the encoder's last layer, of at least these experts."""
        return dict.fromkeys(self.heads, self.encoder_for(tokens.side)(tokens))

    def apply_head(self, expert: str, states: Tensor | None, tokens: PackedTokens) -> Representation:
        """An expert's representation from its states; None for one that needs no encoder."""
        if self.representation_kinds[expert] == "sparse":
            representation: Representation = self.heads[expert](states, tokens, self.encoder_for(tokens.side))
        else:
            representation = self.heads[expert](states, tokens)
        if expert == "global" and self.mixture is not None:
            assert isinstance(representation, Dense)
            representation = Dense(self.mixture(representation.vectors, tokens))
        if isinstance(representation, Dense) and self.dimension is not None:
            representation = representation.truncate(self.dimension, normalise=expert in self.normalised_experts)
        return representation

    @property
    def normalised_experts(self) -> list[str]:
        """The experts with one normalised vector per text, whose score is a cosine (times a scale)."""
        is_refined = self.mixture is not None and self.mixture.normalise
        heads = {name for name, head in self.heads.items() if isinstance(head, PoolingHead) and head.normalise}
        return [name for name in self.heads if name in heads or (name == "global" and is_refined)]

    @property
    def full_width(self) -> int:
        """D of the dense expert's whole vectors, in an architecture with the option `dimension`."""
        head = self.heads["global"]
        maps = head.projections if isinstance(head, PoolingHead) else ()
        return int(maps[-1].linear.out_features) if maps else self.encoder.config.hidden

    def set_dimension(self, dimension: int | None) -> None:
        """Cut the dense expert's vectors to their first `dimension` numbers; None for all."""
        if dimension is not None and "global" not in self.heads:
            raise UsageError(f"dimension={dimension}: there is no dense expert, whose vectors it would cut; leave it out")
        if dimension is not None and not 1 <= dimension <= self.full_width:
            raise UsageError(f"dimension={dimension}: expected 1 to {self.full_width}, the width of the vectors")
        self.dimension = dimension

    def encoder_for(self, side: str) -> Encoder:
        """The encoder that reads a side."""
        return self.encoder if side == "query" or self.document_encoder is None else self.document_encoder

    def set_encoder_sharing(self, encoders: str) -> None:
        """`siamese`: one encoder for both sides; `separate`: documents get a copy of it, trained independently."""
        check_choice("encoders", encoders, ENCODER_SHARING)
        if encoders == "separate":
            self.document_encoder, self.is_hf_compatible = copy.deepcopy(self.encoder), False

    def merge_adapters(self, dtype: torch.dtype = torch.float32) -> None:
        """Add to each map what its adapter adds, for inference, and hold these maps in a dtype; an adapter for each role becomes an encoder
        for each, and learned routers stay."""
        roles = [one for layer in self.encoder.layers if isinstance(one := layer.router, AdapterRouter) and one.routing == "role"]
        if roles:
            frozen = (layer for layer in self.encoder.layers if layer.router is None)
            shared = (self.encoder.embeddings, self.encoder.vocabulary_head, *frozen)
            self.document_encoder = copy.deepcopy(self.encoder, {id(part): part for part in shared})
            merge_adapters(self.document_encoder, roles[0].first_of_side("document"), dtype)
        merge_adapters(self.encoder, 0, dtype)

    def routers(self, side: str = "query") -> dict[str, Router]:
        """The learned routers that read a side: `layer3`, … for routed feed-forward experts, `gate` for a block over the global vector."""
        by_layer: dict[str, Router] = dict(find_routers(self.encoder_for(side).layers))
        return by_layer | ({"gate": self.mixture} if self.mixture is not None else {})

    def _take_routing(self, side: str) -> dict[str, RouterOutput]:
        """Outputs of the routers for the last batch; the routers drop them."""
        outputs = {}
        for name, router in self.routers(side).items():
            if router.last_routing is not None:
                outputs[name], router.last_routing = router.last_routing, None
        return outputs

    def forward(self, tokens: PackedTokens, experts: Collection[str] | None = None) -> EncoderOutput:
        """The representations of B texts, in their order: every expert's, or those of some experts, without the work of the others."""
        ordered = tokens.sort_by_length()
        wanted = [expert for expert in self.representation_kinds if experts is None or expert in experts]
        without_encoder = self.token_experts if tokens.side == "query" else ()
        by_encoder = [expert for expert in wanted if expert not in without_encoder]
        states = self.encode_states(ordered, by_encoder) if by_encoder else {}
        representations = {}
        for expert in wanted:
            representation, scale = self.apply_head(expert, states.get(expert), ordered), self.scales.get(expert, 1.0)
            representations[expert] = representation.scale(scale) if tokens.side == "query" and scale != 1.0 else representation
        summed_experts = self.summed_experts if experts is None else {}
        encoded = EncoderOutput(representations, self._take_routing(tokens.side), summed_experts, self.token_terms)
        return encoded if ordered.order is None else encoded.select(ordered.order, permutation=True)

    def truncate_and_mark(self, texts: list[list[int]], side: str, length: int) -> tuple[list[list[int]], list[int] | None]:
        """Ids truncated to `length`, the last special tokens kept; an architecture may add a marker first and [MASK] tokens last.

        The second value counts the [MASK] tokens at the end of each text, which are not attended to (ColBERT).
        """
        trailing = self.special_tokens.trailing
        return [ids if len(ids) <= length else [*ids[: length - trailing], *ids[len(ids) - trailing :]] for ids in texts], None

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Gradient checkpointing: layers store only their input and are recomputed in the backward pass (Chen et al. 2016)."""
        for module in self.modules():
            if isinstance(module, Layer):
                module.gradient_checkpointing = enabled

    def parameter_count(self) -> int:
        """Number of parameters, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def concatenate_outputs(parts: Sequence[EncoderOutput]) -> EncoderOutput:
    """Outputs of several batches end to end."""
    experts, routers = parts[0].representations, parts[0].routing
    representations = {name: type(first).concatenate([part[name] for part in parts]) for name, first in experts.items()}
    routing = {name: RouterOutput.concatenate([part.routing[name] for part in parts]) for name in routers}
    return replace(parts[0], representations=representations, routing=routing)


def copy_to_host(encoded: EncoderOutput) -> Callable[[], EncoderOutput]:
    """Start copying every tensor to host memory; the returned function waits for the copy and returns it, without weights of 0."""
    host_copy = encoded.map(lambda tensor: tensor.to("cpu", non_blocking=True))
    devices = {tensor.device for tensor in encoded.tensors() if tensor.is_cuda}
    events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait() -> EncoderOutput:
        for event in events:
            event.synchronize()
        return host_copy.drop_zero_weights()

    return wait
