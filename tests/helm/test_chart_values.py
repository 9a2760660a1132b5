"""Values: a typo and a wrong type anywhere are refused, none is without effect, and the schema and README are up to date."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.tools import chart
from tests.deploy.programs import call
from tests.helm.charts import CHART, FILES, MONITORING, NAMESPACE, RELEASE, refusal

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
FREE = {
    "annotations",
    "labels",
    "podAnnotations",
    "podLabels",
    "nodeSelector",
    "rayStartParams",
    "operatorLabels",
    "matchLabels",
}
"""Maps whose keys are the user's; a wrong value in them is refused, a key cannot be."""

Path_ = tuple[str | int, ...]


def nodes(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every value below and including this one, with its path."""
    yield path, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from nodes(child, (*path, key))


def free(path: Path_) -> bool:
    """Whether a value is in a map whose keys are the user's."""
    return any(part in FREE for part in path)


def get(values: Any, path: Path_) -> Any:
    """One value."""
    for part in path:
        values = values[part]
    return values


def put(values: Any, path: Path_, value: Any) -> None:
    """Set one value."""
    get(values, path[:-1])[path[-1]] = value


def spoken(path: Path_, said: str) -> bool:
    """Whether a helm names this place: helm 4 as /a/b/0, helm 3 as a.b.0."""
    ours = "/" + "/".join(str(part).replace("/", "~1") for part in path)
    theirs = ".".join(map(str, path)) or "(root)"
    return f"at '{ours if path else ''}'" in said or f"- {theirs}:" in said


def file_of(folder: Path, values: Any) -> Path:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_a_misspelt_key_is_refused_beside_every_value(helm: Path, tmp_path: Path) -> None:
    """All at once: the message names each of them."""
    wrong, sections = copy.deepcopy(VALUES), []
    for path, value in nodes(VALUES):
        if isinstance(value, dict) and value and not free(path):
            section = get(wrong, path)
            for key in value:
                section[f"{key}Typo"] = value[key]
            sections.append((path, [f"{key}Typo" for key in value]))
    said = refusal(helm, "--values", file_of(tmp_path, wrong))
    assert sum(len(keys) for _, keys in sections) > 100
    unsaid = [(path, key) for path, keys in sections for key in keys if not spoken(path, said) or key not in said]
    assert unsaid == []


@pytest.mark.parametrize(
    "path",
    [
        "rayCluster.head.tolerations[0].kee=a",
        "rayCluster.head.affinity.nodeAfinity.x=a",
        "rayCluster.head.extraEnv[0].nam=a",
        "rayCluster.head.extraVolumes[0].secrett.a=b",
        "podSecurityContext.runAsNonRot=true",
        "containerSecurityContext.capabilities.dropp[0]=ALL",
        "networkPolicy.clients[0].podSelectr.x=a",
    ],
)
def test_a_misspelt_key_inside_a_type_of_kubernetes_is_refused(helm: Path, path: str) -> None:
    said = refusal(helm, "--set", path)
    assert re.search("Additional property|additional properties", said)


def test_a_value_of_a_wrong_type_is_refused_wherever_it_is(helm: Path, tmp_path: Path) -> None:
    wrong = copy.deepcopy(VALUES)
    places: list[Path_] = []
    for path, value in nodes(VALUES):
        if isinstance(value, dict) and value:
            continue
        bad: Any = {"a": 1} if free(path[:-1]) or not isinstance(value, dict | list) else 17
        if any(path[: len(place)] == place for place in places):
            continue
        put(wrong, path, bad)
        places.append(path)
    said = refusal(helm, "--values", file_of(tmp_path, wrong))
    assert len(places) > 80
    assert [path for path in places if not spoken(path, said)] == []


def test_a_value_that_is_taken_away_is_refused(helm: Path, tmp_path: Path) -> None:
    """null takes a default away; only what is null by default may be, and fields of Kubernetes' security contexts."""
    kept = {"minDevices", "maxDevices", "podSecurityContext", "containerSecurityContext"}
    taken = [path for path in leaves() if not kept & set(path)]
    without = copy.deepcopy(VALUES)
    for path in taken:
        put(without, path, None)
    said = refusal(helm, "--values", file_of(tmp_path, without))
    assert [path for path in taken if not spoken(path[:-1], said) or str(path[-1]) not in said] == []


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("api.port=80", "port"),
        ("api.existingSecret=Not_A_Name", "existingSecret"),
        ("api.tokenFile=relative/tokens", "tokenFile"),
        ("controller.generation=0", "generation"),
        ("controller.folder=relative", "folder"),
        ("controller.folder=/tmp", "folder"),
        ("controller.folder=/home/nereus/", "folder"),
        ("image.digest=sha256:12", "digest"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("leave.noticeSeconds=0", "noticeSeconds"),
        ("persistence.accessModes[0]=ReadWriteMany", "accessModes"),
        ("persistence.size=ten", "size"),
        ("rayCluster.gcsFaultTolerance.redisAddress=redis", "redisAddress"),
        ("rayCluster.rayVersion=2.60", "rayVersion"),
        ("rayCluster.workerGroups[0].accelerator=tpu", "accelerator"),
        ("rayCluster.workerGroups=null", "workerGroups"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(helm: Path, setting: str, name: str) -> None:
    assert name in refusal(helm, "--set", setting)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("rayCluster.create=false",), "name the RayCluster"),
        (("rayCluster.create=false", "rayCluster.name=theirs", "api.existingSecret=tokens"), "api.tokenFile is empty"),
        (("rayCluster.gcsFaultTolerance.enabled=true",), "redisAddress is empty"),
    ],
)
def test_values_that_do_not_go_together_are_refused_with_the_fix(helm: Path, settings: tuple[str, ...], said: str) -> None:
    assert said in refusal(helm, *(part for setting in settings for part in ("--set", setting)))


