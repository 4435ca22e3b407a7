"""Apache Kafka's own client for Java where not everybody may do everything: ACLs, quotas, logins, tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from broker.client.cluster import Cluster
from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.guarded import PRINCIPAL, Guarded, GuardedBroker
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.support.kafka_java import KafkaJava, each, java_or_give_up, metric, thrown, type_of
from tests.support.scrape import Scrape
from tests.support.secured import MECHANISMS, WAYS, Certificates, SecuredBroker
from tests.support.waiting import eventually

TOPIC_DENIED, GROUP_DENIED = "TopicAuthorizationException", "GroupAuthorizationException"
CLUSTER_DENIED = "ClusterAuthorizationException"
TRIES = 3

Login = Callable[..., dict[str, str]]


def all_of(java: KafkaJava, name: str, kind: str = "TOPIC", pattern: str = "LITERAL") -> Any:
    """The filter of a resource's ACLs."""
    resources, acls = java.kafka.common.resource, java.kafka.common.acl
    resource = resources.ResourcePatternFilter(
        getattr(resources.ResourceType, kind), name, getattr(resources.PatternType, pattern)
    )
    return acls.AclBindingFilter(resource, acls.AccessControlEntryFilter.ANY)


class Acls:
    """What a super user does with the Java client."""

    def __init__(self, java: KafkaJava, admin: Any) -> None:
        self._java, self.admin = java, admin

    def binding(
        self, operation: str, name: str, kind: str = "TOPIC", pattern: str = "LITERAL", permission: str = "ALLOW"
    ) -> Any:
        resources, acls = self._java.kafka.common.resource, self._java.kafka.common.acl
        resource = resources.ResourcePattern(
            getattr(resources.ResourceType, kind), name, getattr(resources.PatternType, pattern)
        )
        done = getattr(acls.AclOperation, operation), getattr(acls.AclPermissionType, permission)
        return acls.AclBinding(resource, acls.AccessControlEntry(PRINCIPAL, "*", *done))

    def allow(self, operation: str, name: str, kind: str = "TOPIC") -> None:
        self.admin.createAcls([self.binding(operation, name, kind)]).all().get()

    def revoke(self, name: str) -> None:
        self.admin.deleteAcls([all_of(self._java, name)]).all().get()


@pytest.fixture
def acls(java: KafkaJava, guarded: Guarded) -> Acls:
    return Acls(java, java.admin(guarded.super_user))


@pytest.fixture
def alice(java: KafkaJava, guarded: Guarded) -> Any:
    """Her `Admin`."""
    return java.admin(guarded.alice)


@pytest.fixture
def made(java: KafkaJava, acls: Acls, topic: str) -> str:
    """A topic of one partition."""
    acls.admin.createTopics([java.kafka.clients.admin.NewTopic(topic, 1, 1)]).all().get()
    return topic


