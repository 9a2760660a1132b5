"""Every error that Nereus raises, as one tree.

    NereusError
    ├── UserError (also ValueError)      what a person can fix: exit code 2
    │   ├── JobFileError                 a field of a job file
    │   └── LayoutError                  a layout that a model or a pool does not admit
    ├── PreconditionError                a primitive applied where it is not defined
    ├── TensorRuleError                  a tensor that no sharding rule covers
    ├── StoreError                       a shard that is not there, or is there twice
    ├── StaleUnitError                   a call for a unit or an epoch that is not bound
    ├── OutOfDeviceMemory                the ledger of a device refused a reservation
    ├── DigestMismatch                   logical state differs before and after a transition
    ├── TransitionFailed                 starting or moving failed; nothing was committed
    ├── EndpointLost                     a process that held shards has died
    └── JobStopped                       the controller ended the job, with its reason

Each message names the cause, the value seen and the knob to turn. All of them pickle, since they cross processes.
"""

from __future__ import annotations

from typing import Any


class NereusError(Exception):
    """Base of all errors that Nereus raises on purpose."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.facts), self.__dict__)


def _rebuild(cls: type[NereusError], message: str, facts: dict[str, Any]) -> NereusError:
    error = cls.__new__(cls)
    NereusError.__init__(error, message, **facts)
    return error


class UserError(NereusError, ValueError):
    """Something that a person declared cannot be carried out as it stands."""


class JobFileError(UserError):
    """A field of a job file is wrong: the message names the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: {value!r} is not allowed; {allowed}", field=field, value=value, allowed=allowed)


class LayoutError(UserError):
    """A layout that the model or the pool does not admit."""


class PreconditionError(NereusError):
    """A primitive was applied where it is not defined."""


class TensorRuleError(NereusError):
    """A tensor that no sharding rule covers; it is refused by name rather than replicated by guess."""


class StoreError(NereusError):
    """A shard is missing, incomplete, or already there."""


class StaleUnitError(NereusError):
    """A call named a unit or an epoch that this endpoint has not bound: the caller is behind a transition."""


class OutOfDeviceMemory(NereusError):
    """The memory ledger of a device refused a reservation."""

    def __init__(self, device: str, operation: str, requested_bytes: int, used_bytes: int, capacity_bytes: int) -> None:
        super().__init__(
            f"device {device}: {operation} needs {requested_bytes} bytes, {used_bytes} of {capacity_bytes} are in use; "
            "raise cluster.device.memory, lower micro_batch, or spread the model-stage over more devices",
            device=device,
            operation=operation,
            requested_bytes=requested_bytes,
            used_bytes=used_bytes,
            capacity_bytes=capacity_bytes,
        )


class DigestMismatch(NereusError):
    """The logical state after a movement is not bit for bit the state before it."""


class TransitionFailed(NereusError):
    """Starting, or an operation of a transition, failed; nothing was committed."""


class EndpointLost(NereusError):
    """A process that held shards has died."""

    def __init__(self, endpoint: str, during: str) -> None:
        super().__init__(
            f"endpoint {endpoint} died during {during}, and its shards with it; run the job again, "
            "and look for what ended it (out of memory, for example)",
            endpoint=endpoint,
            during=during,
        )


class JobStopped(NereusError):
    """The controller ended the job: it cannot go on, and the message says why."""
