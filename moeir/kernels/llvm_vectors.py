"""What intrinsics of compiled loops share when they build LLVM vectors."""

from typing import Any

from llvmlite import ir


def repeat_number(builder: Any, number: Any, lanes: int) -> Any:
    """Instructions for a vector of `lanes` copies of a number, of the number's type."""
    index = ir.IntType(32)
    first = builder.insert_element(ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined), number, ir.Constant(index, 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(index, lanes), [0] * lanes))
