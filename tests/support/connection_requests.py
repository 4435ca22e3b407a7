"""The kinds of requests that the model of a connection sends, by what becomes of them, and their frames."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_request

NOW, LATER, TASK, STUBBORN = "answers now", "answers later", "answers in a task", "goes on when it is cancelled"
FAILS, REFUSES, FAILS_LATER = "fails", "refuses", "fails later"
UNANSWERED, UNANSWERED_TASK = "acks=0", "acks=0 in a task"
APPENDED = "acks=all"
LOGIN, WRONG_LOGIN = "logs in", "a wrong password"
UNKNOWN_API, TOO_LARGE, NO_BODY = "unknown API", "too large", "no body"
NO_ANSWER = (UNANSWERED, UNANSWERED_TASK)
ENDS = {FAILS: "failed", REFUSES: "malformed", FAILS_LATER: "failed", WRONG_LOGIN: "login"}
NEVER_HANDLED = {UNKNOWN_API: "unsupported", TOO_LARGE: "too_large", NO_BODY: "malformed"}


class Sent(NamedTuple):
    kind: str
    answer: str
    end: int
    """Where its last byte stands in what the peer sends."""
    size: int


def frame_of(kind: str, number: int, size: int, largest: int) -> bytes:
    """A request frame of about `size` bytes, length first. A frame may have `largest` bytes."""
    if kind in (*NO_ANSWER, APPENDED):
        acks = -1 if kind == APPENDED else 0
        body: dict[str, Any] = {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": []}
        return encode_request(ApiKey.PRODUCE, 8, number, "c" * min(size, 30_000), body)
    if kind in (LOGIN, WRONG_LOGIN):
        return encode_request(ApiKey.SASL_AUTHENTICATE, 2, number, "c", {"auth_bytes": b""})
    if kind in NEVER_HANDLED:
        bodies = {UNKNOWN_API: (12, 999), TOO_LARGE: (largest + 1, 3), NO_BODY: (10, 3)}
        frame = struct.pack(">ihhi", *bodies[kind], 4, number) + b"\xff\xff\0\0\0\0"
        return frame[: 4 + bodies[kind][0]]
    names = [{"name": "n" * 10_000} for _ in range(size // 10_000)]
    return encode_request(ApiKey.METADATA, 4, number, "t", {"topics": names})
