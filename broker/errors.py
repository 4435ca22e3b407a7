"""Kafka's error codes and the exceptions of the broker and its client.

The codes are kio's generated table (`ErrorCode.name`, `.value`, `.retriable`). To decide on a retry, callers read the
flag `retriable` and never compare classes.

    PykafkaError
    ├── ConfigError            a setting, option or argument is wrong; the text says what to set
    ├── BrokerError            carries a Kafka error code: `.code`, `.retriable`
    │   ├── CorruptBatch       a record batch failed its length, magic or CRC check
    │   ├── VersionRefused     the answer to an API that the broker advertises; an UnsupportedVersion, too
    │   └── RecordsRefused     records of a batch break rules of their topic; lists them
    ├── ConnectionFailed       a connection could not be made, or broke; retriable
    ├── RequestTimedOut        no response in time; retriable
    ├── AuthenticationFailed   TLS or SASL failed
    │   └── MechanismNotOffered the broker has other SASL mechanisms
    └── ProtocolError          bytes that are not a Kafka request or response
        └── UnsupportedVersion the API or its version is not supported
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = [
    "AuthenticationFailed",
    "BrokerError",
    "ConfigError",
    "ConnectionFailed",
    "CorruptBatch",
    "ErrorCode",
    "MechanismNotOffered",
    "ProtocolError",
    "PykafkaError",
    "RecordsRefused",
    "RequestTimedOut",
    "UnsupportedVersion",
    "VersionRefused",
    "error_name",
    "raise_for",
]


class PykafkaError(Exception):
    """Base of all exceptions that this project raises on purpose."""

    retriable: bool = False
    exit_status: int = 1
    """Of a command that it ends."""


class ConfigError(PykafkaError, ValueError):
    """A setting is missing, unknown or has a value that cannot be used."""

    exit_status = 2


class BrokerError(PykafkaError):
    """An error with a Kafka error code, in the broker or the client."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(f"{error_name(code)}: {message}" if message else error_name(code))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.message)  # so that it can be pickled in a Spark worker

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        return self.code.retriable


class CorruptBatch(BrokerError):
    """A record batch whose length, magic, CRC or record count is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.corrupt_message, message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,)


class RecordsRefused(BrokerError):
    """A produced batch has records that its topic does not accept (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
        """(index in the batch, reason) of each such record, at most the first hundred."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.message, self.record_errors)


class ConnectionFailed(PykafkaError, ConnectionError):
    """No connection could be made, or it broke before the response."""

    retriable = True


class RequestTimedOut(PykafkaError, TimeoutError):
    """The broker did not answer within the caller's timeout."""

    retriable = True


class AuthenticationFailed(PykafkaError):
    """An untrusted certificate, a refused login, or TLS on one side only. A retry will not help."""


class MechanismNotOffered(AuthenticationFailed):
    """The broker's listener has other SASL mechanisms."""


class ProtocolError(PykafkaError):
    """Bytes that cannot be decoded as a Kafka request or response."""


class UnsupportedVersion(ProtocolError):
    """The API key or its version is not supported by one side."""


class VersionRefused(BrokerError, UnsupportedVersion):
    """The answer of a broker that advertises an API and does not serve it: whoever does without one does so here."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.unsupported_version, message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,)


def error_name(code: ErrorCode) -> str:
    """Kafka's name and number: `UNKNOWN_TOPIC_OR_PARTITION (3)`."""
    return f"{code.name.upper()} ({int(code)})"


def raise_for(code: ErrorCode, message: str = "") -> None:
    """Raise `BrokerError` unless the code is `none`."""
    if code is not ErrorCode.none:
        raise BrokerError(code, message)
