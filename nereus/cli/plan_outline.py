"""`nereus plan` of an outline: the best plans on accelerators, as tables or as one JSON object.

outline.yaml -> OutlinePlanner -> plans, reasons, forecast -> here: what a person, or a program, reads
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nereus.cli.plan import Asked
from nereus.emu.plan import spans
from nereus.errors import UserError
from nereus.integrations.verl import overrides as verl
from nereus.planner.found import Report
from nereus.planner.outlined import OutlinePlanner, PlannedStep
from nereus.spec.lengths import read_lengths
from nereus.spec.outline import parse_outline, read_models

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found for one number of devices."""

    count: int
    planner: OutlinePlanner
    plans: tuple[PlannedStep, ...]
    report: Report
    seconds: float
    """Of pricing and search."""
    forbidden: str = ""
    """Why the framework that a plan is written for cannot run on these devices."""

    @property
    def problem(self) -> str:
        """Why there is no plan; empty where there is one."""
        if self.plans:
            return ""
        if self.forbidden:
            return self.forbidden
        for holder, reason in self.planner.without_option().items():
            return f"{holder}: {reason}"
        pinned = ", ".join(f"pins.{holder}" for holder in self.planner.outline.pins)
        with_pins = f", with {pinned}" if pinned else ""
        return f"no plan fits: the model-stages fit one by one, and not together{with_pins}"


def plan_outline(data: object, path: Path, asked: Asked) -> None:
    """Search the best plans of an outline for each number of devices, and print them."""
    outline = parse_outline(data)
    models = read_models(outline, path.absolute().parent)
    growth = read_lengths(asked.lengths) if asked.lengths else ()
    if asked.export not in (None, "verl"):
        raise UserError(f"--export: {asked.export!r} is not allowed; plans can be written for verl {verl.VERSION}")
    answers = []
    for count in _counts(asked.gpus, outline.num_devices):
        began = time.perf_counter()
        planner = OutlinePlanner(
            outline=outline,
            models=models,
            learnt={},
            num_devices=count,
            one_pool=asked.export is not None,
            unpiped=verl.SERVED if asked.export else frozenset(),
        )
        forbidden = verl.forbids(planner.pricer.outline) if asked.export else ""
        plans, report = ((), Report()) if forbidden else planner.best(asked.top, time.perf_counter)
        seconds = time.perf_counter() - began
        found = Answer(count=count, planner=planner, plans=plans, report=report, seconds=seconds, forbidden=forbidden)
        answers.append(found)
    if asked.as_json:
        print(json.dumps({"job": outline.name, "answers": [_as_dict(a, asked, growth) for a in answers]}))  # noqa: T201
        return
    console = Console()
    for answer in answers:
        _show(console, answer, asked, growth)


def _counts(gpus: str | None, most: int) -> list[int]:
    """The numbers of devices to plan for. Raises UserError for what is not one."""
    if gpus is None:
        return [most]
    try:
        counts = [int(text) for text in gpus.split(",")]
    except ValueError as error:
        raise UserError(f"--gpus: {gpus!r} is not allowed; give numbers of devices, such as 8,16") from error
    wrong = [count for count in counts if not 1 <= count <= most]
    if wrong:
        raise UserError(f"--gpus: {wrong[0]} is not allowed; the outline's nodes have 1 to {most} devices")
    return counts


def _forecast(answer: Answer, growth: Sequence[tuple[int, float]]) -> dict[str, Any] | None:
    """When the best plan runs out of memory at a growth of responses, and what fits at its longest."""
    if not growth or not answer.plans:
        return None
    short = answer.planner.runs_out(answer.plans[0], growth)
    if short is None:
        return {"runs_out_at_step": None, "response_tokens": None, "then": None}
    step, mean = short
    longest = max(length for _, length in growth)
    then, _ = answer.planner.grown(longest).best(1)
    change = {holder: str(option) for holder, option in then[0].options.items()} if then else None
    return {"runs_out_at_step": step, "response_tokens": mean, "then": change}


