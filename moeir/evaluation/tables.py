"""Tables as aligned text, Markdown, LaTeX, TSV or JSON lines; the output does not depend on the terminal."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from moeir.parsing import dump_json, escape_controls

MARKS = "†‡§¶‖ᵃᵇᶜᵈᵉᶠᵍʰ"  # raised, behind numbers
_NUMBER = re.compile(rf"[-+]?[<>]?[\d.,]+(e[-+]?\d+)?%?[*{MARKS}]* *|[-–—]|nan|inf|")
_MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_{}[]<>|~&"})
_LATEX_MARKS = [r"\dagger", r"\ddagger", r"\S", r"\P", r"\|", *(f"{{{letter}}}" for letter in "abcdefgh")]
_LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$"}
    | {mark: f"$^{{{symbol}}}$" for mark, symbol in zip(MARKS, _LATEX_MARKS, strict=True)}
)


class Bold(str):
    """A cell that Markdown and LaTeX show in bold, but for its marks; plain text has no bold."""

    def split_marks(self) -> tuple[str, str]:
        """The number and the marks behind it."""
        number = self.rstrip(MARKS)
        return number, self[len(number) :]


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]], number_format: str = ".4f") -> str:
    """Format an aligned text table: floats in `number_format`, None as a dash, numeric columns to the right, others to the left.

    >>> print(format_table(["system", "nDCG@10", "queries"], [["bm25", 0.5, 43], ["came", 0.71234, 43]]))
    system  nDCG@10  queries
    ------  -------  -------
    bm25     0.5000       43
    came     0.7123       43
    """
    cells = _format_cells(rows, number_format)
    lines = [*_format_cells([header]), *cells]
    widths = [max(map(_display_width, column)) for column in zip(*lines, strict=True)]
    right = _right_aligned(len(header), cells)
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(map(_pad_cell, line, widths, right)).rstrip() for line in lines)


def format_markdown(header: Sequence[str], rows: Sequence[Sequence[object]], number_format: str = ".4f", *, escape: bool = True) -> str:
    """Format a Markdown table; without `escape` the marks in cells are Markdown's.

    >>> print(format_markdown(["run", "RR"], [["bm25|k1", 0.5]]))
    | run | RR |
    |:--|--:|
    | bm25\\|k1 | 0.5000 |
    """
    cells = _format_cells(rows, number_format)
    rules = ["--:" if number else ":--" for number in _right_aligned(len(header), cells)]
    lines = [[_escape_markdown(cell) if escape else cell.replace("|", "\\|") for cell in row] for row in (*_format_cells([header]), *cells)]
    first, *others = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([first, f"|{'|'.join(rules)}|", *others])


def format_latex(header: Sequence[str], rows: Sequence[Sequence[object]], number_format: str = ".4f") -> str:
    r"""Format a LaTeX tabular with the rules of the booktabs package.

    >>> print(format_latex(["run", "RR"], [["bm25_k1", 0.5]]))
    \begin{tabular}{lr}
    \toprule
    run & RR \\
    \midrule
    bm25\_k1 & 0.5000 \\
    \bottomrule
    \end{tabular}
    """
    cells = _format_cells(rows, number_format)
    columns = "".join("r" if number else "l" for number in _right_aligned(len(header), cells))
    first, *others = (f"{' & '.join(map(_escape_latex, line))} \\\\" for line in (*_format_cells([header]), *cells))
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", "\\toprule", first, "\\midrule", *others, "\\bottomrule", "\\end{tabular}"])


TABLE_FORMATS = {"table": format_table, "markdown": format_markdown, "latex": format_latex}


def format_lines(header: Sequence[str], rows: Iterable[Sequence[object]], form: str) -> Iterator[str]:
    """Machine-readable lines: `tsv` with a header and 9 significant digits, or `jsonl`, one object per row, unrounded; None is empty.

    >>> list(format_lines(["run", "rbo"], [["bm25", 1 / 3], ["came", None]], "tsv"))
    ['run\\trbo', 'bm25\\t0.333333333', 'came\\t']
    """
    if form == "jsonl":
        yield from (dump_json(dict(zip(header, row, strict=True))) for row in rows)
        return
    yield "\t".join(map(escape_controls, header))
    for row in rows:
        yield "\t".join("" if cell is None else f"{cell:.9g}" if isinstance(cell, float) else escape_controls(str(cell)) for cell in row)


def format_note(text: str, form: str) -> str:
    r"""Format a line of text below a table of one of the `TABLE_FORMATS`.

    >>> print(format_note("better than a†, p < 0.05", "latex"))
    \par{\footnotesize better than a$^{\dagger}$, p $<$ 0.05}
    """
    line = escape_controls(text)
    return f"\\par{{\\footnotesize {_escape_latex(line)}}}" if form == "latex" else _escape_markdown(line) if form == "markdown" else line


def _right_aligned(width: int, cells: Sequence[Sequence[str]]) -> list[bool]:
    return [bool(cells) and all(_NUMBER.fullmatch(row[column]) for row in cells) for column in range(width)]


def _escape_markdown(text: str) -> str:
    if isinstance(text, Bold):
        return "**{}**{}".format(*text.split_marks())
    return text if _NUMBER.fullmatch(text) else text.translate(_MARKDOWN)


def _escape_latex(text: str) -> str:
    if isinstance(text, Bold):
        return "\\textbf{{{}}}{}".format(*(part.translate(_LATEX) for part in text.split_marks()))
    return text.translate(_LATEX)


def _format_cells(rows: Iterable[Sequence[object]], number_format: str = "") -> list[list[str]]:
    return [[_format_cell(cell, number_format) for cell in row] for row in rows]


def _format_cell(cell: object, number_format: str) -> str:
    if isinstance(cell, Bold):
        return cell
    return "-" if cell is None else format(cell, number_format) if isinstance(cell, float) else escape_controls(str(cell))


def _pad_cell(cell: str, width: int, right: bool) -> str:
    space = " " * (width - _display_width(cell))
    return space + cell if right else cell + space


def _display_width(cell: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else not unicodedata.combining(letter) for letter in cell)
