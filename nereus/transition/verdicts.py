"""How a transition was found, or why there is none: the codes of the ordering, apart from those of the policy."""

from __future__ import annotations

from enum import StrEnum


class Found(StrEnum):
    """From the paper's rule to what departs from it, then the two ways to be refused."""

    GREEDY = "greedy"
    """By release-before-acquire and stage order alone (paper, section 6)."""
    SEARCHED = "searched"
    """The same operations in another order: the rule alone would have refused them."""
    RE_CHOSEN = "re_chosen"
    """Other operations that lead to the same plan: unfused, streamed, or copied on from a newborn replica."""
    DETOUR = "detour"
    """By way of devices or a sharing of devices that neither plan has."""
    REFUSED_PROVED = "refused_proved"
    """No order exists: devices are waited for in a circle, or bytes that fit in none."""
    REFUSED_LIMIT = "refused_limit"
    """The search ended at its limit without an order and without a proof."""

    @property
    def is_refusal(self) -> bool:
        return self in (Found.REFUSED_PROVED, Found.REFUSED_LIMIT)

    def or_worse(self, other: Found) -> Found:
        """The one that is further from the paper's rule."""
        return max(self, other, key=list(Found).index)
