"""The token file: roles and secrets, and each thing that can be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereus.errors import UserError
from nereus.spec.tokens import Role, Token, read_tokens, strongest

LOOK, ACT = "v" * 32, "o" * 32


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_are_roles_and_secrets_and_comments_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, f"# of the dashboards\nviewer:{LOOK}\n\n  operator:{ACT}  \n")
    assert read_tokens(path) == (Token(Role.VIEWER, LOOK), Token(Role.OPERATOR, ACT))


def test_strongest_token_is_an_operators_where_there_is_one() -> None:
    viewer, operator = Token(Role.VIEWER, LOOK), Token(Role.OPERATOR, ACT)
    assert strongest((viewer, operator)) == strongest((operator, viewer)) == operator
    assert strongest((viewer,)) == viewer


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["no token", "operator:TOKEN"]),
        ("# nothing\n", ["no token"]),
        (ACT, ["line 1", "role is none"]),
        (f"viewer:{LOOK}\nadmin:{ACT}", ["line 2", "'admin'", "viewer:TOKEN"]),
        ("operator:" + "k" * 15, ["15 characters", "at least 16"]),
        ("operator:" + "k" * 20 + " k", ["header cannot carry"]),
        (f"viewer:{ACT}\noperator:{ACT}", ["twice"]),
    ],
)
def test_wrong_file_is_refused_with_line_and_fix_and_never_shows_a_secret(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_tokens(path)
    message = str(caught.value)
    assert str(path) in message
    assert all(part in message for part in parts)
    assert "kkkk" not in message
    assert ACT not in message


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_tokens(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="no text"):
        read_tokens(tmp_path / "binary")


def test_token_does_not_show_its_secret_when_it_is_printed() -> None:
    assert ACT not in repr(Token(Role.OPERATOR, ACT))
