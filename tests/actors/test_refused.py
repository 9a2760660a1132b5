"""Why a cluster does not take a process in, in one sentence with what to do. Ray's own complaints are what is read."""

from __future__ import annotations

import pytest
import ray
from ray._private.utils import check_version_info
from ray.exceptions import AuthenticationError

from actors.connection import refused
from actors.leaving import node_named
from actors.nodes import RayNodes
from nereus.errors import UserError


def test_another_ray_or_python_is_named_with_ours_and_what_to_install() -> None:
    with pytest.raises(RuntimeError) as complaint:
        check_version_info({"ray_version": "2.40.0", "python_version": "3.10.1"}, "this process")
    told = str(refused("10.0.0.1:6379", complaint.value))
    assert "runs Ray 2.40.0 on Python 3.10.1" in told
    assert f"this is Ray {ray.__version__} on Python" in told
    assert "install ray==2.40.0 on Python 3.10.1" in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (AuthenticationError("Token authentication is enabled but no authentication token was found."), "asks for a token"),
        (ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379"), "no token or a wrong one"),
    ],
)
def test_a_token_that_is_missing_or_wrong_is_asked_for_by_name(error: Exception, says: str) -> None:
    told = refused("10.0.0.1:6379", error)
    assert isinstance(told, UserError)
    assert says in str(told)
    assert "RAY_AUTH_TOKEN_PATH" in str(told)


def test_a_node_is_named_by_its_id_the_beginning_of_it_or_its_address() -> None:
    rows = [
        {"NodeID": "ab12", "NodeManagerAddress": "10.0.0.1", "Alive": True},
        {"NodeID": "ab99", "NodeManagerAddress": "10.0.0.2", "Alive": True},
        {"NodeID": "cd00", "NodeManagerAddress": "10.0.0.2", "Alive": False},
    ]
    assert [node_named(rows, name) for name in ("ab12", "ab9", "10.0.0.2")] == ["ab12", "ab99", "ab99"]
    with pytest.raises(UserError, match=r"--node: 'cd00' is no node of ab12 at 10\.0\.0\.1"):
        node_named(rows, "cd00")
    with pytest.raises(UserError, match="'ab' is more than one of"):
        node_named(rows, "ab")


def test_the_autoscaler_is_asked_for_all_kinds_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[dict[str, int]]] = []
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: asked.append(bundles))
    nodes = RayNodes()
    nodes.request({"nereus_device": 1, "GPU": 2})
    nodes.request({})
    assert asked == [[{"GPU": 1}, {"GPU": 1}, {"nereus_device": 1}], []]
