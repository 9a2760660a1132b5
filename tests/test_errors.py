"""Every error crosses process boundaries whole."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from nereus import errors
from nereus.errors import EndpointLost, JobFileError, NereusError, OutOfDeviceMemory, UserError


def tree(base: type[NereusError]) -> list[type[NereusError]]:
    return [base, *(cls for child in base.__subclasses__() for cls in tree(child))]


CLASSES = [cls for cls in tree(NereusError) if cls.__module__ == errors.__name__]
SPECIAL: dict[type[NereusError], NereusError] = {
    JobFileError: JobFileError("stages.actor.tp", 3, "one of 1, 2, 4"),
    OutOfDeviceMemory: OutOfDeviceMemory("d3.0", "Split", requested_bytes=20, used_bytes=90, capacity_bytes=100),
    EndpointLost: EndpointLost("d3.0", during="Extend"),
}


def example(cls: type[NereusError]) -> NereusError:
    return SPECIAL[cls] if cls in SPECIAL else cls("tp: 3 does not divide 4 heads; use 1, 2 or 4", tp=3, heads=4)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("cls", CLASSES)
def test_error_keeps_type_message_and_facts_when_pickled(cls: type[NereusError], protocol: int) -> None:
    error = example(cls)
    back = pickle.loads(pickle.dumps(error, protocol))
    assert (type(back), str(back), back.message, back.facts) == (cls, str(error), error.message, error.facts)


@pytest.mark.parametrize("cls", CLASSES)
def test_error_keeps_its_args_when_copied(cls: type[NereusError]) -> None:
    assert copy.deepcopy(example(cls)).args == example(cls).args == (example(cls).message,)


@pytest.mark.parametrize("cls", CLASSES)
def test_error_is_a_value_error_exactly_when_a_person_can_fix_it(cls: type[NereusError]) -> None:
    assert issubclass(cls, ValueError) == issubclass(cls, UserError)


def test_tree_in_the_docstring_names_every_error_once() -> None:
    drawn = re.findall(r"^[ │├└─]*([A-Z]\w+)(?: \(also ValueError\))?(?: {2,}.*)?$", errors.__doc__ or "", re.MULTILINE)
    assert sorted(drawn) == sorted(cls.__name__ for cls in CLASSES)


def test_job_file_error_names_field_value_and_what_is_allowed() -> None:
    assert str(SPECIAL[JobFileError]) == "stages.actor.tp: 3 is not allowed; one of 1, 2, 4"


def test_out_of_device_memory_names_device_bytes_and_a_knob() -> None:
    message = str(SPECIAL[OutOfDeviceMemory])
    assert all(word in message for word in ("d3.0", "Split", "20", "90", "100", "micro_batch"))


def test_endpoint_lost_names_the_endpoint_and_the_moment() -> None:
    assert str(SPECIAL[EndpointLost]).startswith("endpoint d3.0 died during Extend, and its shards with it; run")


def test_error_keeps_its_notes_when_pickled() -> None:
    error = example(UserError)
    error.add_note("while stage actor was laid out")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while stage actor was laid out"]
