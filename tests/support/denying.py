"""A broker that denies all that no ACL allows, with users who have no rights yet: for tests of what a job needs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.security.acl_types import EVERY_ACL, AccessControlEntry, Acl
from tests.support.broker_process import BrokerProcess
from tests.support.job_rights import Right
from tests.support.waiting import eventually

PASSWORD = "s3cret"
_USERS = 120
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


DENYING = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": " ".join(
        [_MODULE, *(f'user_etl{number}="{PASSWORD}"' for number in range(_USERS))]
    )
    + ";",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""The settings. Whoever comes through the PLAINTEXT listener is a super user."""


def make_user(bootstrap: str, number: int, rights: Iterable[Right], names: Mapping[str, str]) -> str:
    """The user of this number, of whom nobody else asks, gets these rights. `bootstrap`: where super users come in."""
    user = f"etl{number % _USERS}"
    acls = {Acl(right.place.pattern_of(names), AccessControlEntry(f"User:{user}", right.operation)) for right in rights}
    with Cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        admin.create_acls(sorted(acls))
        eventually(lambda: acls <= set(admin.describe_acls()))  # a broker with KRaft hears of them a little later
    return user


def properties_of(user: str, bootstrap: str) -> dict[str, str]:
    """A client's. `bootstrap`: where users log in."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }


def options_of(user: str, bootstrap: str) -> dict[str, str]:
    """The same for Spark."""
    return {f"kafka.{name}": value for name, value in properties_of(user, bootstrap).items()}


class Denying:
    """At one listener super users come in, at the other users log in."""

    listeners: dict[str, str]
    _numbers: Iterator[int]

    def user(self, rights: Iterable[Right], names: Mapping[str, str]) -> str:
        """A user who nobody has been yet, with exactly these rights; nothing that a client has cached is theirs."""
        return make_user(self.listeners["PLAINTEXT"], next(self._numbers), rights, names)

    def properties(self, user: str) -> dict[str, str]:
        """A client's."""
        return properties_of(user, self.listeners["SASL_PLAINTEXT"])

    def options(self, user: str) -> dict[str, str]:
        """The same for Spark."""
        return options_of(user, self.listeners["SASL_PLAINTEXT"])


class DenyingBroker(BrokerProcess, Denying):
    """A standalone broker of ours."""

    def __init__(self, data_dir: Path) -> None:
        settings = {
            **DENYING,
            "group.initial.rebalance.delay.ms": "50",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
        }
        super().__init__(data_dir, settings, standalone=True)
        self._numbers = itertools.count()


@contextlib.contextmanager
def denying_kafka(data_dir: Path, foreign: tuple[str, str] | None) -> Iterator[Denying]:
    """Ours, or the one that somebody else started: its addresses for super users and users."""
    if foreign is not None:
        yield ForeignDenying(*foreign)
        return
    with DenyingBroker(data_dir) as process:
        yield process
    assert "Traceback" not in process.output, process.output[-4000:]


class ForeignDenying(Denying):
    """A Kafka with DENYING, or the like. Its users lose all rights."""

    def __init__(self, super_users: str, users: str) -> None:
        self.listeners = {"PLAINTEXT": super_users, "SASL_PLAINTEXT": users}
        self._numbers = itertools.count()
        with Cluster(super_users) as cluster:
            Admin(cluster).delete_acls([EVERY_ACL])
