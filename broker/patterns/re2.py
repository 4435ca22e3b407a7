"""Patterns of the protocol, which Kafka gives to RE2/J: subscriptions (KIP-848), transactional ids (KIP-1152).

RE2 itself reads and matches them, in linear time and without the interpreter's lock. Where it and RE2/J differ, the
pattern is written in the way that both read alike, or refused: RE2 takes `\\C` and a `{` that is repeated, RE2/J `\\é`.
RE2 reads a pattern *with* the lock, so what it may cost is bounded: a pattern longer than 4 KiB (32 KiB for
names and alternatives), or that RE2 compiles to more than 1 MiB, is refused. RE2/J takes those: `\\pL{1000}`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence

MAX_SECONDS = 10.0
"""Of one call of `matching`. A usual pattern takes some microseconds for a name."""

MAX_BYTES = 32 << 10
"""Of a pattern: the longest string of Kafka's protocol."""

MAX_COSTLY_BYTES = 4096
"""Of a pattern that is more than names, dots, groups, `|`, `*` and `+`. Those of 32 KiB hold the interpreter's lock for
0.03 s, `a?a?…` for 1 s; with 4 KiB no pattern was found that holds it for more than 0.1 s."""

_MAX_MEMORY = 1 << 20

_NAMES_AT_A_TIME = 100

_CHEAP = re.compile(r"(?:[\w.^$|)*+-]|\((?:\?:)?|\\[.-])*+", re.ASCII)

_PART = re.compile(
    r"""
    (?P<set>\[\^?\]?(?:\[:\^?\w++:\]|\\.|[^\]\\])*+\])
    |(?P<open>\[)
    |(?P<quoted>\\Q(?:(?!\\E).)*(?:\\E|\Z))
    |(?P<refused>\\C|\{(?:[*+?]|\{(?:0|[1-9]\d*)(?:,(?:0|[1-9]\d*)?)?\}|\d*,?\d{9,}))
    |\\(?P<letter>[^\x00-\x7f])
    |\\?.
    """,
    re.DOTALL | re.VERBOSE | re.ASCII,
)


class InvalidPattern(ValueError):
    """The text is no pattern of RE2/J, or matches take too long."""


class Re2Pattern:
    def __init__(self, text: str) -> None:
        """It may take a while: call it in a thread. Raises InvalidPattern."""
        import re2  # 4 MB, and most brokers never see a pattern

        options = re2.Options()
        options.max_mem = _MAX_MEMORY
        options.log_errors = False  # on standard error
        options.never_capture = True
        try:
            most = MAX_BYTES if _CHEAP.fullmatch(text) else MAX_COSTLY_BYTES
            if len(text.encode()) > most:
                raise InvalidPattern(f"it is longer than {most} bytes")
            self._compiled = re2.compile(_PART.sub(_as_in_re2, text), options)
        except re2.error as error:
            raise InvalidPattern(error.args[0].decode(errors="replace")) from None
        except UnicodeEncodeError as error:
            raise InvalidPattern(str(error)) from None
        re2.purge()  # it would keep 128 patterns, of strangers

    def matching(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> Iterator[bool]:
        """Whether the pattern matches each name as a whole. Call it in a thread. Raises InvalidPattern."""
        deadline = clock() + MAX_SECONDS
        for number, name in enumerate(names):
            if number % _NAMES_AT_A_TIME == 0 and clock() > deadline:
                raise InvalidPattern(f"matches take longer than {MAX_SECONDS:.0f} s")
            yield self._compiled.fullmatch(name) is not None


def _as_in_re2(part: re.Match[str]) -> str:
    """One part of a pattern of RE2/J. Raises InvalidPattern."""
    if part["open"]:
        raise InvalidPattern("missing closing ]")  # soon: else each [ behind it would be looked at up to the end
    if part["refused"]:
        raise InvalidPattern(f"{part[0]} has no meaning")
    if part["set"]:
        return re.sub(r"\\(?:([^\x00-\x7f])|.)", lambda escape: escape[1] or escape[0], part[0], flags=re.DOTALL)
    return part["letter"] or part[0]
