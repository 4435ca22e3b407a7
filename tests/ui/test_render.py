"""Numbers, durations and times as people read them, with what was rounded in a hint."""

from __future__ import annotations

import re

import pytest
from markupsafe import Markup

from pykafka_ui.render import count, duration, kept_text, moment, moment_text, setting, setting_text, size


@pytest.mark.parametrize(
    ("shown", "text", "hint"),
    [
        (size(512), "512 B", "512 bytes"),
        (size(1 << 30), "1 GiB", "1,073,741,824 bytes"),
        (size(2**63 - 1), "8388608 TiB", "9,223,372,036,854,775,807 bytes"),
        (size(1_288_490_189), "1.2 GiB", "1,288,490,189 bytes"),
        (duration(604_800), "7 d", "604,800 s"),
        (duration(93_784), "1 d 2 h", "93,784 s"),
        (duration(3_600), "1 h", "3,600 s"),
        (duration(90), "1 min 30 s", "90 s"),
        (duration(2.345), "2 s", "2.345 s"),
        (moment(1_764_122_116_123), "2025-11-26 01:55:16 UTC", "1764122116123 ms since 1970"),
        (moment(1_764_122_116_123, exact=True), "2025-11-26 01:55:16.123 UTC", "1764122116123 ms since 1970"),
        (moment(1_764_122_116_123_000_000), "1764122116123000000 ms since 1970", "1764122116123000000 ms since 1970"),
    ],
)
def test_what_is_rounded_is_whole_in_a_hint(shown: str, text: str, hint: str) -> None:
    found = re.fullmatch(r'<(span|time datetime="[^"]+") title="([^"]+)">([^<]+)</\w+>', shown)
    assert found is not None
    assert (found[3], found[2]) == (text, hint)


def test_what_is_not_known() -> None:
    assert (size(-1), moment(-1), count(None)) == ("?", "", "?")


def test_a_count_has_the_digits_of_an_offset() -> None:
    assert (count(2**63 - 1), count(1.25), count(1234.0)) == ("9,223,372,036,854,775,807", "1.2", "1,234")


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("retention.ms", "604800000", "7 d"),
        ("retention.ms", "-1", "no limit"),
        ("log.retention.hours", "168", "7 d"),
        ("log.retention.minutes", "90", "1 h 30 min"),
        ("delete.retention.ms", "1500", "1.5 s"),
        ("linger.ms", "5", ""),
        ("flush.ms", "9223372036854775807", "no limit"),
        ("segment.bytes", "1073741824", "1 GiB"),
        ("max.message.bytes", "1048588", "1 MiB"),
        ("min.insync.replicas", "2", ""),
        ("retention.ms", "soon", ""),
        ("retention.ms", "9" * 5_000, ""),
        ("cleanup.policy", "delete", ""),
    ],
)
def test_what_a_setting_means(name: str, value: str, meant: str) -> None:
    assert setting_text(name, value) == meant
    assert value in setting(name, value), "what was set is shown, too"


def test_what_a_page_is_to_escape_is_not_marked_as_safe() -> None:
    assert not isinstance(setting("segment.bytes", "<script>"), Markup)


def test_a_time_in_a_sentence() -> None:
    assert moment_text(0) == "1970-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}, "7 d"),
        (
            {"cleanup.policy": "delete", "retention.ms": "3600000", "retention.bytes": "1073741824"},
            "1 h or 1 GiB a partition",
        ),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}, "for ever"),
        ({"cleanup.policy": "", "retention.ms": "1"}, "for ever"),
        ({"cleanup.policy": "compact", "retention.ms": "604800000"}, "the newest of each key"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "604800000"}, "the newest of each key, for 7 d"),
        ({"cleanup.policy": "delete", "retention.ms": "500"}, "500 ms"),
        ({"cleanup.policy": "delete", "retention.bytes": "100"}, "100 B a partition"),
        ({}, ""),
    ],
)
def test_how_long_records_are_kept(settings: dict[str, str], text: str) -> None:
    assert kept_text(settings) == text
