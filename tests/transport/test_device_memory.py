"""The ledger refuses before anything is allocated, and gives back exactly what was taken."""

from __future__ import annotations

import pickle
from threading import Thread

import pytest

from nereus.errors import OutOfDeviceMemory, StoreError
from nereus.transport.memory import CATEGORIES, DeviceMemory


def test_ledger_refuses_what_does_not_fit_and_reserves_nothing_of_it() -> None:
    memory = DeviceMemory("gpu0", 100)
    memory.reserve("open", 60, "units")
    with pytest.raises(OutOfDeviceMemory) as caught:
        memory.reserve("Split", 41, "buffers")
    assert memory.used_bytes == memory.peak_bytes == 60
    facts = pickle.loads(pickle.dumps(caught.value)).facts
    assert facts == {
        "device": "gpu0",
        "operation": "Split",
        "requested_bytes": 41,
        "used_bytes": 60,
        "capacity_bytes": 100,
    }
    memory.reserve("Split", 40, "buffers")
    assert memory.used_bytes == 100


def test_ledger_keeps_categories_apart() -> None:
    memory = DeviceMemory("gpu0", 100)
    for size, category in enumerate(CATEGORIES):
        memory.reserve("x", size, category)
    assert memory.by_category() == {category: size for size, category in enumerate(CATEGORIES)}
    with pytest.raises(StoreError, match="freed twice"):
        memory.free(2, "gradients")


def test_holding_gives_its_bytes_back_after_an_error() -> None:
    memory = DeviceMemory("gpu0", 10)

    def fail() -> None:
        with memory.holding("pack", 10, "buffers"):
            assert memory.used_bytes == 10
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert memory.used_bytes == 0
    assert memory.peak_bytes == 10
    memory.reset_peak()
    assert memory.peak_bytes == 0


def test_ledger_adds_up_under_many_threads() -> None:
    memory = DeviceMemory("gpu0", 8)

    def work() -> None:
        for _ in range(500):
            with memory.holding("x", 1, "kv"):
                pass

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.used_bytes == 0
    assert 1 <= memory.peak_bytes <= 8
