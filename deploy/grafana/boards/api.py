"""The API and the controllers behind it: requests, errors, latencies, and whether what is told is fresh."""

from __future__ import annotations

from deploy.grafana.panels import WINDOW, Board, Row, increase, jobs, per_second, series, stat

FAILED = 'nereus_api_requests_total{status="5xx"}'


def _latency(quantile: float) -> tuple[str, str]:
    buckets = f"sum by (le, route) (rate(nereus_api_request_seconds_bucket[{WINDOW}]))"
    return f"histogram_quantile({quantile}, {buckets})", f"p{round(100 * quantile)} {{{{route}}}}"


REQUESTS = Row(
    "Requests",
    (
        series(
            "Requests by route",
            "Requests per second, by the template of the route.",
            "reqps",
            (f"sum by (method, route) ({per_second('nereus_api_requests_total')})", "{{method}} {{route}}"),
        ),
        series(
            "By class of status",
            "Requests per second. 5xx: a controller that does not answer, or a bug. Many 4xx: wrong tokens or names.",
            "reqps",
            (f"sum by (status) ({per_second('nereus_api_requests_total')})", "{{status}}"),
            stacked=True,
        ),
        series(
            "Failed share",
            "Share of the requests that were answered by 5xx.",
            "percentunit",
            (
                f"sum({per_second(FAILED)}) / sum({per_second('nereus_api_requests_total')})",
                "5xx",
            ),
        ),
        series("Median latency", "By route: half of the requests are answered within.", "s", _latency(0.5), width=12),
        series(
            "Latency, 99th percentile",
            "By route. A GET takes milliseconds, as it asks no controller.",
            "s",
            _latency(0.99),
            width=12,
        ),
    ),
)

CONTROLLERS = Row(
    "Controllers",
    (
        stat(
            "All answer", "Whether the controllers of all jobs answer.", "bool_yes_no", "min(nereus_controller_up)", "all", 6
        ),
        stat("Answers", "Whether the controller of each job answers.", "bool_yes_no", jobs("nereus_job_up"), width=6),
        stat("Version", "Of the processes that serve.", "none", "nereus_build_info", "{{version}}", 6),
        stat(
            "Commands",
            "Of operators, since the start of the job.",
            "none",
            f"sum without (verb, done) ({jobs('nereus_commands_total')})",
            width=6,
        ),
        series(
            "Controllers that stopped answering",
            "How often, by job: each is a restart, or a head node under pressure.",
            "none",
            (increase(jobs("nereus_job_controller_losses_total")), "{{nereus_job}}"),
        ),
        series(
            "News",
            "What controllers tell, per second. None for long: the job stands.",
            "short",
            (per_second(jobs("nereus_news_total")), "{{nereus_job}}"),
        ),
        series(
            "Commands by verb",
            "What operators asked for, and whether it was done.",
            "none",
            (increase(jobs("nereus_commands_total")), "{{nereus_job}} {{verb}}, done: {{done}}"),
        ),
    ),
)

SEVERAL_JOBS = Row(
    "Controller of several jobs",
    (
        series(
            "Jobs by state",
            "All that it has had. Queued for long: too few devices; `nereus controller status` has the reason of each.",
            "none",
            ("nereus_controller_jobs", "{{state}}"),
        ),
        series(
            "Devices by kind and state",
            "There less granted is free: it would shorten nobody's step. Asked for is what the autoscaler was told.",
            "none",
            ("nereus_controller_devices", "{{resource}} {{state}}"),
        ),
        series(
            "Failing",
            "How long its looks at the cluster have failed. Above 0 nobody gets or leaves devices, and nothing starts.",
            "s",
            ("nereus_controller_failing_seconds", "failing"),
        ),
    ),
)

BOARD = Board(
    "nereus-api",
    "Nereus / API and controllers",
    "Requests, errors and latencies of the API, and whether the controllers behind it answer.",
    (REQUESTS, CONTROLLERS, SEVERAL_JOBS),
)
