"""Patterns of the protocol, which Kafka gives to RE2/J: subscriptions (KIP-848), transactional ids (KIP-1152).

RE2 itself reads and matches them, the one within pyarrow, in linear time and without the interpreter's lock. Where it
and RE2/J differ, the pattern is written in the way that both read alike, or refused: RE2 takes `\\C` and a `{` that is
repeated, RE2/J `\\é`; RE2 of 2022 does not know `(?<name>`. A pattern that RE2 compiles to more than 8 MiB is refused,
which RE2/J takes: `\\pL{1000}`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence

MAX_SECONDS = 10.0
"""Of one call of `matching`. A usual pattern takes some microseconds for a name."""

_NAMES_AT_A_TIME = 100

_PART = re.compile(
    r"""
    (?P<set>\[\^?\]?(?:\[:\^?\w++:\]|\\.|[^\]\\])*+\])
    |(?P<open>\[)
    |(?P<quoted>\\Q(?:(?!\\E).)*(?:\\E|\Z))
    |(?P<refused>\\C|\{(?:[*+?]|\{(?:0|[1-9]\d*)(?:,(?:0|[1-9]\d*)?)?\}|\d*,?\d{9,}))
    |\\(?P<letter>[^\x00-\x7f])
    |(?P<named>\(\?<(?=\w))
    |\\?.
    """,
    re.DOTALL | re.VERBOSE | re.ASCII,
)


class InvalidPattern(ValueError):
    """The text is no pattern of RE2/J, or matches take too long."""


class Re2Pattern:
    def __init__(self, text: str) -> None:
        """It may take a while: call it in a thread. Raises InvalidPattern."""
        self._text = _PART.sub(_as_in_re2, text)
        self._matches(self._text, [""])  # alone: `a)|(b` is no pattern, but would be one in brackets
        self._whole = rf"\A(?:{self._text})\z"

    def matching(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> Iterator[bool]:
        """Whether the pattern matches each name as a whole. Call it in a thread. Raises InvalidPattern."""
        deadline = clock() + MAX_SECONDS
        for first in range(0, len(names), _NAMES_AT_A_TIME):
            if clock() > deadline:
                raise InvalidPattern(f"matches take longer than {MAX_SECONDS:.0f} s")
            yield from self._matches(self._whole, names[first : first + _NAMES_AT_A_TIME])

    @staticmethod
    def _matches(pattern: str, names: Sequence[str]) -> list[bool]:
        import pyarrow  # 0.2 s, and most brokers never see a pattern
        from pyarrow import compute

        try:
            found: list[bool] = compute.match_substring_regex(
                pyarrow.array(names, pyarrow.string()), pattern
            ).to_pylist()
        except (pyarrow.ArrowInvalid, UnicodeEncodeError) as error:
            raise InvalidPattern(str(error).removeprefix("Invalid regular expression: ")) from None
        return found


def _as_in_re2(part: re.Match[str]) -> str:
    """One part of a pattern of RE2/J. Raises InvalidPattern."""
    if part["open"]:
        raise InvalidPattern("missing closing ]")  # soon: else each [ behind it would be looked at up to the end
    if part["refused"]:
        raise InvalidPattern(f"{part[0]} has no meaning")
    if part["set"]:
        return re.sub(r"\\(?:([^\x00-\x7f])|.)", lambda escape: escape[1] or escape[0], part[0], flags=re.DOTALL)
    if part["quoted"] and not (part[0].endswith(r"\E") and len(part[0]) > 3):
        return part[0] + r"\E"  # else it would quote what follows the pattern
    if part["named"]:
        return "(?P<"
    return part["letter"] or part[0]
