"""Users who log in with SCRAM (the `users` entities of kafka-configs.sh).

`pykafka users …` asks a broker. With `--zookeeper` it writes to ZooKeeper instead and needs no broker: this is how to
create the first user if every listener requires a login. A password comes from a prompt or from standard input, never
from the command line, which other users of the machine could see.
"""

from __future__ import annotations

import contextlib
import getpass
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Protocol

import typer

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.cluster.users import decode_credentials, encode_changes
from broker.errors import ConfigError, PykafkaError
from broker.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, ScramMechanism
from broker.tools.client_options import BootstrapServer, ConfigFile, JsonOutput, client_settings
from broker.tools.output import print_json, print_lines
from broker.zookeeper import znodes
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.registry import Registry

__all__ = ["app"]

app = typer.Typer(
    help="Create, list and delete users who log in with SCRAM; change their passwords.\n\n\b\nExamples:\n"
    "  pykafka users create --user alice --zookeeper localhost:2181\n"
    "  pykafka users list --config client.properties",
    no_args_is_help=True,
)

_ZOOKEEPER_TIMEOUT_MS = 10_000

UserName = Annotated[str, typer.Option("--user", help="Name of the user.", metavar="NAME")]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism", help="SCRAM-SHA-256 or SCRAM-SHA-512; may be repeated. Default: both.", metavar="MECHANISM"
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        min=MIN_ITERATIONS, max=MAX_ITERATIONS, help="Iterations of the hash; more make guessing slower.", metavar="N"
    ),
]
PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
]
ZooKeeperOption = Annotated[
    str | None,
    typer.Option("--zookeeper", help="Write to this ZooKeeper; needs no broker.", metavar="HOST:PORT[/CHROOT]"),
]

Users = dict[str, dict[ScramMechanism, int]]


class _Store(Protocol):
    """Where users are kept: a cluster or ZooKeeper."""

    def describe_users(self) -> Users: ...
    def set_password(self, user: str, password: str, mechanisms: list[ScramMechanism], iterations: int) -> None: ...
    def delete_user(self, user: str, mechanisms: list[ScramMechanism]) -> None: ...


@app.command()
def create(
    user: UserName,
    mechanism: Mechanisms = None,
    iterations: Iterations = MIN_ITERATIONS,
    password_stdin: PasswordStdin = False,
    zookeeper: ZooKeeperOption = None,
    bootstrap_server: BootstrapServer = None,
    command_config: ConfigFile = None,
) -> None:
    """Create a user; the password is asked for.

    \b
    Examples:
      pykafka users create --user alice --zookeeper localhost:2181
      pykafka users create --user alice --mechanism SCRAM-SHA-512 --password-stdin < password.txt
    """
    mechanisms = _mechanisms(mechanism) or list(ScramMechanism)
    with _store(zookeeper, bootstrap_server, command_config) as store:
        if user in store.describe_users():
            raise PykafkaError(f"there is a user {user} already; `pykafka users password` changes the password")
        store.set_password(user, _ask_password(user, password_stdin), mechanisms, iterations)
    typer.echo(f"Created user {user} ({', '.join(one.value for one in mechanisms)}).")


@app.command()
def password(
    user: UserName,
    mechanism: Mechanisms = None,
    iterations: Iterations = MIN_ITERATIONS,
    password_stdin: PasswordStdin = False,
    zookeeper: ZooKeeperOption = None,
    bootstrap_server: BootstrapServer = None,
    command_config: ConfigFile = None,
) -> None:
    """Change the password of a user, for all mechanisms of the user or those of --mechanism.

    \b
    Examples:
      pykafka users password --user alice
    """
    with _store(zookeeper, bootstrap_server, command_config) as store:
        mechanisms = _mechanisms(mechanism) or list(_known(store, user))
        store.set_password(user, _ask_password(user, password_stdin), mechanisms, iterations)
    typer.echo(f"Changed the password of user {user}.")


@app.command("list")
def list_users(
    as_json: JsonOutput = False,
    zookeeper: ZooKeeperOption = None,
    bootstrap_server: BootstrapServer = None,
    command_config: ConfigFile = None,
) -> None:
    """List the users and their mechanisms.

    \b
    Examples:
      pykafka users list
      pykafka users list --zookeeper localhost:2181 --json
    """
    with _store(zookeeper, bootstrap_server, command_config) as store:
        users = store.describe_users()
    if as_json:
        shown = {user: {one.value: {"iterations": n} for one, n in has.items()} for user, has in sorted(users.items())}
        print_json(shown)
        return
    for user, has in sorted(users.items()):
        mechanisms = ",".join(f"{one.value}=[iterations={count}]" for one, count in has.items())
        print_lines([f"{user}\t{mechanisms}"])


@app.command()
def delete(
    user: UserName,
    mechanism: Mechanisms = None,
    zookeeper: ZooKeeperOption = None,
    bootstrap_server: BootstrapServer = None,
    command_config: ConfigFile = None,
) -> None:
    """Delete a user, or the credentials of --mechanism; open connections stay open.

    \b
    Examples:
      pykafka users delete --user alice
      pykafka users delete --user alice --mechanism SCRAM-SHA-256
    """
    with _store(zookeeper, bootstrap_server, command_config) as store:
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


@contextlib.contextmanager
def _store(zookeeper: str | None, bootstrap: str | None, file: Path | None) -> Iterator[_Store]:
    if zookeeper is None:
        with Cluster(client_settings(bootstrap, file)) as cluster:
            yield Admin(cluster)
        return
    if bootstrap or file:
        raise ConfigError("--zookeeper needs no broker: leave out --bootstrap-server and --config")
    client = ZooKeeper(zookeeper, _ZOOKEEPER_TIMEOUT_MS)
    try:
        client.start()
        yield _InZooKeeper(client)
    finally:
        client.close()


class _InZooKeeper:
    """Writes Kafka's nodes in ZooKeeper, and notifies running brokers."""

    def __init__(self, client: ZooKeeper) -> None:
        self._registry = Registry(client)
        self._registry.ensure_paths()
        self._changes = ChangeNotifications(client)

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
