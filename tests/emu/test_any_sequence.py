"""No sequence of primitives loses the last copy, and what is refused changes nothing."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nereus.emu.primitives import Destroy, EmuCollection, Extend, Merge, Split, apply
from nereus.emu.unit import Emu
from nereus.errors import PreconditionError
from nereus.layout.layout import Layout
from tests.builders import ENDPOINT_OF, UnitNames, make_emu

POOL = tuple(ENDPOINT_OF[device] for device in range(16))
DIVISORS = {n: [d for d in range(1, n + 1) if n % d == 0] for n in range(1, 17)}
degree, small = st.integers(1, 3), st.integers(1, 2)


class AnySequence(RuleBasedStateMachine):
    """Applies primitives as they come, legal or not; a refusal must change nothing."""

    @initialize(tp=degree, pp=degree, fsdp=small)
    def start(self, tp: int, pp: int, fsdp: int) -> None:
        self.names = UnitNames()
        size = tp * pp * fsdp
        self.collection: EmuCollection = frozenset({make_emu(f"tp{tp} pp{pp} fsdp{fsdp}", devices=range(size))})

    def _pick(self, data: st.DataObject) -> Emu:
        return data.draw(st.sampled_from(sorted(self.collection, key=lambda emu: emu.unit)))

    def _free(self) -> list[str]:
        return [e for e in POOL if not any(e in emu.endpoints for emu in self.collection)]

    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        emu = self._pick(data)
        degrees = (DIVISORS[n] for n in (emu.layout.tp, emu.layout.pp, emu.layout.fsdp))
        options = [Layout(*each) for each in product(*degrees)]
        sub = data.draw(st.sampled_from(options))
        if sub != emu.layout:
            self.collection = apply(self.collection, Split.of(emu, sub, self.names))

    @rule(data=st.data(), by_tp=degree, by_pp=degree, by_fsdp=small)
    def merge(self, data: st.DataObject, by_tp: int, by_pp: int, by_fsdp: int) -> None:
        first = self._pick(data)
        alike = sorted((emu for emu in self.collection if emu.layout == first.layout), key=lambda emu: emu.unit)
        parts = tuple(data.draw(st.permutations(alike))[: by_tp * by_pp * by_fsdp])
        if len(parts) == by_tp * by_pp * by_fsdp > 1:
            whole = Layout(first.layout.tp * by_tp, first.layout.pp * by_pp, first.layout.fsdp * by_fsdp)
            self.collection = apply(self.collection, Merge.of(parts, whole, self.names))

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        emu = self._pick(data)
        if len(self._free()) >= emu.layout.size:
            endpoints = tuple(data.draw(st.permutations(self._free()))[: emu.layout.size])
            self.collection = apply(self.collection, Extend.of(emu, endpoints, self.names))

    @precondition(lambda self: len(self.collection) > 1)
    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        self.collection = apply(self.collection, Destroy(self._pick(data)))

    @precondition(lambda self: len(self.collection) == 1)
    @rule()
    def destroy_the_last(self) -> None:
        (emu,) = self.collection
        with pytest.raises(PreconditionError):
            apply(self.collection, Destroy(emu))

    @rule(data=st.data())
    def use_an_ended_unit(self, data: st.DataObject) -> None:
        emu = self._pick(data)
        if emu.layout.size > 1:
            split = Split.of(emu, Layout(), self.names)
            self.collection = apply(self.collection, split)
            with pytest.raises(PreconditionError):
                apply(self.collection, split)

    @invariant()
    def a_copy_is_left(self) -> None:
        assert self.collection

    @invariant()
    def endpoints_are_disjoint(self) -> None:
        used = [e for emu in self.collection for e in emu.endpoints]
        assert len(used) == len(set(used))

    @invariant()
    def names_are_used_once(self) -> None:
        assert len({emu.unit for emu in self.collection}) == len(self.collection)


AnySequence.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
TestAnySequence = AnySequence.TestCase
