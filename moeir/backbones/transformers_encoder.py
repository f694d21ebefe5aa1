"""Encoder over a model of transformers: its modules read packed tokens, layer by layer, or, where that is not safe, texts of one length.

transformers passes keyword arguments of a forward pass through to attention; the function that is registered there, `packed_attention`,
gets the boundaries of the texts in this way. The layers are taken out of the model. What is left runs once for a batch: placeholders in
place of the layers note the embedded states and each layer's arguments (rotary tables, masks' kinds), with which the layers then run here,
alone: towers and routed experts cut such an encoder as they cut our own.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from dataclasses import replace as replace_field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.config import EncoderConfig
from moeir.backbones.encoder import Encoder, run_layers
from moeir.backbones.layers import FeedForward, Layer
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.attention import PackedLayout, attention

ATTENTION = "moeir_packed"  # the name of our function among those of transformers
FEEDFORWARDS = ("mlp", "feed_forward", "ffn")  # a layer's names for a feed-forward without residual and normalisation
UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")  # arguments of attention functions that change the formula
_running: ContextVar["LayerRun"] = ContextVar("the layer that runs")


class NotPackableError(Exception):
    """A model of transformers cannot be cut into layers that read packed texts; the words say why."""


@dataclass(frozen=True)
class TransformersConfig(EncoderConfig):
    """Sizes of a model of transformers, which itself knows all else; `packed` as the probe found it, None before it."""

    packed: bool | None = None

    def __post_init__(self) -> None:
        self.check_ranges()


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    moeir_layout: PackedLayout,
    moeir_dropout: float | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention for transformers over packed texts: query [1, heads, T, width], key and value [1, kv, T, width] -> [1, T, heads, width].

    A token attends to fewer than `sliding_window` tokens of a side, as with flash attention, or to so many if a causal model is told not to
    be, as transformers' masks then have it; `moeir_dropout` replaces the model's rate.
    """
    if attention_mask is not None or any(options.get(name) is not None for name in UNSUPPORTED):
        raise NotPackableError("its attention needs more than boundaries of texts, causality, a window and a scale")
    window = None if sliding_window is None else sliding_window - 1 + (module.is_causal and is_causal is False)
    reach = (window, 0 if (module.is_causal if is_causal is None else is_causal) else window)
    if moeir_dropout is not None:
        dropout = moeir_dropout if module.training else 0.0
    query, key, value = (part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value))
    _running.get().attention_calls += 1
    return attention(query, key, value, moeir_layout, reach, dropout, scaling)[None], None


class LayerPlaceholder(nn.Module):
    """Stands for a layer in the model: notes what it is called with, and passes the states on."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        plain = {name: value for name, value in vars(layer).items() if isinstance(value, str | int | None) and name[0] != "_"}
        self.__dict__.update(plain | {"training": self.training})  # a model may ask a layer for its kind

    def forward(self, hidden_states: Tensor, *arguments: Any, moeir_calls: list[Any], **options: Any) -> Tensor:
        moeir_calls.append((hidden_states, arguments, options))
        return hidden_states


@dataclass
class LayerRun:
    """What the placeholder and the attention of a running layer ask for: the layer, the batch, the states that it got, and a count."""

    layer: "TransformersLayer"
    tokens: PackedTokens
    states: Tensor
    attention_calls: int = 0


class FeedForwardPlaceholder(nn.Module):
    """Stands for a layer's feed-forward in its layer of transformers, where the encoder's layer has it, or experts in its place."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        run = _running.get()
        with run.layer.route("ffn_input", hidden_states[0], run.tokens, run.states):
            output: Tensor = run.layer.feedforward(hidden_states[0], run.tokens, run.states)
        return output[None]


class TransformersFeedForward(FeedForward):
    """A feed-forward of transformers. Normalisation and residual stay in its layer, so that experts in its place share them."""

    supports_groups = False

    def __init__(self, module: nn.Module, hidden: int) -> None:
        nn.Module.__init__(self)
        self.module, self.hidden = module, hidden

    def compute_update(self, states: Tensor) -> Tensor:
        return self.transform(states)

    def add_and_norm(self, states: Tensor, update: Tensor) -> Tensor:
        return update

    def transform(self, states: Tensor) -> Tensor:
        output: Tensor = self.module(states[None])[0]
        return output


