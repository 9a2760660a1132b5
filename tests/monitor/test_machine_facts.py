"""Memory and network of a machine, from a tree of files such as the kernel shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereus.monitor.machine import Machine


def tree(root: Path, **files: str) -> Machine:
    """`__` in a name is `/`; a machine of 64 GiB unless it is said."""
    for name, text in {"proc__meminfo": "MemTotal:       67108864 kB\nMemFree: 1 kB\n", **files}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root)


def card(name: str, speed: str, state: str = "up") -> dict[str, str]:
    folder = f"sys__class__net__{name}"
    return {f"{folder}__speed": speed, f"{folder}__operstate": state, f"{folder}__device__vendor": "0x15b3"}


def port(device: str, rate: str, state: str = "4: ACTIVE") -> dict[str, str]:
    folder = f"sys__class__infiniband__{device}__ports__1"
    return {f"{folder}__rate": rate, f"{folder}__state": state}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({}, 64 * 2**30),
        ({"sys__fs__cgroup__memory.max": "max\n"}, 64 * 2**30),
        ({"sys__fs__cgroup__memory.max": "4096\n"}, 4096),
    ],
)
def test_memory_is_the_hosts_or_what_the_control_group_allows(tmp_path: Path, limit: dict[str, str], expected: int) -> None:
    assert tree(tmp_path, **limit).memory_bytes == expected


def test_rdma_ports_that_are_active_add_up_and_their_cards_do_not_count_again(tmp_path: Path) -> None:
    ports = {
        **port("mlx5_0", "400 Gb/sec (4X NDR)\n"),
        **port("mlx5_1", "400 Gb/sec (4X NDR)\n"),
        **port("mlx5_2", "400 Gb/sec (4X NDR)\n", "1: DOWN\n"),
    }
    assert tree(tmp_path, **ports, **card("eth0", "100000\n")).network_bytes_s == 100e9


def test_without_rdma_the_cards_that_are_up_add_up(tmp_path: Path) -> None:
    cards = {**card("eth0", "100000\n"), **card("eth1", "25000\n"), **card("eth2", "25000\n", "down")}
    virtual = {"sys__class__net__veth7__speed": "10000\n", "sys__class__net__veth7__operstate": "up"}
    assert tree(tmp_path, **cards, **virtual).network_bytes_s == 125e9 / 8


def test_card_that_does_not_say_its_speed_says_nothing(tmp_path: Path) -> None:
    assert tree(tmp_path, **card("eth0", "-1\n")).network_bytes_s is None
