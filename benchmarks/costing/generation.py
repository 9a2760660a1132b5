"""Published generation: the seconds of a token step, and the TP degree with the highest throughput at full load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.costing.measured import read
from nereus.cost.efficiency import Efficiencies
from nereus.cost.execution import Execution
from nereus.cost.generation import (
    Rollout,
    concurrent_sequences,
    decode_phase,
    generation_workload,
    kv_room_bytes,
    prefill_phase,
)
from nereus.cost.layer import Architecture
from nereus.cost.volume import Workload
from nereus.spec.decoder import Decoder
from nereus.spec.hardware import ACCELERATORS, Hardware

LLAMA_70B = Decoder(
    hidden_size=8192, num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128, ffn_size=28_672, vocab_size=32_000
)
"""Llama-2-70B, from its published config.json."""

BLOOM_176B = Decoder(
    family="gpt2",
    gated=False,
    hidden_size=14_336,
    num_layers=70,
    num_heads=112,
    num_kv_heads=112,
    head_dim=128,
    ffn_size=57_344,
    vocab_size=250_880,
    tied=True,
)
"""BLOOM-176B, from its published config.json."""

STATIC = {"llama2-70b": Architecture(LLAMA_70B), "bloom-176b": Architecture(BLOOM_176B)}


@dataclass(frozen=True, slots=True)
class Timed:
    """A workload, and the seconds it took."""

    group: tuple[str, ...]
    work: Workload
    seconds: float


def static_batch(folder: Path, what: str) -> list[Timed]:
    """Medians of the repeats of generation_static_batch: `token` or `prompt` times, in groups of model and TP.

    Batches beyond what the memory holds are left out: the engine ran them in waves, and the table gives no time of one step.
    """
    found: dict[tuple[str, str, int, int, int], list[float]] = defaultdict(list)
    for line in read(folder, "generation_static_batch"):
        key = (line["model"], line["tp"], int(line["batch_size"]), int(line["input_len"]), int(line["output_len"]))
        found[key].append(float(line[f"{what}_time_ms"]) / 1e3)
    timed = []
    for (name, tp, batch, prompt, response), seconds in found.items():
        run = Execution(
            hardware=Hardware(ACCELERATORS["A100-80GB"]), tp=int(tp), sequences=batch, tokens=prompt, dtype="bfloat16"
        )
        model, context = STATIC[name], prompt + response / 2
        if what == "token":
            phase = decode_phase(run, model, 1, batch, context, 2)
        else:
            phase = prefill_phase(run, model, batch, prompt)
        room = kv_room_bytes(run, model, 0.9 * run.hardware.accelerator.memory_bytes)
        rollout = Rollout(
            sequences=batch, prompt_tokens=prompt, response_tokens=response, longest_tokens=response, kv_bytes=max(room, 0.0)
        )
        if concurrent_sequences(run, model, rollout) >= batch:
            timed.append(Timed((name, tp), Workload(phases=(phase,)), median(seconds)))
    return timed


def left_out(timed: Sequence[Timed], kind: str) -> dict[str, Any]:
    """Each group predicted by efficiencies that were fitted on the others."""
    errors: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for group in sorted({one.group for one in timed}):
        others = [one for one in timed if one.group != group]
        known = Efficiencies(kind).learn([one.work for one in others], [one.seconds for one in others])
        errors[group] = [abs(known.seconds(one.work) / one.seconds - 1) for one in timed if one.group == group]
    return _errors(errors)


def after_four(timed: Sequence[Timed], kind: str) -> dict[str, Any]:
    """The rest of each group, predicted after four of its rows, evenly spaced."""
    errors: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for group in sorted({one.group for one in timed}):
        rows = sorted((one for one in timed if one.group == group), key=lambda one: one.seconds)
        places = {round(i * (len(rows) - 1) / 3) for i in range(4)}
        seen = [rows[place] for place in places]
        known = Efficiencies(kind).learn([one.work for one in seen], [one.seconds for one in seen])
        errors[group] = [
            abs(known.seconds(one.work) / one.seconds - 1) for place, one in enumerate(rows) if place not in places
        ]
    return _errors(errors)


def _errors(errors: dict[tuple[str, ...], list[float]]) -> dict[str, Any]:
    everything = [error for group in errors.values() for error in group]
    by_group = {" ".join(("tp", *group[1:], group[0])): round(mean(found), 4) for group, found in errors.items()}
    return {"groups": len(errors), "mape_latency": round(mean(everything), 4), "by_group": by_group}


KINDS = {"H100-80GB-SXM": "H100", "GH200-480GB": "GH200", "L40S": "L40S", "B200-180GB": "B200"}

PRECISIONS = {"fp8": ("float8", 1.0), "fp4": ("float4", 0.5), "bf16": ("bfloat16", 2.0), "fp16": ("float16", 2.0)}


@dataclass(frozen=True, slots=True)
class Load:
    """An engine at full load on one TP group."""

    case: tuple[str, ...]
    tp: int
    work: Workload
    fits: bool
    tokens: float
    """Response tokens of the workload."""
    measured: float
    """Tokens per second and device."""

    @property
    def seconds(self) -> float:
        """What the workload took, from the measured rate."""
        return self.tokens / (self.measured * self.tp)


def full_load(folder: Path) -> list[Load]:
    """generation_llama_tp_sweep: many sequences, as many at a time as the memory holds."""
    return [load for line in read(folder, "generation_llama_tp_sweep") if (load := _load(line)) is not None]


MAX_SEQUENCES = 2048
"""Largest batch that TensorRT-LLM builds an engine for by default."""

KV_SHARE = 0.95
"""Of the memory that is free beside the weights, for the KV cache: what the overview set for the majority of its cases."""

ENGINE_BYTES = 2 * 2**30
"""Activations and buffers of an engine of this size."""

REQUESTS = {
    ("128", "128"): 30_000,
    ("128", "2048"): 3000,
    ("128", "4096"): 1500,
    ("2048", "128"): 3000,
    ("5000", "500"): 1500,
    ("500", "2000"): 3000,
    ("1000", "1000"): 3000,
    ("1000", "2000"): 1500,
    ("2048", "2048"): 1500,
    ("20000", "2000"): 1000,
}
"""Requests by input and output length, as TensorRT-LLM's performance overview prescribes; all of a length."""


