"""Learning from the log of a run: the work of each logged stage in the layout that it had, and efficiencies from its times.

    RunLog, plan that ran -> samples_of -> a Sample per step and model-stage -> learn          -> Learnt, by kind and role
                                                                             -> one_step_ahead -> errors by model-stage

What is learnt is about operation classes, not about the layout: the search then prices every other layout with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import mean

from nereus.cost.accelerator import AcceleratorModel, Key, Learnt
from nereus.cost.execution import Execution
from nereus.cost.generation import kv_room_bytes, kv_token_bytes
from nereus.cost.priors import known_of
from nereus.cost.training import inference_workload
from nereus.cost.volume import Workload
from nereus.emu.plan import StagePlan
from nereus.errors import UserError
from nereus.layout.layout import Layout
from nereus.planner.accelerators import Pricer
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline
from nereus.spec.plan_file import PlannedStage
from nereus.spec.ran import RanStage
from nereus.spec.run_log import ACTOR_INFERENCE, LoggedStep, RunLog
from nereus.spec.stages import ACTOR_TRAINING, role_of
from nereus.spec.workflow import GENERATION

WARM_UP = 20
"""Steps before the first prediction one step ahead."""

WINDOW = 40
"""Steps that are learnt from: a drift is followed, and a spike (a validation, a checkpoint) outvoted."""

JUDGED = 12
"""Steps at most that are predicted one step ahead, evenly spaced: each takes a fit."""

DRIFT = 2.0
"""By how much spreads from a file are widened before a log is learnt from: it is of another day, maybe of another cluster.
With this, one log brings back a class that has changed by a third after six logs of another speed; with 1 the prediction
stays a tenth away."""

OUTVOTED = 0.2
"""Relative difference from which a measured time counts as outvoted: repeats differ by 0.3 to 5 %, and steps that also
validated or saved by more than this."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One model-stage in one step."""

    stage: str
    kind: str
    """Accelerator that it ran on."""
    work: Workload
    seconds: float
    """That it took."""

    @property
    def key(self) -> Key:
        """What it is a measurement of."""
        return self.kind, role_of(self.stage) or ""


Step = tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFit:
    """How well one model-stage of the log is met."""

    stage: str
    kind: str
    num_steps: int
    """Learnt from."""
    num_outvoted: int
    """Of them, those whose time the fit does not believe."""
    error: float
    """Mean relative error over the steps learnt from, outvoted ones included."""
    one_step_ahead: float | None
    """Mean relative error of steps that were predicted from those before; None for a log that is too short."""
    num_judged: int
    """Steps that were predicted so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a log taught."""

    before: Learnt
    """What the kinds and roles of the log were priced with."""
    learnt: Learnt
    """The same after it, and all that was learnt earlier."""
    num_steps: int
    """Of the log that have a stage time."""
    num_left_out: int
    """Rows of the log that have none."""
    stages: tuple[StageFit, ...]


def calibrate(
    outline: Outline, models: Mapping[str, HfModel], ran: Mapping[str, RanStage], log: RunLog, known: Learnt
) -> Calibration:
    """Learn from the log of a run of this outline that had the plan `ran`, starting from what is known.

    Raises UserError where the log has no stage time of a model-stage of that plan.
    """
    steps = samples_of(outline, models, ran, log.steps)
    keys = dict.fromkeys(sample.key for step in steps for sample in step)
    if not keys:
        timed = ", ".join(dict.fromkeys(stage for step in log.steps for stage in step.seconds))
        raise UserError(f"the plan that ran has only {', '.join(ran)}, and the log has times of {timed}; name one of these")
    old = {key: _drifted(model) if key in keys else model for key, model in known.items()}
    learnt, ahead = learn(old, steps), one_step_ahead(old, steps)
    return Calibration(
        before={key: known_of(known, key) for key in keys},
        learnt=learnt,
        num_steps=len(steps),
        num_left_out=log.num_left_out,
        stages=tuple(_fits(learnt, steps, ahead)),
    )


def samples_of(
    outline: Outline, models: Mapping[str, HfModel], ran: Mapping[str, RanStage], steps: Iterable[LoggedStep]
) -> tuple[Step, ...]:
    """The samples of each step; a model-stage whose holder is not in `ran` is left out, and so is the generation of an
    asynchronous job, whose log says how long training waited for it."""
    return tuple(tuple(_samples(Pricer(_at(outline, step), models, {}), ran, step)) for step in steps)


