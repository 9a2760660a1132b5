"""Schemas that objects are held to: Kubernetes' own, KubeRay's CRDs, and what the chart uses of Prometheus' operator.

All are strict: a field that a schema does not know is an error here, where a Kubernetes API server would drop it silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

LABEL_MAP = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION = {"type": "string", "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?$", "minLength": 2}


def strict(**properties: Any) -> dict[str, Any]:
    """An object with these fields, all of which must be there, and no others."""
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


SECRET_KEY = strict(name={"type": "string", "minLength": 1}, key={"type": "string", "minLength": 1})
ENDPOINT = strict(
    port={"type": "string"},
    path={"type": "string", "pattern": "^/"},
    interval=DURATION,
    scrapeTimeout=DURATION,
    authorization=strict(type={"const": "Bearer"}, credentials=SECRET_KEY),
)
RULE = {
    **strict(alert={"type": "string"}, expr={"type": "string"}, labels=LABEL_MAP, annotations=LABEL_MAP),
    "required": ["alert", "expr"],
}
RULE["properties"] |= {"for": DURATION, "keep_firing_for": DURATION}
GROUP = {
    **strict(name={"type": "string"}, rules={"type": "array", "minItems": 1, "items": RULE}),
}
GROUP["properties"] |= {"interval": DURATION}

MONITORING_SPECS = {
    "PodMonitor": strict(
        namespaceSelector=strict(matchNames={"type": "array", "items": {"type": "string"}}),
        selector=strict(matchLabels=LABEL_MAP),
        podMetricsEndpoints={"type": "array", "minItems": 1, "items": ENDPOINT},
    ),
    "PrometheusRule": strict(groups={"type": "array", "minItems": 1, "items": GROUP}),
}
"""Specs of monitoring.coreos.com/v1, by the API reference of prometheus-operator: the fields that the chart uses."""

CRDS = {"RayCluster": "ray.io_rayclusters.yaml", "RayJob": "ray.io_rayjobs.yaml"}


@cache
def _crd(path: Path) -> jsonschema.protocols.Validator:
    """A validator of version v1 of a CRD, strict about fields."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    (definition,) = [found for found in yaml.load_all(path.read_text(encoding="utf-8"), Loader=loader) if found]
    (version,) = [found for found in definition["spec"]["versions"] if found["name"] == "v1"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


def _closed(schema: Any) -> Any:
    """An openAPI schema as a JSON schema in which objects have the declared fields only."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items() if not key.startswith("x-") and key != "format"}
    if isinstance(fields := schema.get("properties"), Mapping) and isinstance(schema.get("type"), str):
        closed["properties"] = {name: _closed(field) for name, field in fields.items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    if schema.get("nullable"):
        closed["type"] = [schema["type"], "null"]
    return closed


def errors(found: Mapping[str, Any], data_dir: Path) -> list[str]:
    """What is wrong with an object, by its kind's schema; each as `path: message`."""
    kind, group = found["kind"], found["apiVersion"].partition("/")[0]
    if group == "ray.io":
        folder = data_dir / "kuberay"
        if not folder.is_dir():
            pytest.skip(f"no CRDs of KubeRay in {folder}")
        validator = _crd(folder / CRDS[kind])
        return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(found)]
    if group == "monitoring.coreos.com":
        wrong = jsonschema.Draft202012Validator(MONITORING_SPECS[kind]).iter_errors(found["spec"])
        return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in wrong]
    return core_errors(found)


def core_errors(found: Mapping[str, Any]) -> list[str]:
    """What is wrong with an object of Kubernetes itself."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate comes with `make install`")
    try:
        validate.validate(found, "1.33.0", strict=True)
    except validate.ValidationError as error:
        return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}"]
    return []
