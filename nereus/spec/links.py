"""How fast state moves, as far as a person knows it: what an earlier run has learnt, or a declaration.

transitions[-1].rates of summary.json -> cluster.links of the next job file -> the first estimates of its transitions
"""

from __future__ import annotations

from pydantic import Field

from nereus.spec.declared import Declared, Real


class Links(Declared):
    """Rates of links and fixed seconds of a transition. Those that are left out keep their defaults by kind of device."""

    wire_bytes_s: Real | None = Field(default=None, gt=0)
    """Bytes per second between two devices, packing included."""
    near_bytes_s: Real | None = Field(default=None, gt=0)
    """The same between two devices of a node, where that is another link; null: as between any two."""
    uplink_bytes_s: Real | None = Field(default=None, gt=0)
    """Bytes per second of a node, out and in each, all its devices together; null: never the bottleneck."""
    copy_bytes_s: Real | None = Field(default=None, gt=0)
    """Bytes per second that one device copies into fresh memory."""
    host_bytes_s: Real | None = Field(default=None, gt=0)
    """Bytes per second that all devices together send, where they are emulated on one machine."""
    host_copy_bytes_s: Real | None = Field(default=None, gt=0)
    """Bytes per second that all devices together copy on that machine."""
    base_s: Real | None = Field(default=None, gt=0)
    """Seconds of any transition: every device is asked to install its program, and at the end to bind its units."""
    group_s: Real | None = Field(default=None, gt=0)
    """Seconds to make a communicator, for each of its members."""
    op_s: Real | None = Field(default=None, gt=0)
    """Fixed seconds of an operation."""
    release_s: Real | None = Field(default=None, gt=0)
    """The same of an operation that only releases."""
    bucket_s: Real | None = Field(default=None, gt=0)
    """Seconds until all members of a stream know that a bucket has landed."""
