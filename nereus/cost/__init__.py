"""FLOPs, bytes and time of a plan."""
