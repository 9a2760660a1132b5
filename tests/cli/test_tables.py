"""Tables on terminals that are wide enough, and on those that are not: no value is ever cut."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from nereus.cli.tables import show_table

HEADINGS = ("GiB of a device", "reference_inference", "critic_training")
ROWS = [("activations_outside", "0.6", "4.5"), ("stays while idle", "15.0", "18.7")]


def shown(width: int, *, by_column: bool = False) -> str:
    console = Console(width=width, file=StringIO())
    with console.capture() as capture:
        show_table(console, "16 devices", HEADINGS, ROWS, sections=(1,), by_column=by_column)
    return capture.get()


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("width", [30, 50, 60, 80, 200])
def test_every_word_is_whole_at_any_width(width: int, by_column: bool) -> None:
    words = shown(width, by_column=by_column)
    assert "…" not in words
    assert all(word in words for word in ("activations_outside", "reference_inference", "critic_training", "18.7"))


def test_table_that_fits_is_a_table() -> None:
    assert "┃ GiB of a device     ┃" in shown(80)


def test_records_are_rows_or_columns() -> None:
    assert "activations_outside: reference_inference 0.6" in shown(50)
    assert "reference_inference: activations_outside 0.6" in shown(50, by_column=True)