class TestAcls:
    def test_they_are_created_described_and_deleted(self, java: KafkaJava, acls: Acls, topic: str) -> None:
        read, denied = acls.binding("READ", topic), acls.binding("WRITE", topic, permission="DENY")
        prefixed = acls.binding("DESCRIBE", topic[:-1], pattern="PREFIXED")
        group = acls.binding("READ", topic, kind="GROUP")
        admin = acls.admin
        admin.createAcls([read, denied, prefixed, group]).all().get()
        found = admin.describeAcls(all_of(java, topic, pattern="MATCH")).values().get()
        assert set(each(found)) == {read, denied, prefixed}
        assert set(each(admin.describeAcls(java.kafka.common.acl.AclBindingFilter.ANY).values().get())) >= {group}
        deleted = admin.deleteAcls([all_of(java, topic), all_of(java, f"{topic}-b")])
        assert set(each(deleted.all().get())) == {read, denied}
        assert list(each(admin.describeAcls(all_of(java, topic)).values().get())) == []

    def test_one_that_is_wrong_is_refused_alone(self, java: KafkaJava, acls: Acls, topic: str) -> None:
        fine, wrong = acls.binding("READ", topic), acls.binding("ALTER", "not-the-cluster", kind="CLUSTER")
        outcomes = acls.admin.createAcls([wrong, fine]).values()
        assert type_of(thrown(outcomes[wrong].get)) == "InvalidRequestException"
        assert outcomes[fine].get() is None
        assert list(each(acls.admin.describeAcls(all_of(java, topic)).values().get())) == [fine]

    def test_they_need_a_right_over_the_cluster(self, java: KafkaJava, acls: Acls, alice: Any, topic: str) -> None:
        for call in (
            lambda: alice.createAcls([acls.binding("READ", topic)]).all().get(),
            lambda: alice.describeAcls(all_of(java, topic)).values().get(),
            lambda: alice.deleteAcls([all_of(java, topic)]).all().get(),
        ):
            assert type_of(thrown(call)) == CLUSTER_DENIED

    def test_operations_that_are_allowed_are_told(
        self, java: KafkaJava, guarded: Guarded, acls: Acls, alice: Any, made: str, group: str
    ) -> None:
        acls.allow("ALTER_CONFIGS", made)
        acls.allow("READ", group, "GROUP")
        clients = java.kafka.clients.admin

        def names(found: Any) -> set[str]:
            return {one.toString() for one in each(found)}

        options = clients.DescribeTopicsOptions().includeAuthorizedOperations(True)
        described = alice.describeTopics([made], options).allTopicNames
        assert type_of(thrown(lambda: described().get())) == TOPIC_DENIED, "AlterConfigs implies DescribeConfigs only"
        acls.allow("READ", made)
        found = alice.describeTopics([made], options).allTopicNames().get()[made].authorizedOperations()
        assert names(found) == {"ALTER_CONFIGS", "DESCRIBE_CONFIGS", "READ", "DESCRIBE"}
        options = clients.DescribeClusterOptions().includeAuthorizedOperations(True)
        assert names(alice.describeCluster(options).authorizedOperations().get()) == set()
        options = clients.DescribeConsumerGroupsOptions().includeAuthorizedOperations(True)
        consumer = java.consumer({**guarded.alice, "group.id": group})
        consumer.subscribe([made])
        eventually(lambda: not java.poll(consumer, 50) and consumer.assignment().size() == 1)
        found = alice.describeConsumerGroups([group], options).all().get()[group].authorizedOperations()
        assert names(found) == {"READ", "DESCRIBE"}


def _sent_once_allowed(send: Callable[[], Any]) -> Any:
    """What `send` returns, once no denial of before is left in the client.

    A producer that was denied InitProducerId asks again and again in the background, and fails what was sent in the
    meantime with whichever answer comes: the one of a moment before the ACL too.
    """
    sent: list[Any] = []

    def tried() -> bool:
        try:
            sent.append(send())
        except Py4JJavaError as error:
            if type_of(error.java_exception.getCause()) != CLUSTER_DENIED:
                raise
        return bool(sent)

    eventually(tried)
    return sent[0]


