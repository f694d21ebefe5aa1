"""OpenVINO on a CPU, whole and in 8-bit integers, as a peer of encode_speed.py and rerank_speed.py.

    python encode_peers.py WAY MODEL_FOLDER CORPUS WORK_FOLDER [--length 256 --pairs]

Needs sentence-transformers 6.2, optimum-intel, openvino, nncf and datasets, which want another transformers than ours: run it with an
interpreter of its own (`encode_speed.py --peers PYTHON`). `openvino` picks its precision; `openvino-int8` is quantised after calibration
on the first 300 texts of CORPUS by sentence-transformers' own `export_static_quantized_openvino_model`. Both use sentence-transformers'
tokenizer, sorting by length, batches of 32 and pooling. Models are prepared on first use. Prints one line of JSON: seconds of the clock
and of the processor, peak MiB.
"""

import argparse
import json
import os
import resource
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

BATCH = 32
CALIBRATION = 300  # texts


def read_contents(corpus: Path) -> list[str]:
    """Titles and texts of a corpus, joined as ours joins them."""
    records = map(json.loads, corpus.read_text().splitlines())
    return [" ".join(filter(None, (one.get("title", ""), one["text"]))) for one in records]


def read_pairs(file: Path) -> list[tuple[str, str]]:
    """Pairs of texts, an array of two in each line."""
    return [(one[0], one[1]) for one in map(json.loads, file.read_text().splitlines())]


def open_openvino(way: str, options: argparse.Namespace) -> Any:
    """A SentenceTransformer, or with --pairs a CrossEncoder, on OpenVINO, exported and quantised on first use."""
    from sentence_transformers import CrossEncoder, SentenceTransformer, export_static_quantized_openvino_model

    kind: Any = CrossEncoder if options.pairs else SentenceTransformer
    folder = options.work / f"openvino-{options.model.parent.name}-{options.model.name}"
    if not folder.exists():
        kind(str(options.model), device="cpu", backend="openvino").save_pretrained(str(folder))
    files = {"openvino": "openvino/openvino_model.xml", "openvino-int8": "openvino/openvino_model_qint8_quantized.xml"}
    if not (folder / files[way]).exists():
        calibration = options.work / "calibration"
        calibration.mkdir(exist_ok=True)
        contents = [" ".join(pair) for pair in read_pairs(options.corpus)] if options.pairs else read_contents(options.corpus)
        rows = ({"text": content} for content in islice(contents, CALIBRATION))
        (calibration / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        whole = kind(str(folder), device="cpu", backend="openvino", model_kwargs={"file_name": "openvino_model.xml"})
        export_static_quantized_openvino_model(whole, None, str(folder), str(calibration), "default", "train", "text")
    return kind(str(folder), device="cpu", backend="openvino", model_kwargs={"file_name": Path(files[way]).name})


def main() -> None:
    """Encode the corpus, or score the pairs, in one way, save the vectors or scores, print the clocks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=["openvino", "openvino-int8"])
    for name in ("model", "corpus", "work"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--pairs", action="store_true", help="CORPUS holds pairs, an array of two in each line; openvino only")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    model = open_openvino(options.way, options)
    inputs: list[Any] = read_pairs(options.corpus) if options.pairs else read_contents(options.corpus)
    if options.pairs:
        model.max_length = options.length
        run = partial(model.predict, batch_size=BATCH, activation_fn=torch.nn.Identity())
    else:
        model.max_seq_length = options.length
        run = partial(model.encode, batch_size=BATCH)
    run(inputs[:BATCH])
    before = time.monotonic(), time.process_time()
    np.save(options.work / f"{options.way}.npy", run(inputs))
    after = time.monotonic(), time.process_time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"clock": after[0] - before[0], "processor": after[1] - before[1], "memory": memory}) + "\n")


if __name__ == "__main__":
    main()
