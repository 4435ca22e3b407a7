"""Patterns of Java's `java.util.regex`, which Kafka's settings and commands have, for Python's `re`.

A pattern is read by Java's grammar and written anew for `re`, so that both match the same texts: `.` and `$` know
Java's ends of lines, `\\w`, `\\d` and `(?i)` are of ASCII, `\\Q…\\E` quotes. What the two understand differently, or
what depends on the version of Java (`\\b`), is refused in words.
"""

from __future__ import annotations

import re
from re import _parser  # type: ignore[attr-defined]
from typing import NamedTuple

_END_OF_LINE = r"\n\r\x85\u2028\u2029"
_DOT = f"[^{_END_OF_LINE}]"
_END = r"(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\Z)"
"""The end of the text, or of its last line."""

_ANCHORS = {"A": r"\A", "z": r"\Z", "Z": _END}
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_NUMBERED = re.compile(r"0([0-3][0-7]{2}|[0-7]{1,2})|x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})")
_GROUP = re.compile(
    r"\?(?:(?P<around>[:=!]|<[=!])|<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>|(?P<on>[is]*)(?:-(?P<off>[is]*))?(?P<end>[:)]))"
)
_REPEAT = re.compile(r"([*+?]|\{(\d{1,4})(?:,(\d{1,4})?)?\})(\??)", re.ASCII)
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)|\\?.", re.DOTALL)


class UnsupportedPattern(ValueError):
    """The text is no pattern of Java, or one that `re` would understand otherwise."""


class JavaPattern:
    """`pattern` and `fullmatch` are as those of `re.Pattern`; `compiled` is the same for `re`."""

    def __init__(self, text: str) -> None:
        """Raises UnsupportedPattern."""
        self.pattern = text
        try:
            self.compiled = re.compile(_Translation(text).done(), re.ASCII)
        except (re.error, RecursionError, OverflowError) as error:
            raise UnsupportedPattern(f"{error} is not supported in a pattern") from None

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self.compiled.fullmatch(text)


class _Flags(NamedTuple):
    ignores_case: bool = False
    dot_is_all: bool = False


