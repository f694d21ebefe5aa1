"""`moeir fuse`: several runs become one."""

from dataclasses import dataclass
from pathlib import Path

from moeir import variants
from moeir.errors import UsageError
from moeir.settings import option, product, source
from moeir.stages.base import STREAM, Counts, Stage, check_depth, check_word


@dataclass(frozen=True, kw_only=True)
class Fuse(Stage):
    """Merge the runs of several experts into one."""

    run: tuple[Path, ...] = source("run", "One run per expert; repeat the flag.", names=("--runs",))
    method: str = option("How scores combine; see: moeir variants fusion.", "came-sum")
    depth: int = option("Documents kept per query.", 1000, names=("--hits", "--k"))
    tag: str = option("Run tag.", "moeir.fused", names=("--runtag",))
    output: Path = product("run", "Where to write; - is stdout.", STREAM)

    def check(self) -> None:
        variants.resolve("fusion", self.method)
        check_word("--tag", self.tag)
        check_depth(self.depth)
        if len(self.run) < 2:
            raise UsageError(f"fuse: expected two runs or more, found {len(self.run)}; repeat --run")

    def work(self) -> Counts:
        from moeir import fusion
        from moeir.records import runs

        merged = fusion.fused([runs.read(path) for path in self.run], variants.bind("fusion", self.method), self.depth)
        runs.write(merged, self.output, tag=self.tag)
        return {"queries": len(merged), "hits": len(merged.scores)}
