"""Names that a mirror takes: patterns are Java's, as MirrorMaker's are."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from broker.mirror.mirror_settings import MirrorSettings, NameFilter


def test_names_are_matched_as_in_java() -> None:
    accepts = NameFilter.parse([r"\Qa.b\E", r"\w+"], ["(?i)X"], "topics").accepts
    names = ("a.b", "aXb", "a-b", "größe", "x", "plain")
    assert [name for name in names if accepts(name)] == ["a.b", "aXb", "plain"]


def test_plain_names_that_do_not_exist_are_missing() -> None:
    assert NameFilter.parse(["a.b", "c", "d.*"], (), "topics").missing(["a.b", "axb"]) == ["c"]


@pytest.mark.parametrize("pattern", ["a{,2}", "(?P<n>a)", r"\bx", "a++", "["])
def test_what_python_would_read_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="--topics .* is not supported in a pattern"):
        MirrorSettings(topics=(pattern,))
