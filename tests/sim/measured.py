"""Published measurements as runs of the world, with the seconds and bytes that they took."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.costing.generation import BLOOM_176B, LLAMA_70B
from nereus.sim.decoding import Decode
from nereus.sim.footprint import CONTEXT
from nereus.sim.model_size import model_size
from nereus.sim.running import Groups, Run
from nereus.spec.decoder import Decoder
from nereus.spec.hardware import ACCELERATORS, GIB

NODE = 8
"""Devices of a node in every source."""


@dataclass(frozen=True, slots=True)
class Update:
    """A training update that was run, or that crashed."""

    group: tuple[str, ...]
    """The same model on the same devices."""
    run: Run
    seconds: float | None
    peak_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Iteration:
    """One token of every sequence of a batch."""

    name: tuple[str, ...]
    decode: Decode
    seconds: float
    prompt_s: float = 0.0
    """Of the prefill of the batch, where that was measured."""


def rows(folder: Path, name: str) -> Iterator[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        yield from csv.DictReader(file)


def decoder(line: dict[str, str], *, gated: bool, vocabulary: int, tied: bool = True) -> Decoder:
    heads, hidden = int(line["heads"]), int(line["hidden"])
    return Decoder(
        family="llama" if gated else "gpt2",
        gated=gated,
        hidden_size=hidden,
        num_layers=int(line["layers"]),
        num_heads=heads,
        num_kv_heads=int(line.get("kv_heads") or heads),
        head_dim=hidden // heads,
        ffn_size=int(line["ffn"]),
        vocab_size=vocabulary,
        tied=tied,
    )


def groups(tp: int, dp: int) -> Groups:
    """Ranks with tp fastest, then dp, then pp, as nanotron and Megatron number them."""
    if tp > NODE:
        return Groups(tp_nodes=tp // NODE, hop_spans=True, replica_nodes=dp)
    beside = max(1, min(dp, NODE // tp))
    return Groups(hop_spans=tp * dp >= NODE, replica_nodes=-(-dp * tp // NODE), replicas_per_node=beside)


def run(line: dict[str, str], kind: str, model: Decoder, sequences: int, tokens: int, *, recompute: bool) -> Run:
    tp, pp, dp = (int(line[key]) for key in ("tp", "pp", "dp"))
    return Run(
        size=model_size(model),
        accelerator=ACCELERATORS[kind],
        tp=tp,
        pp=pp,
        dp=dp,
        micro_batch=int(line["microbatch"]),
        sequences=sequences / dp,
        tokens=tokens,
        recompute=recompute,
        zero1=line.get("zero_stage") == "1",
        groups=groups(tp, dp),
    )


def sweep_h100(folder: Path) -> list[Update]:
    """Of two runs of one configuration the faster one: their sequence-parallel switch is not published."""
    best: dict[tuple[str, ...], Update] = {}
    for line in rows(folder, "published/training_sweep_h100.csv"):
        model = decoder({**line, "kv_heads": ""}, gated=True, vocabulary=int(line["vocab"]))
        key = tuple(line[name] for name in ("model", "gpus", "tp", "pp", "dp", "microbatch", "zero_stage"))
        ran = line["status"] == "success"
        seconds = float(line["iter_time_s_derived"]) if ran else None
        peak = float(line["peak_mem_gib"]) * GIB if ran else None
        found = Update(key[:2], run(line, "H100", model, 256, 4096, recompute=False), seconds, peak)
        known = best.get(key)
        if known is None or (seconds is not None and (known.seconds is None or seconds < known.seconds)):
            best[key] = found
    return list(best.values())


def layouts_a100(folder: Path, name: str) -> list[Update]:
    """Megatron with full recomputation; a padded GPT-2 vocabulary."""
    found = []
    for line in rows(folder, f"published/training_layouts_a100_{name}_node.csv"):
        model = decoder(line, gated=False, vocabulary=51_200)
        one = run(line, "A100-80GB", model, int(line["global_batch"]), int(line["seqlen"]), recompute=True)
        found.append(Update((line["model"], line["gpus"]), one, float(line["iter_time_s"])))
    return found


def static_batches(folder: Path) -> list[Iteration]:
    """Medians of the repeats, without batches that the memory does not hold at once."""
    repeats = defaultdict(list)
    for line in rows(folder, "published/generation_static_batch.csv"):
        key = (line["model"], line["tp"], int(line["batch_size"]), int(line["input_len"]), int(line["output_len"]))
        repeats[key].append((float(line["token_time_ms"]) / 1e3, float(line["prompt_time_ms"]) / 1e3))
    accelerator, found = ACCELERATORS["A100-80GB"], []
    for (name, tp, batch, prompt, response), taken in repeats.items():
        size = model_size({"llama2-70b": LLAMA_70B, "bloom-176b": BLOOM_176B}[name])
        room = 0.9 * accelerator.memory_bytes - size.parameters * 2 / int(tp)
        if batch * (prompt + response) * size.kv_bytes / int(tp) <= room:
            decode = Decode(size=size, accelerator=accelerator, tp=int(tp), concurrent=batch, context=prompt + response / 2)
            token_s, prompt_s = (median(values) for values in zip(*taken, strict=True))
            found.append(Iteration((name, tp, str(prompt)), decode, token_s, prompt_s))
    return found


MODELS = {
    "1.5B": Decoder(
        hidden_size=1536, num_layers=28, num_heads=12, num_kv_heads=2, head_dim=128, ffn_size=8960, vocab_size=151_936
    ),
    "7B": Decoder(
        hidden_size=3584, num_layers=28, num_heads=28, num_kv_heads=4, head_dim=128, ffn_size=18_944, vocab_size=152_064
    ),
}
"""From the published config.json of DeepSeek-R1-Distill-Qwen-1.5B and -7B."""


def rollouts(folder: Path, name: str) -> list[Iteration]:
    """Generation of a verl run on 8 devices, 512 responses a step: seconds over the longest are those of one iteration."""
    found = []
    for line in rows(folder, f"lengths/verl_softgrpo_{name}_normal_grpo.csv"):
        mean, longest = float(line["response_length_mean"]), float(line["response_length_max"])
        decode = Decode(
            size=model_size(MODELS[name]),
            accelerator=ACCELERATORS["H100"],
            concurrent=512 / 8 * mean / longest,
            context=float(line["prompt_length_mean"]) + CONTEXT * mean,
        )
        found.append(Iteration((name,), decode, float(line["timing_s_gen"]) / longest))
    return found
