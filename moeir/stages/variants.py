"""`moeir variants`: list the names and options that a spec can have."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from moeir import variants
from moeir.errors import UsageError
from moeir.parsing import format_value, suggest
from moeir.settings import argument
from moeir.stages.base import Stage


@dataclass(frozen=True, kw_only=True)
class Variants(Stage):
    """List architectures, engines, objectives, fusion methods and their options; for a single variant, with all details of its options."""

    package: str | None = argument(f"{', '.join(variants.PACKAGES)}, or the name of a variant, such as taser [default: all].", None)

    def work(self) -> None:
        sys.stdout.write("".join(f"{line}\n" for line in self._output_lines()))

    def _output_lines(self) -> Iterator[str]:
        short = {package.split(".")[-1]: package for package in variants.PACKAGES}
        name = None if self.package is None else short.get(self.package, self.package)
        packages, is_variant = (name,) if name in variants.PACKAGES else variants.PACKAGES, name not in (None, *variants.PACKAGES)
        by_package = {package: _find_variants(package, str(name) if is_variant else None) for package in packages}
        if not any(by_package.values()):
            names = (variant.name for package in packages for variant in variants.list_variants(package))
            suggestion = "" if variants.own_module(str(name)) else suggest(str(name), {*variants.PACKAGES, *short, *names})
            raise UsageError(f"there is no package or variant {name!r}{suggestion} (moeir variants lists all)")
        for package, package_variants in by_package.items():
            if package_variants:
                yield package
            for variant in package_variants:
                yield f"  {variant.name:<14} {variant.summary}"
                if variant.options:
                    yield f"  {'':<14} " + ",".join(f"{option.name}={format_value(option.default)}" for option in variant.options)
                if is_variant:
                    yield from (f"  {'':<14} {line}".rstrip() for line in variant.details.split("\n") if line)


def _find_variants(package: str, name: str | None) -> Sequence[variants.Variant]:
    """All variants of a package, or the one of this name, which may be own code, if there is one."""
    if name is None:
        return variants.list_variants(package)
    variants.import_code_of(name)
    with suppress(UsageError):
        return [variants.find_variant(package, name if variants.own_module(name) else name.lower())]
    return ()
