"""A sheet as Markdown or as LaTeX: the best of a column in bold, the second best underlined."""

import re

from coterie.runs.sheet import Cell, Sheet

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "χ²": r"$\chi^2$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
    **{character: f"\\{character}" for character in "&%$#_"},
}
_SIGN = re.compile(r"^[+-](?=[\d.])")


def markdown(sheet: Sheet) -> str:
    """Return a Markdown table with its title and notes; characters that would mean something are escaped."""
    lines = [f"**{_marked_down(sheet.title)}**", ""] if sheet.title else []
    lines += [
        _piped([_marked_down(header.replace("\n", " ")) for header in sheet.headers]),
        _piped(["---", *("---:" for _ in sheet.headers[1:])]),
        *(_piped([_markdown_cell(cell) for cell in row]) for row in sheet.rows),
    ]
    if sheet.notes:
        lines += ["", *map(_marked_down, sheet.notes)]
    return "\n".join(lines) + "\n"


def latex(sheet: Sheet) -> str:
    r"""Return a ``tabular`` for the package booktabs; title and notes are comments, for the ``\caption``."""
    lines = [f"% {line}" for text in (sheet.title, *sheet.notes) for line in text.splitlines()]
    lines += [
        f"\\begin{{tabular}}{{l{'r' * (len(sheet.headers) - 1)}}}",
        r"\toprule",
        _row_of_latex([escape_latex(header.replace("\n", " ")) for header in sheet.headers]),
        r"\midrule",
        *(_row_of_latex([_latex_cell(cell, name=i == 0) for i, cell in enumerate(row)]) for row in sheet.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Return a text that LaTeX prints as it stands."""
    return re.sub("|".join(map(re.escape, _LATEX)), lambda found: _LATEX[found[0]], text)


def _latex_cell(cell: Cell, *, name: bool) -> str:
    text = escape_latex(cell.text)
    if not name:
        text = _SIGN.sub(lambda found: f"${found[0]}$", text)  # a minus, not a hyphen
    return {"": text, "best": f"\\textbf{{{text}}}", "second": f"\\underline{{{text}}}"}[cell.mark]


def _row_of_latex(cells: list[str]) -> str:
    # a row that begins with a bracket would be read as an option of the one before
    first = f"{{}}{cells[0]}" if cells[0].startswith(("[", "*")) else cells[0]
    return " & ".join([first, *cells[1:]]) + r" \\"


def _markdown_cell(cell: Cell) -> str:
    text = _marked_down(cell.text)
    return {"": text, "best": f"**{text}**", "second": f"<ins>{text}</ins>"}[cell.mark]


def _marked_down(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", text)


def _piped(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
