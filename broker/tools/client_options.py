"""Options that several commands share, and how topics, partitions and times are written on a command line.

Every command that talks to a broker uses this file, those of the connector too. An option wins over the properties
file (`--config`), which wins over the environment. Wrong text raises ConfigError, which ends a command with status 2.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.partition_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.settings import did_you_mean, read_properties_file, settings_of

BOOTSTRAP_VARIABLE = "PYKAFKA_BOOTSTRAP_SERVER"
DEFAULT_BOOTSTRAP = "localhost:9092"

_SECURITY = ("security.", "sasl.", "ssl.")
_ANSWER_MS = 3000
"""How long a broker has for an answer, and a command for its first contact with one. A person is waiting."""
_FIRST_CONTACT_MS = str(_ANSWER_MS)
_COMPLETION_MS = "1500"
"""How long a person who presses Tab waits for a broker's answer."""
_TIMESTAMPS = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}

logger = logging.getLogger("pykafka.tools")


# --- completion by the shell ----------------------------------------------------------------------------------------


Completion = Callable[[typer.Context, str], list[str]]


def _completion(ask: Callable[[Admin, str], Iterable[str]]) -> Completion:
    """Completes to those of the names `ask(admin, typed)` that begin with what is typed."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        """Asks the broker that the line names. Errors stay silent: they would appear inside the line being typed."""
        logging.disable()
        given = context.params
        limits = dict.fromkeys(
            ("socket.connection.setup.timeout.ms", "request.timeout.ms", "default.api.timeout.ms"), _COMPLETION_MS
        )
        try:
            with administration(given.get("bootstrap_server"), given.get("config_file"), limits) as admin:
                return [name for name in ask(admin, incomplete) if name.startswith(incomplete)]
        except (PykafkaError, OSError):
            return []

    return complete


complete_topics = _completion(lambda admin, typed: admin.list_topics(internal=typed.startswith("_")))
"""Internal topics only after a typed underscore."""
complete_groups = _completion(lambda admin, _: (group.group_id for group in admin.list_groups()))
complete_transactional_ids = _completion(lambda admin, _: (one.transactional_id for one in admin.list_transactions()))
_complete_brokers = _completion(lambda admin, _: (str(node.id) for node in admin.cluster.brokers()))


def complete_entities(context: typer.Context, incomplete: str) -> list[str]:
    """Topics, or ids of brokers, as `--entity-type` says."""
    of_brokers = str(context.params.get("entity_type", "topics")).startswith("broker")
    return (_complete_brokers if of_brokers else complete_topics)(context, incomplete)


# --- options --------------------------------------------------------------------------------------------------------


def option(meaning: str, metavar: str, *names: str, **more: Any) -> Any:
    """An option with a value, for an annotation. Without `names` it is called as its parameter."""
    return typer.Option(*names, help=meaning, metavar=metavar, **more)


def flag(meaning: str, *names: str) -> Any:
    """An option without a value, for an annotation. Without `names` it has a `--no-…` form, too."""
    return typer.Option(*names, help=meaning)


BootstrapServer = Annotated[
    str | None,
    option(
        "Brokers to contact first; the port is 9092 if left out. Default: `bootstrap.servers` of the properties "
        f"file, else the environment variable {BOOTSTRAP_VARIABLE}, else {DEFAULT_BOOTSTRAP}.",
        "HOST[:PORT],…",
        "--bootstrap-server",
        "-b",
    ),
]
CommandConfig = Annotated[
    Path | None, option("Properties file of the client.", "FILE", "--command-config", "--config-file")
]
"""For `topics`, where `--config` is a topic's setting, as in Kafka."""
ConfigFile = Annotated[
    Path | None, option("Properties file of the client.", "FILE", "--config", "--command-config", "--config-file")
]
JsonOutput = Annotated[bool, flag("Print JSON.", "--json")]
OneTopic = Annotated[str, option("Name of the topic.", "NAME", "--topic", "-t", autocompletion=complete_topics)]
AnyTopic = Annotated[str | None, option("Only this topic.", "NAME", "--topic", "-t", autocompletion=complete_topics)]
TopicsOrPartitions = Annotated[
    list[str] | None,
    option(
        "A topic, or some of its partitions; may be repeated.",
        "NAME[:PARTITION,…]",
        "--topic",
        "-t",
        autocompletion=complete_topics,
    ),
]
OneGroup = Annotated[str, option("Name of the group.", "NAME", "--group", "-g", autocompletion=complete_groups)]
MemberOfGroup = Annotated[
    str | None,
    option("Read as a member of this group and commit.", "NAME", "--group", "-g", autocompletion=complete_groups),
]
ProducerProperties = Annotated[
    list[str] | None, option("Setting of the producer; may be repeated.", "KEY=VALUE", "--producer-property")
]
ConsumerProperties = Annotated[
    list[str] | None, option("Setting of the consumer; may be repeated.", "KEY=VALUE", "--consumer-property")
]


