"""The cost model of one accelerator kind: seconds and peak memory of a model-stage, and what measurements teach it.

    AcceleratorModel.training(run, model)  -> Prediction        .learn(measured)  -> a better AcceleratorModel

Immutable: learning gives a new one. What was learnt is saved by hardware kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import erf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nereus.cost.components import Component, MemoryScales, fullest_components, generation_components, training_components
from nereus.cost.efficiency import Efficiencies
from nereus.cost.execution import Execution
from nereus.cost.generation import Rollout, concurrent_sequences, generation_workload
from nereus.cost.layer import Architecture
from nereus.cost.training import inference_workload, training_workload
from nereus.cost.volume import Workload
from nereus.spec.policy import HEADROOM

PRESSURE_MEASURED = 0.85
"""Share of a device's memory from which runs were 2 to 8 times slower where the allocator returns memory to make room."""

PRESSURE_PREDICTED = 0.95
"""Share of a device's memory from which a predicted peak is more than an allocator can get: contexts and communicators keep
a few GiB of their own. What a run is most likely to take goes by this; a choice, by the risk that the peak is over the
share measured. Read off the H100 sweep as a whole, not derived: 0.9 and below call good runs stalled."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one model-stage takes."""

    seconds: float
    """The most likely ones."""
    expected_s: float
    """On average over what its memory may turn out to be: a plan that may stall is a gamble. Choices go by this."""
    work: Workload
    memory: Mapping[Component, float]
    """Bytes of the fullest device, by component."""
    fits: bool
    """Whether the peak leaves the headroom that plans leave by default."""

    @property
    def peak_bytes(self) -> float:
        """Of the fullest device: the sum of its components."""
        return sum(self.memory.values())


@dataclass(frozen=True, slots=True)
class Measured:
    """A training update that was run."""

    run: Execution
    model: Architecture
    seconds: float
    peak_bytes: float | None = None
    rank: int | None = None
    """Of the pipeline, whose peak that is; None: of the fullest."""
    weight: float = 1.0
    """How much it counts: less for plans that nobody would run."""


