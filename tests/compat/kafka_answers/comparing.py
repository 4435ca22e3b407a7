"""Where the answers of two brokers differ, and which of these differences are wanted. Pure."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.compat.kafka_answers.asking import Answers

ABSENT = "absent"
ANYTHING = object()


class Deviation(NamedTuple):
    """One place in one answer. `field` is the path to it, without the positions in lists."""

    request: str
    version: str
    field: str
    kafka: Any
    ours: Any


@dataclasses.dataclass(frozen=True)
class Difference:
    """A wanted one: in the answers to `requests` (patterns), the fields (patterns) have what stands there instead of
    Kafka's; ANYTHING for what no table can say, or a function of the deviation that says whether it is the wanted one.
    `what` and `why` are for docs/compatibility.md."""

    what: str
    why: str
    requests: tuple[str, ...]
    ours: Mapping[str, Any]


def deviations(kafka: Answers, ours: Answers) -> list[Deviation]:
    """Every place where they differ; a request that only one was asked is one, too."""
    found = []
    for request in dict.fromkeys((*kafka, *ours)):
        theirs, own = kafka.get(request, {}), ours.get(request, {})
        for version in dict.fromkeys((*theirs, *own)):
            places = _places(theirs.get(version, ABSENT), own.get(version, ABSENT), "")
            found += [Deviation(request, version, *place) for place in places]
    return found


def only_different(first: Answers, second: Answers) -> Answers:
    """Those answers of the second that the first does not have."""
    found: Answers = {}
    for request, answers in second.items():
        for version, answer in answers.items():
            if first.get(request, {}).get(version, ABSENT) != answer:
                found.setdefault(request, {})[version] = answer
    return found


def one_of_two(ours: Answers, first: Answers, other: Answers) -> Answers:
    """`first`, with the answer of the other where that is ours: what ours are to be compared with."""
    return {
        request: {
            version: ours[request][version]
            if ours.get(request, {}).get(version, ABSENT) == other.get(request, {}).get(version, ANYTHING)
            else answer
            for version, answer in answers.items()
        }
        for request, answers in first.items()
    }


def judge(found: Sequence[Deviation], wanted: Sequence[Difference]) -> tuple[list[Deviation], list[str]]:
    """(what nobody wanted, those parts of what is wanted that are no difference any more)."""
    used: set[tuple[int, str]] = set()
    unwanted = []
    for deviation in found:
        matching = [
            (number, request, field)
            for number, difference in enumerate(wanted)
            for request in difference.requests
            if fnmatch.fnmatchcase(deviation.request, request)
            for field, value in difference.ours.items()
            if fnmatch.fnmatchcase(deviation.field, field) and _is_wanted(value, deviation)
        ]
        if not matching:
            unwanted.append(deviation)
        used |= {(number, part) for number, *parts in matching for part in parts}
    stale = [
        f"{difference.what}: {part}"
        for number, difference in enumerate(wanted)
        for part in (*difference.requests, *difference.ours)
        if (number, part) not in used
    ]
    return unwanted, stale


def _is_wanted(value: Any, deviation: Deviation) -> bool:
    return bool(value(deviation)) if callable(value) else value in (ANYTHING, deviation.ours)


def _places(kafka: Any, ours: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for key in dict.fromkeys((*kafka, *ours)):
            field = f"{path}.{key}" if path else key
            yield from _places(kafka.get(key, ABSENT), ours.get(key, ABSENT), field)
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for one, other in zip(kafka, ours, strict=True):
            yield from _places(one, other, path)
    elif kafka != ours:
        yield path, kafka, ours
