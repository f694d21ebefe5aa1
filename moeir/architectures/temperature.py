"""Temperature of the scores of normalised experts, as a scale that the checkpoint keeps.

A cosine lies between -1 and 1: as it is, no softmax over documents can come near 1, and the model hardly learns. Training divides it by a
temperature. This holds for a normalised vector per text only: the late interaction of normalised token vectors adds the cosines of all
query tokens, and papers train it without a temperature (Khattab and Zaharia 2020), as inner products of vectors that are not normalised.
"""

from pathlib import Path

from moeir import variants
from moeir.architectures.checkpoint import RetrievalModel, is_checkpoint, read_metadata
from moeir.artifacts import manifests
from moeir.errors import UsageError
from moeir.parsing import format_value

DEFAULT_TEMPERATURE = 0.05
TRAINING_STAGE = "finetune"


def set_temperature(checkpoint: RetrievalModel, folder: Path, arch: str | None, temperature: float | None) -> list[str]:
    """Set the scale of normalised experts to 1 / temperature, for a training of the weights in `folder` under `arch`; returns their names.

    Without a temperature it is 0.05 for an expert without a scale of its own: one that `arch` sets, or that the checkpoint `folder` has: a
    scale other than 1, or any scale with which it was trained. An architecture that has no scale among its options is left as it is; one
    scale of several experts, as BGE-M3 has, is set for all of them.
    """
    options = {name for name in dict(variants.parse_spec(checkpoint.spec).options) if name.endswith("scale")}
    experts = [name for name in checkpoint.architecture.normalised_experts if _find_scale_option(name, options) in options]
    explicit = dict(variants.parse_spec(arch).options) if arch else {}
    requested = {name for name in experts if _find_scale_option(name, options) in explicit}
    if temperature is not None:
        if not experts:
            name, advice = variants.parse_spec(checkpoint.spec).name, "set its scale with --arch, or normalise=true"
            raise UsageError(f"--temperature {temperature:g}: no expert of {name} has a normalised vector and a scale; {advice}")
        if requested:
            raise UsageError(
                f"--temperature {temperature:g}: --arch sets the scale already, which is 1 / temperature; leave one of them out"
            )
    else:
        experts = [name for name in experts if name not in requested and not _has_own_scale(checkpoint, folder, name)]
    if not experts:
        return []
    scale = 1 / (temperature or DEFAULT_TEMPERATURE)
    changed_options = {_find_scale_option(name, options) for name in experts}
    experts = [name for name in checkpoint.architecture.scales if _find_scale_option(name, options) in changed_options]
    checkpoint.architecture.scales |= dict.fromkeys(experts, scale)
    spec = variants.parse_spec(checkpoint.spec)
    changed = dict(spec.options) | dict.fromkeys(changed_options, format_value(scale))
    checkpoint.spec = str(variants.Spec(spec.name, tuple(changed.items())))
    return experts


def _find_scale_option(expert: str, options: set[str]) -> str:
    """The option that holds an expert's scale: `global_scale`, or `scale` in an architecture of one expert."""
    return f"{expert}_scale" if f"{expert}_scale" in options else "scale"


def _has_own_scale(checkpoint: RetrievalModel, folder: Path, expert: str) -> bool:
    """Whether the architecture has a scale by default, or the weights come from a checkpoint of it with a scale of its own."""
    if checkpoint.architecture.scales[expert] != 1.0:
        return True
    spec = variants.parse_spec(checkpoint.spec)
    if not is_checkpoint(folder) or variants.parse_spec(read_metadata(folder)["architecture"]).name != spec.name:
        return False
    return manifests.manifest_path(folder).is_file() and manifests.read_manifest(folder).get("stage") == TRAINING_STAGE
