"""Compiled loops for scoring vectors. First, loops over 32 query tokens at once, as LLVM vectors: inside another loop, numba checks
a plain loop over the 32 for overlapping arrays, which takes six times as long. All arrays are C-contiguous.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 32


@intrinsic
def max_lookup_sum_32(typing: Any, centroid_table: Any, codeword_table: Any, codes: Any, leading: Any, others: Any, best: Any) -> Any:
    """best[i] = max_j centroid_table[codes[j], i] + Σ_s codeword_table[s, byte s of j, i] for 32 i: int16 [C, 32], int8 [S, 256, 32].

    The bytes of j are leading[j] and, unless others is [0, …], others[j].
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [context.make_array(kind)(context, builder, one) for kind, one in zip(signature.args, arguments, strict=True)]
        centroids_at, codewords_at, codes_at, leading_at, others_at, best_at = (array.data for array in arrays)
        shapes = [cgutils.unpack_tuple(builder, array.shape) for array in arrays]
        tokens, words, size = shapes[3][0], shapes[1][1], shapes[1][1].type
        lanes, small = (ir.VectorType(ir.IntType(width), LANES) for width in (16, 8))
        none = builder.icmp_signed("==", shapes[4][0], ir.Constant(size, 0))
        more = builder.select(none, ir.Constant(size, 0), shapes[4][1])

        def load_vector(table: Any, row: Any, kind: Any) -> Any:
            address = builder.gep(table, [builder.mul(row, ir.Constant(size, LANES))])
            return builder.load(builder.bitcast(address, kind.as_pointer()), align=1)

        def load_number(array: Any, index: Any) -> Any:
            return builder.zext(builder.load(builder.gep(array, [index])), size)

        def add_bytes(total: Any, bytes_at: Any, row: Any, count: Any, width: Any, before: Any) -> None:
            """Four bytes at a time, then the rest one by one."""
            start, most = builder.mul(row, width), builder.and_(count, ir.Constant(size, -4))
            for begin, end, step in ((ir.Constant(size, 0), most, 4), (most, count, 1)):
                with cgutils.for_range_slice(builder, begin, end, ir.Constant(size, step), size) as (group, _):
                    for ahead in range(step):
                        byte_index = builder.add(group, ir.Constant(size, ahead))
                        byte = load_number(bytes_at, builder.add(start, byte_index))
                        index = builder.add(builder.mul(builder.add(before, byte_index), words), byte)
                        looked_up = builder.sext(load_vector(codewords_at, index, small), lanes)
                        builder.store(builder.add(builder.load(total), looked_up), total)

        maximum = cgutils.alloca_once_value(builder, ir.Constant(lanes, [-0x8000] * LANES))
        row_sum = cgutils.alloca_once(builder, lanes)
        with cgutils.for_range(builder, tokens) as token:
            builder.store(load_vector(centroids_at, load_number(codes_at, token.index), lanes), row_sum)
            add_bytes(row_sum, leading_at, token.index, shapes[3][1], shapes[3][1], ir.Constant(size, 0))
            add_bytes(row_sum, others_at, token.index, more, shapes[4][1], shapes[3][1])
            value, highest = builder.load(row_sum), builder.load(maximum)
            builder.store(builder.select(builder.icmp_signed(">", value, highest), value, highest), maximum)
        builder.store(builder.load(maximum), builder.bitcast(best_at, lanes.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.none(centroid_table, codeword_table, codes, leading, others, best), generate


@intrinsic
def dot_32(typing: Any, lane_tokens: Any, singles: Any, products: Any) -> Any:
    """products[j, i] = Σ_d singles[j, d] · lane_tokens[d, i] for 32 i: float32 lane_tokens [D, 32], singles [n, D], products [n, 32].

    Two rows at a time.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [context.make_array(kind)(context, builder, one) for kind, one in zip(signature.args, arguments, strict=True)]
        lane_tokens_at, singles_at, products_at = (array.data for array in arrays)
        rows, width = cgutils.unpack_tuple(builder, arrays[1].shape)
        size, lanes, fused = rows.type, ir.VectorType(ir.FloatType(), LANES), ("contract",)
        one, many = ir.Constant(size, 1), ir.Constant(size, LANES)
        last = builder.sub(rows, one)

        def vector_at(array: Any, row: Any) -> Any:
            return builder.bitcast(builder.gep(array, [builder.mul(row, many)]), lanes.as_pointer())

        def broadcast(number: Any) -> Any:
            first = builder.insert_element(ir.Constant(lanes, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

        with cgutils.for_range_slice(builder, ir.Constant(size, 0), rows, ir.Constant(size, 2), size) as (row, _):
            following = builder.add(row, one)
            pair = [row, builder.select(builder.icmp_signed("<", following, last), following, last)]
            sums = [cgutils.alloca_once(builder, lanes) for _ in pair]
            for total in sums:
                builder.store(ir.Constant(lanes, [0.0] * LANES), total)
            with cgutils.for_range(builder, width) as dimension:
                tokens = builder.load(vector_at(lane_tokens_at, dimension.index), align=4)
                for row_index, total in zip(pair, sums, strict=True):
                    number = builder.load(builder.gep(singles_at, [builder.add(builder.mul(row_index, width), dimension.index)]))
                    product = builder.fmul(broadcast(number), tokens, flags=fused)
                    builder.store(builder.fadd(builder.load(total), product, flags=fused), total)
            for row_index, total in zip(pair, sums, strict=True):
                builder.store(builder.load(total), vector_at(products_at, row_index), align=4)
        return context.get_dummy_value()

    return types.none(lane_tokens, singles, products), generate