def learn(known: Learnt, steps: Sequence[Step]) -> dict[Key, AcceleratorModel]:
    """What is known after the last WINDOW steps."""
    seen: dict[Key, list[Sample]] = defaultdict(list)
    for step in steps[-WINDOW:]:
        for sample in step:
            seen[sample.key].append(sample)
    found = dict(known)
    for key, samples in seen.items():
        model = known_of(known, key)
        better = model.efficiencies.learn([one.work for one in samples], [one.seconds for one in samples])
        found[key] = replace(model, efficiencies=better)
    return found


def one_step_ahead(known: Learnt, steps: Sequence[Step], judged: int = JUDGED) -> dict[str, list[float]]:
    """Relative errors by model-stage: what a step takes is predicted from the steps before it, after WARM_UP of them."""
    errors: dict[str, list[float]] = defaultdict(list)
    every = max(1, -(-(len(steps) - WARM_UP) // judged))
    for now in range(WARM_UP, len(steps), every):
        learnt = learn(known, steps[:now])
        for sample in steps[now]:
            errors[sample.stage].append(_error(learnt, sample))
    return dict(errors)


def _drifted(model: AcceleratorModel) -> AcceleratorModel:
    return replace(model, efficiencies=model.efficiencies.drifting(DRIFT))


def _error(learnt: Learnt, sample: Sample) -> float:
    return abs(known_of(learnt, sample.key).seconds(sample.work) / sample.seconds - 1)


def _fits(learnt: Learnt, steps: Sequence[Step], ahead: Mapping[str, Sequence[float]]) -> Iterator[StageFit]:
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    for step in steps[-WINDOW:]:
        for sample in step:
            seen[sample.stage, sample.kind].append(_error(learnt, sample))
    for (stage, kind), errors in seen.items():
        judged = ahead.get(stage, ())
        yield StageFit(
            stage=stage,
            kind=kind,
            num_steps=len(errors),
            num_outvoted=sum(error > OUTVOTED for error in errors),
            error=mean(errors),
            one_step_ahead=mean(judged) if judged else None,
            num_judged=len(judged),
        )


def execution(pricer: Pricer, holder: str, kind: int, choice: PlannedStage) -> Execution:
    """How a holder runs that a plan file names. Generation without a micro-batch takes as many sequences at a time as the
    memory that a plan may fill has room for, fully grown."""
    layout = Layout(choice.tp, choice.pp)
    plan = StagePlan(holder, layout, choice.dp, choice.devices, choice.micro_batch, choice.zero1, choice.recompute)
    run, outline = pricer.planned(holder, kind, plan), pricer.outline
    if outline.workflow.stage(holder).role != GENERATION or "micro_batch" in choice.model_fields_set:
        return run
    architecture = pricer.architecture(holder)
    tokens = architecture.context(outline.workload.prompt_tokens + outline.workload.response_tokens)
    room = kv_room_bytes(run, architecture, pricer.usable_bytes(kind))
    fits = room / (kv_token_bytes(run, architecture, run.item_bytes) * tokens)
    return replace(run, micro_batch=max(1, int(min(ceil(run.sequences / run.dp), fits))))


def _at(outline: Outline, step: LoggedStep) -> Outline:
    """The outline with the lengths of a step."""
    work = outline.workload
    mean = max(1, round(step.response_tokens))
    update = {
        "prompt_tokens": max(1, round(step.prompt_tokens or work.prompt_tokens)),
        "response_tokens": mean,
        "longest_response_tokens": max(mean, round(step.longest_tokens or work.longest_tokens)),
    }
    return outline.model_copy(update={"workload": work.model_copy(update=update)})


def _samples(pricer: Pricer, ran: Mapping[str, RanStage], step: LoggedStep) -> Iterator[Sample]:
    known = {stage.name: stage.holder for stage in pricer.outline.workflow.stages} | {ACTOR_INFERENCE: ACTOR_TRAINING}
    for stage, seconds in step.seconds.items():
        holder = known.get(stage)
        waited = pricer.outline.asynchronous and role_of(stage) == GENERATION
        if holder is None or holder not in ran or waited:
            continue
        nodes = ran[holder].nodes
        kind = pricer.kinds.index((nodes.kind, nodes.memory_bytes))
        run = execution(pricer, holder, kind, ran[holder].choice)
        if stage == ACTOR_INFERENCE:
            work = inference_workload(run, pricer.architecture(holder))
        else:
            work = pricer.work(stage, kind, run)
        yield Sample(stage, nodes.kind, work, seconds)
