"""A checkpoint written under one layout is read under any other: every element is what the oracle's cut of the whole has.

global tensors -> stores of a -> shares -> files, index -> read_units -> stores of b == global tensors cut afresh
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nereus.control.checkpoint import digests_of
from nereus.control.events import StateWritten
from nereus.emu.unit import Emu
from nereus.errors import DigestMismatch, StoreError, UserError
from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.saving import shares
from nereus.layout.tensors import CanonicalTensor, TensorRef
from nereus.runtime.checkpoints import WrittenFile, load, partial_folder, seal, verify
from nereus.runtime.index import index_of
from nereus.transport.checkpoint import read_units, write_share
from nereus.transport.digest import box_sums
from nereus.transport.memory import DeviceMemory
from nereus.transport.store import DTYPES, UnitStore
from tests.builders import (
    STAGE,
    Values,
    fused_state,
    global_values,
    make_emus,
    make_model,
    make_state,
    rank_masks,
    shape_texts,
)

TIED = make_state(make_model(vocab=51, tied=True), optimizer=True)
"""Six layers, 51 tokens, two kv heads: nothing divides evenly; masters of bfloat16 weights are in `HALF`."""

HALF = make_state(make_model(vocab=51, tied=False), optimizer=True, dtype="bfloat16")
FUSED = fused_state()
STATES = {"tied": TIED, "bfloat16": HALF, "fused": FUSED}
LOOP = {"step": 7, "updates": 14, "used": [], "ledger": {}}


def whole(tensor: CanonicalTensor, values: Mapping[TensorRef, Values]) -> torch.Tensor:
    """The tensor's values in its dtype; bfloat16 holds numbers up to 256 exactly."""
    known = values[tensor.ref]
    return torch.from_numpy(known % 251 if tensor.dtype == "bfloat16" else known).to(DTYPES[tensor.dtype])


def stores_of(emus: Iterable[Emu]) -> dict[EndpointId, UnitStore]:
    names = {endpoint for emu in emus for endpoint in emu.endpoints}
    return {name: UnitStore(torch.device("cpu"), DeviceMemory(name, 1 << 30)) for name in names}


def filled(state: StateSpec, emus: tuple[Emu, ...]) -> dict[EndpointId, UnitStore]:
    """Stores with every unit whole."""
    stores, values = stores_of(emus), global_values(state)
    for emu in emus:
        for rank, endpoint in enumerate(emu.endpoints):
            held = state.shards(emu.layout, rank, emu.optimizer)
            stores[endpoint].open(emu.unit, held)
            for tensor, boxes in held.items():
                for box in boxes:
                    part = whole(tensor, values)[box.slices((0,) * len(box.low))]
                    stores[endpoint].write(emu.unit, tensor.ref, box).copy_(part)
                    stores[endpoint].land(emu.unit, tensor.ref, box)
    return stores


def save(root: Path, state: StateSpec, emus: tuple[Emu, ...], tag: str = "s1", keep: int = 2) -> Path:
    """All shares written and sealed, as workers and the job actor do it."""
    states, stores, written = {STAGE: state}, filled(state, emus), []
    for endpoint, parts in shares(states, emus).items():
        file, digests = write_share(stores[endpoint], parts, partial_folder(root, "run", tag) / f"{endpoint}.safetensors")
        written.append(
            StateWritten(
                endpoint=endpoint,
                tag=tag,
                file=file.name,
                num_bytes=file.num_bytes,
                sha256=file.sha256,
                digests=tuple(digests),
            )
        )
    digests = digests_of([entry for part in written for entry in part.digests], states)
    index = index_of(job="j", run="run", tag=tag, loop=LOOP, states=states, written=written, digests=digests)
    return seal(root, index, [WrittenFile(p.file, p.num_bytes, p.sha256) for p in written], keep)


def wrong(state: StateSpec, emus: tuple[Emu, ...], stores: Mapping[EndpointId, UnitStore]) -> list[str]:
    """Shards that are not what the reference cuts from the whole."""
    values, found = global_values(state), []
    for emu in emus:
        for endpoint, tensor, mask in rank_masks(state, emu):
            expected = np.where(mask, whole(tensor, values).double().numpy(), -1)
            held = np.full(tensor.shape, -1.0)
            for box in stores[endpoint].catalog()[emu.unit].get(tensor, ()):
                at = box.slices((0,) * len(box.low))
                held[at] = stores[endpoint].read(emu.unit, tensor.ref, box).double().numpy()
            if not np.array_equal(held, expected):
                found.append(f"{emu.unit} {tensor.ref} on {endpoint}")
    return found