def config_option(client: str) -> Any:
    """`--config` of the commands that only produce or only consume, with the names that Kafka's tools have for it."""
    names = ("--config", f"--{client}-config", f"--{client}.config", "--command-config", "--config-file")
    return option(f"Properties file of the {client}.", "FILE", *names)


Command = Callable[..., None]


def opening(
    app: typer.Typer, name: str | None, options: Mapping[str, Any], opened: Callable[..., AbstractContextManager[Any]]
) -> Callable[[Command], Command]:
    """Make the decorated function a command of `app` that works with what `opened(**options)` opens.

    That is the function's first argument. The command has the other options of the function, then `options`: parameter
    → an annotation, whose default is None.
    """

    def register(function: Command) -> Command:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            with opened(**{key: given.pop(key) for key in options}) as first:
                function(first, **given)

        signature = inspect.signature(function, eval_str=True)
        added = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for key, annotation in options.items()
        ]
        own = list(signature.parameters.values())[1:]
        run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        app.command(name)(run)
        return run

    return register


def with_options(function: Callable[..., None]) -> Command:
    """Make a function a command that has the fields of a dataclass, its argument `options`, as options."""
    signature = inspect.signature(function, eval_str=True)
    options_class = signature.parameters["options"].annotation
    fields = inspect.signature(options_class, eval_str=True).parameters

    @functools.wraps(function)
    def run(*arguments: Any, **given: Any) -> None:
        options = options_class(**{name: given.pop(name) for name in fields})
        function(*arguments, options=options, **given)

    parameters = []
    for name, parameter in signature.parameters.items():
        shown = fields.values() if name == "options" else [parameter]
        parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in shown]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def admin_command(
    app: typer.Typer, name: str | None = None, *, config: Any = ConfigFile
) -> Callable[[Command], Command]:
    """A command whose first argument is an `Admin` of the cluster that `--bootstrap-server` and `config` name."""
    return opening(app, name, {"bootstrap_server": BootstrapServer, "config_file": config}, administration)


def client_settings(bootstrap: str | None, file: Path | None, *overrides: Mapping[str, object]) -> ClientSettings:
    """The properties of `file`, then `overrides` without those that are None, then `--bootstrap-server` on top."""
    properties = {"socket.connection.setup.timeout.ms": _FIRST_CONTACT_MS} | given_properties(file)
    for mapping in overrides:
        properties.update({name: str(value) for name, value in mapping.items() if value is not None})
    if bootstrap is not None:
        refuse_no_brokers(bootstrap)
        properties["bootstrap.servers"] = bootstrap
    return ClientSettings.from_properties(properties)


def refuse_no_brokers(bootstrap: str | None) -> None:
    """Raise ConfigError for an empty --bootstrap-server, as of a variable that is not set.

    The default instead of it would be another cluster, in which `topics delete` deletes, too.
    """
    if bootstrap is not None and not bootstrap.strip():
        raise ConfigError("--bootstrap-server is empty: name a broker as host or host:port, or leave the option out")


