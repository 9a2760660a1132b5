"""The part of a Kubernetes API server that says which version and which kinds it has, and nothing else.

helm 3 asks it even in a dry run on the client. It answers on loopback; whatever else is asked is not found.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KINDS: Mapping[str, tuple[str, ...]] = {
    "v1": ("ConfigMap", "PersistentVolumeClaim", "Pod", "Service", "ServiceAccount"),
    "monitoring.coreos.com/v1": ("PodMonitor", "PrometheusRule"),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
    "ray.io/v1": ("RayCluster", "RayJob"),
}


def answers() -> dict[str, Any]:
    """What each path of discovery answers."""
    groups = []
    found: dict[str, Any] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    for version, kinds in KINDS.items():
        resources = [
            {
                "name": f"{kind.lower()}s",
                "singularName": kind.lower(),
                "namespaced": True,
                "kind": kind,
                "verbs": ["create", "get"],
            }
            for kind in kinds
        ]
        group, _, number = version.rpartition("/")
        path = f"/apis/{version}" if group else f"/api/{version}"
        found[path] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
        if group:
            named = {"groupVersion": version, "version": number}
            groups.append({"name": group, "versions": [named], "preferredVersion": named})
    found["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return found


class Handler(BaseHTTPRequestHandler):
    """Answers from a table."""

    table = answers()

    def do_GET(self) -> None:
        known = self.table.get(self.path.partition("?")[0])
        body = json.dumps(known or {"kind": "Status", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def kubernetes() -> Iterator[str]:
    """The address of such a server, while it runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
