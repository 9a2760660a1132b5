"""Writes what of the chart follows from elsewhere: Kubernetes' types in its schema, and the table of values in its README.

    python -m deploy.tools.chart            # write both; needs kubernetes-validate (extra `dev`)

values.schema.json is written by hand, but for `$defs` named io.k8s.*: those are Kubernetes' own, so that a typo inside a
toleration is refused, too. The README's table is made of values.yaml and of the schema's descriptions.
"""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "helm" / "nereus"

KUBERNETES = "1.33.0"
"""Whose types: in the middle of what is in use. Fields that came later are refused until this is raised."""

VOLUMES = ("name", "configMap", "csi", "emptyDir", "hostPath", "nfs", "persistentVolumeClaim", "projected", "secret")
"""The kinds of volume that the values admit. The rest are for one vendor each, deprecated, or both, and 60 KB of schema."""

REFERENCE = re.compile(r'"(?:/api/_definitions\.json)?#/\$defs/(io\.k8s\.[\w.]+)"')
BEGIN, END = "<!-- values: python -m deploy.tools.chart -->", "<!-- end of values -->"


def kubernetes_types(names: set[str]) -> dict[str, Any]:
    """The named types of Kubernetes and all that they refer to, described in one sentence each."""
    source = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{KUBERNETES}-local-strict"
    known = json.loads((source / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    volume = known["io.k8s.api.core.v1.Volume"]["properties"]
    known["io.k8s.api.core.v1.Volume"]["properties"] = {name: volume[name] for name in VOLUMES}
    found: dict[str, Any] = {}
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        found[name] = _shortened(known[name])
        waiting |= set(REFERENCE.findall(json.dumps(found[name]))) - set(found)
    return dict(sorted(found.items()))


def _shortened(schema: Any) -> Any:
    """A type with one sentence for each description, its references within this file, and no extensions."""
    if isinstance(schema, list):
        return [_shortened(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    short = {key: _shortened(value) for key, value in schema.items() if not key.startswith("x-")}
    if isinstance(text := short.get("description"), str):
        short["description"] = re.split(r"(?<=[.])\s", text, maxsplit=1)[0]
    if isinstance(reference := short.get("$ref"), str):
        short["$ref"] = reference.removeprefix("/api/_definitions.json")
    return short


def complete_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with Kubernetes' types as they are now."""
    own = {name: value for name, value in schema["$defs"].items() if not name.startswith("io.k8s.")}
    names = set(REFERENCE.findall(json.dumps({**schema, "$defs": own})))
    return {**schema, "$defs": {**own, **kubernetes_types(names)}}


def described(schema: Mapping[str, Any], values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Each value that stands alone: its path, its default, and what it is. Sections of known keys are opened."""
    for name, default in values.items():
        of = schema["properties"][name]
        if isinstance(default, dict) and default and "properties" in of:
            yield from described(of, default, f"{prefix}{name}.")
        else:
            yield prefix + name, default, of["description"]


def table(schema: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """The README's tables: every value, and what a group of workers has."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, default, meaning in described(schema, values):
        shown = "see values.yaml" if path == "rayCluster.workerGroups" else f"`{json.dumps(default)}`"
        lines.append(f"| `{path}` | {shown} | {meaning} |")
    group = schema["$defs"]["workerGroup"]
    lines += ["", "A group of workers:", "", "| value | must be given | meaning |", "|---|---|---|"]
    for name, of in group["properties"].items():
        lines.append(f"| `{name}` | {'yes' if name in group['required'] else 'no'} | {of['description']} |")
    return "\n".join(lines)


def complete_readme(text: str, schema: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """The README with its table as it follows from the values and the schema."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(schema, values)}\n\n{END}{after}"


def written(chart: Path = CHART) -> dict[Path, str]:
    """What the two files should hold."""
    schema_path, readme_path = chart / "values.schema.json", chart / "README.md"
    schema = complete_schema(json.loads(schema_path.read_text(encoding="utf-8")))
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    readme = complete_readme(readme_path.read_text(encoding="utf-8"), schema, values)
    return {schema_path: json.dumps(schema, indent=1) + "\n", readme_path: readme}


if __name__ == "__main__":
    for path, content in written().items():
        path.write_text(content, encoding="utf-8")
