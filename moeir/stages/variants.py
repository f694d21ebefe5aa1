"""`moeir variants`: list the names and options that a spec can have."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from moeir import variants
from moeir.errors import UsageError
from moeir.parsing import format_value
from moeir.settings import argument
from moeir.stages.base import Counts, Stage


@dataclass(frozen=True, kw_only=True)
class Variants(Stage):
    """List architectures, engines, objectives, fusion methods and their options; for a single variant, with all details of its options."""

    room: str | None = argument(f"{', '.join(variants.ROOMS)}, or the name of a variant, such as taser [default: all].", None)

    def work(self) -> Counts:
        sys.stdout.write("".join(f"{line}\n" for line in self._output_lines()))
        return None

    def _output_lines(self) -> Iterator[str]:
        short = {room.split(".")[-1]: room for room in variants.ROOMS}
        room = None if self.room is None else short.get(self.room, self.room)
        name = None if room in (None, *variants.ROOMS) else str(room).replace("_", "-").lower()
        rooms = variants.ROOMS if room is None or name is not None else (room,)
        by_room = {room_name: [one for one in variants.list_variants(room_name) if name in (None, one.name)] for room_name in rooms}
        if variants.own_module(str(self.room)):
            by_room = _own_variants(str(self.room))
        if not any(by_room.values()):
            names = (variant.name for room_name in variants.ROOMS for variant in variants.list_variants(room_name))
            suggestion = "" if variants.own_module(str(self.room)) else variants.suggest(str(self.room), {*variants.ROOMS, *short, *names})
            raise UsageError(f"there is no room or variant {self.room!r}{suggestion} (moeir variants lists all)")
        for room_name, room_variants in by_room.items():
            if room_variants:
                yield room_name
            for variant in room_variants:
                yield f"  {variant.name:<14} {variant.summary}"
                if variant.options:
                    yield f"  {'':<14} " + ",".join(f"{option.name}={format_value(option.default)}" for option in variant.options)
                if name is not None:
                    yield from (f"  {'':<14} {line}".rstrip() for line in variant.details.split("\n") if line)


def _own_variants(name: str) -> dict[str, list[variants.Variant]]:
    """Own code, by the room it is a variant of."""
    variants.import_code_of(name)
    by_room = {}
    for room in variants.ROOMS:
        with suppress(UsageError):
            by_room[room] = [variants.find_variant(room, name)]
    return by_room