class TransformersLayer(Layer):
    """A layer of transformers on packed states [T, H]; the last one also does all that its model does after the layers, `final_norm`."""

    def __init__(self, module: nn.Module, number: int, hidden: int, final_norm: nn.Module | None) -> None:
        nn.Module.__init__(self)
        self.module, self.number, self.hidden, self.final_norm = module, number, hidden, final_norm
        self.feedforward: nn.Module | None = None  # in its layer until `separate_feedforward`
        self.attention_dropout: float | None = None  # None: that of the model
        self.router: nn.Module | None = None

    def separate_feedforward(self) -> None:
        """Take the feed-forward out of the layer, for experts to replace it; UsageError if it is no module of its own."""
        if self.feedforward is None:
            name = next((name for name in FEEDFORWARDS if name in self.module._modules), None)
            if name is None:
                kind = type(self.module).__name__
                raise UsageError(f"{kind} has no feed-forward apart from residual and normalisation; routed experts need one")
            self.feedforward = TransformersFeedForward(getattr(self.module, name), self.hidden)
            setattr(self.module, name, FeedForwardPlaceholder())

    def forward(self, states: Tensor, tokens: PackedTokens, layout: PackedLayout) -> Tensor:
        _, arguments, options = tokens.layer_calls[self.number]
        token = _running.set(run := LayerRun(self, tokens, states))
        try:
            extra = {"moeir_layout": layout, "moeir_dropout": self.attention_dropout}
            with self.route("block_input", states, tokens, states):
                output = self.module(states[None], *arguments, **options, **extra)
        finally:
            _running.reset(token)
        if run.attention_calls != 1:
            raise NotPackableError(f"layer {self.number + 1} does not call the attention that is registered")
        if not isinstance(output, Tensor) or output.shape[:2] != (1, len(states)):
            raise NotPackableError("its layers return more than states")
        normalised: Tensor = output[0] if self.final_norm is None else self.final_norm(output)[0]
        return normalised


class TransformersEmbeddings(nn.Module):
    """The model without its layers, or the whole model if it cannot be cut."""

    def __init__(self, model: nn.Module, first_position: int) -> None:
        super().__init__()
        self.model, self.first_position = model, first_position
        accepted = inspect.signature(model.forward).parameters
        self.reads_segments = "token_type_ids" in accepted and (getattr(model.config, "type_vocab_size", None) or 1) > 1

    @property
    def words(self) -> nn.Embedding:
        """The word embeddings."""
        words: nn.Embedding = self.model.get_input_embeddings()
        return words

    def forward(self, tokens: PackedTokens) -> Tensor:
        """[T, H]; notes the arguments of the layers for this batch."""
        calls, segments = list[Any](), {}
        if self.reads_segments:
            segments = {"token_type_ids": (torch.zeros_like(tokens.ids) if tokens.segments is None else tokens.segments)[None]}
        positions = tokens.positions()[None] + self.first_position
        self.model(tokens.ids[None], position_ids=positions, moeir_calls=calls, **segments)
        tokens.layer_calls[:] = calls
        states: Tensor = calls[0][0][0]
        return states

    def run_whole(self, tokens: PackedTokens) -> Tensor:
        """States [T, H] of the whole model, over groups of neighbouring texts of one length."""
        sizes = [texts * length for texts, length in tokens.layout.equal_length_groups]
        outputs = []
        parts = (tokens.ids, tokens.segments if self.reads_segments else None, tokens.no_attend_mask)
        split = (part.split(sizes) if part is not None else [None] * len(sizes) for part in parts)
        for (_, length), ids, segments, silent in zip(tokens.layout.equal_length_groups, *split, strict=True):
            inputs = {"input_ids": ids.view(-1, length)}
            if segments is not None:
                inputs["token_type_ids"] = segments.view(-1, length)
            if silent is not None:
                inputs["attention_mask"] = (~silent).long().view(-1, length)
            outputs.append(self.model(**inputs).last_hidden_state.flatten(0, 1))
        return torch.cat(outputs)


class StatesModel(nn.Module):
    """Stands for a model in its class with a head: its states are those given as `inputs_embeds`."""

    def forward(self, *arguments: Any, inputs_embeds: Tensor, **options: Any) -> "StatesOutput":
        return StatesOutput(inputs_embeds)


