"""broker/records/crc32c.py"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.records.crc32c import crc32c, portable_crc32c


def test_the_check_value_of_the_castagnoli_polynomial() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_buffer_in_any_pieces_agrees_with_crcmod(first: bytes, second: bytes) -> None:
    whole = portable_crc32c(first + second)
    assert crc32c(memoryview(second), crc32c(bytearray(first))) == whole
    assert portable_crc32c(memoryview(second), portable_crc32c(first)) == whole