class TestDenials:
    def test_a_producer_is_told_and_goes_on_once_it_is_allowed(
        self, java: KafkaJava, guarded: Guarded, acls: Acls, made: str
    ) -> None:
        producer = java.producer(guarded.alice)
        error = thrown(lambda: producer.send(java.record(made, b"x")).get())
        assert type_of(error) == TOPIC_DENIED
        assert set(each(error.unauthorizedTopics())) == {made}
        acls.allow("DESCRIBE", made)
        error = thrown(lambda: producer.send(java.record(made, b"x")).get())
        # It may stand within the KafkaException of a producer that already knows.
        assert CLUSTER_DENIED in (type_of(error), type_of(error.getCause() or error)), "KIP-679"
        acls.allow("WRITE", made)
        assert _sent_once_allowed(lambda: producer.send(java.record(made, b"x")).get()).offset() == 0
        acls.revoke(made)
        assert type_of(thrown(lambda: producer.send(java.record(made, b"x")).get())) == TOPIC_DENIED

    def test_a_topic_that_is_not_there_looks_the_same(
        self, java: KafkaJava, guarded: Guarded, alice: Any, made: str
    ) -> None:
        producer = java.producer(guarded.alice)
        for name in (made, f"{made}-b"):
            sent = producer.send(java.record(name, b"x"))
            assert type_of(thrown(sent.get)) == TOPIC_DENIED
            assert type_of(thrown(alice.describeTopics([name]).allTopicNames().get)) == TOPIC_DENIED
        assert list(each(alice.listTopics().names().get())) == []

    def test_a_member_is_told_which_right_it_lacks(
        self, java: KafkaJava, guarded: Guarded, acls: Acls, made: str, group: str
    ) -> None:
        java.producer(guarded.super_user).send(java.record(made, b"x")).get()
        consumer = java.consumer({**guarded.alice, "group.id": group})
        consumer.subscribe([made])

        def denied() -> Any:
            return thrown(lambda: eventually(lambda: bool(java.poll(consumer))))

        acls.allow("DESCRIBE", made)
        error = denied()
        assert type_of(error) == GROUP_DENIED
        assert group in error.getMessage()
        acls.allow("READ", group, "GROUP")
        error = denied()
        assert (type_of(error), set(each(error.unauthorizedTopics()))) == (TOPIC_DENIED, {made})
        acls.allow("READ", made)
        eventually(lambda: [one.value() for one in java.poll(consumer)] == [b"x"])

    def test_a_transactional_producer_needs_its_id(
        self, java: KafkaJava, guarded: Guarded, acls: Acls, made: str
    ) -> None:
        properties = {**guarded.alice, "transactional.id": made}
        denied = thrown(java.producer(properties).initTransactions)
        assert type_of(denied) == "TransactionalIdAuthorizationException"
        acls.allow("WRITE", made, "TRANSACTIONAL_ID")
        producer = java.producer(properties)
        producer.initTransactions()
        producer.beginTransaction()
        assert type_of(thrown(lambda: producer.send(java.record(made, b"x")).get())) == TOPIC_DENIED
        producer.abortTransaction()
        acls.allow("WRITE", made)
        producer.beginTransaction()
        assert producer.send(java.record(made, b"x")).get().offset() == 0
        producer.commitTransaction()

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (lambda a, k, t, g: a.createTopics([k.clients.admin.NewTopic(f"{t}-b", 1, 1)]).all(), TOPIC_DENIED),
            (lambda a, k, t, g: a.deleteTopics([t]).all(), TOPIC_DENIED),
            (
                lambda a, k, t, g: a.createPartitions({t: k.clients.admin.NewPartitions.increaseTo(2)}).all(),
                TOPIC_DENIED,
            ),
            (lambda a, k, t, g: a.describeConfigs([resource(k, t)]).all(), TOPIC_DENIED),
            (lambda a, k, t, g: a.incrementalAlterConfigs({resource(k, t): []}).all(), TOPIC_DENIED),
            (lambda a, k, t, g: a.describeProducers([k.common.TopicPartition(t, 0)]).all(), TOPIC_DENIED),
            (lambda a, k, t, g: a.listOffsets({k.common.TopicPartition(t, 0): latest(k)}).all(), TOPIC_DENIED),
            (lambda a, k, t, g: a.describeConsumerGroups([g]).all(), GROUP_DENIED),
            (lambda a, k, t, g: a.listConsumerGroupOffsets(g).all(), GROUP_DENIED),
            (lambda a, k, t, g: a.deleteConsumerGroups([g]).all(), GROUP_DENIED),
            (lambda a, k, t, g: a.describeLogDirs([node(a)]).allDescriptions(), CLUSTER_DENIED),
            (lambda a, k, t, g: a.describeUserScramCredentials().all(), CLUSTER_DENIED),
            (lambda a, k, t, g: a.listPartitionReassignments().reassignments(), CLUSTER_DENIED),
            (lambda a, k, t, g: a.describeClientQuotas(every_quota(k)).entities(), CLUSTER_DENIED),
            (lambda a, k, t, g: a.describeTransactions([t]).all(), "TransactionalIdAuthorizationException"),
            (lambda a, k, t, g: a.fenceProducers([t]).all(), "TransactionalIdAuthorizationException"),
        ],
        ids=lambda part: "" if isinstance(part, str) else part.__code__.co_names[0],
    )
    def test_an_admin_is_told(
        self, java: KafkaJava, alice: Any, made: str, group: str, call: Callable[..., Any], error: str
    ) -> None:
        found = thrown(lambda: call(alice, java.kafka, made, group).get())
        assert type_of(found) == error


