"""What `pykafka doctor` looks at in a cluster: who answers at which address, what this user may do, what is not whole.
What the brokers do not tell is unknown.

The clock is measured by a topic of one record, which is made and deleted again: Kafka's protocol tells no time, but a
broker stamps the records of a topic with `message.timestamp.type=LogAppendTime`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from broker.client.admin import Admin, NewTopic
from broker.client.client_settings import ClientSettings, parse_bootstrap
from broker.client.cluster import Cluster
from broker.client.denials import ANONYMOUS, principal_of
from broker.client.producer import Producer
from broker.errors import AuthenticationFailed, PykafkaError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.security.acl_types import AclOperation
from broker.tools.checkup import Finding, State
from broker.tools.client_options import impatient
from broker.tools.output import counted
from broker.tools.topics import under_replicated

_SKEW_MS: Final = 1000
"""Clocks that differ by more confuse who compares times of records with times of a machine."""
_LARGE_SKEW_MS: Final = 60_000
_NOT_TOLD: Final = -(2**31)


def look_at_cluster(settings: ClientSettings, *, measure_clock: bool) -> Iterator[Finding]:
    """Every check of the cluster. What needs an answer is left out when nobody answers."""
    reached = []
    for host, port in parse_bootstrap(settings.bootstrap_servers):
        finding = _address(settings, f"{host}:{port}", "bootstrap")
        reached.append(finding.state == "ok")
        yield finding
    if not any(reached):
        return
    with Cluster(settings, create_topics=False) as cluster:
        admin = Admin(cluster)
        for check in (_brokers, _partitions, _rights):
            yield from _told(check, admin)
        if measure_clock:
            yield from _told(_clock, admin)
        else:
            says = "not compared: it takes a topic that is made and deleted again"
            yield Finding("clock", "warning", says, "pykafka doctor --clock")


def _told(check: Callable[[Admin], Iterable[Finding]], admin: Admin) -> Iterator[Finding]:
    try:
        yield from check(admin)
    except PykafkaError as error:
        yield Finding(check.__name__.removeprefix("_"), "unknown", f"the brokers did not tell: {error}")


def _address(settings: ClientSettings, address: str, what: str, *, broker: str = "") -> Finding:
    try:
        with Cluster(impatient(settings, address)) as cluster:
            cluster.renew()
    except AuthenticationFailed as error:
        return Finding(what, "error", f"{broker}{error}", "correct security.protocol and sasl.* in the --config file")
    except PykafkaError as error:
        reason = str(error).removeprefix("no broker of bootstrap.servers could be reached: ")
        mend = (
            "have that broker's advertised.listeners name an address that this machine reaches"
            if broker
            else ("start it (pykafka broker start), or give the right address: --bootstrap-server")
        )
        return Finding(what, "error", f"{broker}{reason}", mend)
    return Finding(what, "ok", f"{broker}{address} answers")


def _brokers(admin: Admin) -> Iterator[Finding]:
    nodes = admin.cluster.brokers()
    for node in nodes:
        yield _address(admin.cluster.settings, node.address, "broker", broker=f"broker {node.id}: ")
    if admin.cluster.controller_id() < 0:
        yield Finding("controller", "error", "there is none, so topics cannot be made", "pykafka cluster describe")


def _partitions(admin: Admin) -> Iterator[Finding]:
    topics = admin.describe_topics().values()
    partitions = [one for topic in topics for one in topic.partitions.values()]
    headless, lagging = sum(one.leader < 0 for one in partitions), sum(len(under_replicated(one)) for one in topics)
    says = f"{counted(len(topics), 'topic')} with {counted(len(partitions), 'partition')}"
    state: State = "error" if headless else "warning" if lagging else "ok"
    if state != "ok":
        says += f", {headless} without a leader, {lagging - headless} that lack a replica"
    yield Finding("partitions", state, says, "" if state == "ok" else "pykafka topics list --under-replicated")


def _rights(admin: Admin) -> Iterator[Finding]:
    """What the brokers say that this user may do (KIP-430)."""
    connection = admin.cluster.any_connection()
    body: dict[str, Any] = {"topics": None, "include_topic_authorized_operations": True}
    try:
        answer = connection.request(ApiKey.METADATA, body)
        cluster = connection.request(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": True})
    except UnsupportedVersion:
        yield Finding("rights", "unknown", "these brokers are too old to tell what this user may do")
        return
    principal, owner = principal_of(admin.cluster.settings)
    who = owner or ("nobody has logged in" if principal == ANONYMOUS else f"user {principal.removeprefix('User:')}")
    told = int(cluster.cluster_authorized_operations)
    if told == _NOT_TOLD or any(int(one.topic_authorized_operations) == _NOT_TOLD for one in answer.topics):
        yield Finding("rights", "unknown", f"{who}; the brokers do not tell what this user may do")
        return
    allowed = _operations(told)
    topics = [_operations(int(one.topic_authorized_operations)) for one in answer.topics if not one.is_internal]
    counts = [sum(operation in one for one in topics) for operation in (AclOperation.READ, AclOperation.WRITE)]
    says = f"{who}; of {counted(len(topics), 'topic')} {counts[0]} may be read and {counts[1]} written"
    names = ", ".join(one.name.lower() for one in sorted(allowed))
    says += f"; on the cluster: {names or 'nothing'}"
    if topics and not any(counts):
        mend = f"pykafka acls add --allow-principal {principal or 'User:NAME'} --operation read --topic TOPIC"
        yield Finding("rights", "warning", says, mend)
    else:
        yield Finding("rights", "ok", says)


def _operations(bits: int) -> set[AclOperation]:
    return {one for one in AclOperation if bits & (1 << one.value)}


def _clock(admin: Admin) -> Iterator[Finding]:
    """The time of the broker that leads the topic, as it is between the sending and the acknowledgement of a record."""
    topic = f"pykafka-doctor-{uuid.uuid4().hex[:12]}"
    configs = {"message.timestamp.type": "LogAppendTime"}
    try:
        admin.create_topics([NewTopic(topic, 1, 1, configs=configs)])
    except PykafkaError as error:
        yield Finding("clock", "unknown", f"not compared: {error}")
        return
    try:
        with Producer(admin.cluster.settings) as producer:
            producer.send(topic, b"warm").result()  # the first record waits for metadata and connections
            before = time.time() * 1000
            stamped = producer.send(topic, b"now").result().timestamp
            after = time.time() * 1000
    finally:
        admin.delete_topics([topic])
    if stamped < 0:
        yield Finding("clock", "unknown", "the broker does not tell when it stored a record")
        return
    skew = max(stamped - after, 0.0) + min(stamped - before, 0.0)
    says = f"that of the brokers agrees within {max(1, round(after - before)):,} ms"
    if abs(skew) >= _SKEW_MS:
        side = "ahead of" if skew > 0 else "behind"
        says = f"that of the brokers is {abs(skew) / 1000:,.1f} s {side} this machine's"
    state: State = "ok" if abs(skew) < _SKEW_MS else "error" if abs(skew) >= _LARGE_SKEW_MS else "warning"
    yield Finding("clock", state, says, "" if state == "ok" else "timedatectl set-ntp true, on both")