class _Translation:
    """One reading of a pattern from the left to the right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = _QUOTED.sub(_unquoted, text), 0

    def done(self) -> str:
        found = self._alternatives(_Flags())
        if self._at < len(self._text):
            raise self._refused(") without (")
        return found

    def _refused(self, what: str) -> UnsupportedPattern:
        place = self._text[max(0, self._at - 1) :][:20]
        return UnsupportedPattern(f"{what} is not supported in a pattern, at '{place}'")

    def _next(self) -> str:
        """The next character; "" at the end."""
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _alternatives(self, flags: _Flags) -> str:
        """What stands before the end or a bracket that closes. Flags that are set within hold to the end of it."""
        parts: list[str] = []
        while self._at < len(self._text) and not self._peek(")"):
            if self._peek("|"):
                parts.append(self._next())
            elif (flagged := self._flags_alone(flags)) is not None:
                flags = flagged
            else:
                parts.append(self._repeated(*self._atom(flags)))
        return "".join(parts)

    def _flags_alone(self, flags: _Flags) -> _Flags | None:
        found = _GROUP.match(self._text, self._at + 1) if self._peek("(?") else None
        if found is None or found["end"] != ")":
            return None
        self._at = found.end()
        return _changed(flags, found)

    def _atom(self, flags: _Flags) -> tuple[str, bool]:
        """(for `re`, whether it may be repeated)"""
        char = self._next()
        if char == "(":
            return self._group(flags)
        if char == "[":
            found = self._set()
            return (f"(?i:{found})" if flags.ignores_case else found), True
        if char in ("^", "$"):
            return (r"\A" if char == "^" else _END), False
        if char == ".":
            return ("(?s:.)" if flags.dot_is_all else _DOT), True
        if char in ("*", "+", "?", "{"):
            raise self._refused(f"{char} without what it repeats")
        if char == "\\":
            if self._text[self._at : self._at + 1] in tuple("dDwWsS"):
                return char + self._next(), True
            if self._text[self._at : self._at + 1] in _ANCHORS:
                return _ANCHORS[self._next()], False
            char = self._escaped()
        return _literal(char, flags), True

    def _group(self, flags: _Flags) -> tuple[str, bool]:
        head, is_around = "(", False
        if self._peek("?"):
            found = _GROUP.match(self._text, self._at)
            if found is None:
                raise self._refused("this kind of group")
            self._at = found.end()
            is_around = found["around"] not in (None, ":")
            head = f"(?{found['around']}" if found["around"] else f"(?P<{found['name']}>" if found["name"] else "(?:"
            if found["end"]:
                flags = _changed(flags, found)
        inner = self._alternatives(flags)
        if self._next() != ")":
            raise self._refused("( without )")
        return f"{head}{inner})", not is_around

    def _repeated(self, atom: str, may_repeat: bool) -> str:
        found = _REPEAT.match(self._text, self._at)
        if found is None:
            return atom
        self._at = found.end()
        if not may_repeat:
            raise self._refused("a repeated place")
        if self._peek("+"):
            raise self._refused("a possessive repetition")
        if _REPEAT.match(self._text, self._at):
            raise self._refused("a repeated repetition")
        if atom.startswith("(") and found[1] not in ("?", "{0,1}") and not _parser.parse(atom, re.ASCII).getwidth()[0]:
            raise self._refused("a repeated group that may be empty")  # engines differ in when they stop
        return atom + found[0]

    def _escaped(self) -> str:
        """The character that stands behind a backslash."""
        if (found := _NUMBERED.match(self._text, self._at)) is not None:
            self._at = found.end()
            octal, *hexadecimal = found.groups()
            code = int(octal, 8) if octal else int("".join(filter(None, hexadecimal)), 16)
            if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
                raise self._refused("half a character")
            return chr(code)
        char = self._next()
        if not char or (char.isascii() and char.isalnum() and char not in _CHARACTERS):
            raise self._refused(f"\\{char}")
        return _CHARACTERS.get(char, char)

    def _set(self) -> str:
        """A set in brackets, without sets in it."""
        head = "["
        if self._peek("^"):
            head += self._next()
        parts: list[str] = []
        while not self._peek("]") or not parts:
            one = self._member()
            if len(one) == 1 and self._peek("-") and not self._peek("-]"):
                self._next()
                other = self._member()
                if len(other) != 1 or other < one:
                    raise self._refused("such a range")
                parts.append(f"{_in_set(one)}-{_in_set(other)}")
            elif one == "-" and parts and not self._peek("]"):
                raise self._refused("such a -")
            else:
                parts.append(_in_set(one) if len(one) == 1 else one)
        self._next()
        return f"{head}{''.join(parts)}]"

    def _member(self) -> str:
        """One character of a set, or a class such as `\\d`."""
        char = self._next()
        if not char or char in ("[", "]") or (char == "&" and self._peek("&")):
            raise self._refused("such a set")
        if char != "\\":
            return char
        if self._text[self._at : self._at + 1] in tuple("dDwWsS"):
            return char + self._next()
        return self._escaped()


def _changed(flags: _Flags, found: re.Match[str]) -> _Flags:
    for letters, value in ((found["on"] or "", True), (found["off"] or "", False)):
        if "i" in letters:
            flags = flags._replace(ignores_case=value)
        if "s" in letters:
            flags = flags._replace(dot_is_all=value)
    return flags


def _literal(char: str, flags: _Flags) -> str:
    if flags.ignores_case and char.isascii() and char.isalpha():
        return f"[{char.lower()}{char.upper()}]"
    return re.escape(char)


def _in_set(char: str) -> str:
    return f"\\U{ord(char):08x}"


def _unquoted(part: re.Match[str]) -> str:
    """Text in `\\Q…\\E` with backslashes, as Java reads it before all else. A digit at its start ends no escape."""
    quoted = part[1]
    if quoted is None:
        return part[0]
    head = f"\\x{ord(quoted[0]):02x}" if quoted[:1].isascii() and quoted[:1].isdigit() else ""
    rest = quoted[1:] if head else quoted
    return head + "".join(f"\\{one}" if one.isascii() and not one.isalnum() else one for one in rest)
