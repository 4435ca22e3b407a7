"""Users who log in with SCRAM (the `users` entities of kafka-configs.sh).

`pykafka users …` asks a broker. With `--zookeeper` it writes to ZooKeeper instead, and with `--log-dir` to the metadata
file of a standalone broker that does not run. This is how to create the first user if every listener requires a login.
A password comes from a prompt or from standard input, never
from the command line, which other users of the machine could see.
"""

from __future__ import annotations

import contextlib
import getpass
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Protocol

import typer

from broker.clock import SystemClock
from broker.cluster.users import decode_credentials, encode_changes
from broker.errors import ConfigError, PykafkaError
from broker.log.log_directory import LogDirectory
from broker.meta_properties import refuse_foreign
from broker.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, ScramMechanism
from broker.tools.client_options import (
    BootstrapServer,
    Command,
    ConfigFile,
    JsonOutput,
    administration,
    flag,
    opening,
    option,
)
from broker.tools.output import print_json, print_lines
from broker.zookeeper import znodes
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.metadata_move import METADATA_FILE, standalone_store
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.registry import Registry

app = typer.Typer(
    help="Create, list and delete users who log in with SCRAM; change their passwords.\n\n\b\nExamples:\n"
    "  pykafka users create --user alice --zookeeper localhost:2181\n"
    "  pykafka users list --config client.properties",
    no_args_is_help=True,
)

_ZOOKEEPER_TIMEOUT_MS = 10_000

UserName = Annotated[str, option("Name of the user.", "NAME", "--user")]
Mechanisms = Annotated[
    list[str] | None,
    option("SCRAM-SHA-256 or SCRAM-SHA-512; may be repeated. Default: both.", "MECHANISM", "--mechanism"),
]
Iterations = Annotated[
    int, option("Iterations of the hash; more make guessing slower.", "N", min=MIN_ITERATIONS, max=MAX_ITERATIONS)
]
PasswordStdin = Annotated[bool, flag("Read the password from the first line of standard input.", "--password-stdin")]
ZooKeeperOption = Annotated[
    str | None, option("Write to this ZooKeeper; needs no broker.", "HOST:PORT[/CHROOT]", "--zookeeper")
]
LogDirOption = Annotated[
    Path | None,
    option("Write to the metadata in this directory, of a standalone broker that is stopped.", "DIR", "--log-dir"),
]

Users = dict[str, dict[ScramMechanism, int]]


class _Store(Protocol):
    """Where users are kept: a cluster, ZooKeeper, or the metadata file of a standalone broker."""

    def describe_users(self) -> Users: ...
    def set_password(self, user: str, password: str, mechanisms: list[ScramMechanism], iterations: int) -> None: ...
    def delete_user(self, user: str, mechanisms: list[ScramMechanism]) -> None: ...


@contextlib.contextmanager
def _store(
    zookeeper: str | None, log_dir: Path | None, bootstrap_server: str | None, config_file: Path | None
) -> Iterator[_Store]:
    if zookeeper is None and log_dir is None:
        with administration(bootstrap_server, config_file) as admin:
            yield admin
        return
    if zookeeper and log_dir:
        raise ConfigError("give one of --zookeeper and --log-dir")
    if bootstrap_server is not None or config_file:
        raise ConfigError("--zookeeper and --log-dir need no broker: leave out --bootstrap-server and --config")
    with ZooKeeper(zookeeper, _ZOOKEEPER_TIMEOUT_MS) if zookeeper else _standalone_store(log_dir or Path()) as store:
        yield _InMetadata(store)


@contextlib.contextmanager
def _standalone_store(directory: Path) -> Iterator[MetadataStore]:
    locked = LogDirectory(directory)
    locked.lock()
    try:
        refuse_foreign([directory], [directory / METADATA_FILE])
        with standalone_store(directory, SystemClock()) as store:
            yield store
    finally:
        locked.unlock()


def _user_command(name: str | None = None) -> Callable[[Command], Command]:
    options = {
        "zookeeper": ZooKeeperOption,
        "log_dir": LogDirOption,
        "bootstrap_server": BootstrapServer,
        "config_file": ConfigFile,
    }
    return opening(app, name, options, _store)


