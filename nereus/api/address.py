"""Where the API is, for those who serve it and those who ask it."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"
"""The only address that is served: whoever reaches the API may replan, and it asks nobody for a token."""

DEFAULT_PORT = 8420
"""Not one of Ray's, nor of what usually runs beside it."""

DEFAULT_URL = f"http://{LOOPBACK}:{DEFAULT_PORT}"
