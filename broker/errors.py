"""The error table and the exception tree of the broker and its client.

Every layer imports from here and nothing here imports a layer. Kafka's codes come from kio's
generated table (`ErrorCode.name`, `.value`, `.retriable`); callers ask the flag, never a class list.

    PykafkaError
    ├── ConfigError            a setting, option or argument is wrong; the text says what to set
    ├── BrokerError            carries a Kafka error code: `.code`, `.retriable`
    │   ├── CorruptBatch       a record batch failed its length, magic or CRC check
    │   └── RecordsRefused     records of a batch break their topic's rules; names each of them
    ├── ConnectionFailed       no connection to a broker, or it broke; retriable
    ├── RequestTimedOut        a reply did not come in time; retriable
    ├── AuthenticationFailed   TLS or SASL: one side does not trust the other, or speaks otherwise
    └── ProtocolError          bytes that are no Kafka request or response
        └── UnsupportedVersion the API or its version is not known to this side
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
    "ProtocolError",
    "PykafkaError",
    "RecordsRefused",
    "RequestTimedOut",
    "UnsupportedVersion",
    "error_name",
    "raise_for",
]


class PykafkaError(Exception):
    """Root of everything this project raises on purpose."""

    retriable: bool = False


class ConfigError(PykafkaError, ValueError):
    """A setting is missing, unknown or has a value that cannot be used."""


class BrokerError(PykafkaError):
    """A failure with a Kafka error code, on either side of the wire."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(f"{error_name(code)}: {message}" if message else error_name(code))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.message)  # survives the way back from a Spark worker

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
    """A produced batch with records that their topic does not take (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
        """(place in the batch, what is wrong) of each, the first hundred at most."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.message, self.record_errors)


class ConnectionFailed(PykafkaError, ConnectionError):
    """No connection to a broker could be made, or it broke before the reply."""

    retriable = True


class RequestTimedOut(PykafkaError, TimeoutError):
    """The broker did not answer within the time the caller gave."""

    retriable = True


class AuthenticationFailed(PykafkaError):
    """A certificate that is not trusted, a login that was refused, TLS where there is none. Trying again is no use."""


class ProtocolError(PykafkaError):
    """Bytes that cannot be read as a Kafka request or response."""


class UnsupportedVersion(ProtocolError):
    """The API key, or the version of it, is not served (or not known to the peer)."""


def error_name(code: ErrorCode) -> str:
    """Kafka's spelling with the number: `UNKNOWN_TOPIC_OR_PARTITION (3)`."""
    return f"{code.name.upper()} ({int(code)})"


def raise_for(code: ErrorCode, message: str = "") -> None:
    """Raise `BrokerError` unless the code says there was none."""
    if code is not ErrorCode.none:
        raise BrokerError(code, message)
