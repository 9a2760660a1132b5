"""How layers are split over the ranks of a pipeline: the slowest rank sets the pace, the first one fills the most memory."""

from __future__ import annotations

from functools import lru_cache

from nereus.layout.tensors import pipeline_layers


@lru_cache(maxsize=4096)
def even_split(num_layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each rank, as even as possible; the head comes on top of the last rank's."""
    return tuple(len(pipeline_layers(num_layers, pp, rank)) for rank in range(pp))


@lru_cache(maxsize=4096)
def balanced_split(num_layers: int, pp: int, head_layers: float) -> tuple[int, ...]:
    """Layers of each rank when the last one also has the head, which costs as much as `head_layers` layers.

    The last rank gets as many layers as make the slowest rank fastest; the others share the rest, the first ones more.
    """
    if pp == 1:
        return (num_layers,)

    def pace(last: int) -> tuple[float, int]:
        longest = -(-(num_layers - last) // (pp - 1))
        return max(float(longest), last + head_layers), longest

    last = min(range(num_layers + 1), key=pace)
    each, more = divmod(num_layers - last, pp - 1)
    return (*(each + (rank < more) for rank in range(pp - 1)), last)
