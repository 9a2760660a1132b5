"""Writes deploy/kuberay/{raycluster,rayjob}.yaml: what the chart makes, for who applies manifests without Helm.

    python -m deploy.tools.manifests        # needs helm 4 in .venv/bin or on PATH (`make tools`)

The chart is the one source. Helm's own labels are left out, since no Helm manages what these make.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kuberay"

FILES = {"raycluster.yaml": ("PersistentVolumeClaim", "RayCluster"), "rayjob.yaml": ("RayJob",)}
"""Which kinds go into which file."""

HEADER = {
    "raycluster.yaml": (
        "# Two nodes of eight NVIDIA GPUs, and a head with a volume. It needs the KubeRay operator, 1.6 or later.\n"
        "# Write your registry for registry.example.com, and fit groups and sizes to your nodes.\n"
    ),
    "rayjob.yaml": (
        "# Starts the controller on the cluster of raycluster.yaml; its API is on the loopback of the head's pod:\n"
        '#   kubectl port-forward "$(kubectl get pod -l ray.io/cluster=nereus,ray.io/node-type=head -o name)" 8420\n'
    ),
}
GENERATED = "# Written by `python -m deploy.tools.manifests` from the chart and values.yaml beside this file.\n"


def find_helm() -> str:
    """helm 4; SystemExit where there is none."""
    found = shutil.which("helm4", path=f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise SystemExit("no helm4 in .venv/bin or on PATH: run `make tools`")
    return found


def rendered(helm: str) -> list[dict[str, Any]]:
    """All objects that the chart makes of the values beside the manifests."""
    command = [helm, "template", "nereus", str(ROOT / "helm" / "nereus"), "--values", str(FOLDER / "values.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"helm did not render the chart: {done.stderr}")
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """An object that belongs to no release: in the namespace of whoever applies it, without what Helm goes by."""
    metadata = {name: value for name, value in found["metadata"].items() if name != "namespace"}
    for part in ("labels", "annotations"):
        kept = {name: value for name, value in metadata.pop(part, {}).items() if "helm" not in f"{name}{value}".lower()}
        metadata |= {part: kept} if kept else {}
    return {**found, "metadata": metadata}


def written(helm: str) -> dict[Path, str]:
    """What each file should hold."""
    objects, files = rendered(helm), {}
    for name, kinds in FILES.items():
        chosen = [plain(found) for found in objects if found["kind"] in kinds]
        body = "---\n".join(yaml.safe_dump(found, sort_keys=False, width=120) for found in chosen)
        files[FOLDER / name] = HEADER[name] + GENERATED + body
    return files


if __name__ == "__main__":
    for path, content in written(find_helm()).items():
        path.write_text(content, encoding="utf-8")