def impatient(settings: ClientSettings, address: str) -> ClientSettings:
    """The settings to ask the broker at `address` alone, while a person is waiting."""
    return dataclasses.replace(
        settings,
        bootstrap_servers=(address,),
        request_timeout_ms=min(settings.request_timeout_ms, _ANSWER_MS),
        socket_connection_setup_timeout_ms=min(settings.socket_connection_setup_timeout_ms, _ANSWER_MS),
    )


@contextlib.contextmanager
def administration(
    bootstrap_server: str | None, config_file: Path | None, *overrides: Mapping[str, str]
) -> Iterator[Admin]:
    """An `Admin` of the cluster that the options name. It connects at the first request."""
    with Cluster(client_settings(bootstrap_server, config_file, *overrides)) as cluster:
        yield Admin(cluster)


def given_properties(file: Path | None) -> dict[str, str]:
    """`bootstrap.servers` of the environment, and what `file` says. Raises ConfigError if it cannot be read.

    The file may be written for Kafka's own tools. Settings that only Kafka's clients have (`key.deserializer`,
    `metric.reporters`) are left out with a warning, as Kafka does. Likely spelling mistakes and unknown security
    settings are kept, so that they are refused.
    """
    servers = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    properties = read_properties_file(file) if file else {}
    unused = [name for name in properties if _only_in_kafka(name)]
    if unused:
        logger.warning("%s: these settings are not used: %s", file, ", ".join(unused))
    return {"bootstrap.servers": servers} | {name: properties[name] for name in properties if name not in unused}


def _only_in_kafka(name: str) -> bool:
    known = settings_of(ClientSettings)
    return name not in known and not name.startswith(_SECURITY) and not did_you_mean(name, known)


# --- texts of a command line ----------------------------------------------------------------------------------------


def one_of_options(**options: object) -> str:
    """The name of the one option that was given. Raises ConfigError for none and for several."""
    given = [name for name, value in options.items() if not (value is None or value is False or value == [])]
    if len(given) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise ConfigError(f"give one of {names}" + (f", not {len(given)} of them" if given else ""))
    return given[0]


def parse_pairs(pairs: Iterable[str] | None, option: str) -> dict[str, str]:
    """`["a=1", "b=2"]` → `{"a": "1", "b": "2"}`."""
    parsed = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"{option} {pair}: expected KEY=VALUE")
        parsed[key] = value
    return parsed


def named_partitions(admin: Admin, texts: Iterable[str]) -> list[TopicPartition]:
    """`flights` means all its partitions, `flights:0,2` two of them. One request covers all topics.

    Raises UnknownTopic for a topic or partition that does not exist.
    """
    parts = [text.partition(":") for text in texts]
    for topic, colon, indexes in parts:
        if colon and not all(index.strip().isdecimal() for index in indexes.split(",")):
            raise ConfigError(f"{topic}:{indexes}: expected TOPIC or TOPIC:PARTITION,…")
    described = admin.describe_topics(topic for topic, _, _ in parts)
    found = []
    for topic, colon, indexes in parts:
        existing = list(described[topic].partitions)
        wanted = [int(index) for index in indexes.split(",")] if colon else existing
        for index in wanted:
            if index not in existing:
                raise UnknownTopic(f"topic {topic!r} has {len(existing)} partitions, but no {index}")
        found += [TopicPartition(topic, index) for index in wanted]
    return found


def parse_time(option: str, text: str) -> int:
    """`2026-01-31`, `2026-01-31T12:00:00.000+01:00` (UTC without a zone) or ms since 1970, as ms since 1970."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text}: expected ms since 1970, or a time such as 2026-01-31T12:00:00") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_timestamp(option: str, text: str) -> int:
    """The timestamp of a ListOffsets request: `earliest`, `latest`, `max-timestamp`, or a time."""
    return _TIMESTAMPS[text] if text in _TIMESTAMPS else parse_time(option, text)
