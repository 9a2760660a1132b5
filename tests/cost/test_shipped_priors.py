"""Efficiencies that ship: only where a public measurement stands behind them, and never more sure than it allows."""

from __future__ import annotations

import pytest

from nereus.cost.efficiency import UNSEEN
from nereus.cost.operations import MOST, OpClass
from nereus.cost.priors import PRIORS, shipped
from nereus.spec.hardware import ACCELERATORS


@pytest.mark.parametrize("kind", ACCELERATORS)
def test_a_kind_without_a_public_measurement_starts_from_guesses(kind: str) -> None:
    known = shipped(kind)
    assert ("guesses" in known.source) == (kind not in PRIORS)
    assert all(known.values[op] == UNSEEN[op] for op in OpClass) == (kind not in PRIORS)


@pytest.mark.parametrize("kind", PRIORS)
def test_every_shipped_figure_has_a_source_and_an_error(kind: str) -> None:
    for prior in PRIORS[kind]:
        assert prior.source
        assert "%" in prior.error
        assert prior.source in shipped(kind).source


@pytest.mark.parametrize("kind", PRIORS)
def test_a_shipped_figure_is_possible_and_stays_uncertain(kind: str) -> None:
    known = shipped(kind)
    for op in OpClass:
        assert 0 < known.values[op].value <= MOST.get(op, 2.0)
        assert known.values[op].spread >= 0.2
        assert not known.values[op].measured


@pytest.mark.parametrize("kind", PRIORS)
def test_what_belongs_to_a_software_regime_is_not_shipped(kind: str) -> None:
    values = [prior.values for prior in PRIORS[kind]]
    assert not any(op in found for found in values for op in (OpClass.STALL, OpClass.DISPATCH_PIPELINED, OpClass.HOST))
