"""Records that every client must bring through unchanged: the awkward ones first."""

from __future__ import annotations

from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Sample(NamedTuple):
    """What a producer is given and a consumer must give back; None is Kafka's null, b"" is not."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


AWKWARD = [
    Sample(b"k", b"v"),
    Sample(None, b"no key"),
    Sample(b"tombstone", None),
    Sample(b"", b""),
    Sample("ключ".encode(), "значение ≠ value".encode()),
    Sample(b"binary", bytes(range(256))),
    Sample(b"headers", b"one", (("a", b"1"),)),
    Sample(b"headers", b"many", (("a", b"1"), ("a", b"2"), ("empty", b""), ("größe", b"\x00\xff"))),
    Sample(b"null header", b"v", (("nothing", None),)),
]


def samples(count: int, size: int = 100) -> list[Sample]:
    """`count` records: the awkward ones, then plain ones of about `size` bytes with every tenth key alike."""
    plain = (
        Sample(b"key-%d" % (number % 10), (b"%08d " % number).ljust(size, b"x"))
        for number in range(len(AWKWARD), count)
    )
    return [*AWKWARD, *plain]
