"""Where the API is, for those who serve it and those who ask it."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"
"""The only address that is served without tokens: whoever reaches the API may replan then."""

DEFAULT_PORT = 8420
"""Not one of Ray's, nor of what usually runs beside it."""

DEFAULT_URL = f"http://{LOOPBACK}:{DEFAULT_PORT}"