def resource(kafka: Any, topic: str) -> Any:
    kinds = kafka.common.config.ConfigResource
    return kinds(kinds.Type.TOPIC, topic)


def node(admin: Any) -> int:
    return int(admin.describeCluster().controller().get().id())


def latest(kafka: Any) -> Any:
    return kafka.clients.admin.OffsetSpec.latest()


def every_quota(kafka: Any) -> Any:
    return kafka.common.quota.ClientQuotaFilter.all()


class TestQuotas:
    @pytest.fixture
    def admin(self, java: KafkaJava, guarded: Guarded) -> Any:
        return java.admin(guarded.super_user)

    @staticmethod
    def alter(java: KafkaJava, admin: Any, entity: Mapping[str, str | None], key: str, value: float | None) -> None:
        quotas = java.kafka.common.quota
        change = quotas.ClientQuotaAlteration.Op(key, value)
        alteration = quotas.ClientQuotaAlteration(quotas.ClientQuotaEntity(dict(entity)), [change])
        admin.alterClientQuotas([alteration]).all().get()

    @staticmethod
    def described(java: KafkaJava, admin: Any, kind: str, name: str, *, strict: bool = False) -> list[Any]:
        quotas = java.kafka.common.quota
        component = quotas.ClientQuotaFilterComponent.ofEntity(kind, name)
        wanted = quotas.ClientQuotaFilter.containsOnly if strict else quotas.ClientQuotaFilter.contains
        found = admin.describeClientQuotas(wanted([component])).entities().get()
        return [(dict(entry.getKey().entries()), dict(entry.getValue())) for entry in each(found.entrySet())]

    def test_they_are_altered_described_and_removed(self, java: KafkaJava, admin: Any, topic: str) -> None:
        default: dict[str, str | None] = {"user": topic, "client-id": None}
        self.alter(java, admin, default, "producer_byte_rate", 1e6)
        self.alter(java, admin, {"user": topic}, "request_percentage", 12.5)
        both = [(default, {"producer_byte_rate": 1e6}), ({"user": topic}, {"request_percentage": 12.5})]
        assert sorted(self.described(java, admin, "user", topic), key=repr) == sorted(both, key=repr)
        assert self.described(java, admin, "user", topic, strict=True) == both[1:]
        for entity, key in ((default, "producer_byte_rate"), ({"user": topic}, "request_percentage")):
            self.alter(java, admin, entity, key, None)
        assert self.described(java, admin, "user", topic) == []

    @pytest.mark.parametrize(
        ("entity", "key", "value"),
        [
            ({"user": "u"}, "no_such_rate", 1.0),
            ({"user": "u"}, "producer_byte_rate", -1.0),
            ({"ip": "not an address"}, "connection_creation_rate", 1.0),
            ({"ip": "127.0.0.9"}, "producer_byte_rate", 1.0),
        ],
    )
    def test_one_that_is_wrong_is_refused(
        self, java: KafkaJava, admin: Any, entity: dict[str, str | None], key: str, value: float
    ) -> None:
        error = thrown(lambda: self.alter(java, admin, entity, key, value))
        assert type_of(error) == "InvalidRequestException"

    def test_a_throttled_producer_slows_down_and_sees_why(
        self, java: KafkaJava, own_guarded: Guarded, acls: Acls, admin: Any, made: str
    ) -> None:
        acls.allow("WRITE", made)
        rate, size, seconds = 150_000.0, 10_000, 3.0  # slow enough for a busy machine to keep up
        self.alter(java, admin, {"client-id": made}, "producer_byte_rate", rate)
        producer = java.producer({**own_guarded.alice, "client.id": made})
        producer.send(java.record(made, bytes(size))).get()

        def share_of_quota() -> float:
            started, sent = time.monotonic(), 0
            while time.monotonic() - started < seconds:
                producer.send(java.record(made, bytes(size))).get()
                sent += size
            return sent / (time.monotonic() - started) / rate

        check_shares(share_of_quota)
        assert metric(producer, "produce-throttle-time-max", "producer-metrics") > 0

    def test_a_throttled_consumer_slows_down_and_sees_why(
        self, java: KafkaJava, own_guarded: Guarded, acls: Acls, admin: Any, made: str
    ) -> None:
        acls.allow("READ", made)
        rate, size, seconds = 150_000.0, 10_000, 3.0  # slow enough for a busy machine to keep up
        source = java.producer({**own_guarded.super_user, "batch.size": "1"})
        for _ in range(int(rate * (TRIES * seconds + 2) / size)):
            source.send(java.record(made, bytes(size)))
        source.flush()
        self.alter(java, admin, {"client-id": made}, "consumer_byte_rate", rate)
        consumer = java.consumer({**own_guarded.alice, "client.id": made, "max.partition.fetch.bytes": "15000"})
        consumer.assign([java.partition(made, 0)])
        eventually(lambda: bool(java.poll(consumer, 50)))

        def share_of_quota() -> float:
            started, taken = time.monotonic(), 0
            while time.monotonic() - started < seconds:
                taken += size * len(java.poll(consumer, 50))
            return taken / (time.monotonic() - started) / rate

        check_shares(share_of_quota)
        assert metric(consumer, "fetch-throttle-time-max", "consumer-fetch-manager-metrics") > 0


