"""`moeir init`: make a checkpoint from plain weights, or from a checkpoint with other options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeir.console import format_count
from moeir.settings import input_field, option, output_field
from moeir.stages.base import MAX_SEED, Counts, Facts
from moeir.stages.checkpoint_options import InputOptions, read_first_texts, suggest_after_checkpoint


@dataclass(frozen=True, kw_only=True)
class Init(InputOptions):
    """Turn plain weights (a transformers or sentence-transformers folder) into a checkpoint, without training."""

    model: Path = input_field("weights", "Folder of weights, a GGUF file, a checkpoint, or a hub id.")
    arch: str | None = option("Architecture, e.g. dense:pooling=mean,normalise=true.", None, package="architectures")
    corpus: Path | None = input_field("texts", "Texts to fit a vocabulary head on, if the weights have none.", None)
    from_scratch: bool = option("Take only sizes and tokenizer from --model, and initialize the weights at random.", False)
    backbone: str | None = option(
        "Whose layers run the model; bidirectional: those of transformers, where each token of a decoder attends to all of its text, as "
        "sparse experts need [default: moeir's where it has them].",
        None,
        choices=("moeir", "transformers", "bidirectional"),
        group="Model",
    )
    seed: int = option("Seed of randomly initialized weights.", 42, minimum=0, maximum=MAX_SEED)
    output: Path = output_field("checkpoint", "Folder to write.")

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['parameters'], 'parameter')}"

    def next_command(self) -> str:
        return suggest_after_checkpoint(self.model, self.arch)

    def work(self) -> Counts:
        from moeir.architectures.initialize import fit_fresh_parts, open_weights
        from moeir.architectures.model_card import write_model_card

        choices: dict[str, Any] = {"random_weights": self.from_scratch, "backbone": self.backbone}
        checkpoint = open_weights(self.model, self.arch, self.input_options(), self.seed, **choices)
        fit_fresh_parts(checkpoint, read_first_texts(self.corpus), self.seed)
        checkpoint.save(self.output)
        write_model_card(self.output, checkpoint, base=self.model, training=None)
        return {"parameters": checkpoint.architecture.parameter_count()}
