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

from nereus.cli.plan import Asked, device_counts
from nereus.cli.plan_measured import probes_of, show_known, show_probes, what_is_known
from nereus.cli.tables import show_table
from nereus.emu.plan import spans
from nereus.integrations.framework import Framework
from nereus.planner.found import Report
from nereus.planner.outlined import OutlinePlanner
from nereus.planner.posed import PlannedStep
from nereus.planner.rules import FREE
from nereus.spec.lengths import read_lengths
from nereus.spec.outline import read_models, read_outline

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
    framework: Framework | None = None
    """That the plan is written for."""
    forbidden: str = ""
    """Why the framework cannot run the outline on these devices."""
    probes: Sequence[Mapping[str, Any]] = ()
    """Runs whose times would change the choice the most, as plain data."""

    @property
    def problem(self) -> str:
        """Why there is no plan; empty where there is one."""
        if self.plans:
            return ""
        if self.forbidden:
            return self.forbidden
        for holder, reason in self.planner.without_option().items():
            return f"{holder}: {reason}"
        shared = [rule.sentence for rule in self.planner.rules.shared]
        pins = [f"pins.{holder}" for holder in self.planner.outline.pins]
        bound = (f", where {'; '.join(shared)}" if shared else "") + (f", with {', '.join(pins)}" if pins else "")
        return f"no plan fits: the model-stages fit one by one, and not together{bound}"


def plan_outline(data: object, path: Path, asked: Asked) -> None:
    """Search the best plans of an outline for each number of devices, and print them."""
    outline = read_outline(data, path.absolute().parent)
    models = read_models(outline, path.absolute().parent)
    growth = read_lengths(asked.lengths) if asked.lengths else ()
    known = what_is_known(asked, outline, models)
    framework = None
    if asked.export:
        from nereus.integrations.exports import exported  # three frameworks' rules, which most plans need not read

        framework = exported(asked.export)
    if framework:
        outline = framework.run_by(outline)
    answers = []
    for count in device_counts(asked.gpus, outline.num_devices, "the outline's nodes have"):
        began = time.perf_counter()
        rules = framework.rules if framework else FREE
        planner = OutlinePlanner(outline=outline, models=models, learnt=known.learnt, num_devices=count, rules=rules)
        forbidden = framework.forbids(planner.pricer.outline) if framework else ""
        plans, report = ((), Report()) if forbidden else planner.best(asked.top, time.perf_counter)
        answers.append(
            Answer(
                count=count,
                planner=planner,
                plans=plans,
                report=report,
                seconds=time.perf_counter() - began,
                framework=framework,
                forbidden=forbidden,
                probes=probes_of(planner, asked, known) if plans else (),
            )
        )
    if asked.as_json:
        answered = {"job": outline.name, "answers": [_as_dict(a, asked, growth) for a in answers]}
        print(json.dumps(answered | known.as_dict()))  # noqa: T201
        return
    console = Console()
    show_known(console, known)
    for answer in answers:
        _show(console, answer, asked, growth)


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
    if asked.suggest_probes:
        found["probes"] = list(answer.probes)
    if answer.framework and answer.plans:
        free, broken = answer.planner.without_rules(answer.plans[0])
        found["export"] = {
            "framework": str(answer.framework),
            "overrides": list(answer.framework.overrides(answer.planner.pricer.outline, answer.plans[0])),
            "without_rules": {"l_step_seconds": free, "broken": list(broken)},
        }
    return found


def _plan_dict(answer: Answer, plan: PlannedStep) -> dict[str, Any]:
    pricer = answer.planner.pricer
    return {
        "l_step_seconds": plan.seconds,
        "critical_path": list(plan.overlap.path),
        "stage_seconds": {stage: taken for option in plan.options.values() for stage, taken in option.seconds.items()},
        "holders": {
            holder: {
                "kind": pricer.kind_name(option.kind),
                **option.choice,
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
    _show_plan(console, answer, answer.plans[0])
    _show_memory(console, answer, answer.plans[0])
    for sentence in _sentences(answer, asked, growth):
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if asked.suggest_probes:
        show_probes(console, answer.probes)
    if answer.framework:
        _show_export(console, answer, answer.framework)


def _show_export(console: Console, answer: Answer, framework: Framework) -> None:
    """What the rules of the framework cost, and lines to paste."""
    free, broken = answer.planner.without_rules(answer.plans[0])
    lines = [f"Without {framework.name}'s rules a step would take {free:.2f} s. They forbid that plan:"] if broken else []
    lines += [f"  {rule}" for rule in broken]
    lines.append(f"Plan 1 for {framework}:")
    lines += [f"  {line}" for line in framework.overrides(answer.planner.pricer.outline, answer.plans[0])]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _show_plan(console: Console, answer: Answer, plan: PlannedStep) -> None:
    rows = []
    for holder, option in plan.options.items():
        several = len(option.seconds) > 1
        taken = "\n".join(f"{s:.2f}" + (f" {stage}" if several else "") for stage, s in option.seconds.items())
        rows.append((holder, str(option), taken, spans(plan.devices[holder])))
    title = f"{answer.count} devices: a step takes {plan.seconds:.2f} s"
    show_table(console, title, ("", "layout", "seconds", "devices"), rows)


def _show_memory(console: Console, answer: Answer, plan: PlannedStep) -> None:
    """Memory by component against what a device has."""
    options, kinds = plan.options.values(), answer.planner.pricer.kinds
    parts = dict.fromkeys(part for option in options for part, size in option.memory.items() if size)
    rows = [(str(part), *(f"{option.memory.get(part, 0.0) / GIB:.1f}" for option in options)) for part in parts]
    if any(option.host_bytes for option in options):
        rows.append(("on its host", *(f"{option.host_bytes / GIB:.1f}" for option in options)))
    rows.append(("stays while idle", *(f"{option.resident_bytes / GIB:.1f}" for option in options)))
    rows.append(("of", *(f"{kinds[option.kind][1] / GIB:.0f}" for option in options)))
    show_table(console, "", ("GiB of a device", *plan.options), rows, sections=(len(parts),), by_column=True)


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