def _as_dict(answer: Answer, asked: Asked, growth: Sequence[tuple[int, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "devices": answer.count,
        "plans": [_plan_dict(answer, plan) for plan in answer.plans],
        "problem": answer.problem or None,
        "search": {
            "seconds": answer.seconds,
            "candidates": answer.report.rows,
            "tree_nodes": answer.report.tree_nodes,
            "exact": answer.report.relaxed_not_placed == 0,
        },
    }
    if asked.explain:
        found["reasons"] = [reason.sentence for reason in answer.planner.reasons()]
    if growth:
        found["forecast"] = _forecast(answer, growth)
    if asked.export and answer.plans:
        found["export"] = {"framework": f"verl {verl.VERSION}", "overrides": _overrides(answer)}
    return found


def _overrides(answer: Answer) -> list[str]:
    return list(verl.overrides(answer.planner.pricer.outline, answer.plans[0]))


def _plan_dict(answer: Answer, plan: PlannedStep) -> dict[str, Any]:
    pricer = answer.planner.pricer
    return {
        "l_step_seconds": plan.seconds,
        "critical_path": list(plan.overlap.path),
        "stage_seconds": {stage: taken for option in plan.options.values() for stage, taken in option.seconds.items()},
        "holders": {
            holder: {
                "kind": pricer.kind_name(option.kind),
                "tp": option.run.tp,
                "pp": option.run.pp,
                "dp": option.run.dp,
                "ep": option.run.ep,
                "micro_batch": option.run.micro_batch,
                "recompute": option.recomputes,
                "zero1": option.run.zero1,
                "offload": str(option.run.offload),
                "host_bytes": option.host_bytes,
                "pinned": dict(pricer.outline.pin(holder).settled),
                "devices": list(plan.devices[holder]),
                "memory_bytes": {str(part): round(size) for part, size in option.memory.items() if size},
                "resident_bytes": round(option.resident_bytes),
            }
            for holder, option in plan.options.items()
        },
        "peak_bytes": {pricer.kind_name(kind): round(peak) for kind, peak in plan.peak_bytes.items()},
        "capacity_bytes": {pricer.kind_name(kind): memory for kind, (_, memory) in enumerate(pricer.kinds)},
        "devices_used": plan.num_devices,
        "cost_per_step": _cost(answer, plan),
        "cost_per_million_tokens": _token_cost(answer, plan),
        "lost_by": plan.lost or None,
    }


def _cost(answer: Answer, plan: PlannedStep) -> float | None:
    """Of one RL step on the devices that the plan uses; None where a price is not given."""
    prices: list[float | None] = []
    for group in answer.planner.pricer.outline.nodes:
        prices += [group.price_per_hour] * (group.count * group.devices)
    used = sorted({device for devices in plan.devices.values() for device in devices})
    known = [price for price in (prices[device] for device in used) if price is not None]
    return sum(known) * plan.seconds / 3600 if len(known) == len(used) else None


def _token_cost(answer: Answer, plan: PlannedStep) -> float | None:
    """Of a million response tokens."""
    work, cost = answer.planner.outline.workload, _cost(answer, plan)
    return None if cost is None else cost / (work.global_batch * work.response_tokens) * 1e6


def _show(console: Console, answer: Answer, asked: Asked, growth: Sequence[tuple[int, float]]) -> None:
    if not answer.plans:
        console.print(f"{answer.count} devices: {answer.problem}", highlight=False)
        return
    console.print(_plan_table(answer, answer.plans[0]), _memory_table(answer, answer.plans[0]))
    for sentence in _sentences(answer, asked, growth):
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if asked.export:
        console.print(f"Plan 1 for verl {verl.VERSION}:", highlight=False)
        for line in _overrides(answer):
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _plan_table(answer: Answer, plan: PlannedStep) -> Table:
    title = f"{answer.count} devices: a step takes {plan.seconds:.2f} s"
    table = Table("", "layout", "seconds", "devices", title=title, title_justify="left")
    for holder, option in plan.options.items():
        several = len(option.seconds) > 1
        taken = "\n".join(f"{s:.2f}" + (f" {stage}" if several else "") for stage, s in option.seconds.items())
        table.add_row(holder, str(option), taken, spans(plan.devices[holder]))
    return table


def _memory_table(answer: Answer, plan: PlannedStep) -> Table:
    """Memory by component against what a device has."""
    parts = dict.fromkeys(part for option in plan.options.values() for part, size in option.memory.items() if size)
    table = Table("GiB of a device", *plan.options, title_justify="left")
    for part in parts:
        table.add_row(str(part), *(f"{option.memory.get(part, 0.0) / GIB:.1f}" for option in plan.options.values()))
    kinds = answer.planner.pricer.kinds
    table.add_section()
    if any(option.host_bytes for option in plan.options.values()):
        table.add_row("on its host", *(f"{option.host_bytes / GIB:.1f}" for option in plan.options.values()))
    table.add_row("stays while idle", *(f"{option.resident_bytes / GIB:.1f}" for option in plan.options.values()))
    table.add_row("of", *(f"{kinds[option.kind][1] / GIB:.0f}" for option in plan.options.values()))
    return table


def _runner_up(answer: Answer, rank: int) -> str:
    """A plan that is not the best: where it differs, and what it loses by."""
    best, plan = answer.plans[0], answer.plans[rank - 1]
    other = (f"{holder} {option}" for holder, option in plan.options.items() if str(option) != str(best.options[holder]))
    return f"Plan {rank}, {plan.seconds:.2f} s: {', '.join(other)}; {plan.lost}."


def _sentences(answer: Answer, asked: Asked, growth: Sequence[tuple[int, float]]) -> list[str]:
    best = answer.plans[0]
    said = [f"The step is as long as {' -> '.join(node for node in best.overlap.path if node != 'boundary')}."]
    peaks = ", ".join(
        f"{peak / GIB:.1f} of {answer.planner.pricer.kinds[kind][1] / GIB:.0f} GiB" for kind, peak in best.peak_bytes.items()
    )
    said.append(f"The fullest device holds {peaks}, where {answer.planner.outline.headroom:.0%} are left free.")
    said += [_runner_up(answer, rank) for rank in range(2, len(answer.plans) + 1)]
    if asked.explain:
        said += [f"{reason.sentence}." for reason in answer.planner.reasons()]
    cost, per_million = _cost(answer, best), _token_cost(answer, best)
    if cost is not None and per_million is not None:
        said.append(f"A step costs {cost:.2f}, a million response tokens {per_million:.2f}.")
    forecast = _forecast(answer, growth)
    if forecast is not None:
        said.append(_forecast_sentence(forecast))
    return said


def _forecast_sentence(forecast: Mapping[str, Any]) -> str:
    if forecast["runs_out_at_step"] is None:
        return "At this growth of responses plan 1 fits to the end."
    step, tokens = forecast["runs_out_at_step"], forecast["response_tokens"]
    out = f"At step {step}, with responses of {tokens:.0f} tokens, plan 1 runs out of memory."
    if forecast["then"] is None:
        return f"{out} No plan on these devices fits the longest ones."
    change = ", ".join(f"{holder} {option}" for holder, option in forecast["then"].items())
    return f"{out} This fits to the end: {change}."
