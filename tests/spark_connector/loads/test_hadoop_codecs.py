"""Text that Hadoop's codecs have compressed, read without Hadoop."""

from __future__ import annotations

import base64
import bz2
import gzip
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.loads.hadoop_codecs import decompressed

TEXT = b"".join(b'{"topic":"t","partition":%d,"offset":%d}\n' % (n % 3, n) for n in range(20_000))
BLOCK = 100_000


AS_SPARK_WROTE_THEM = {
    "gz": "H4sIAAAAAAAAAKtWKskvyExWslIqUdJRKkgsKsksyczPU7Iy0FHKT0srTi0BMmu5qolQZkicMiPilBkTp8yklgsAelvldMMAAAA=",
    "bz2": (
        "QlpoOTFBWSZTWbMFrPUAAFzZgAAQEAR8ECsh3AogAHIoAMTRppgiqPUeo0aAZLpZKp2mKSJVLpRKJAmCvyepdLJZMk2EhJSUhMUhPklISySl0hEj"
        "Btr9nF3JFOFCQswWs9Q="
    ),
    "deflate": "eJyrVirJL8hMVrJSKlHSUSpILCrJLMnMz1OyMtBRyk9LK04tATJruaqJUGZInDIj4pQZE6fMpJYLAO8IPic=",
    "lz4": "AAAAwwAAAEH/GHsidG9waWMiOiJ0IiwicGFydGl0aW9uIjowLCJvZmZzZXQiOjB9CicAER8xJwATHzInABMfMycAEVAiOjR9Cg==",
    "snappy": "AAAAwwAAAELDAZh7InRvcGljIjoidCIsInBhcnRpdGlvbiI6MCwib2Zmc2V0IjowfQqOJwAIMX0KjicAADKWJwAAM5YnAAg0fQo=",
}
"""By Spark 4.3's `write.format("json").option("compression", …)`: all the codecs it has without native libraries."""


@pytest.mark.parametrize("ending", AS_SPARK_WROTE_THEM)
def test_what_spark_has_written_is_read(ending: str) -> None:
    lines = "".join(f'{{"topic":"t","partition":0,"offset":{offset}}}\n' for offset in range(5))
    assert decompressed(f"part.json.{ending}", base64.b64decode(AS_SPARK_WROTE_THEM[ending])) == lines.encode()


def test_a_file_without_rows_is_one_empty_block() -> None:
    assert decompressed("part.json.snappy", bytes(4)) == b""


def in_blocks(ending: str, data: bytes, piece: int = 30_000) -> bytes:
    """As Hadoop's BlockCompressorStream writes: blocks of several pieces."""
    written = b""
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        written += len(block).to_bytes(4, "big")
        for at in range(0, len(block), piece):
            plain = block[at : at + piece]
            packed = bytes(
                cramjam.snappy.compress_raw(plain)
                if ending == "snappy"
                else cramjam.lz4.compress_block(plain, store_size=False)
            )
            written += len(packed).to_bytes(4, "big") + packed
    return written


@pytest.mark.parametrize("ending", ["snappy", "lz4"])
def test_blocks_of_pieces_are_put_together(ending: str) -> None:
    assert decompressed(f"part.json.{ending}", in_blocks(ending, TEXT)) == TEXT
    assert decompressed(f"part.json.{ending}", b"") == b""


@pytest.mark.parametrize("ending", ["snappy", "lz4"])
@pytest.mark.parametrize("end", [2, 6, 1000, -1])
def test_a_file_that_is_cut_is_an_error(ending: str, end: int) -> None:
    with pytest.raises(ValueError, match="the file ends within a"):
        decompressed(f"part.json.{ending}", in_blocks(ending, TEXT)[:end])


@pytest.mark.parametrize("ending", ["snappy", "lz4", "deflate", "gz"])
@given(st.binary(min_size=1, max_size=60))
def test_what_is_no_compressed_text_is_an_error_and_nothing_worse(ending: str, data: bytes) -> None:
    whole = in_blocks(ending, b"x" * 50) + data
    for damaged in (data, whole):
        try:
            assert len(decompressed(f"part.{ending}", damaged)) < 1 << 20
        except Exception as error:
            assert not isinstance(error, MemoryError)  # noqa: PT017 - any other will do


def test_other_endings() -> None:
    assert decompressed("part.json", b"plain") == b"plain"
    assert decompressed("part.json.gz", gzip.compress(TEXT)) == TEXT
    assert decompressed("part.json.bz2", bz2.compress(TEXT)) == TEXT
    assert decompressed("part.json.deflate", zlib.compress(TEXT)) == TEXT
