"""What users of Kafka's scripts type out of habit, and the command of `pykafka` that they mean.

Kafka has `kafka-topics.sh --bootstrap-server b --list`, pykafka has `pykafka topics list --bootstrap-server b`: a
script is a command here, and its action is a sub-command, before all options. console.py asks when a name or an option
is not known, and shows the answer behind its error.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

_SCRIPTS = {
    "acls": "acls",
    "broker": "broker start",
    "cluster": "cluster describe",
    "configs": "configs",
    "console-consumer": "consume",
    "console-producer": "produce",
    "consumer": "consume",
    "consumer-groups": "groups",
    "consumer-perf-test": "perf consume",
    "delete-records": "topics delete-records",
    "describe": "cluster describe",
    "dump-log": "log dump",
    "get-offsets": "offsets list",
    "groups": "groups",
    "console": "ui",
    "list": "topics list",
    "log-dirs": "log dirs",
    "metadata-quorum": "cluster describe",
    "mirror-maker": "mirror",
    "producer": "produce",
    "producer-perf-test": "perf produce",
    "reassign-partitions": "topics reassign",
    "server": "broker start",
    "server-start": "broker start",
    "start": "broker start",
    "topics": "topics",
    "transactions": "transactions",
    "zookeeper-server-start": "zookeeper start",
}
"""Kafka's scripts, and words that name no script but are tried, without `kafka-`, `connect-` and `.sh`."""
_ACTIONS = {
    "configs": {"add-config": "alter", "delete-config": "alter"},
    "groups": {"members": "describe", "state": "describe", "offsets": "describe", "all-groups": "describe"},
    "log": {"files": "dump", "describe": "dirs"},
    "offsets": {"time": "list"},
    "topics": {"execute": "reassign", "generate": "reassign", "verify": "reassign"},
    "users": {"add-config": "create", "describe": "list", "delete-config": "delete"},
    "quotas": {"add-config": "set", "describe": "list", "delete-config": "remove", "alter": "set"},
}
"""Options of Kafka's scripts that ask for an action which has another name here."""
_KEPT = frozenset({"add-config", "delete-config", "members", "state", "all-groups", "time"})
"""Options that the command has, too, so they stay on the line."""
_OTHER_OPTIONS = frozenset({"users", "quotas"})
"""Groups whose options are not those of the script: only the command is named."""
_ZOOKEEPER, _BROKER_LIST, _BOOTSTRAP = "--zookeeper", "--broker-list", "--bootstrap-server"
_ENTITIES = {"--topic": "topics", "--broker": "brokers", "--broker-logger": "broker-loggers"}
"""Short options of kafka-configs.sh, and the kind of entity that they name."""
_LISTENERS = ("--port", "--host", "--listener", "--listeners")
"""What people try for the address of a broker."""
_OF_NAMES = ("--topic", "--group", "--entity-name", "--user")
"""Options that give the name of what a command is about, which people type without the option."""
_OF_OTHER_NAMES = ("--transactional-id",)
"""The same for commands that have none of the first."""
_WITH_KAFKAS_OPTIONS = frozenset(meant.partition(" ")[0] for meant in _SCRIPTS.values())


def own_words(words: Sequence[str]) -> list[str]:
    """The line with `version` and `help COMMAND`, which many tools have, as the options that they are here."""
    match [*words]:
        case ["version"]:
            return ["--version"]
        case ["help", *rest]:
            return [*rest, "--help"]
    return list(words)


def command_meant(name: str) -> str | None:
    """The command that a user means by the name of a script; None if no script is called that or like that."""
    bare = name.removesuffix(".sh").removesuffix(".bat").removeprefix("connect-").removeprefix("kafka-")
    return _SCRIPTS.get(bare)


def option_meant(word: str, declared: Collection[str]) -> str | None:
    """What to give for `word`, an option of Kafka's scripts that the command does not have; None for any other.

    `declared`: the options of the command.
    """
    name = word.partition("=")[0]
    if name in declared:
        return None
    if name == _ZOOKEEPER and _BOOTSTRAP in declared:
        return f"Clients ask the brokers, here and in Kafka: {_BOOTSTRAP} HOST:PORT"
    if name == _BROKER_LIST and _BOOTSTRAP in declared:
        return f"It is {_BOOTSTRAP} HOST:PORT here."
    if "--override" in declared and (name in _LISTENERS or "." in name.removeprefix("--")) and name.startswith("--"):
        example = "listeners=PLAINTEXT://127.0.0.1:9093" if name in _LISTENERS else f"{name[2:]}=VALUE"
        return f"A broker's settings are given by --override: --override {example}"
    if name in _ENTITIES and {"--entity-type", "--entity-name"} <= {*declared}:
        return f"It is --entity-type {_ENTITIES[name]} --entity-name NAME here."
    return None


def options_for(word: str, declared: Collection[str]) -> list[str]:
    """The options, with `word` as their value, that are meant by a command line with `word` alone."""
    for likely in ((_BOOTSTRAP,),) if ":" in word else (_OF_NAMES, _OF_OTHER_NAMES):
        if there := [shlex.join([option, word]) for option in likely if option in declared]:
            return there
    return []


def line_meant(group: str, words: Sequence[str], commands: Collection[str]) -> str | None:
    """The line that a user means by `pykafka GROUP words…`, whose first word is an option.

    `commands`: the sub-commands of the group. None where no word names one.
    """
    options = [word[2:].partition("=")[0] if word.startswith("--") else "" for word in words]
    named = next((option for option in options if option in commands), None)
    if named is not None:
        return _line(group, named, [word for word in words if word != f"--{named}"])
    implied = _ACTIONS.get(group, {})
    for option in options:
        if option in implied:
            kept = [word for word in words if option in _KEPT or word != f"--{option}"]
            return _line(group, implied[option], [] if group in _OTHER_OPTIONS else kept)
    return None


def _line(group: str, command: str, words: Sequence[str]) -> str:
    if group in _WITH_KAFKAS_OPTIONS:
        words = _with_bootstrap_server(words)
    return shlex.join(["pykafka", group, command, *words])


def _with_bootstrap_server(words: Sequence[str]) -> list[str]:
    """`words` with the broker's address in place of ZooKeeper's, which says nothing of where the brokers are."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in (_ZOOKEEPER, _BROKER_LIST):
            found.append(word)
            continue
        address = value if equals else next(rest, "")
        found += [_BOOTSTRAP, address if name == _BROKER_LIST and address else "HOST:PORT"]
    return found
