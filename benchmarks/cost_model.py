"""The cost model against published measurements: does it choose what was fastest, and does it say how long it takes?

    python -m benchmarks.cost_model --data DIR [--quick] [--json]

Nothing is fitted on what it is judged on. Beside the model stand the rule "least model parallelism that fits" and, where
`--llm-analysis PYTHON` names an environment that has it, llm-analysis.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.costing import collectives, generation, peer, stages, training
from benchmarks.costing.measured import sweep_h100
from benchmarks.costing.score import score

KEYS = (
    "groups",
    "median_regret",
    "p90_regret",
    "share_within_10pct_strict",
    "kendall_tau_median",
    "mape_latency_within_2x",
    "mape_memory",
    "infeasible_choices",
    "oom_accuracy",
)

DEFAULT = Path(__file__).parents[2] / "shared" / "data"


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer groups and steps of the long sources.")] = False,
    data: Annotated[Path, typer.Option(help="Folder of the published measurements.")] = DEFAULT,
    llm_analysis: Annotated[
        Path | None, typer.Option(help="Python of an environment that has llm-analysis 0.2.2; without it, it is left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Judge the cost model, source by source."""
    console, start = Console(stderr=as_json), time.perf_counter()
    if not data.is_dir():
        raise typer.BadParameter(f"no folder {data}; --data names the folder of measured data")
    found: dict[str, Any] = {"training_sweep_h100": training.judge_sweep(data), **training.judge_other(data, quick=quick)}
    token, prompt = generation.static_batch(data, "token"), generation.static_batch(data, "prompt")
    found["generation_static_batch"] = {
        "token_each_group_left_out": generation.left_out(token, "A100-80GB"),
        "token_after_four_rows": generation.after_four(token, "A100-80GB"),
        "prompt_after_four_rows": generation.after_four(prompt, "A100-80GB"),
    }
    found["generation_llama_tp_sweep"] = generation.best_tp(generation.full_load(data))
    found["collectives"] = collectives.judge(data)
    found["verl_softgrpo"] = stages.judge(data, quick=quick)
    found["peers"] = _peers(data, llm_analysis)
    found["seconds"] = round(time.perf_counter() - start, 1)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show(found, console)


def _peers(data: Path, llm_analysis: Path | None) -> dict[str, Any]:
    """What others say of the same configurations."""
    if llm_analysis is None:
        return {
            "llm-analysis": {
                "not_run": "--llm-analysis names the Python of an environment that has it",
                "cannot": peer.CANNOT,
            }
        }
    return {"llm-analysis": {**score(peer.guesses(llm_analysis, sweep_h100(data))), "cannot": peer.CANNOT}}


def _show(found: dict[str, Any], console: Console) -> None:
    for source, scores in found.items():
        if source.startswith("training"):
            own = {"four rows seen": scores} if "median_regret" in scores else {}
            for name, one in {**own, **{name: one for name, one in scores.items() if isinstance(one, dict)}}.items():
                if "median_regret" in one:
                    line = ", ".join(f"{key} {_text(one.get(key))}" for key in KEYS)
                    console.print(f"{source} ({name}): {line}", highlight=False, markup=False, soft_wrap=True)
        else:
            console.print(f"{source}: {json.dumps(scores)}", highlight=False, markup=False, soft_wrap=True)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    typer.run(main)
