"""Every field that a person can declare says what it is."""

from __future__ import annotations

import ast
from pathlib import Path

import nereus.spec

FILES = sorted(Path(nereus.spec.__file__).parent.glob("*.py"))


def test_every_declared_field_has_a_docstring_below_it() -> None:
    bare, num_fields = [], 0
    for path in FILES:
        classes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
        for declared in (c for c in classes if any(isinstance(b, ast.Name) and b.id == "Declared" for b in c.bases)):
            for field, below in zip(declared.body, [*declared.body[1:], ast.Pass()], strict=True):
                if isinstance(field, ast.AnnAssign):
                    num_fields += 1
                    if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
                        bare.append(f"{declared.name}.{ast.unparse(field.target)}")
    assert bare == []
    assert num_fields > 50