def check_shares(share_of_quota: Callable[[], float]) -> None:
    """A client takes its quota, and never more. It takes less while the machine does something else."""
    shares = [share_of_quota()]
    while shares[-1] <= 0.75 and len(shares) < TRIES:
        shares.append(share_of_quota())
    assert shares[-1] > 0.75, shares
    assert max(shares) < 1.15, shares


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[SecuredBroker]:
    directory = tmp_path_factory.mktemp("secured")
    with SecuredBroker(
        directory / "data", Certificates.make(directory), f"{zookeeper}/java-secured", SESSION_SETTINGS
    ) as process:
        yield process
    assert "Traceback" not in process.output


class TestLogins:
    @pytest.mark.parametrize(("listener", "mechanism"), WAYS, ids=lambda part: part or "none")
    def test_every_way_in(
        self, java: KafkaJava, secured: SecuredBroker, topic: str, listener: str, mechanism: str | None
    ) -> None:
        large = bytes(range(256)) * 3_000
        properties = secured.properties(listener, mechanism)
        java.producer(properties).send(java.record(topic, large)).get()
        consumer = java.consumer(properties)
        consumer.assign([java.partition(topic, 0)])
        eventually(lambda: [one.value() for one in java.poll(consumer)] == [large])

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_a_wrong_password_is_told(self, java: KafkaJava, secured: SecuredBroker, mechanism: str) -> None:
        admin = java.admin(secured.properties("SASL_SSL", mechanism, password="wrong-s3cret"))
        error = thrown(lambda: admin.listTopics().names().get())
        assert type_of(error) == "SaslAuthenticationException"
        assert mechanism in error.getMessage()

    def test_a_mechanism_that_is_not_enabled_is_told_with_those_that_are(
        self, java: KafkaJava, secured: SecuredBroker
    ) -> None:
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
        login = {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f'{module} unsecuredLoginStringClaim_sub="ann";'}
        address = secured.listeners["SASL_PLAINTEXT"]
        admin = java.admin({"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", **login})
        error = thrown(lambda: admin.listTopics().names().get())
        assert type_of(error) == "UnsupportedSaslMechanismException"
        assert all(name in error.getMessage() for name in MECHANISMS)

    @pytest.mark.parametrize("stranger", ["broker", "client"])
    def test_a_certificate_of_a_stranger_is_refused(
        self, java: KafkaJava, secured: SecuredBroker, stranger: str
    ) -> None:
        properties = secured.properties("MTLS")
        if stranger == "broker":
            properties["ssl.ca.location"] = str(secured.certificates.stranger_ca)
        else:
            unknown = str(secured.certificates.stranger)
            properties |= {"ssl.certificate.location": unknown, "ssl.key.location": unknown}
        admin = java.admin(properties)
        assert type_of(thrown(lambda: admin.listTopics().names().get())) == "SslAuthenticationException"

    def test_users_are_made_and_log_in(self, java: KafkaJava, secured: SecuredBroker) -> None:
        admin, clients = java.admin(secured.properties("PLAINTEXT")), java.kafka.clients.admin
        info = clients.ScramCredentialInfo(clients.ScramMechanism.SCRAM_SHA_256, 4096)
        admin.alterUserScramCredentials([clients.UserScramCredentialUpsertion("eve", info, "s3cret")]).all().get()
        (kept,) = each(admin.describeUserScramCredentials(["eve"]).all().get()["eve"].credentialInfos())
        assert (kept.mechanism().toString(), kept.iterations()) == ("SCRAM_SHA_256", 4096)
        login = {**secured.properties("SASL_SSL", "SCRAM-SHA-256"), "sasl.username": "eve", "sasl.password": "s3cret"}
        eventually(lambda: java.admin(login).describeCluster().clusterId().get() is not None)

    def test_a_connection_outlives_its_session_by_logging_in_again(self, java: KafkaJava, tmp_path: Path) -> None:
        """KIP-368."""
        # The client has 5 % of it at least to log in again, 200 ms.
        limits = {"connections.max.reauth.ms": "4000", "metrics.listener": "HTTP://127.0.0.1:0"}
        with GuardedBroker(tmp_path, {**limits, "super.users": f"User:ANONYMOUS;{PRINCIPAL}"}) as broker:

            def count(what: str) -> float:
                name = f"kafka_server_socketservermetrics_connection_{what}_total"
                return Scrape(broker.metrics_url).total(name, listener="SASL_PLAINTEXT")

            producer = java.producer(broker.alice)
            producer.send(java.record("t", b"first")).get()
            before, started = (count("creation"), count("close")), time.monotonic()

            def two_sessions_are_over() -> bool:
                producer.send(java.record("t", b"more")).get()
                return time.monotonic() - started > 8

            eventually(two_sessions_are_over)
            assert (count("creation"), count("close")) == before
            assert metric(producer, "successful-reauthentication-total", "producer-metrics") >= 2
            assert metric(producer, "failed-reauthentication-total", "producer-metrics") == 0


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as found:
        yield found


