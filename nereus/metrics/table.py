"""Every metric of Nereus: what /metrics gives, and the document of it.

    groups -> OF_PROCESS, OF_JOBS -> read -> prometheus families -> text          groups -> document()

Label values are from closed lists, or the job's model-stages, or the API's routes, there from the first scrape on: an alert
sees 0, not nothing. A value that is not known yet is not a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nereus.control.events import Verb
from nereus.control.phases import End
from nereus.metrics import (
    api,
    checkpoints,
    controller,
    cost_model,
    decisions,
    fleet,
    identity,
    placement,
    runtime,
    steps,
    transitions,
)
from nereus.metrics.exposition import JOB_LABEL, Described, Process, Source, text
from nereus.metrics.requests import STATUS_CLASSES, UNMATCHED
from nereus.policy.admission import Code
from nereus.runtime.standing import DEVICE_COUNTS, JOB_STATES

OF_PROCESS: tuple[Described[Process], ...] = (
    *identity.OF_PROCESS,
    *runtime.OF_PROCESS,
    *controller.OF_PROCESS,
    *api.OF_PROCESS,
)

OF_JOBS: tuple[Described[Source], ...] = (
    *identity.OF_JOBS,
    *fleet.OF_JOBS,
    *placement.OF_JOBS,
    *decisions.OF_JOBS,
    *transitions.OF_JOBS,
    *steps.OF_JOBS,
    *cost_model.OF_JOBS,
    *checkpoints.OF_JOBS,
    *runtime.OF_JOBS,
)

METRICS: tuple[Described[Source] | Described[Process], ...] = (*OF_PROCESS, *OF_JOBS)

GROUPS = (
    "Identity",
    "Fleet",
    "Placement",
    "Decisions",
    "Transitions",
    "Steps",
    "Cost model",
    "Checkpoints",
    "Runtime",
    "Controller",
    "API",
)
"""In the order of the document."""


def exposition(jobs: Sequence[Source], process: Process) -> bytes:
    """What Prometheus scrapes."""
    return text(OF_JOBS, jobs, OF_PROCESS, process)


INTRODUCTION = """\
# Metrics

<!-- Made by `python -m nereus.metrics > docs/metrics.md`; change nereus/metrics instead. -->

`GET /metrics` of the [API](api.md) gives these metrics in the Prometheus text format; where the API has tokens, a scrape
needs that of a viewer. What is told of a job has its name as the label `nereus_job`, and is made from the controller's
journal: it counts from the start of the job, and neither a controller nor an API that restarts begins anew. What is told of
the process has no such label and counts from its start. Label values are from closed lists and there from the first scrape
on. A summary has `_count` and `_sum`, a histogram `_bucket` too; times are in seconds, sizes in bytes.

A scrape with a token, the token alone in a file; without tokens leave `authorization` out:

```yaml
scrape_configs:
  - job_name: nereus
    scrape_interval: 15s
    authorization: {credentials_file: /etc/prometheus/nereus-token}
    static_configs: [{targets: ["127.0.0.1:8420"]}]
```

The dashboards in `helm/nereus/files/dashboards` show all of them; `python -m deploy.grafana` makes these files. The alerts
are in `helm/nereus/files/alerts.yaml`, and [docs/runbooks.md](runbooks.md) says what to do. What is tested: every query of
every panel has data in a Prometheus that scraped a real run, or a real controller of several jobs for those of the group
Controller, and no alert fires meanwhile; each alert fires in a test of its own.
What is not: how Grafana draws the dashboards, since none was at hand.

| label | values |
|---|---|
"""


def _listed(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


LABELS = {
    JOB_LABEL: "The jobs that are served here, by name.",
    "model_stage": f"The model-stages of the job; in `nereus_stage_seconds` also `{steps.WEIGHT_SYNC}`.",
    "algorithm": "`grpo`, `ppo`, `remax`; `unknown` before the start.",
    "mode": "`sync`, `async`; `unknown` before the start.",
    "device": "The numbers of the devices that are there; a device that goes takes its series with it.",
    "signal": _listed(decisions.SIGNALS),
    "outcome": _listed(decisions.OUTCOMES),
    "path": _listed(transitions.PATHS),
    "verb": _listed(verb.value for verb in Verb),
    "done": _listed(runtime.DONE),
    "state": f"Of a job's devices: {_listed(fleet.DEVICE_STATES)}; of a controller's: {_listed(DEVICE_COUNTS)}; "
    f"of its jobs: {_listed(JOB_STATES)}.",
    "resource": "What Ray calls the kinds of device that jobs of the controller have wanted.",
    "axis": _listed(placement.AXES),
    "code": _listed(code.value for code in Code),
    "end": _listed(end.value for end in End),
    "primitive": _listed(transitions.PRIMITIVES),
    "method": f"`GET`, `POST`; `{UNMATCHED}` where no route fits.",
    "route": f"The templates of the API's routes, such as `/api/v1/replans/{{id}}`; `{UNMATCHED}` where none fits.",
    "status": _listed(STATUS_CLASSES),
    "version": "That of the package.",
}
"""What each label can be."""


def document() -> str:
    """docs/metrics.md as it is committed."""
    page = INTRODUCTION + "".join(f"| `{name}` | {values} |\n" for name, values in LABELS.items())
    for group in GROUPS:
        page += f"\n## {group}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
        page += "".join(_row(metric) for metric in METRICS if metric.group == group)
    return page


def _row(metric: Described[Source] | Described[Process]) -> str:
    labels = metric.labels if metric in OF_PROCESS else (JOB_LABEL, *metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {_listed(labels)} | {metric.meaning} |\n"
