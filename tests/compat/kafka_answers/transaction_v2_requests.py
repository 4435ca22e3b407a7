"""Transactions of version 2 (KIP-890): Produce 12 adds partitions, TxnOffsetCommit 5 groups, EndTxn 5 raises the epoch.

Epochs are told as their distance from the first of the transactional id. transactions.json has version 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking
from tests.compat.kafka_answers.produce_requests import by
from tests.compat.kafka_answers.transaction_requests import NOBODY
from tests.support.raw_requests import ask_for, fetch_body
from tests.support.waiting import eventually

Producer = tuple[int, int]
COMMIT, ABORT = True, False


def ask_all(asking: Asking) -> None:
    topic = f"{asking.prefix}v2"
    asking.create(topic, 3)
    _features(asking)
    _strangers(asking, topic)
    _life(asking, topic)
    _retries(asking, topic)
    _offsets(asking, topic)
    _both_versions(asking, topic)
    _questions_of_brokers(asking, topic)


def _features(asking: Asking) -> None:
    def pick(answer: Any) -> Any:
        picked = {}
        for kind, low, high in (
            ("supported_features", "min_version", "max_version"),
            ("finalized_features", "min_version_level", "max_version_level"),
        ):
            rows = [one for one in answer[kind] if one["name"] == "transaction.version"]
            picked[kind] = [[one[low], one[high]] for one in rows]
        return {**picked, "epoch known": answer["finalized_features_epoch"] >= 0}

    body = {"client_software_name": "tests", "client_software_version": "1"}
    asking.ask_all("ApiVersions transaction.version", ApiKey.API_VERSIONS, body, pick, (3, 4))


@dataclasses.dataclass(eq=False)
class Transactional:
    """A transactional producer and the identity that it has now."""

    asking: Asking
    name: str
    now: Producer = (-1, -1)
    first: Producer = (-1, -1)

    def begin(self, note: str, **given: Any) -> None:
        body = {
            "transactional_id": f"{self.asking.prefix}{self.name}",
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
            **given,
        }

        def is_free() -> bool:
            """Kafka refuses until it has aborted what is open, others wait for that."""
            self.asking.answers.pop(f"InitProducerId {note}", None)
            answers.append(self.asking.ask(f"InitProducerId {note}", ApiKey.INIT_PRODUCER_ID, body, 5, self._relative))
            return answers[-1] is None or answers[-1].error_code is not ErrorCode.concurrent_transactions

        answers: list[Any] = []
        eventually(is_free)
        answer = answers[-1]
        if answer is not None and answer.error_code is ErrorCode.none:
            self.now = (int(answer.producer_id), int(answer.producer_epoch))
            if self.first == (-1, -1):
                self.first = self.now
                self.asking.answers[f"InitProducerId {note}"]["5"] = "first"

    def _relative(self, answer: Any) -> Any:
        if answer["producer_id"] >= 0:
            answer["producer_epoch"] -= self.first[1]
            answer["producer_id"] = "the first" if answer["producer_id"] == self.first[0] else "another"
        return answer

    def end(self, note: str, *, commit: bool, of: Producer | None = None, version: int = 5) -> None:
        """The identity of the answer is the producer's from then on."""
        producer_id, epoch = of or self.now
        body = {
            "transactional_id": f"{self.asking.prefix}{self.name}",
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": commit,
        }
        pick = self._relative if version >= 5 else None
        answer = self.asking.ask(f"EndTxn {note}", ApiKey.END_TXN, body, version, pick)
        if version >= 5 and answer is not None and answer.error_code is ErrorCode.none:
            self.now = (int(answer.producer_id), int(answer.producer_epoch))
        if answer is not None and answer.error_code is ErrorCode.none:
            self.until_over()

    def until_over(self) -> None:
        def is_over() -> bool:
            body: Mapping[str, Any] = {"transactional_ids": [f"{self.asking.prefix}{self.name}"]}
            (state,) = self.asking.requests.ask(ApiKey.DESCRIBE_TRANSACTIONS, body, 0).transaction_states
            return state.error_code is ErrorCode.none and not state.transaction_state.startswith("Prepare")

        eventually(is_over)

    def send(
        self, note: str, topic: str, index: int, sequence: int, *, of: Producer | None = None, version: int = 12
    ) -> None:
        records = by(*(of or self.now), sequence, transactional=True)
        body = {
            "transactional_id": f"{self.asking.prefix}{self.name}",
            "acks": -1,
            "timeout": 10_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": records}]}],
        }

        def pick(answer: Any) -> Any:
            (partition,) = answer["responses"][0]["partition_responses"]
            return [partition["error_code"], partition["base_offset"]]

        self.asking.ask(f"Produce {note}", ApiKey.PRODUCE, body, version, pick)

    def commit_offsets(self, note: str, group: str, topic: str, *, of: Producer | None = None, **given: Any) -> None:
        row = {"committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": ""}
        producer_id, epoch = of or self.now
        body = {
            "transactional_id": f"{self.asking.prefix}{self.name}",
            "group_id": group,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, **row}]}],
            **given,
        }
        self.asking.ask(f"TxnOffsetCommit {note}", ApiKey.TXN_OFFSET_COMMIT, body, 5)


