"""The judges of patterns: RE2/J and java.util.regex, in one Java process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pattern_judge import PatternJudge
from tests.support.requirements import Unavailable, give_up


@pytest.fixture(scope="session")
def pattern_judge() -> Iterator[PatternJudge]:
    try:
        with PatternJudge() as judge:
            yield judge
    except Unavailable as error:
        give_up(str(error))
