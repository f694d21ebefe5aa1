"""Texts of different lengths for encode_speed.py: every tenth of each collection's first 2,000, shuffled with a seed.

python mixed_corpus.py OUTPUT CORPUS … [--every 10]
"""

import argparse
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

from moeir.records import texts

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("output", type=Path)
parser.add_argument("corpora", type=Path, nargs="+")
parser.add_argument("--every", type=int, default=10)
options = parser.parse_args()
sample = [text for corpus in options.corpora for text in islice(texts.read_texts(corpus), 0, 2000, options.every)]
random.Random(1).shuffle(sample)
texts.write_texts((replace(text, id=f"t{row}") for row, text in enumerate(sample)), options.output)
