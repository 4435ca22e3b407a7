"""Why a record is a dead letter, in words: by the headers of whoever parked it."""

from __future__ import annotations

from pykafka_ui.records.records_query import DeadLetter, dead_letter


def headers(prefix: str, **named: str) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((prefix + name.replace("__", "."), value.encode()) for name, value in named.items())


PLACE = {"topic": "flights", "partition": "2", "offset": "41"}


def test_the_reason_and_the_place_are_told() -> None:
    ours = headers("pykafka.origin.", **PLACE, timestamp="7")
    why = (("pykafka.error", b"value: not JSON"), ("pykafka.attempts", b"3"))
    assert dead_letter(ours + why) == DeadLetter("value: not JSON", "after 3 attempts", "flights", 2, 41)
    assert dead_letter(ours + why[:1]) == DeadLetter("value: not JSON", "", "flights", 2, 41)
    share = headers("__dlq.errors.", **PLACE, group="g", delivery__count="5", message="delivered too often")
    assert dead_letter(share) == DeadLetter(
        "delivered too often", "in share group g, delivered 5 times", "flights", 2, 41
    )
    connect = headers(
        "__connect.errors.", **PLACE, connector__name="sink", exception__class__name="E", exception__message="no"
    )
    assert dead_letter(connect) == DeadLetter("E: no", "in connector sink", "flights", 2, 41)


def test_other_records_are_none() -> None:
    assert dead_letter(()) is None
    assert dead_letter((("trace", b"1"), ("pykafka.origin.topic", b"x"))) is None


def test_hostile_headers_are_text_and_lead_nowhere() -> None:
    found = dead_letter(
        (
            ("pykafka.error", "\u202e<b>".encode() + b"\xff" + b"x" * 10_000),
            ("pykafka.origin.topic", b"t"),
            ("pykafka.origin.partition", b"-1"),
            ("pykafka.origin.offset", b"9" * 400),
            ("empty", None),
        )
    )
    assert found is not None
    assert found.why.startswith("\\u202e<b>\ufffd")
    assert len(found.why) < 1_100
    assert not found.is_found