def _strangers(asking: Asking, topic: str) -> None:
    nobody = Transactional(asking, "nobody", NOBODY, NOBODY)
    nobody.end("of nobody", commit=COMMIT)
    nobody.send("of nobody", topic, 0, 0)
    nobody.commit_offsets("of nobody", f"{asking.prefix}nobody", topic)
    nobody.commit_offsets("without a group", "", topic)
    body = {"transactional_id": "", "producer_id": 1, "producer_epoch": 0, "committed": True}
    asking.ask("EndTxn without a transactional id", ApiKey.END_TXN, body, 5)


def _read(asking: Asking, note: str, topic: str) -> None:
    def pick(answer: Any) -> Any:
        (partition,) = (one for found in answer["responses"] for one in found["partitions"])
        for aborted in partition["aborted_transactions"] or ():
            del aborted["producer_id"]
        return {**partition, "records": None}

    asking.ask(f"Fetch {note}", ApiKey.FETCH, fetch_body([ask_for(topic)], isolation_level=1), 12, pick)


def _life(asking: Asking, topic: str) -> None:
    one = Transactional(asking, "life")
    one.begin("life: begins")
    one.end("life: commit of nothing, at first", commit=COMMIT)
    one.end("life: abort of nothing, at first", commit=ABORT)
    one.send("life: first", topic, 0, 0)
    one.send("life: second", topic, 0, 1)
    one.send("life: another partition", topic, 1, 0)
    _read(asking, "life: open", topic)
    one.end("life: commit", commit=COMMIT)
    _read(asking, "life: committed", topic)
    one.end("life: commit of nothing, later", commit=COMMIT)
    one.end("life: abort of nothing, later", commit=ABORT)
    one.send("life: of the next", topic, 0, 0)
    one.send("life: sequence that goes on", topic, 1, 1)
    one.end("life: abort", commit=ABORT)
    _read(asking, "life: aborted", topic)
    before = one.now
    one.begin("life: a new one of the same id")
    one.send("life: of the former", topic, 0, 0, of=before)
    one.end("life: of the former", commit=COMMIT, of=before)
    one.send("life: of the new one", topic, 0, 0)
    one.begin("life: over an open transaction")
    one.begin("life: goes on", producer_id=one.now[0], producer_epoch=one.now[1])
    one.send("life: unknown partition", topic, 9, 0)
    one.send("life: unknown topic", f"{asking.prefix}none", 0, 0)
    one.end("life: of failed ones", commit=ABORT)


def _retries(asking: Asking, topic: str) -> None:
    """The answer was lost, and the client asks again; or it is a client of long ago."""
    one = Transactional(asking, "retries")
    one.begin("retries: begins")
    one.send("retries: first", topic, 2, 0)
    lost = one.now
    one.end("retries: commit", commit=COMMIT)
    after = one.now
    one.end("retries: commit again", commit=COMMIT, of=lost)
    one.end("retries: abort after commit", commit=ABORT, of=lost)
    one.now = after
    one.send("retries: late record of the former epoch", topic, 2, 1, of=lost)
    one.send("retries: second transaction", topic, 2, 0)
    one.end("retries: commit of the epoch before the open one", commit=COMMIT, of=lost)
    one.now = after
    one.end("retries: of a later epoch", commit=COMMIT, of=(after[0], after[1] + 1))
    one.end("retries: of another producer id", commit=COMMIT, of=(after[0] + 1_000, after[1]))
    one.end("retries: abort of the second", commit=ABORT)
    one.end("retries: abort again", commit=ABORT, of=after)
    one.end("retries: commit after abort", commit=COMMIT, of=after)
    one.end("retries: of long ago", commit=COMMIT, of=lost)