class StatesOutput:
    """The output of a model of transformers, of whatever class: its states, and None for all else."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> Tensor | None:
        return None if index else self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None


_decoder: ContextVar[tuple[Tensor, Tensor] | None] = ContextVar("rows of the running head's decoder, and their bias", default=None)


class DecoderPlaceholder(nn.Module):
    """Stands for the decoder of a vocabulary head: passes the states on, or computes the logits of a few words."""

    def forward(self, states: Tensor) -> Tensor:
        return states if (rows := _decoder.get()) is None else F.linear(states, *rows)


class TransformersHead(nn.Module):
    """The vocabulary head of a model of transformers without its decoder: [T, H] -> [T, E]; `words` [V, E] if they are not tied."""

    def __init__(self, model: nn.Module, bias: nn.Parameter | None, words: nn.Parameter | None, vocabulary: int) -> None:
        super().__init__()
        self.model, self.words = model, words
        if bias is None:
            self.register_buffer("bias", torch.zeros(vocabulary), persistent=False)
        else:
            self.bias = bias

    def forward(self, states: Tensor) -> Tensor:
        transformed: Tensor = self.model(inputs_embeds=states[None]).logits[0]
        return transformed

    def word_logits(self, states: Tensor, words: Tensor, token_ids: Sequence[int]) -> Tensor:
        """states [T, H] -> the logits [T, n] of n rows of `words` [V, E], scaled and capped as the model does."""
        ids = torch.tensor(token_ids, device=states.device)
        token = _decoder.set((words.index_select(0, ids).float(), self.bias.index_select(0, ids).float()))
        try:
            return self(states)
        finally:
            _decoder.reset(token)


class TransformersEncoder(Encoder):
    """A model of transformers as an encoder. `layers_name` is the name of its list of layers; without it the model stays whole.

    The model is as before if an error is raised, by `check` for example, which gets the encoder.
    """

    def __init__(
        self,
        config: TransformersConfig,
        model: nn.Module,
        layers_name: str | None,
        *,
        first_position: int,
        check: Callable[["TransformersEncoder"], None] | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.config, self.vocabulary_head, self.pooler, self.product_words = config, None, None, None
        self.layers = nn.ModuleList()
        self.embeddings = TransformersEmbeddings(model, first_position)
        if layers_name is not None:
            with _restored_on_failure() as replace:
                layers = model.get_submodule(layers_name)
                replace(model, layers_name, nn.ModuleList(map(LayerPlaceholder, layers)))
                names, width = self._find_final_norm()
                self.config = replace_field(config, hidden=width)
                final_norm = nn.Sequential(*(replace(model, name, nn.Identity()) for name in names)) if names else None
                last = len(layers) - 1
                for number, layer in enumerate(layers):
                    self.layers.append(TransformersLayer(layer, number, config.hidden, final_norm if number == last else None))
                if check is not None:
                    check(self)

    def _find_final_norm(self) -> tuple[list[str], int]:
        """Names of the modules that the model runs after its layers, each on the output of the one before; the width of the last states."""
        ids = torch.zeros(1, dtype=torch.int64, device=self.embeddings.words.weight.device)
        tokens = PackedTokens(ids, torch.tensor([0, 1], device=ids.device), "document", (1,))
        names, outputs = list[str](), list[Any]()
        model = self.embeddings.model

        def note(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if isinstance(module, LayerPlaceholder):
                names.clear()
                outputs[:] = [output]
            elif outputs and inputs and inputs[0] is outputs[0] and isinstance(output, Tensor):
                names.append(name)
                outputs[:] = [output]
            elif name == "":
                outputs.append(output.last_hidden_state)

        hooks = [
            module.register_forward_hook(lambda module, inputs, output, name=name: note(name, module, inputs, output))
            for name, module in model.named_modules()
        ]
        try:
            with torch.no_grad():
                self.embeddings(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        is_chain = len(outputs) == 2 and outputs[0].data_ptr() == outputs[1].data_ptr() and outputs[0].shape == outputs[1].shape
        if not is_chain or len(tokens.layer_calls) != self.config.layers:
            raise NotPackableError("it does more between or after its layers than to call modules one by one")
        return names, outputs[0].shape[-1]

    @property
    def vocabulary_words(self) -> Tensor:
        head = self.vocabulary_head
        return head.words if isinstance(head, TransformersHead) and head.words is not None else self.embeddings.words.weight

    def forward(self, tokens: PackedTokens) -> Tensor:
        if not self.layers and self.config.packed is False:
            return self.embeddings.run_whole(tokens)
        return run_layers(self.layers, self.embed(tokens), tokens)

    def find_hf_name(self, name: str) -> str:
        if (path := name.removeprefix("embeddings.model.")) != name:  # its name in a file may be that in a head which is tied to it
            return path
        assert self.file_names is not None
        return self.file_names[name].removeprefix(f"{self.embeddings.model.base_model_prefix}.")

    def check_layers(self, purpose: str) -> None:
        if not self.layers and self.config.packed is False:
            model = type(self.embeddings.model).__name__
            raise UsageError(f"{purpose}: {model} runs whole, as texts do not stay apart in it; use an architecture over its last states")

    @torch.no_grad()
    def check_bidirectional(self) -> None:
        """UsageError unless in each layer tokens attend to later ones, which a model may not do though its config.json says so."""
        model, device = type(self.embeddings.model).__name__, self.embeddings.words.weight.device
        if self.config.packed is False:
            raise UsageError(f"--backbone bidirectional: {model} runs whole, as texts do not stay apart in it; leave it out")
        self.eval().embeddings(tokens := PackedTokens.from_lists([[0, 0]], "document").to(device))
        states = torch.randn(2, 2, self.layers[0].hidden, generator=torch.Generator().manual_seed(0)).to(device)
        states[1, 0] = states[0, 0]  # only the second tokens differ
        for number, layer in enumerate(self.layers, 1):
            if torch.equal(*(layer(text, tokens, tokens.layout)[0] for text in states)):
                raise UsageError(f"--backbone bidirectional: in layer {number} of {model} tokens do not attend to later ones; leave it out")


@contextmanager
def _restored_on_failure() -> Iterator[Any]:
    """A function that replaces a model's submodule by another and returns it; whatever it replaced is put back if an error follows."""
    replaced: list[tuple[nn.Module, str, nn.Module]] = []

    def replace(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
        owner_name, _, own_name = name.rpartition(".")
        owner = model.get_submodule(owner_name)
        replaced.append((owner, own_name, getattr(owner, own_name)))
        setattr(owner, own_name, module)
        return replaced[-1][2]

    try:
        yield replace
    except BaseException:
        for owner, name, module in reversed(replaced):
            setattr(owner, name, module)
        raise
