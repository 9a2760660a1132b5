"""`python -m deploy.grafana`: write the dashboards that are committed, so that a change of one is seen."""

from __future__ import annotations

from deploy.grafana.build import BOARDS, FOLDER, document, path

FOLDER.mkdir(parents=True, exist_ok=True)
for board in BOARDS:
    path(board).write_text(document(board), encoding="utf-8")