def _load(line: dict[str, str]) -> Load | None:
    kind, (dtype, item) = KINDS[line["gpu"]], PRECISIONS[line["precision"]]
    model = Architecture(
        Decoder(
            hidden_size=int(line["hidden"]),
            num_layers=int(line["layers"]),
            num_heads=int(line["heads"]),
            num_kv_heads=int(line["kv_heads"]),
            head_dim=int(line["hidden"]) // int(line["heads"]),
            ffn_size=int(line["ffn"]),
            vocab_size=int(line["vocab"]),
        )
    )
    tp, prompt, response = int(line["tp"]), int(line["input_len"]), int(line["output_len"])
    run = Execution(hardware=Hardware(ACCELERATORS[kind]), tp=tp, sequences=1, tokens=prompt, weight_bytes=item, dtype=dtype)
    room = KV_SHARE * kv_room_bytes(run, model, run.hardware.accelerator.memory_bytes - ENGINE_BYTES)
    sequences = REQUESTS[line["input_len"], line["output_len"]]
    rollout = Rollout(
        sequences=sequences,
        prompt_tokens=prompt,
        response_tokens=response,
        longest_tokens=response,
        kv_bytes=max(room, 1.0),
        kv_item_bytes=1,
        reserves=True,
    )
    most = concurrent_sequences(run, model, rollout)
    rollout = replace(rollout, kv_bytes=rollout.kv_bytes * min(1.0, MAX_SEQUENCES / most))
    work = generation_workload(run, model, rollout)
    case = (line["model"], line["gpu"], line["precision"], line["input_len"], line["output_len"], line["framework"])
    return Load(case, tp, work, room > 0, sequences * response, float(line["tokens_per_s_per_gpu"]))


def best_tp(loads: Iterable[Load]) -> dict[str, Any]:
    """Share of cases whose best TP is found; each case is left out of the calibration of its device kind.

    Rates that differ by less than the median error of the calibration are a tie, and the smaller TP group wins, as it leaves
    more to choose from.
    """
    cases: dict[tuple[str, ...], list[Load]] = defaultdict(list)
    for load in loads:
        cases[load.case].append(load)
    found, losses = [], []
    for case, members in cases.items():
        if len(members) < 2:
            continue
        others = [
            load for other, rows in cases.items() if other != case and other[1] == case[1] for load in rows if load.fits
        ]
        known = Efficiencies(case[1]).learn([load.work for load in others], [load.seconds for load in others])
        tie = median([abs(known.seconds(load.work) / load.seconds - 1) for load in others] or [0.0])
        rates = {load.tp: load.tokens / known.seconds(load.work) / load.tp if load.fits else 0.0 for load in members}
        best = max(members, key=lambda load: load.measured)
        close = [load for load in members if rates[load.tp] >= (1 - tie) * max(rates.values())]
        chosen = min(close, key=lambda load: load.tp)
        found.append(chosen is best)
        losses.append(1 - chosen.measured / best.measured)
    return {"cases": len(found), "share_best_tp": round(mean(found), 4), "worst_loss": round(max(losses), 4)}