def restore(path: Path, state: StateSpec, emus: tuple[Emu, ...]) -> dict[EndpointId, UnitStore]:
    stores, index = stores_of(emus), load(path)
    for endpoint, store in stores.items():
        read_units(store, endpoint, emus, {STAGE: state}, path, index)
    return stores


LAYOUTS = [text for form in ("plain", "zero1", "fsdp") for text in shape_texts(6, form=form)]


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(STATES)), before=st.sampled_from(LAYOUTS), after=st.sampled_from(LAYOUTS))
def test_state_saved_under_one_layout_is_whole_under_another(
    tmp_path_factory: pytest.TempPathFactory, name: str, before: str, after: str
) -> None:
    state, root = STATES[name], tmp_path_factory.mktemp("checkpoints")
    target = make_emus(after, epoch=3)
    path = save(root, state, make_emus(before))
    assert wrong(state, target, restore(path, state, target)) == []


def test_index_has_the_digest_of_every_whole_tensor_and_its_type_and_shape(tmp_path: Path) -> None:
    index = load(save(tmp_path, HALF, make_emus("tp2 pp3 dp2 zero1")))
    values, entries = global_values(HALF), {(e.name, e.kind): e for e in index.stages[STAGE]}
    assert index.step == 7
    assert len(entries) == len(HALF.tensors)
    for tensor in HALF.tensors:
        entry = entries[tensor.name, str(tensor.kind)]
        assert (entry.shape, entry.dtype) == (tensor.shape, tensor.dtype)
        elements = [np.prod(np.subtract(box.high, box.low), dtype=int) for box in entry.boxes]
        assert sum(elements) == tensor.num_elements
        assert entry.digest == box_sums(whole(tensor, values), Box.whole(tensor.shape), tensor.shape)


def test_each_box_is_written_once_and_replicas_share_the_bytes() -> None:
    emus = make_emus("tp2 dp3")
    found = shares({STAGE: TIED}, emus)
    named = [(part.tensor.ref, part.box) for parts in found.values() for part in parts]
    assert len(named) == len(set(named))
    sizes = [sum(part.box.volume * part.tensor.item_bytes for part in parts) for parts in found.values()]
    total = sum(t.num_elements * t.item_bytes for t in TIED.tensors)
    assert sum(sizes) == total
    assert max(sizes) - total / 6 <= max(t.num_elements * t.item_bytes for t in TIED.tensors)


def test_state_without_one_share_is_no_whole_state(tmp_path: Path) -> None:
    emus = make_emus("tp2 dp1 zero1")
    stores, states = filled(TIED, emus), {STAGE: TIED}
    (first, parts), *_ = shares(states, emus).items()
    _, digests = write_share(stores[first], parts, tmp_path / "a.safetensors")
    with pytest.raises(DigestMismatch, match="elements are held"):
        digests_of(digests, states)


def test_checkpoint_of_another_model_is_refused_by_the_tensor(tmp_path: Path) -> None:
    path, other = save(tmp_path, TIED, make_emus("tp2")), make_state(make_model(vocab=52, tied=True), optimizer=True)
    with pytest.raises(UserError, match=r"embed.*resume with the model and dtype"):
        restore(path, other, make_emus("tp1", epoch=1))


def test_file_that_is_gone_is_named_and_a_changed_one_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, TIED, make_emus("tp2"))
    assert verify(path) == sum(file.stat().st_size for file in path.iterdir() if file.name != "manifest.json")
    file = path / "d1.0.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"d1\.0\.safetensors is not the file that was written"):
        verify(path)
    file.unlink()
    with pytest.raises(UserError, match=r"d1\.0\.safetensors cannot be read"):
        restore(path, TIED, make_emus("tp1", epoch=1))


def test_unit_that_is_there_already_is_left_as_it_is(tmp_path: Path) -> None:
    path, emus = save(tmp_path, TIED, make_emus("tp2")), make_emus("tp1", epoch=1)
    stores = restore(path, TIED, emus)
    assert read_units(stores["d0.0"], "d0.0", emus, {STAGE: TIED}, path, load(path)) == 0


def test_share_of_a_unit_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    emus = make_emus("tp1")
    store = stores_of(emus)["d0.0"]
    store.open(emus[0].unit, TIED.shards(emus[0].layout, 0))
    with pytest.raises(StoreError, match="has not landed"):
        write_share(store, shares({STAGE: TIED}, emus)["d0.0"], tmp_path / "a.safetensors")
