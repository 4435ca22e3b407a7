"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs, and what else admin clients ask: quotas, ACLs, users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking, versions

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER = 2, 4, 8

Change = tuple[str, int, str | None]
"""Key, operation, value."""

OF_TOPIC: dict[str, Sequence[Change]] = {
    "ok": [("retention.ms", SET, "1000")],
    "del": [("retention.ms", DELETE, None)],
    "del unset": [("retention.ms", DELETE, None)],
    "bogus": [("bogus", SET, "1")],
    "del bogus": [("bogus", DELETE, None)],
    "bad value": [("retention.ms", SET, "x")],
    "append scalar": [("retention.ms", APPEND, "1")],
    "append list": [("cleanup.policy", APPEND, "compact")],
    "append list again": [("cleanup.policy", APPEND, "compact")],
    "append bad": [("cleanup.policy", APPEND, "zip")],
    "sub list": [("cleanup.policy", SUBTRACT, "delete")],
    "sub absent": [("cleanup.policy", SUBTRACT, "delete")],
    "sub to empty": [("cleanup.policy", SUBTRACT, "compact")],
    "null set": [("retention.ms", SET, None)],
    "dup key": [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
    "op 9": [("retention.ms", 9, "1")],
    "set and del": [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
    "none": [],
    "one bad of two": [("retention.ms", SET, "77"), ("segment.bytes", SET, "x")],
    "append null": [("cleanup.policy", APPEND, None)],
    "min isr 0": [("min.insync.replicas", SET, "0")],
}

OF_BROKER: dict[str, Change] = {
    "ok": ("log.retention.ms", SET, "100000000"),
    "del": ("log.retention.ms", DELETE, None),
    "bogus": ("bogus.x", SET, "1"),
    "readonly": ("log.dirs", SET, "/x"),
    "readonly2": ("broker.id", SET, "7"),
    "bad": ("log.retention.ms", SET, "x"),
    "cleaner threads": ("log.cleaner.threads", SET, "2"),
    "cleaner threads big": ("log.cleaner.threads", SET, "100"),
    "zero io": ("num.io.threads", SET, "0"),
    "listeners": ("max.connections", SET, "1000"),
    "message max": ("message.max.bytes", SET, "-5"),
}
ONLY_VALIDATED = ("cleaner threads", "listeners")


class Resource(NamedTuple):
    """What has settings."""

    kind: int
    name: str


def ask_all(asking: Asking) -> None:
    topic = Resource(TOPIC, f"{asking.prefix}cfg")
    asking.create(topic.name)
    _describe(asking, topic)
    _alter_topic(asking, topic)
    _alter_others(asking, topic)
    _replace(asking, topic)
    asking.ask("ListConfigResources", ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": ()}, 0)
    _security(asking)


def _ask_describe(
    asking: Asking, name: str, *asked: tuple[Resource, Sequence[str] | None], version: int = 4, pick: Any = None
) -> None:
    resources = [
        {"resource_type": one.kind, "resource_name": one.name, "configuration_keys": keys} for one, keys in asked
    ]
    body = {"resources": resources, "include_synonyms": True, "include_documentation": False}
    asking.ask(f"DescribeConfigs {name}", ApiKey.DESCRIBE_CONFIGS, body, version, pick)


def _describe(asking: Asking, topic: Resource) -> None:
    ours = Resource(BROKER, str(asking.broker_id))

    def settings(answer: Any) -> Any:
        (result,) = answer["results"]
        configs = {one.pop("name"): one for one in result["configs"]}
        for one in configs.values():
            del one["synonyms"]
        return {"error_code": result["error_code"], "resource_type": result["resource_type"], "configs": configs}

    def synonyms(answer: Any) -> Any:
        return {one["name"]: one["synonyms"] for one in answer["results"][0]["configs"]}

    def outcome(answer: Any) -> Any:
        (result,) = answer["results"]
        return [result["error_code"], len(result["configs"]) > 0]

    def names(answer: Any) -> Any:
        return [sorted(one["name"] for one in result["configs"]) for result in answer["results"]]

    for version in versions(ApiKey.DESCRIBE_CONFIGS):
        _ask_describe(asking, "topic", (topic, None), version=version, pick=settings)
    _ask_describe(asking, "topic synonyms", (topic, None), pick=synonyms)
    _ask_describe(asking, "broker", (ours, None), pick=settings)
    for kind, name in (
        *((TOPIC, name) for name in ("nope-x", "a/b", "")),
        *((BROKER, name) for name in ("7", "x", "")),
        *((LOGGER, name) for name in (ours.name, "9")),
        (16, "sub"),
        (32, "grp"),
        (99, "x"),
        (0, "x"),
    ):
        shown = "BID" if name == ours.name else name
        _ask_describe(asking, f"{kind}/{shown}", (Resource(kind, name), None), pick=outcome)
    _ask_describe(asking, "key list", (topic, ["retention.ms", "bogus"]), (topic, []), pick=names)


def _alter(asking: Asking, name: str, resource: Resource, *changes: Change, validate: bool = False) -> None:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    asked = {"resource_type": resource.kind, "resource_name": resource.name, "configs": configs}

    def pick(answer: Any) -> Any:
        return [response["error_code"] for response in answer["responses"]]

    body = {"resources": [asked], "validate_only": validate}
    asking.ask(f"IncAlter {name}", ApiKey.INCREMENTAL_ALTER_CONFIGS, body, 1, pick)


def _alter_topic(asking: Asking, topic: Resource) -> None:
    for name, changes in OF_TOPIC.items():
        _alter(asking, f"topic {name}", topic, *changes)
    _alter(asking, "topic validate", topic, ("retention.ms", SET, "4711"), validate=True)

    def pick(answer: Any) -> Any:
        return {one["name"]: [one["value"], one["config_source"]] for one in answer["results"][0]["configs"]}

    _ask_describe(asking, "after", (topic, ["retention.ms", "cleanup.policy", "segment.bytes"]), pick=pick)
    for name, named in (("unknown topic", "nope-x"), ("bad topic name", "a/b")):
        _alter(asking, name, Resource(TOPIC, named), ("retention.ms", SET, "1"))


def _alter_others(asking: Asking, topic: Resource) -> None:
    ours = str(asking.broker_id)
    for name, change in OF_BROKER.items():
        _alter(asking, f"broker {name}", Resource(BROKER, ours), change, validate=name in ONLY_VALIDATED)
    _alter(asking, "cluster ok", Resource(BROKER, ""), ("log.retention.ms", SET, "200000000"))
    _alter(asking, "cluster del", Resource(BROKER, ""), ("log.retention.ms", DELETE, None))
    for other in ("7", "x"):
        _alter(asking, f"broker {other}", Resource(BROKER, other), ("log.retention.ms", SET, "1"))
    _alter(asking, "logger", Resource(LOGGER, ours), ("kafka.x", SET, "DEBUG"))
    for name, resource, key, value in (
        ("logger root", Resource(LOGGER, ours), "root", "INFO"),
        ("type 16", Resource(16, "sub"), "interval.ms", "1000"),
        ("type 32", Resource(32, "g"), "consumer.session.timeout.ms", "45000"),
    ):
        _alter(asking, name, resource, (key, SET, value), validate=True)
    _alter(asking, "type 99", Resource(99, "x"), ("a", SET, "b"))
    changed = [{"name": "retention.ms", "config_operation": SET, "value": "5"}]
    asked = {"resource_type": topic.kind, "resource_name": topic.name, "configs": changed}
    body = {"resources": [asked] * 2, "validate_only": False}
    asking.ask("IncAlter same resource twice", ApiKey.INCREMENTAL_ALTER_CONFIGS, body, 1)


def _replace(asking: Asking, topic: Resource) -> None:
    for name, named, configs in (
        ("ok", topic.name, [("retention.ms", "5")]),
        ("bad", topic.name, [("retention.ms", "x")]),
        ("bogus", topic.name, [("bogus", "x")]),
        ("null", topic.name, [("retention.ms", None)]),
        ("unknown", "nope-x", [("retention.ms", "5")]),
        ("empty", topic.name, []),
    ):
        settings = [{"name": key, "value": value} for key, value in configs]
        asked = {"resource_type": TOPIC, "resource_name": named, "configs": settings}
        body = {"resources": [asked], "validate_only": False}
        asking.ask_all(f"AlterConfigs {name}", ApiKey.ALTER_CONFIGS, body, lambda answer: answer["responses"])


def _security(asking: Asking) -> None:
    """What a broker without an authorizer answers, and users with bad passwords."""
    asking.ask_all("DescribeClientQuotas", ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
    anything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    acl = {
        "resource_type": 2,
        "resource_name": "x",
        "resource_pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    asking.ask_all("DescribeAcls", ApiKey.DESCRIBE_ACLS, anything)
    asking.ask_all("CreateAcls", ApiKey.CREATE_ACLS, {"creations": [acl]})
    asking.ask_all("DeleteAcls", ApiKey.DELETE_ACLS, {"filters": [anything]})
    for name, users in (("", None), (" unknown", ["nobody", ""]), (" dup", ["nobody", "nobody"])):
        body = {"users": None if users is None else [{"name": user} for user in users]}
        asking.ask(f"DescribeUserScram{name}", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, body)
    _alter_users(asking)


def _alter_users(asking: Asking) -> None:
    def user(name: str = "n", mechanism: int = 1, iterations: int = 8192) -> dict[str, Any]:
        return {
            "name": name,
            "mechanism": mechanism,
            "iterations": iterations,
            "salt": b"x",
            "salted_password": b"y",
        }

    gone = {"name": "n", "mechanism": 1}
    for name, deletions, upsertions in (
        ("del unknown", [{"name": "nobody", "mechanism": 1}], []),
        ("few iterations", [], [user(iterations=10)]),
        ("many iterations", [], [user(iterations=100_000)]),
        ("mechanism", [], [user(mechanism=7)]),
        ("no name", [], [user("")]),
        ("both", [gone], [user()]),
    ):
        body = {"deletions": deletions, "upsertions": upsertions}
        asking.ask(f"AlterUserScram {name}", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body)
