"""Half-open boxes of element indices: the only way in which a part of a tensor is named.

A box has one (low, high) span per axis of the canonical tensor. A scalar has the empty box, of volume 1.
"""

from __future__ import annotations

from typing import NamedTuple


class Box(NamedTuple):
    """The elements with low <= index < high on every axis."""

    low: tuple[int, ...]
    high: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """The box of all elements of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(high - low for low, high in zip(self.low, self.high, strict=True))

    @property
    def volume(self) -> int:
        """Number of elements; 0 for an empty box."""
        volume = 1
        for low, high in zip(self.low, self.high, strict=True):
            volume *= max(0, high - low)
        return volume

    def along(self, axis: int, low: int, high: int) -> Box:
        """This box with its span on one axis replaced."""
        return Box(self.low[:axis] + (low,) + self.low[axis + 1 :], self.high[:axis] + (high,) + self.high[axis + 1 :])

    def intersect(self, other: Box) -> Box | None:
        """The common elements, or None when there are none."""
        low = tuple(map(max, self.low, other.low))
        high = tuple(map(min, self.high, other.high))
        for start, stop in zip(low, high, strict=True):
            if start >= stop:
                return None
        return Box(low, high)

    def subtract(self, other: Box) -> list[Box]:
        """The elements of this box outside `other`, as disjoint boxes in a fixed order."""
        common = self.intersect(other)
        if common is None:
            return [self]
        if common == self:
            return []
        rest: list[Box] = []
        remaining = self
        for axis, (low, high) in enumerate(zip(common.low, common.high, strict=True)):
            if remaining.low[axis] < low:
                rest.append(remaining.along(axis, remaining.low[axis], low))
            if high < remaining.high[axis]:
                rest.append(remaining.along(axis, high, remaining.high[axis]))
            remaining = remaining.along(axis, low, high)
        return rest

    def contains(self, other: Box) -> bool:
        """Whether every element of `other` is in this box."""
        return all(a <= b for a, b in zip(self.low, other.low, strict=True)) and all(
            a >= b for a, b in zip(self.high, other.high, strict=True)
        )

    def slices(self, origin: tuple[int, ...]) -> tuple[slice, ...]:
        """Index of this box in an array whose first element is at `origin`."""
        return tuple(slice(lo - at, hi - at) for lo, hi, at in zip(self.low, self.high, origin, strict=True))
