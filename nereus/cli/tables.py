"""Tables that stay readable: one whose words the terminal has no room for becomes a line per record, with every value."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

CUT = "…"
"""What rich puts where it cuts a word; no cell of ours has one of its own."""


def show_table(
    console: Console,
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    sections: Sequence[int] = (),
    by_column: bool = False,
) -> None:
    """Print rows of cells under headings; before the rows in `sections` is a line.

    `by_column`: where it does not fit, a record is a column, not a row.
    """
    table = Table(*headings, title=title or None, title_justify="left")
    for at, row in enumerate(rows):
        if at in sections:
            table.add_section()
        table.add_row(*row)
    if not any(CUT in segment.text for line in console.render_lines(table) for segment in line):
        console.print(table)
        return
    grid = [list(headings), *map(list, rows)]
    names, *records = list(zip(*grid, strict=True)) if by_column else grid
    lines = [title or names[0]]
    lines += [f"{record[0]}: {', '.join(map(_entry, names[1:], record[1:]))}" for record in records]
    for line in filter(None, lines):
        console.print(line, highlight=False, markup=False)


def _entry(name: str, cell: str) -> str:
    return f"{name} {cell}".replace("\n", " and ")
