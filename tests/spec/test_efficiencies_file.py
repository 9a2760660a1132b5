"""Files of learnt efficiencies: what is refused, by field and value."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from nereus.errors import JobFileError
from nereus.spec.efficiencies_file import Names, parse_efficiencies

NAMES = Names(("gemm", "attention"), ("parameters",))
FILE: dict[str, Any] = {
    "version": 1,
    "kinds": {
        "H100": {
            "training": {
                "efficiencies": {
                    "kind": "H100",
                    "source": "40 measured runs",
                    "num_measured": 40,
                    "common": 0.0,
                    "classes": {"gemm": {"value": 0.5, "spread": 0.1, "observations": 40}},
                },
                "memory_scales": {"parameters": {"scale": 1.0, "spread": 0.05}},
                "memory_error": 0.1,
            }
        }
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """The file with one field changed, by its dotted path; None takes it out."""
    found = copy.deepcopy(FILE)
    at, *keys = found, *path.split(".")
    for key in keys[:-1]:
        at = at[key]
    if value is None:
        del at[keys[-1]]
    else:
        at[keys[-1]] = value
    return found


GEMM = "kinds.H100.training.efficiencies.classes.gemm"


def test_file_is_read_as_it_was_written() -> None:
    assert parse_efficiencies(FILE, "e.json", NAMES) == FILE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "it must be a mapping"),
        (changed("version", 2), "version: 2.*it must be 1"),
        (changed("version", None), "version: None.*required"),
        (changed("kinds.H100.trainig", {}), "kinds.*trainig"),
        (changed("kinds.H101", {"training": {}}), "kinds.H101.training.efficiencies: None.*required"),
        (changed("kinds", {"H101": FILE["kinds"]["H100"]}), "'H101'.*no such accelerator, did you mean H100"),
        (changed("kinds", {"A100-80GB": FILE["kinds"]["H100"]}), "efficiencies.kind: 'H100'.*it must be A100-80GB"),
        (changed(f"{GEMM}.value", 0), "gemm.value: 0 is not allowed; it must be above 0"),
        (changed(f"{GEMM}.value", "fast"), "gemm.value: 'fast'"),
        (changed(f"{GEMM}.spread", -1), "gemm.spread: -1"),
        (changed(f"{GEMM}.spread", float("nan")), "gemm.spread: nan.*finite"),
        (changed(f"{GEMM}.observations", 1.5), "gemm.observations: 1.5.*whole number"),
        (changed(f"{GEMM}.extra", 1), "gemm.extra: 1.*no such field"),
        (changed(f"{GEMM}s", {"value": 0.5, "spread": 0.1, "observations": 4}), "'gemms'.*did you mean gemm"),
        (changed("kinds.H100.training.memory_scales.paint", {"scale": 1, "spread": 1}), "'paint'.*component of memory"),
    ],
)
def test_wrong_files_are_refused_by_field_and_value(data: object, message: str) -> None:
    with pytest.raises(JobFileError, match=message) as caught:
        parse_efficiencies(data, "e.json", NAMES)
    assert str(caught.value).startswith("e.json")
