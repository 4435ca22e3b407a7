"""Addresses that mean the same are written the same."""

from __future__ import annotations

import pytest

from broker.security.addresses import plain_address


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("*", "*"),
        ("localhost", "localhost"),
        ("not:an:address", "not:an:address"),
        ("", ""),
    ],
)
def test_one_text_for_each_address(written: str, plain: str) -> None:
    assert plain_address(written) == plain
