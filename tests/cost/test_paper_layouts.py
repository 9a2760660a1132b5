"""The paper's own cases of training Llama-3.1-8B (section 2, Fig. 4(b)), in one setting that nothing was tuned for."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from typer.testing import CliRunner

from benchmarks.paper_layouts import CASES, SEQUENCES, Layout, Pool, best, layouts, main

SHORT, LONG = Pool("H100", 8, 16, 2048), Pool("H100", 8, 16, 4096)


def layout(pool: Pool, dp: int, tp: int, pp: int) -> Layout:
    return next(one for one in layouts(pool) if one.degrees == (dp, tp, pp))


def test_layout_that_is_faster_at_2k_does_not_fit_at_4k() -> None:
    """(4, 2, 2) beats (4, 4, 1) at 2K tokens and runs out of memory at 4K, where (4, 4, 1) fits."""
    assert layout(SHORT, 4, 2, 2).fits
    assert layout(SHORT, 4, 2, 2).seconds < layout(SHORT, 4, 4, 1).seconds
    assert not layout(LONG, 4, 2, 2).fits
    assert layout(LONG, 4, 4, 1).fits
    assert best(LONG).degrees == (4, 4, 1)


@pytest.mark.parametrize("pool", [Pool("H100", 8, 32, 4096), Pool("A100-40GB", 4, 32, 2048)], ids=str)
def test_best_layout_differs_between_32_and_256_devices(pool: Pool) -> None:
    few, many = best(pool), best(replace(pool, num_devices=256))
    assert (few.tp, few.pp) != (many.tp, many.pp)


@pytest.mark.parametrize("pool", CASES, ids=str)
def test_layouts_share_the_batch_out_over_all_devices(pool: Pool) -> None:
    for one in layouts(pool):
        assert one.dp * one.tp * one.pp == pool.num_devices
        assert one.dp * one.micro_batches * 4 == SEQUENCES
        assert one.tp <= pool.devices_per_node


def test_more_replicas_shorten_the_batch_and_not_what_comes_after_it() -> None:
    """Why they differ: an eighth of the micro-batches, so a pipeline is filled for less, while each rank still takes in and
    sends out (dp - 1) / dp of its gradients and parameters; only the optimizer's share of ZeRO-1 shrinks."""
    few, many = layout(Pool("H100", 8, 32, 4096), 8, 4, 1), layout(Pool("H100", 8, 256, 4096), 64, 4, 1)
    assert few.micro_batches == 8 * many.micro_batches
    assert few.seconds - few.after_s == pytest.approx(8 * (many.seconds - many.after_s), rel=0.01)
    assert many.after_s > few.after_s
    piped = layout(Pool("H100", 8, 256, 4096), 64, 2, 2)
    assert piped.bubble == pytest.approx(1 / 3)


def test_program_prints_what_was_found() -> None:
    import typer

    app = typer.Typer()
    app.command()(main)
    printed = CliRunner().invoke(app, ["--json"])
    assert printed.exit_code == 0
    found = json.loads(printed.stdout)
    assert found[str(LONG)] == [asdict(one) for one in layouts(LONG)]
