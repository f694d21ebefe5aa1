"""`moeir variants`: what a spec can name."""

import sys
from dataclasses import dataclass

from moeir import variants
from moeir.settings import argument
from moeir.stages.base import Counts, Stage
from moeir.values import render


@dataclass(frozen=True, kw_only=True)
class Variants(Stage):
    """List the architectures, engines, objectives and fusions, with their options."""

    room: str | None = argument("architectures, indexes, fusion, mining, learning.objectives … [default: all].", None)

    def work(self) -> Counts:
        for room in (self.room,) if self.room else variants.ROOMS:
            sys.stdout.write(f"{room}\n")
            for variant in variants.listed(room):
                sys.stdout.write(f"  {variant.name:<14} {variant.summary}\n")
                options = (f"{option.name}={render(option.default)}" for option in variant.options)
                if shown := ",".join(options):
                    sys.stdout.write(f"  {'':<14} {shown}\n")
        return None