@dataclass(frozen=True, slots=True)
class AcceleratorModel:
    """What is known of one accelerator kind."""

    efficiencies: Efficiencies
    scales: MemoryScales = field(default_factory=MemoryScales)

    def training(self, run: Execution, model: Architecture, resident_bytes: float = 0.0) -> Prediction:
        """One optimizer update, on a device where `resident_bytes` of idle model-stages lie."""
        components = fullest_components(run, model, resident_bytes)
        share = self.scales.peak_bytes(components) / run.hardware.accelerator.memory_bytes
        likely = self._prediction(run, training_workload(run, model, near_capacity=share > PRESSURE_PREDICTED), components)
        if not run.regime.stalls_near_capacity or run.pp == 1:
            return likely
        risk = 0.5 * (1 + erf((share - PRESSURE_MEASURED) / (sqrt(2) * self.scales.error * share)))
        smooth, stalled = (self.seconds(training_workload(run, model, near_capacity=near)) for near in (False, True))
        return replace(likely, expected_s=(1 - risk) * smooth + risk * stalled)

    def inference(self, run: Execution, model: Architecture, resident_bytes: float = 0.0) -> Prediction:
        """Forward passes over whole sequences."""
        components = generation_components(run, model, 0.0, resident_bytes)
        return self._prediction(run, inference_workload(run, model), components)

    def generation(self, run: Execution, model: Architecture, rollout: Rollout, resident_bytes: float = 0.0) -> Prediction:
        """Prompts to responses, as many at a time as the rollout's KV memory holds."""
        tokens = concurrent_sequences(run, model, rollout) * (rollout.prompt_tokens + rollout.response_tokens / 2)
        components = generation_components(run, model, tokens, resident_bytes, rollout.kv_item_bytes)
        return self._prediction(run, generation_workload(run, model, rollout), components)

    def training_seconds(self, run: Execution, model: Architecture) -> float:
        """What `training` expects, without counting memory where it does not matter."""
        if run.regime.stalls_near_capacity:
            return self.training(run, model).expected_s
        return self.seconds(training_workload(run, model))

    def training_memory(self, run: Execution, model: Architecture) -> Mapping[Component, float]:
        """Bytes of the fullest device of a training update, without its seconds."""
        return self.scales.by_component(fullest_components(run, model))

    def reported_peak(self, run: Execution, model: Architecture, rank: int | None = None) -> float:
        """Peak bytes that a run reports of a pipeline rank (None: the fullest): no more than its device has."""
        peak = self.scales.peak_bytes(_reported(run, model, rank))
        return min(peak, run.hardware.accelerator.memory_bytes)

    def inference_memory(self, run: Execution, model: Architecture) -> Mapping[Component, float]:
        """The same of forward passes."""
        return self.scales.by_component(generation_components(run, model, 0.0))

    def generation_memory(self, run: Execution, model: Architecture, rollout: Rollout) -> Mapping[Component, float]:
        """The same of generation."""
        tokens = concurrent_sequences(run, model, rollout) * (rollout.prompt_tokens + rollout.response_tokens / 2)
        return self.scales.by_component(generation_components(run, model, tokens, 0.0, rollout.kv_item_bytes))

    def seconds(self, work: Workload) -> float:
        """Predicted seconds of any workload."""
        return self.efficiencies.seconds(work)

    def spread(self, prediction: Prediction) -> float:
        """Standard deviation of the log of the predicted seconds: about their relative error."""
        return self.efficiencies.uncertainty(prediction.work)

    def learn(self, measured: Sequence[Measured]) -> AcceleratorModel:
        """This model after training updates were run."""
        peaks = [one for one in measured if one.peak_bytes is not None]
        scales = self.scales
        if peaks:
            components = [_reported(one.run, one.model, one.rank) for one in peaks]
            capacities = [one.run.hardware.accelerator.memory_bytes for one in peaks]
            scales = scales.learn(components, [one.peak_bytes or 0.0 for one in peaks], capacities)
        works = [training_workload(one.run, one.model, near_capacity=_pressed(one)) for one in measured]
        seconds, weights = [one.seconds for one in measured], [one.weight for one in measured]
        return replace(self, efficiencies=self.efficiencies.learn(works, seconds, weights), scales=scales)

    def as_json(self) -> dict[str, Any]:
        """Plain data to save."""
        scales = {part.value: {"scale": scale, "spread": spread} for part, (scale, spread) in self.scales.values.items()}
        return {"efficiencies": self.efficiencies.as_json(), "memory_scales": scales, "memory_error": self.scales.error}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AcceleratorModel:
        """What `as_json` gave."""
        parts = data["memory_scales"].items()
        saved = {Component(name): (float(one["scale"]), float(one["spread"])) for name, one in parts}
        scales = MemoryScales({**MemoryScales().values, **saved}, float(data.get("memory_error", MemoryScales().error)))
        return cls(Efficiencies.from_json(data["efficiencies"]), scales)

    def _prediction(self, run: Execution, work: Workload, components: NDArray[np.float64]) -> Prediction:
        fits = self.scales.peak_bytes(components) <= (1 - HEADROOM) * run.hardware.accelerator.memory_bytes
        seconds = self.seconds(work)
        return Prediction(seconds, seconds, work, self.scales.by_component(components), fits)


def _reported(run: Execution, model: Architecture, rank: int | None) -> NDArray[np.float64]:
    return fullest_components(run, model) if rank is None else training_components(run, model, ranks=(rank,))


Key = tuple[str, str]
"""Accelerator kind, and role: generation, inference or training."""

Learnt = Mapping[Key, AcceleratorModel]
"""What was measured; kinds and roles that are not in it start from what ships with the kind. Roles learn apart: a token step
and a training pass reach other shares of the same peak, and a robust loss would take the rarer one for outliers."""


def _pressed(measured: Measured) -> bool:
    capacity = measured.run.hardware.accelerator.memory_bytes
    return measured.peak_bytes is not None and measured.peak_bytes > PRESSURE_MEASURED * capacity
