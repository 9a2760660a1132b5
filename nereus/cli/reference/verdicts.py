"""Every verdict, with the meaning that its docstring gives it."""

from __future__ import annotations

from nereus.cli.reference.tables import docstrings, table
from nereus.policy.admission import Code

ABOUT = """\
What is decided on a candidate plan. [How the plan adapts](../adaptation.md#the-verdicts) says how they are reached, and
how to read a decision; the metric `nereus_decisions_total` counts them, by `code`.
"""


def verdicts() -> str:
    """The table of all codes."""
    meanings = docstrings(Code)
    rows = [(f"`{code}`", "yes" if code.startswith("admitted") else "no", meanings[code.name]) for code in Code]
    return f"{ABOUT}\n{table(('code', 'carried out', 'meaning'), rows)}"
