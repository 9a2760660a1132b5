"""What Ray's own autoscaler reads out of the rendered RayCluster: the devices of each group, and its bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helm.charts import DEFAULT, rendered, the, worker_settings

ON = "rayCluster.autoscaling.enabled=true"


def read_by_ray(objects: tuple[Any, ...]) -> dict[str, Any]:
    """The node types as `ray kuberay-autoscaler` derives them from the object that KubeRay holds."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    config = _derive_autoscaling_config_from_ray_cr(dict(the(objects, "RayCluster")))
    found: dict[str, Any] = config["available_node_types"]
    return found


@pytest.mark.parametrize(
    ("accelerator", "resource"), [("nvidia", "GPU"), ("amd", "GPU"), ("cpu", "nereus_device")], ids=["nvidia", "amd", "cpu"]
)
def test_autoscaler_knows_the_devices_and_bounds_of_a_group(newest: Path, accelerator: str, resource: str) -> None:
    settings = worker_settings(accelerator=accelerator, devicesPerNode=8, minReplicas=1, maxReplicas=6)
    group = read_by_ray(rendered(newest, (DEFAULT,), (ON, *settings)))["devices"]
    assert group["resources"][resource] == 8
    assert (group["min_workers"], group["max_workers"]) == (1, 6)


def test_autoscaler_puts_nothing_on_the_head(newest: Path) -> None:
    head = read_by_ray(rendered(newest, (DEFAULT,), (ON,)))["headgroup"]
    assert head["resources"]["CPU"] == 0
    assert not {"GPU", "nereus_device"} & set(head["resources"])


def test_gpu_values_offer_what_the_controller_may_ask_for(newest: Path) -> None:
    objects = rendered(newest, ("values-gpu.yaml",))
    (group,) = [found for name, found in read_by_ray(objects).items() if name != "headgroup"]
    entrypoint = the(objects, "RayJob")["spec"]["entrypoint"]
    least, most = (group[bound] * group["resources"]["GPU"] for bound in ("min_workers", "max_workers"))
    assert f"--min-devices {least} --max-devices {most}" in entrypoint
