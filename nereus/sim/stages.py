"""Seconds of a model-stage on one EMU: its share of the step's sequences, on the surfaces of its kind in this world.

generation = prefill + iterations x iteration        inference, training = updates x surface x slowdown of RL frameworks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from nereus.emu.plan import StagePlan
from nereus.sim.decoding import Decode
from nereus.sim.footprint import CONTEXT, PREFILL_TOKENS, MemorySurface
from nereus.sim.model_size import HALF, ModelSize, model_size
from nereus.sim.noise import drawn
from nereus.sim.places import Place
from nereus.sim.published import DECODING, RL_SLOWDOWN, RL_SPREAD, ROUGHNESS, TRAINING, Published, world_surface
from nereus.sim.responses import Lengths
from nereus.sim.running import Run
from nereus.sim.surface import Surface
from nereus.spec.hardware import Accelerator
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Sequences
from nereus.spec.workflow import GENERATION, ModelStage, Workflow
from nereus.spec.workflow import TRAINING as UPDATE


@dataclass(frozen=True)
class StageTimes:
    """The surfaces of one world, applied to the model-stages of one outline."""

    workload: Sequences
    workflow: Workflow
    models: Mapping[str, HfModel]
    accelerators: Mapping[str, Accelerator]
    """By kind."""
    seed: int

    def size(self, stage: ModelStage) -> ModelSize:
        """The model of a model-stage; critics and reward models give values."""
        return model_size(self.models[stage.model].decoder, stage.model in ("critic", "reward"))

    def weight_bytes(self, holder: str) -> float:
        """Bytes of the weights of a holder's model."""
        return HALF * self.size(self.workflow.stage(holder)).parameters

    def sequences(self, stage: ModelStage, dp: int) -> int:
        """Of the fullest replica in one step: ReMax's baseline is one response to each prompt."""
        work = self.workload
        baseline = stage.role == GENERATION and stage.holder != stage.name
        return ceil((work.prompts_per_step if baseline else work.global_batch) / dp)

    @cached_property
    def memory(self) -> MemorySurface:
        """What memory comes to."""
        return MemorySurface().drawn(self.seed)

    def seconds(self, name: str, plan: StagePlan, place: Place, lengths: Lengths) -> float:
        """Of a model-stage on an EMU at this place."""
        stage = self.workflow.stage(name)
        if stage.role == GENERATION:
            found = self._generation(stage, plan, place, lengths)
        else:
            found = self._whole_sequences(stage, plan, place, lengths)
        return found * drawn(self.seed, f"{name} {plan.layout}", ROUGHNESS)

    def _whole_sequences(self, stage: ModelStage, plan: StagePlan, place: Place, lengths: Lengths) -> float:
        """Scoring, or the step's updates."""
        trains = stage.role == UPDATE
        updates = self.workload.updates_per_step if trains else 1
        run = Run(
            size=self.size(stage),
            accelerator=self.accelerators[place.kind],
            tp=plan.layout.tp,
            pp=plan.layout.pp,
            dp=plan.dp,
            micro_batch=plan.micro_batch,
            sequences=ceil(self.sequences(stage, plan.dp) / updates),
            tokens=self.workload.prompt_tokens + lengths.mean,
            trains=trains,
            recompute=plan.recompute,
            zero1=plan.zero1,
            groups=place.groups,
            slow=place.slow,
            links=dict(place.links),
        )
        inside_rl = max(RL_SLOWDOWN * drawn(self.seed, stage.role, RL_SPREAD), 1.0)
        return updates * inside_rl * self._run_seconds(run, place)

    def _generation(self, stage: ModelStage, plan: StagePlan, place: Place, lengths: Lengths) -> float:
        """Prompts are prefilled once; then every iteration adds a token to the sequences that are there."""
        sequences, prompt = self.sequences(stage, plan.dp), self.workload.prompt_tokens
        size, accelerator, layout = self.size(stage), self.accelerators[place.kind], plan.layout
        together = min(plan.micro_batch, sequences)
        iterations = lengths.longest + (sequences / together - 1) * lengths.mean
        decode = Decode(
            size=size,
            accelerator=accelerator,
            tp=layout.tp,
            pp=layout.pp,
            concurrent=sequences * lengths.mean / iterations,
            context=prompt + CONTEXT * lengths.mean,
            tp_spans=place.groups.tp_nodes > 1,
            slow=place.slow,
            links=dict(place.links),
        )
        prefill = Run(
            size=size,
            accelerator=accelerator,
            tp=layout.tp,
            pp=layout.pp,
            micro_batch=max(min(PREFILL_TOKENS // prompt, together), 1),
            sequences=sequences,
            tokens=prompt,
            trains=False,
            groups=place.groups,
            slow=place.slow,
            links=dict(place.links),
        )
        iteration = decode.ideal_s * self._surface(place.kind, "decoding").slowdown(decode.ratios())
        return self._run_seconds(prefill, place) + iterations * iteration

    def _run_seconds(self, run: Run, place: Place) -> float:
        return run.ideal_s * self._surface(place.kind, "training").slowdown(run.ratios(), run.bubble)

    def _surface(self, kind: str, name: str) -> Surface:
        found = self._surfaces.get((kind, name))
        if found is None:
            published: Mapping[str, Published] = DECODING if name == "decoding" else TRAINING
            found = self._surfaces[kind, name] = world_surface(published, kind, self.seed, name)
        return found

    @cached_property
    def _surfaces(self) -> dict[tuple[str, str], Surface]:
        return {}
