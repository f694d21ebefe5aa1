"""A folder of weights with the first layers of a BERT only, the other files as they are.

    python cut_layers.py MODEL_FOLDER OUTPUT_FOLDER LAYERS

Embeddings and pooler stay whole. The configuration is written last: a folder with it is complete.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

LAYER = re.compile(r"(?:^|\.)layer\.(\d+)\.")


def cut_layers(model: Path, output: Path, layers: int) -> None:
    """Write the folder; `layers` may be all that there are."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if not 1 <= layers <= config["num_hidden_layers"]:
        sys.exit(f"{model}: found {config['num_hidden_layers']} layers, expected at least {layers}")
    tensors = load_file(model / "model.safetensors")
    first = {name: tensor for name, tensor in tensors.items() if (match := LAYER.search(name)) is None or int(match[1]) < layers}
    shutil.copytree(model, output, ignore=shutil.ignore_patterns("*.safetensors", "*.bin", "*.onnx"), dirs_exist_ok=True)
    (output / "config.json").unlink()
    save_file(first, output / "model.safetensors", metadata={"format": "pt"})
    config["num_hidden_layers"] = layers
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    cut_layers(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
