"""A text that a stranger stored is shown as it is, or refused."""

from __future__ import annotations

import pytest

from spark_connector import stored_json


@pytest.mark.parametrize("mark", ["\n", "\x7f", "\x85", "\x9b", "\u061c", "\u2028", "\u202e", "\u2066", "\ud800"])
def test_a_text_that_would_rewrite_a_line_is_refused(mark: str) -> None:
    with pytest.raises(ValueError, match="group is .*, not a text without control characters"):
        stored_json.text(f"a{mark}b", "group")
    assert stored_json.text("Größe", "group") == "Größe"
