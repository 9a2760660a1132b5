"""Sizes and sets of devices as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.spec.devices import format_devices, parse_devices
from nereus.spec.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("64MiB", 67_108_864),
        ("1.5GiB", 1_610_612_736),
        ("512MB", 512_000_000),
        ("0.1 KB", 100),
        (" 7B ", 7),
        ("6GiB", 6_442_450_944),
        ("2TiB", 2_199_023_255_552),
    ],
)
def test_byte_size_is_read_in_decimal_and_binary_units(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "64", "MiB", "-1MiB", "1e3MB", "64mib", "64 Mi B", "٣MB"])
def test_byte_size_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as 64MiB"):
        parse_bytes(text)


def test_device_spans_keep_the_order_of_ranks() -> None:
    assert parse_devices("0-3, 6") == (0, 1, 2, 3, 6)
    assert parse_devices("2,0-1") == (2, 0, 1)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=20))
def test_devices_survive_formatting_and_parsing(devices: list[int]) -> None:
    assert parse_devices(format_devices(tuple(devices))) == tuple(devices)