@pytest.fixture(scope="module")
def token_java(provider: IdentityProvider) -> Iterator[KafkaJava]:
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.token_url}"
    with java_or_give_up(allowed) as started, started.closing():
        yield started


@pytest.fixture(scope="module")
def token_broker(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[BrokerProcess]:
    settings = {**SESSION_SETTINGS, **provider.listener_settings()}
    with BrokerProcess(tmp_path_factory.mktemp("tokens") / "data", settings, standalone=True) as process:
        yield process
    assert "Traceback" not in process.output
    assert "eyJ" not in process.output, "a token"


class TestTokens:
    """OAUTHBEARER; Java fetches tokens only from addresses that a property of the JVM allows, so it has its own."""

    @pytest.fixture
    def login(self, token_broker: BrokerProcess, provider: IdentityProvider) -> Login:
        def properties(options: str, handler: str = "OAuthBearerLoginCallbackHandler") -> dict[str, str]:
            package = "org.apache.kafka.common.security.oauthbearer"
            return {
                "bootstrap.servers": token_broker.listeners["SASL_PLAINTEXT"],
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.login.callback.handler.class": f"{package}.{handler}",
                "sasl.oauthbearer.token.endpoint.url": provider.token_url,
                "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required {options};",
            }

        return properties

    def test_a_client_is_who_its_token_says(self, token_java: KafkaJava, login: Login) -> None:
        pool = 'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-1"'  # as Confluent Cloud asks for them
        settings = login(f'clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" {pool}')
        with Cluster(settings) as ours:
            assert ours.cluster_id()
        producer = token_java.producer(settings)
        assert producer.send(token_java.record("tokens", b"x")).get().offset() == 0

    def test_who_gets_no_token_makes_no_client(self, token_java: KafkaJava, login: Login) -> None:
        with pytest.raises(Py4JJavaError, match="401|[Uu]nauthorized"):
            token_java.producer(login(f'clientId="{CLIENT_ID}" clientSecret="wrong"'))

    def test_an_unsigned_token_is_refused(self, token_java: KafkaJava, login: Login) -> None:
        handler = "internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
        admin = token_java.admin(login(f'unsecuredLoginStringClaim_sub="{CLIENT_ID}"', handler))
        error = thrown(lambda: admin.listTopics().names().get())
        assert type_of(error) == "SaslAuthenticationException"
