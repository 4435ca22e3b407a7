"""AlterClientQuotas and DescribeClientQuotas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking, versions
from tests.support.waiting import eventually

Entity = Sequence[tuple[str, str | None]]
"""(type, name), None for the default."""
PRODUCER, CONSUMER, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATION, CONNECTION = "controller_mutation_rate", "connection_creation_rate"
USERS_KEYS = (PRODUCER, CONSUMER, REQUEST, MUTATION)

EXACT, DEFAULT, SPECIFIED = range(3)


def ask_all(asking: Asking) -> None:
    _attempts(asking)
    _alterations(asking)
    _descriptions(asking)
    _removals(asking)


def _entities(prefix: str) -> dict[str, Entity]:
    user, client = f"{prefix}u", f"{prefix}c"
    return {
        "user": [("user", user)],
        "client": [("client-id", client)],
        "both": [("user", user), ("client-id", client)],
        "user, every client": [("user", user), ("client-id", None)],
        "every user, client": [("user", None), ("client-id", client)],
        "every user": [("user", None)],
        "every client": [("client-id", None)],
        "every user and client": [("user", None), ("client-id", None)],
        "address": [("ip", "127.0.0.9")],
        "every address": [("ip", None)],
    }


def _wrong_entities(prefix: str) -> dict[str, Entity]:
    user = f"{prefix}w"
    return {
        "nobody": [],
        "user and address": [("user", user), ("ip", "127.0.0.9")],
        "client and address": [("client-id", user), ("ip", "127.0.0.9")],
        "unknown type": [("topic", user)],
        "type in other letters": [("User", user)],
        "twice a type": [("user", user), ("user", f"{user}2")],
        "empty user": [("user", "")],
        "empty client": [("client-id", "")],
        "empty address": [("ip", "")],
        "bad address": [("ip", "not an address")],
        "name of a host": [("ip", "localhost")],
        "network": [("ip", "10.0.0.0/8")],
        "ipv6": [("ip", "::9")],
    }


Op = tuple[str, float, bool]
"""Key, value, whether it is removed."""


def _wrong_ops() -> dict[str, Sequence[Op]]:
    set_to = {
        "unknown key": ("bogus", 1.0),
        "address's key": (CONNECTION, 1.0),
        "empty key": ("", 1.0),
        **{f"bytes {value}": (PRODUCER, value) for value in (0.0, -1.0, 0.5, 1.5, 1e300, math.nan, math.inf)},
        **{f"percentage {value}": (REQUEST, value) for value in (0.0, -1.0, 0.001, 1e6, math.nan, math.inf)},
        **{f"mutations {value}": (MUTATION, value) for value in (0.0, -0.5, 0.5, math.nan)},
    }
    return {
        **{name: [(key, value, False)] for name, (key, value) in set_to.items()},
        "none": [],
        "removal of what is not set": [(CONSUMER, 0.0, True)],
        "removal of an unknown key": [("bogus", 0.0, True)],
        "removal with a wrong value": [(CONSUMER, -1.0, True)],
        "twice a key": [(PRODUCER, 5.0, False), (PRODUCER, 6.0, False)],
        "one of two": [(PRODUCER, 7.0, False), ("bogus", 1.0, False)],
    }


def _alterations(asking: Asking) -> None:
    prefix = asking.prefix
    for version in versions(ApiKey.ALTER_CLIENT_QUOTAS):
        for name, entity in _entities(prefix).items():
            key = CONNECTION if "address" in name else PRODUCER
            _alter(asking, name, [(entity, [(key, 1000.0, False)])], version=version)
    user = [("user", f"{prefix}u")]
    _alter(asking, "all keys", [(user, [(key, 9.0, False) for key in USERS_KEYS])])
    _alter(asking, "validate", [([("user", f"{prefix}v")], [(PRODUCER, 1.0, False)])], validate=True)
    _alter(asking, "validate a wrong one", [([("user", f"{prefix}v")], [("bogus", 1.0, False)])], validate=True)
    odd = [("user", f"{prefix}a b/c%&=é"), ("client-id", "x:*,y")]
    _alter(asking, "odd names", [(odd, [(PRODUCER, 1.0, False)])])
    last = f"{prefix}last"
    _alter(asking, "last", [([("user", last)], [(PRODUCER, 1.0, False)])])
    eventually(lambda: bool(_found(asking, [("user", EXACT, last)])["entries"]))


def _attempts(asking: Asking) -> None:
    """What is wrong, or nearly. What was set nevertheless is removed."""
    for name, entity in _wrong_entities(asking.prefix).items():
        key = CONNECTION if any(kind == "ip" for kind, _ in entity) else PRODUCER
        _attempt(asking, name, [(entity, [(key, 1000.0, False)])])
    user, address = [("user", f"{asking.prefix}o")], [("ip", "127.0.0.8")]
    for name, ops in _wrong_ops().items():
        _attempt(asking, name, [(user, ops)])
    for value in (0.0, -1.0, 0.5, 1e10):
        _attempt(asking, f"connections {value}", [(address, [(CONNECTION, value, False)])])
    _attempt(asking, "address with a user's key", [(address, [(PRODUCER, 1.0, False)])])
    _attempt(asking, "one entity of two", [(user, [("bogus", 1.0, False)]), (address, [(CONNECTION, 2.0, False)])])
    _attempt(asking, "an entity twice", [(user, [(PRODUCER, 3.0, False)]), (user, [(PRODUCER, 4.0, False)])])


def _attempt(asking: Asking, name: str, entries: Sequence[tuple[Entity, Sequence[Op]]]) -> None:
    _alter(asking, name, entries)
    for entity, _ in entries:
        keys = [CONNECTION] if any(kind == "ip" for kind, _ in entity) else USERS_KEYS
        asking.requests.ask(ApiKey.ALTER_CLIENT_QUOTAS, _altered([(entity, [(key, 0.0, True) for key in keys])]), 1)


def _alter(
    asking: Asking,
    name: str,
    entries: Sequence[tuple[Entity, Sequence[Op]]],
    *,
    validate: bool = False,
    version: int | None = None,
) -> None:
    asking.ask(
        f"AlterClientQuotas {name}",
        ApiKey.ALTER_CLIENT_QUOTAS,
        _altered(entries, validate=validate),
        version,
        _outcomes,
    )


def _outcomes(answer: Any) -> Any:
    return sorted(({**one, "entity": sorted(one["entity"], key=repr)} for one in answer["entries"]), key=repr)


def _altered(entries: Sequence[tuple[Entity, Sequence[Op]]], *, validate: bool = False) -> Mapping[str, Any]:
    return {
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": named} for kind, named in entity],
                "ops": [{"key": key, "value": value, "remove": remove} for key, value, remove in ops],
            }
            for entity, ops in entries
        ],
        "validate_only": validate,
    }


Component = tuple[str, int, str | None]


def _descriptions(asking: Asking) -> None:
    prefix = asking.prefix
    user, client = f"{prefix}u", f"{prefix}c"
    filters: dict[str, Sequence[Component]] = {
        "of a user": [("user", EXACT, user)],
        "of the default user": [("user", DEFAULT, None)],
        "of every user": [("user", SPECIFIED, None)],
        "of a client": [("client-id", EXACT, client)],
        "of the default client": [("client-id", DEFAULT, None)],
        "of every client": [("client-id", SPECIFIED, None)],
        "of both": [("user", EXACT, user), ("client-id", EXACT, client)],
        "of a user and every client": [("user", EXACT, user), ("client-id", SPECIFIED, None)],
        "of a user and the default client": [("user", EXACT, user), ("client-id", DEFAULT, None)],
        "of an address": [("ip", EXACT, "127.0.0.9")],
        "of the default address": [("ip", DEFAULT, None)],
        "of every address": [("ip", SPECIFIED, None)],
        "of a user and an address": [("user", EXACT, user), ("ip", EXACT, "127.0.0.9")],
        "of nobody": [("user", EXACT, f"{prefix}nobody")],
        "of an unknown type": [("topic", EXACT, "t")],
        "of a type in other letters": [("User", EXACT, user)],
        "of no type": [("", EXACT, "t")],
        "of a user twice": [("user", EXACT, user), ("user", DEFAULT, None)],
        "of an unknown match": [("user", 9, user)],
        "of a negative match": [("user", -1, user)],
        "of a user without a name": [("user", EXACT, None)],
        "of the default user with a name": [("user", DEFAULT, user)],
        "of every user with a name": [("user", SPECIFIED, user)],
        "of an address that is none": [("ip", EXACT, "not an address")],
        "of an empty name": [("user", EXACT, "")],
        "of odd names": [("user", EXACT, f"{prefix}a b/c%&=é")],
    }
    for name, components in filters.items():
        for strict in (False, True):
            asking.ask(
                f"DescribeClientQuotas {name}{', strictly' * strict}",
                ApiKey.DESCRIBE_CLIENT_QUOTAS,
                _described(components, strict=strict),
                pick=_sorted,
            )
    for version in versions(ApiKey.DESCRIBE_CLIENT_QUOTAS):
        asking.ask("DescribeClientQuotas", ApiKey.DESCRIBE_CLIENT_QUOTAS, _described([]), version, _sorted)
    asking.ask("DescribeClientQuotas strictly", ApiKey.DESCRIBE_CLIENT_QUOTAS, _described([], strict=True), 1, _sorted)


def _described(components: Sequence[Component], *, strict: bool = False) -> Mapping[str, Any]:
    asked = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    return {"components": asked, "strict": strict}


def _found(asking: Asking, components: Sequence[Component]) -> Any:
    answer = asking.requests.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, _described(components), 1)
    return asking.neutral(answer)


def _sorted(answer: Any) -> Any:
    """The order of entities, and of what they have, is no part of the answer."""
    if answer["entries"] is None:
        return answer
    rows = [{key: sorted(value, key=repr) for key, value in entry.items()} for entry in answer["entries"]]
    return {**answer, "entries": sorted(rows, key=repr)}


def _removals(asking: Asking) -> None:
    for name, entity in _entities(asking.prefix).items():
        key = CONNECTION if "address" in name else PRODUCER
        _alter(asking, f"removal of {name}", [(entity, [(key, 0.0, True)])])
    last = [("user", f"{asking.prefix}last")]
    _alter(asking, "removal of the last", [(last, [(PRODUCER, 0.0, True)])])
    eventually(lambda: not _found(asking, [("user", EXACT, last[0][1])])["entries"])
    asking.ask("DescribeClientQuotas after them", ApiKey.DESCRIBE_CLIENT_QUOTAS, _described([]), pick=_sorted)