def test_a_group_with_fewer_nodes_at_most_than_at_least_is_refused(helm: Path, tmp_path: Path) -> None:
    group = {**VALUES["rayCluster"]["workerGroups"][0], "minReplicas": 3, "maxReplicas": 2}
    said = refusal(helm, "--values", file_of(tmp_path, {"rayCluster": {"workerGroups": [group]}}))
    assert "devices has minReplicas 3 over maxReplicas 2" in said


def schema_of(path: Path_) -> dict[str, Any]:
    """The schema of one value."""
    found: dict[str, Any] = SCHEMA
    for part in path:
        while "$ref" in found:
            found = SCHEMA["$defs"][found["$ref"].rpartition("/")[2]]
        found = found["items"] if isinstance(part, int) else found["properties"][part]
    return found


OTHER: dict[str | int, Any] = {
    "accessModes": ["ReadWriteOncePod"],
    "affinity": {"nodeAffinity": {}},
    "clients": [{"podSelector": {}}],
    "cpu": "3",
    "digest": "sha256:" + "0" * 64,
    "drop": ["NET_RAW"],
    "extraEnv": [{"name": "OTHER", "value": "a"}],
    "extraVolumeMounts": [{"name": "tmp", "mountPath": "/other"}],
    "extraVolumes": [{"name": "other", "emptyDir": {}}],
    "folder": "/other",
    "interval": "9s",
    "memory": "9Gi",
    "pullSecrets": ["other"],
    "rayVersion": "2.59.0",
    "redisAddress": "other:1",
    "scrapeTimeout": "9s",
    "size": "9Gi",
    "submitters": [{"podSelector": {}}],
    "tolerations": [{"key": "other"}],
    "type": "Unconfined",
}
"""Another valid value of each that `other` can't be used for."""


def other(path: Path_, value: Any) -> Any:
    """Another valid value than the default."""
    of, name = schema_of(path), path[-1]
    if isinstance(value, bool):
        return not value
    if "enum" in of:
        return next(choice for choice in of["enum"] if choice != value)
    if isinstance(value, int) or of.get("type") == ["integer", "null"]:
        return (value or 0) + 1
    if name in OTHER:
        return OTHER[name]
    return {"other": "value"} if isinstance(value, dict) else "other"


BASE: dict[str, dict[str, Any]] = {
    "api": {"existingSecret": "tokens"},
    "rayCluster": {
        "name": "named",
        "autoscaling": {"enabled": True},
        "gcsFaultTolerance": {"enabled": True, "redisAddress": "redis:1", "existingSecret": "redis"},
    },
}
"""With everything on, so that each value has its effect."""

ELSEWHERE = {("api", "tokenFile")}
"""Of a RayCluster that is another's: on the chart's own it is refused (test_chart_reach.py has both)."""

BESIDE: dict[Path_, tuple[Path_, str]] = {("rayCluster", "create"): (("api", "tokenFile"), "/run/theirs/tokens")}
"""What has to be given with another value of it."""


def leaves() -> list[Path_]:
    """Every value whose effect is looked for; a group of workers as a whole has the tests of switches."""
    found = []
    for path, value in nodes(VALUES):
        single = path and not (isinstance(value, dict) and value) and not any(isinstance(part, int) for part in path)
        if single and not free(path[:-1]) and path[:2] != ("rayCluster", "workerGroups"):
            found.append(path)
    return found


def test_no_value_is_without_effect(newest: Path, tmp_path: Path) -> None:
    def template(values: Any) -> str:
        done = call(newest, "template", RELEASE, CHART, "-n", NAMESPACE, "--api-versions", MONITORING,
                    "--values", file_of(tmp_path, values))  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    base = copy.deepcopy(VALUES)
    for section, fields in BASE.items():
        for name, value in fields.items():
            base[section][name] = {**base[section][name], **value} if isinstance(value, dict) else value
    before, idle = template(base), []
    for path in (found for found in leaves() if found not in ELSEWHERE):
        changed = copy.deepcopy(base)
        put(changed, path, other(path, get(base, path)))
        if path in BESIDE:
            put(changed, *BESIDE[path])
        if template(changed) == before:
            idle.append(path)
    assert len(leaves()) > 90
    assert idle == []


def test_schema_describes_every_value_and_admits_no_other_key() -> None:
    for path, of in nodes(SCHEMA["properties"]):
        if not isinstance(of, dict) or path[-1:] == ("properties",) or not path or "$ref" in of:
            continue
        if "type" in of and path[-1] not in ("items", "additionalProperties"):
            assert of.get("description"), path
        if of.get("type") == "object" and path != ("global",):
            assert of["additionalProperties"] is False or of["additionalProperties"] == {"type": "string"}, path


def test_types_of_kubernetes_and_table_of_values_are_up_to_date() -> None:
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate comes with `make install`")
    stale = [path.name for path, content in chart.written().items() if path.read_text(encoding="utf-8") != content]
    assert stale == [], "run `python -m deploy.tools.chart`"


def test_values_files_are_used_by_the_tests() -> None:
    assert {path.name for path in CHART.glob("values*.yaml")} == {name for files in FILES for name in files}


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", (CHART / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 4
    assert [link for link in links if "://" not in link and not (CHART / link).exists()] == []
