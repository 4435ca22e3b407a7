"""broker/records/native.py and the kernel: the choice, and arguments and batches that must not crash it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from broker.errors import CorruptBatch
from broker.records import native
from broker.records.batch import walk_batches
from broker.records.columns import decode_columns, encode_columns
from broker.records.native import Kernel
from broker.records.record_sections import Fact, Head
from tests.support.codec_choice import BUILT, using
from tests.support.record_batches import NOW, Row, build, follow

needs_kernel = pytest.mark.skipif(not BUILT, reason="the kernel was not built: no C compiler, or switched off")

ONE = build([Row(NOW, b"key", b"value")])
BUFFERS = 16
SOURCES = (10, "e7080c24a6412433")
"""The kernel's version, and the digest of its sources at that version."""


@pytest.fixture
def kernel() -> Kernel:
    with using("native"):
        assert native.kernel is not None
        return native.kernel


def test_the_implementation_in_use_is_told() -> None:
    with using("plain"):
        assert native.implementation() == "plain"


@needs_kernel
def test_a_kernel_of_other_sources_is_not_used_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert native._load() is not None
    monkeypatch.setattr(native, "KERNEL_VERSION", 99)
    assert native._load() is None
    (said,) = caplog.messages
    assert "the codec runs in plain Python, many times slower" in said
    assert f"(version {native.kernel.VERSION}, needed 99)" in said  # type: ignore[union-attr]


def test_that_no_kernel_was_built_is_said_with_what_to_do_unless_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """pip shows nothing of an optional extension that it could not build."""
    monkeypatch.delenv(native.NATIVE_VARIABLE, raising=False)
    monkeypatch.setattr(native, "_built_kernels", lambda: iter(()))
    assert native._load() is None
    (said,) = caplog.messages
    assert said.startswith("the codec runs in plain Python, many times slower: no C compiler was found")
    assert "apt-get install gcc" in said
    assert "set PYKAFKA_NATIVE=0" in said
    monkeypatch.setenv(native.NATIVE_VARIABLE, "0")
    assert native._load() is None
    monkeypatch.delenv(native.NATIVE_VARIABLE)
    monkeypatch.setattr(native, "_started_by_spark", lambda: True)
    assert native._load() is None
    assert caplog.messages == [said]