def _offsets(asking: Asking, topic: str) -> None:
    one, group = Transactional(asking, "offsets"), f"{asking.prefix}v2-group"
    one.begin("offsets: begins")
    one.commit_offsets("offsets: first", group, topic)
    one.commit_offsets("offsets: unknown topic", group, f"{asking.prefix}none")
    one.commit_offsets("offsets: of a member", group, topic, member_id="m", generation_id=3)

    def fetch(note: str, stable: bool) -> None:
        asked = [{"name": topic, "partition_indexes": [0]}]
        groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": asked}]
        body = {"require_stable": stable, "groups": groups}
        asking.ask(f"OffsetFetch {note}", ApiKey.OFFSET_FETCH, body, 8)

    fetch("offsets: pending, stable", True)
    fetch("offsets: pending", False)
    lost = one.now
    one.end("offsets: commit", commit=COMMIT)
    fetch("offsets: committed", True)
    one.commit_offsets("offsets: of the former epoch", group, topic, of=lost)
    one.commit_offsets("offsets: of the next", group, topic)
    one.end("offsets: abort", commit=ABORT)
    fetch("offsets: after the abort", True)


def _both_versions(asking: Asking, topic: str) -> None:
    """One transactional id, from a client of version 1 and one of version 2."""
    one = Transactional(asking, "both")
    one.begin("both: begins")
    body = {
        "v3_and_below_transactional_id": f"{asking.prefix}both",
        "v3_and_below_producer_id": one.now[0],
        "v3_and_below_producer_epoch": one.now[1],
        "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
    }
    one.send("both: version 11, not added", topic, 0, 0, version=11)
    asking.ask("AddPartitions both: version 3", ApiKey.ADD_PARTITIONS_TO_TXN, body, 3)
    one.send("both: version 11", topic, 0, 0, version=11)
    one.send("both: version 12, not added", topic, 1, 0)
    one.end("both: commit of version 4", commit=COMMIT, version=4)
    one.end("both: commit of version 4 again", commit=COMMIT, version=4)
    one.send("both: version 12 after it", topic, 0, 1)
    one.end("both: commit of version 5", commit=COMMIT)
    one.send("both: version 12 in the next", topic, 0, 0)
    one.end("both: abort of version 4", commit=ABORT, version=4)
    one.begin("both: begins again")


def _questions_of_brokers(asking: Asking, topic: str) -> None:
    """AddPartitionsToTxn from version 4 on, about many transactions, with and without adding."""
    one = Transactional(asking, "asked")
    one.begin("asked: begins")

    def ask(note: str, *, verify: bool, of: Producer | None = None, name: str = "asked", partition: int = 0) -> None:
        producer_id, epoch = of or one.now
        row = {
            "transactional_id": f"{asking.prefix}{name}",
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "verify_only": verify,
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        body = {"transactions": [row]}
        asking.ask_all(f"AddPartitions {note}", ApiKey.ADD_PARTITIONS_TO_TXN, body, in_versions=(4, 5))

    ask("verify what was not added", verify=True)
    ask("add", verify=False)
    ask("verify", verify=True)
    ask("verify another partition", verify=True, partition=1)
    ask("add again", verify=False)
    ask("add of a later epoch", verify=False, of=(one.now[0], one.now[1] + 1))
    ask("verify of a later epoch", verify=True, of=(one.now[0], one.now[1] + 1))
    ask("add of another producer id", verify=False, of=(one.now[0] + 1_000, one.now[1]))
    ask("add of nobody", verify=False, of=NOBODY, name="nobody")
    ask("verify of nobody", verify=True, of=NOBODY, name="nobody")
    ask("add of an unknown partition", verify=False, partition=9)
    one.end("asked: commit", commit=COMMIT)
