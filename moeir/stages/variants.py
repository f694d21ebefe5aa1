"""`moeir variants`: list the names and options that a spec can have."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from moeir import variants
from moeir.errors import UsageError
from moeir.parsing import format_value
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
        package = None if self.package is None else short.get(self.package, self.package)
        name = None if package in (None, *variants.PACKAGES) else str(package).replace("_", "-").lower()
        packages = variants.PACKAGES if package is None or name is not None else (package,)
        by_package = {known: [one for one in variants.list_variants(known) if name in (None, one.name)] for known in packages}
        if variants.own_module(str(self.package)):
            by_package = _own_variants(str(self.package))
        if not any(by_package.values()):
            names = (variant.name for known in variants.PACKAGES for variant in variants.list_variants(known))
            is_own = variants.own_module(str(self.package))
            suggestion = "" if is_own else variants.suggest(str(self.package), {*variants.PACKAGES, *short, *names})
            raise UsageError(f"there is no package or variant {self.package!r}{suggestion} (moeir variants lists all)")
        for package_name, package_variants in by_package.items():
            if package_variants:
                yield package_name
            for variant in package_variants:
                yield f"  {variant.name:<14} {variant.summary}"
                if variant.options:
                    yield f"  {'':<14} " + ",".join(f"{option.name}={format_value(option.default)}" for option in variant.options)
                if name is not None:
                    yield from (f"  {'':<14} {line}".rstrip() for line in variant.details.split("\n") if line)


def _own_variants(name: str) -> dict[str, list[variants.Variant]]:
    """Own code, by the package it is a variant of."""
    variants.import_code_of(name)
    by_package = {}
    for package in variants.PACKAGES:
        with suppress(UsageError):
            by_package[package] = [variants.find_variant(package, name)]
    return by_package