@_user_command()
def create(
    store: _Store,
    user: UserName,
    mechanism: Mechanisms = None,
    iterations: Iterations = MIN_ITERATIONS,
    password_stdin: PasswordStdin = False,
) -> None:
    """Create a user; the password is asked for.

    \b
    Examples:
      pykafka users create --user alice --zookeeper localhost:2181
      pykafka users create --user alice --log-dir data/broker
      pykafka users create --user alice --mechanism SCRAM-SHA-512 --password-stdin < password.txt
    """
    mechanisms = _mechanisms(mechanism) or list(ScramMechanism)
    if user in store.describe_users():
        raise PykafkaError(f"there is a user {user} already; `pykafka users password` changes the password")
    store.set_password(user, _ask_password(user, password_stdin), mechanisms, iterations)
    typer.echo(f"Created user {user} ({', '.join(one.value for one in mechanisms)}).")


@_user_command()
def password(
    store: _Store,
    user: UserName,
    mechanism: Mechanisms = None,
    iterations: Iterations = MIN_ITERATIONS,
    password_stdin: PasswordStdin = False,
) -> None:
    """Change the password of a user, for all mechanisms of the user or those of --mechanism.

    \b
    Examples:
      pykafka users password --user alice
    """
    mechanisms = _mechanisms(mechanism) or list(_known(store, user))
    store.set_password(user, _ask_password(user, password_stdin), mechanisms, iterations)
    typer.echo(f"Changed the password of user {user}.")


@_user_command("list")
def list_users(store: _Store, as_json: JsonOutput = False) -> None:
    """List the users and their mechanisms.

    \b
    Examples:
      pykafka users list
      pykafka users list --zookeeper localhost:2181 --json
    """
    users = store.describe_users()
    if as_json:
        shown = {user: {one.value: {"iterations": n} for one, n in has.items()} for user, has in sorted(users.items())}
        print_json(shown)
        return
    for user, has in sorted(users.items()):
        mechanisms = ",".join(f"{one.value}=[iterations={count}]" for one, count in has.items())
        print_lines([f"{user}\t{mechanisms}"])


@_user_command()
def delete(store: _Store, user: UserName, mechanism: Mechanisms = None) -> None:
    """Delete a user, or the credentials of --mechanism; open connections stay open.

    \b
    Examples:
      pykafka users delete --user alice
      pykafka users delete --user alice --mechanism SCRAM-SHA-256
    """
    has = _known(store, user)
    mechanisms = _mechanisms(mechanism) or list(has)
    missing = [one.value for one in mechanisms if one not in has]
    if missing:
        raise PykafkaError(f"user {user} has no credential for {', '.join(missing)}")
    store.delete_user(user, mechanisms)
    typer.echo(f"Deleted user {user} ({', '.join(one.value for one in mechanisms)}).")


def _known(store: _Store, user: str) -> dict[ScramMechanism, int]:
    has = store.describe_users().get(user)
    if not has:
        raise PykafkaError(f"there is no user {user}; `pykafka users list` names them")
    return has


def _mechanisms(names: list[str] | None) -> list[ScramMechanism]:
    try:
        return [ScramMechanism(name.upper()) for name in names or ()]
    except ValueError as error:
        raise ConfigError(f"--mechanism: {error}; use {' or '.join(one.value for one in ScramMechanism)}") from None


def _ask_password(user: str, from_stdin: bool) -> str:
    if from_stdin:
        given = sys.stdin.readline().rstrip("\r\n")
    else:
        given = getpass.getpass(f"Password of {user}: ")
        if given != getpass.getpass("Again: "):
            raise ConfigError("the two passwords differ")
    if not given:
        raise ConfigError("the password is empty")
    return given


class _InMetadata:
    """Writes Kafka's nodes in ZooKeeper or a file, and notifies running brokers."""

    def __init__(self, store: MetadataStore) -> None:
        self._registry = Registry(store)
        self._registry.ensure_paths()
        self._changes = ChangeNotifications(store)

    def describe_users(self) -> Users:
        users = {user: decode_credentials(user, config) for user, config in self._registry.user_configs().items()}
        return {user: {one: made.iterations for one, made in has.items()} for user, has in users.items() if has}

    def set_password(self, user: str, password: str, mechanisms: list[ScramMechanism], iterations: int) -> None:
        self._alter(user, {one: ScramCredential.make(one, password, iterations) for one in mechanisms})

    def delete_user(self, user: str, mechanisms: list[ScramMechanism]) -> None:
        self._alter(user, dict.fromkeys(mechanisms))

    def _alter(self, user: str, changes: dict[ScramMechanism, ScramCredential | None]) -> None:
        self._registry.alter_user_config(user, encode_changes(changes))
        self._changes.notify_config_change(f"users/{znodes.sanitized(user)}")
