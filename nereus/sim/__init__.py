"""The simulated world behind the same ports: its own truth, in virtual time."""
