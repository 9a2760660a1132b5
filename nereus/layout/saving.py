"""Who writes which boxes of a checkpoint: each distinct box once, by the least loaded of those who hold it.

    units of all model-stages -> shares: endpoint -> [Part(unit, tensor, box), ...]        together the whole state

Every endpoint works out its own share from the same units, so nobody has to be told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, EndpointId, Held, Site, StateSpec, UnitId, by_number
from nereus.layout.tensors import CanonicalTensor, TensorRef


class Part(NamedTuple):
    """One box of one tensor, and the unit that it is read from."""

    unit: UnitId
    tensor: CanonicalTensor
    box: Box


def box_key(stage: str, ref: TensorRef, box: Box) -> str:
    """The name of a box within a file: the first element tells the boxes of a layout apart."""
    return f"{stage}/{ref}@{','.join(map(str, box.low))}"


def shares(states: Mapping[str, StateSpec], units: Iterable[Held]) -> dict[EndpointId, tuple[Part, ...]]:
    """The parts that each endpoint writes; endpoints without a part are left out.

    Replicas share the work: of those who hold a box, the one with the fewest bytes so far writes it. Units of a model-stage
    have one layout, so that their boxes are equal or disjoint.
    """
    by_stage: dict[str, list[Held]] = {}
    for unit in units:
        by_stage.setdefault(unit.unit.stage, []).append(unit)
    load: defaultdict[EndpointId, int] = defaultdict(int)
    found: defaultdict[EndpointId, list[Part]] = defaultdict(list)
    for stage, held in sorted(by_stage.items()):
        for tensors, holders in Catalog.of(states[stage], held).families:
            sites: dict[Box, list[Site]] = {}
            for site, box in holders:
                if box.volume:
                    sites.setdefault(box, []).append(site)
            for tensor in tensors:
                for box, known in sites.items():
                    site = min(known, key=lambda s: (load[s.endpoint], by_number(s.endpoint), s.unit))
                    load[site.endpoint] += box.volume * tensor.item_bytes
                    found[site.endpoint].append(Part(site.unit, tensor, box))
    return {endpoint: tuple(parts) for endpoint, parts in found.items()}
