"""Text of others stays on its line."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from broker.control_characters import escaped, escaped_json

ENDS_OR_REWRITES = "\n\r\t\0\x1b\x7f\x85\x9b\u2028\u2029\u202e\u2066\ud800"


def test_each_is_written_as_python_writes_it() -> None:
    assert escaped(ENDS_OR_REWRITES) == ascii(ENDS_OR_REWRITES)[1:-1]


def test_words_of_any_language_stay() -> None:
    for text in ("plain", "Größe ÄÖÜ", "日本語", "עברית", "👩‍👩‍👧", "C:\\path", "é"):
        assert escaped(text) == text


@given(st.text(st.characters()))
def test_what_comes_out_is_one_line_without_controls(text: str) -> None:
    shown = escaped(text)
    assert len(shown.splitlines()) <= 1
    assert not any(unicodedata.category(one) in {"Cc", "Cs", "Zl", "Zp"} for one in shown)
    shown.encode()


@given(st.dictionaries(st.text(st.characters()), st.text(st.characters())))
def test_json_means_the_same(document: dict[str, str]) -> None:
    shown = escaped_json(json.dumps(document, ensure_ascii=False))
    assert json.loads(shown) == document
    assert len(shown.splitlines()) == 1
    shown.encode()
