"""Loops over 32 query tokens at once, written as vectors.

A compiled loop over the 32 is checked for overlapping arrays wherever it stands inside another one, and takes six times as long. All arrays
are packed, rows one behind another.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 32


@intrinsic
def best_sums(typing: Any, near: Any, left: Any, codes: Any, leading: Any, others: Any, best: Any) -> Any:
    """best[i] = max_j near[codes[j], i] + Σ_s left[s, byte s of j, i] for 32 i: near int16 [C, 32], left int8 [S, 256, 32].

    The bytes of j are leading[j] and, unless others is [0, …], others[j].
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [context.make_array(kind)(context, builder, one) for kind, one in zip(signature.args, arguments, strict=True)]
        near_at, left_at, codes_at, leading_at, others_at, best_at = (array.data for array in arrays)
        shapes = [cgutils.unpack_tuple(builder, array.shape) for array in arrays]
        tokens, words, size = shapes[3][0], shapes[1][1], shapes[1][1].type
        lanes, small = (ir.VectorType(ir.IntType(width), LANES) for width in (16, 8))
        none = builder.icmp_signed("==", shapes[4][0], ir.Constant(size, 0))
        more = builder.select(none, ir.Constant(size, 0), shapes[4][1])

        def looked_up(table: Any, row: Any, kind: Any) -> Any:
            place = builder.gep(table, [builder.mul(row, ir.Constant(size, LANES))])
            return builder.load(builder.bitcast(place, kind.as_pointer()), align=1)

        def number(array: Any, place: Any) -> Any:
            return builder.zext(builder.load(builder.gep(array, [place])), size)

        def add_bytes(total: Any, bytes_at: Any, row: Any, count: Any, width: Any, before: Any) -> None:
            """Four at a time, then the rest one by one."""
            start, most = builder.mul(row, width), builder.and_(count, ir.Constant(size, -4))
            for begin, end, step in ((ir.Constant(size, 0), most, 4), (most, count, 1)):
                with cgutils.for_range_slice(builder, begin, end, ir.Constant(size, step), size) as (group, _):
                    for ahead in range(step):
                        own = builder.add(group, ir.Constant(size, ahead))
                        byte = number(bytes_at, builder.add(start, own))
                        place = builder.add(builder.mul(builder.add(before, own), words), byte)
                        found = builder.sext(looked_up(left_at, place, small), lanes)
                        builder.store(builder.add(builder.load(total), found), total)

        top = cgutils.alloca_once_value(builder, ir.Constant(lanes, [-0x8000] * LANES))
        own = cgutils.alloca_once(builder, lanes)
        with cgutils.for_range(builder, tokens) as token:
            builder.store(looked_up(near_at, number(codes_at, token.index), lanes), own)
            add_bytes(own, leading_at, token.index, shapes[3][1], shapes[3][1], ir.Constant(size, 0))
            add_bytes(own, others_at, token.index, more, shapes[4][1], shapes[3][1])
            value, highest = builder.load(own), builder.load(top)
            builder.store(builder.select(builder.icmp_signed(">", value, highest), value, highest), top)
        builder.store(builder.load(top), builder.bitcast(best_at, lanes.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.none(near, left, codes, leading, others, best), generate


@intrinsic
def lane_products(typing: Any, turned: Any, singles: Any, rough: Any) -> Any:
    """rough[j, i] = Σ_d singles[j, d] · turned[d, i] in float32 for 32 i: turned [D, 32], singles [n, D], rough [n, 32]; by two rows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [context.make_array(kind)(context, builder, one) for kind, one in zip(signature.args, arguments, strict=True)]
        turned_at, singles_at, rough_at = (array.data for array in arrays)
        rows, width = cgutils.unpack_tuple(builder, arrays[1].shape)
        size, lanes, fused = rows.type, ir.VectorType(ir.FloatType(), LANES), ("contract",)
        one, many = ir.Constant(size, 1), ir.Constant(size, LANES)
        last = builder.sub(rows, one)

        def vector_at(array: Any, row: Any) -> Any:
            return builder.bitcast(builder.gep(array, [builder.mul(row, many)]), lanes.as_pointer())

        def everywhere(number: Any) -> Any:
            first = builder.insert_element(ir.Constant(lanes, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

        with cgutils.for_range_slice(builder, ir.Constant(size, 0), rows, ir.Constant(size, 2), size) as (row, _):
            following = builder.add(row, one)
            pair = [row, builder.select(builder.icmp_signed("<", following, last), following, last)]
            sums = [cgutils.alloca_once(builder, lanes) for _ in pair]
            for total in sums:
                builder.store(ir.Constant(lanes, [0.0] * LANES), total)
            with cgutils.for_range(builder, width) as place:
                tokens = builder.load(vector_at(turned_at, place.index), align=4)
                for own, total in zip(pair, sums, strict=True):
                    number = builder.load(builder.gep(singles_at, [builder.add(builder.mul(own, width), place.index)]))
                    product = builder.fmul(everywhere(number), tokens, flags=fused)
                    builder.store(builder.fadd(builder.load(total), product, flags=fused), total)
            for own, total in zip(pair, sums, strict=True):
                builder.store(builder.load(total), vector_at(rough_at, own), align=4)
        return context.get_dummy_value()

    return types.none(turned, singles, rough), generate
