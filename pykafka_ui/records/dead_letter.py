"""What the headers of a record say of why it is a dead letter: ours, those of share groups, and Kafka Connect's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.client.dead_letter_headers import ATTEMPTS, ERROR, ORIGIN
from broker.records.record import Header
from pykafka_ui.records.visible import visible

_SHARE, _CONNECT = "__dlq.errors.", "__connect.errors."
_LONGEST: Final = 1_000
_LONGEST_NUMBER: Final = 19


class DeadLetter(NamedTuple):
    """`why` and `by` are words for people; "" if nothing says it. `topic`, `partition`, `offset`: where the record was
    first, "" and -1 if nothing says it."""

    why: str
    by: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1

    @property
    def is_found(self) -> bool:
        """Whether it says which record it was."""
        return bool(self.topic) and self.partition >= 0 and self.offset >= 0


def dead_letter(headers: tuple[Header, ...]) -> DeadLetter | None:
    """None for a record that says nothing of the kind. Of several headers of a name the last counts."""
    texts = {name: visible((content or b"")[:_LONGEST].decode(errors="replace")) for name, content in headers}
    if ERROR in texts:
        attempts = texts.get(ATTEMPTS, "")
        return _placed(texts, ORIGIN, texts[ERROR], f"after {attempts} attempts" if attempts else "")
    if f"{_SHARE}message" in texts:
        group, count = texts.get(f"{_SHARE}group", "?"), texts.get(f"{_SHARE}delivery.count", "?")
        return _placed(texts, _SHARE, texts[f"{_SHARE}message"], f"in share group {group}, delivered {count} times")
    told = [texts.get(f"{_CONNECT}exception.{part}", "") for part in ("class.name", "message")]
    if any(told):
        connector = texts.get(f"{_CONNECT}connector.name", "")
        by = f"in connector {connector}" if connector else ""
        return _placed(texts, _CONNECT, ": ".join(filter(None, told)), by)
    return None


def _placed(texts: Mapping[str, str], prefix: str, why: str, by: str) -> DeadLetter:
    partition, offset = (_number(texts.get(prefix + name, "")) for name in ("partition", "offset"))
    return DeadLetter(why, by, texts.get(f"{prefix}topic", ""), partition, offset)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER else -1