def test_a_change_of_the_kernels_sources_raises_their_version() -> None:
    """Or a kernel that was built before would go on being used."""
    paths = sorted(Path(native.__file__).parent.glob("_kernel*.[ch]"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]
    assert (native.KERNEL_VERSION, digest) == SOURCES, "raise KERNEL_VERSION in native.py and _kernel.h, then SOURCES"
    assert f"#define KERNEL_VERSION {native.KERNEL_VERSION}\n" in (paths[0].parent / "_kernel.h").read_text()


@needs_kernel
def test_checksums_come_from_the_library_where_the_processor_has_no_instruction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = pa.array([b"v" * 300] * 1000, pa.binary())
    with using("native"):
        whole = encode_columns(None, values, NOW, base_sequence=3, producer_id=7, transactional=True)
        monkeypatch.setattr(native, "crc_in_kernel", lambda: False)
        assert encode_columns(None, values, NOW, base_sequence=3, producer_id=7, transactional=True) == whole
        chunk = bytearray(follow(whole))
        assert decode_columns(chunk).value == values
        chunk[-1] ^= 1
        with pytest.raises(CorruptBatch, match="CRC"):
            decode_columns(chunk)


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("implementation", ["plain", pytest.param("native", marks=needs_kernel)])
def test_one_bad_checksum_among_good_ones_is_found(implementation: str, count: int) -> None:
    """The kernel checks three batches at a time, of lengths that differ."""
    log = follow([build([Row(NOW, None, b"v" * (number * 11))]) for number in range(count)])
    with using(implementation):
        assert decode_columns(log).num_rows == count
        for position, header in walk_batches(log):
            changed = bytearray(log)
            changed[position + header.size - 2] ^= 0x10
            for consume in (False, True):
                with pytest.raises(CorruptBatch, match=f"CRC of the batch at offset {header.base_offset} "):
                    decode_columns(bytearray(changed), consume=consume)


def sections(**changed: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    facts = {Fact.PART: 0, Fact.START: 61, Fact.END: len(ONE), Fact.COUNT: 1, Fact.BASE_OFFSET: 0, Fact.LAST_OFFSET: 0}
    facts |= {Fact.BASE_TIME: NOW, Fact.APPEND_TIME: -(2**63)} | {Fact[name]: value for name, value in changed.items()}
    return np.array([[facts[fact] for fact in Fact]], np.int64)


@needs_kernel
@pytest.mark.parametrize(
    "changed",
    [
        {"PART": 1},
        {"PART": -1},
        {"START": -1},
        {"START": 2**40},
        {"END": len(ONE) + 1},
        {"COUNT": -1},
        {"COUNT": 2**40},
    ],
)
def test_sections_outside_of_their_part_are_refused(kernel: Kernel, changed: dict[str, int]) -> None:
    with pytest.raises(SystemError, match="outside of its part"):
        kernel.decode([ONE], sections(**changed), 0, 1 << 62, (None,) * BUFFERS)
    with pytest.raises(SystemError, match="outside of its part"):
        kernel.count_headers([ONE], sections(**changed))


@needs_kernel
def test_buffers_too_small_or_halved_are_refused(kernel: Kernel) -> None:
    def decode(**given: int) -> None:
        names = ("edges", "validity", "data", "v1", "v2", "v3", "offset", "time", "kind")
        buffers = [bytearray(given[name]) if name in given else None for name in names]
        kernel.decode([ONE], sections(), 0, 1 << 62, (*buffers, *[None] * (BUFFERS - len(buffers))))

    decode(edges=8, validity=1, data=3)
    for given in ({"edges": 7, "validity": 1, "data": 3}, {"offset": 7}, {"time": 7}, {"kind": 3}):
        with pytest.raises(SystemError, match="too small"):
            decode(**given)
    with pytest.raises(SystemError, match="than were reserved"):
        decode(edges=8, validity=1, data=2)
    with pytest.raises(SystemError, match="half"):
        decode(edges=8, data=3)
    with pytest.raises(SystemError, match="number of buffers"):
        kernel.decode([ONE], sections(), 0, 1, ())


@needs_kernel
def test_columns_that_leave_their_buffers_are_refused(kernel: Kernel) -> None:
    data, times = b"abc", np.zeros(2, np.int64)

    def encode(*edges: int, first: int = 0) -> None:
        value = np.array(edges, np.int32), None, data, first
        kernel.encode([(2, None, value, times, None)], None, 1, 3, 16384, 1 << 30, None)

    encode(0, 1, 3)
    for edges in ((0, 1), (0, 2, 1), (0, 1, 4), (-1, 1, 3)):
        with pytest.raises(SystemError):
            encode(*edges)
    with pytest.raises(SystemError):
        encode(0, 1, 3, first=1)
    with pytest.raises(SystemError):
        kernel.partitions(2, (np.array([0, 1], np.int32), None, data, 0), 3, bytearray(8))


@needs_kernel
def test_rows_of_no_partition_are_refused(kernel: Kernel) -> None:
    one = (2, None, (np.array([0, 1, 3], np.int32), None, b"abc", 0), np.zeros(2, np.int64), None)

    def encode(*slots: int, chunks: object = None, count: int = 2, framed: object = None) -> int:
        given: Any = [one] if chunks is None else chunks
        return len(kernel.encode(given, np.array(slots, np.int32), count, 3, 16384, 1 << 30, framed))  # type: ignore[arg-type]

    assert encode(1, 0) == 2
    assert encode(1, 0, 1, 1, chunks=[one, one]) == 2
    for slots in ((0, 2), (-1, 0), (0,)):
        with pytest.raises(SystemError):
            encode(*slots)
    for wrong in ([one, one], [one[:-1]], [()], one):
        with pytest.raises((SystemError, TypeError)):
            encode(0, 1, chunks=wrong)
    with pytest.raises(SystemError):
        encode(0, 0, count=0)
    with pytest.raises(SystemError):
        encode(0, 0, chunks=[(2, None, one[2], None, None)])
    if native.crc_in_kernel():
        with pytest.raises(SystemError):
            encode(0, 1, framed=(0, 1, 0, np.zeros(1, np.int64)))


@needs_kernel
@pytest.mark.skipif(not native.crc_in_kernel(), reason="the processor has no instruction for CRC-32C")
def test_a_batch_outside_of_its_chunk_is_refused(kernel: Kernel) -> None:
    table = np.zeros((1, len(Head)), np.int64)
    table[0, Head.POSITION], table[0, Head.SIZE] = 1, len(ONE)
    with pytest.raises(SystemError, match="outside of its chunk"):
        kernel.first_bad_crc(ONE, table)


@needs_kernel
@pytest.mark.skipif(not native.crc_in_kernel(), reason="the processor has no instruction for CRC-32C")
def test_a_pass_over_a_chunk_stays_within_its_buffers(kernel: Kernel) -> None:
    def decode(chunk: bytes | bytearray, rows: int = 1, *, place: int = 0, last: int = 0, **given: int) -> None:
        names = ("edges", "validity", "data", "v1", "v2", "v3", "offset", "time", "kind")
        buffers = [bytearray(given[name]) if name in given else None for name in names]
        headers = [bytearray(last)] * 7 if last else [None] * 7
        kernel.decode_plain(chunk, 0, 1 << 62, True, rows, bool(place), (*buffers, *headers))

    assert kernel.plain_rows(ONE, 0, 1 << 62) == (1, 0)
    decode(ONE, edges=8, validity=1, data=3)
    decode(bytearray(ONE), place=True, v1=8, v2=1, v3=0)
    for given in ({"edges": 7, "validity": 1, "data": 3}, {"offset": 7}, {"time": 7}, {"kind": 3}):
        with pytest.raises(SystemError, match="too small"):
            decode(ONE, **given)
    for arguments in ({"edges": 8, "validity": 1, "data": 2}, {"rows": 0}, {"v1": 8, "v2": 1, "v3": 4}):
        with pytest.raises(SystemError, match="than were reserved"):
            decode(ONE, **arguments)
    decode(ONE, last=8)
    with pytest.raises(SystemError, match="than were reserved"):
        decode(build([Row(NOW, None, b"v", (("g", b"x"), ("h", b"y")))]), last=8)
    with pytest.raises(SystemError, match="too small"):
        decode(ONE, last=7)
    for rows in (-1, len(ONE) + 1):
        with pytest.raises(SystemError, match="more records than bytes"):
            decode(ONE, rows)
    with pytest.raises(BufferError):
        decode(ONE, place=True, v1=8, v2=1, v3=0)


@needs_kernel
@pytest.mark.skipif(not native.crc_in_kernel(), reason="the processor has no instruction for CRC-32C")
def test_only_a_chunk_of_plain_batches_is_read_in_one_pass(kernel: Kernel) -> None:
    plain = build([Row(NOW, None, b"v"), Row(NOW, None, b"w")])
    log = follow([plain, plain, plain])
    assert kernel.plain_rows(log, 0, 1 << 62) == (6, 5)
    assert kernel.plain_rows(log[:-1], 0, 1 << 62) == (4, 3)
    assert kernel.plain_rows(log, 2, 4) == (2, 3)
    assert kernel.plain_rows(b"", 0, 1) == (0, -1)
    other = {
        "magic": (16, 1),
        "codec": (22, 2),
        "control": (22, 0x20),
        "count": (60, 0),
        "many": (59, 9),
        "order": (7, 0),
    }
    for position, byte in other.values():
        changed = bytearray(log)
        changed[len(plain) + position] = byte
        assert kernel.plain_rows(changed, 0, 1 << 62) is None
