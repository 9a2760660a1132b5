"""A board as Grafana's classic dashboard JSON, by Grafana's own foundation SDK; the place of each panel is worked out here.

Board -> variables (data source, jobs), rows, panels on a grid of 24 columns -> JSON, the same for the same board
"""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueGraphMode, BigValueTextMode, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    GridPos,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana.boards import api, cost_model, devices, overview, planner
from deploy.grafana.panels import Board, Panel

BOARDS = (overview.BOARD, planner.BOARD, devices.BOARD, cost_model.BOARD, api.BOARD)

FOLDER = Path(__file__).parents[2] / "helm" / "nereus" / "files" / "dashboards"

COLUMNS = 24
HEIGHTS = {"stat": 4, "timeseries": 8}
"""Rows of the grid that a panel takes."""

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The Prometheus that is chosen at the top: no dashboard names one."""


def document(board: Board) -> str:
    """The file of a dashboard as it is committed."""
    return json.dumps(_dashboard(board).build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def path(board: Board) -> Path:
    """Where it is committed."""
    return FOLDER / f"{board.uid}.json"


def _dashboard(board: Board) -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["nereus"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus").label("Data source"))
        .with_variable(_jobs())
    )
    y, number = 0, 0
    for row in board.rows:
        number += 1
        made = made.with_row(dashboard.Row(row.title).id(number).grid_pos(GridPos(h=1, w=COLUMNS, x=0, y=y)))
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            number += 1
            place = GridPos(h=HEIGHTS[panel.kind], w=panel.width, x=x, y=y)
            made = made.with_panel(_panel(panel).id(number).grid_pos(place))
            x, height = x + panel.width, max(height, place.h)
        y += height
    return made


def _jobs() -> dashboard.QueryVariable:
    """The jobs to look at; all of them by default."""
    return (
        dashboard.QueryVariable("nereus_job")
        .label("Job")
        .datasource(SOURCE)
        .query("label_values(nereus_job_info, nereus_job)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    made: stat.Panel | timeseries.Panel
    if panel.kind == "stat":
        made = stat.Panel().graph_mode(BigValueGraphMode.NONE).text_mode(BigValueTextMode.VALUE_AND_NAME)
    else:
        made = timeseries.Panel().line_width(1).fill_opacity(30 if panel.stacked else 0)
        if panel.stacked:
            made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    made = made.title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
    if panel.decimals is not None:
        made = made.decimals(panel.decimals)
    for number, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
        target = target.instant() if panel.kind == "stat" else target.range()
        made = made.with_target(target.datasource(SOURCE))
    return made
