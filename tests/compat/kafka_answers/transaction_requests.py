"""Transactions: producer ids, partitions and offsets added, the end, and what does not fit; what is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.compat.kafka_answers.asking import Asking, versions
from tests.compat.kafka_answers.produce_requests import by
from tests.support.raw_requests import ask_for, fetch_body
from tests.support.waiting import eventually

Producer = tuple[int, int]
"""Id and epoch."""
NOBODY: Producer = (987_654, 0)


def ask_all(asking: Asking) -> None:
    topic = f"{asking.prefix}t"
    asking.create(topic, 3)
    _producer_ids(asking)
    _strangers(asking, topic)
    _life(asking, topic)
    _descriptions(asking)
    _markers(asking, topic)


def _init(asking: Asking, name: str, transactional_id: str | None, version: int = 4, **given: Any) -> Producer:
    body = {
        "transactional_id": transactional_id,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
        **given,
    }
    answer = asking.ask(
        f"InitProducerId {name}",
        ApiKey.INIT_PRODUCER_ID,
        body,
        version,
        lambda one: {**one, "producer_id": one["producer_id"] >= 0},
    )
    return (-1, -1) if answer is None else (int(answer.producer_id), int(answer.producer_epoch))


def _producer_ids(asking: Asking) -> None:
    for version in versions(ApiKey.INIT_PRODUCER_ID):
        _init(asking, "no txid", None, version)
        _init(asking, "txid", f"{asking.prefix}v{version}", version)
        _init(asking, "txid again", f"{asking.prefix}v{version}", version)
        _init(asking, "empty txid", "", version)
        _init(asking, "timeout 0", f"{asking.prefix}x", version, transaction_timeout=0)
        _init(asking, "timeout -1", f"{asking.prefix}x", version, transaction_timeout=-1)
        _init(asking, "timeout long", f"{asking.prefix}x", version, transaction_timeout=2_000_000)
    _init(asking, "no txid timeout 0", None, transaction_timeout=0)
    _init(asking, "id without epoch", f"{asking.prefix}x", producer_id=5, producer_epoch=-1)
    _init(asking, "epoch without id", f"{asking.prefix}x", producer_id=-1, producer_epoch=5)
    _init(asking, "id of nobody", f"{asking.prefix}x", producer_id=NOBODY[0], producer_epoch=0)
    mine = _init(asking, "keep", f"{asking.prefix}keep")
    _init(asking, "go on", f"{asking.prefix}keep", producer_id=mine[0], producer_epoch=mine[1])
    _init(asking, "go on from behind", f"{asking.prefix}keep", producer_id=mine[0], producer_epoch=mine[1])
    _init(asking, "go on far behind", f"{asking.prefix}keep", producer_id=mine[0], producer_epoch=7)
    _init(asking, "go on as another", f"{asking.prefix}keep", producer_id=mine[0] + 1000, producer_epoch=0)


def _add(
    asking: Asking,
    name: str,
    transactional_id: str,
    producer: Producer,
    *partitions: tuple[str, int],
    in_versions: Sequence[int] = (0, 1, 2, 3),
) -> None:
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    topics = [{"name": topic, "partitions": found} for topic, found in indexes.items()]
    body = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1],
        "v3_and_below_topics": topics,
    }

    def pick(answer: Any) -> Any:
        return sorted(answer["results_by_topic_v3_and_below"], key=lambda one: one["name"])

    asking.ask_all(f"AddPartitions {name}", ApiKey.ADD_PARTITIONS_TO_TXN, body, pick, in_versions)


def _end(asking: Asking, name: str, transactional_id: str, producer: Producer, *, commit: bool, version: int) -> None:
    body = {
        "transactional_id": transactional_id,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "committed": commit,
    }
    asking.ask(f"EndTxn {name}", ApiKey.END_TXN, body, version)


def _add_offsets(asking: Asking, name: str, transactional_id: str, producer: Producer, group: str) -> None:
    body = {
        "transactional_id": transactional_id,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "group_id": group,
    }
    asking.ask_all(f"AddOffsets {name}", ApiKey.ADD_OFFSETS_TO_TXN, body, in_versions=(0, 1, 2, 3))


def _commit_offsets(
    asking: Asking, name: str, transactional_id: str, producer: Producer, group: str, topic: str, **given: Any
) -> None:
    partition = {
        "partition_index": 0,
        "committed_offset": 3,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    body = {
        "transactional_id": transactional_id,
        "group_id": group,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [partition]}],
        **given,
    }
    in_versions = (3,) if given else (0, 1, 2, 3)
    asking.ask_all(f"TxnOffsetCommit {name}", ApiKey.TXN_OFFSET_COMMIT, body, in_versions=in_versions)


def _strangers(asking: Asking, topic: str) -> None:
    """Transactional ids that nobody has begun with."""
    none = f"{asking.prefix}none"
    _add(asking, "unknown", none, NOBODY, (topic, 0))
    _add(asking, "empty txid", "", NOBODY, (topic, 0))
    for version in (0, 1, 2, 3):
        _end(asking, "unknown", none, NOBODY, commit=True, version=version)
        _end(asking, "empty txid", "", NOBODY, commit=True, version=version)
    _add_offsets(asking, "unknown", none, NOBODY, "g")
    _add_offsets(asking, "empty group", none, NOBODY, "")
    _commit_offsets(asking, "unknown", none, NOBODY, f"{asking.prefix}tg", topic)
    _commit_offsets(asking, "empty group", none, NOBODY, "", topic)


def _life(asking: Asking, topic: str) -> None:
    mine, group = f"{asking.prefix}mine", f"{asking.prefix}group"
    producer = _init(asking, "mine", mine)
    late, other = (producer[0], producer[1] + 1), (producer[0] + 1000, producer[1])
    _end(asking, "nothing begun", mine, producer, commit=True, version=3)
    _add(asking, "unknown topic", mine, producer, (topic, 0), ("nope-y", 0))
    _add(asking, "bad name", mine, producer, ("a/b", 0))
    _add(asking, "unknown part", mine, producer, (topic, 9))
    _add(asking, "internal", mine, producer, (topic, 0), ("__consumer_offsets", 0))
    _add(asking, "other epoch", mine, late, (topic, 0))
    _add(asking, "other id", mine, other, (topic, 0))
    _add(asking, "nothing", mine, producer, in_versions=(3,))
    _send(asking, "before it is added", mine, producer, topic, 0)
    _add(asking, "ok", mine, producer, (topic, 0), (topic, 1))
    _send(asking, "in it", mine, producer, topic, 0)
    _send(asking, "other partition", mine, producer, topic, 2)
    _read(asking, "open", topic)
    _add_offsets(asking, "other epoch", mine, late, group)
    _add_offsets(asking, "ok", mine, producer, group)
    _commit_offsets(asking, "other epoch", mine, late, group, topic)
    _commit_offsets(asking, "unknown topic", mine, producer, group, "nope-y")
    _commit_offsets(asking, "ok", mine, producer, group, topic)
    _commit_offsets(asking, "of a generation", mine, producer, group, topic, generation_id=5, member_id="m")
    _commit_offsets(asking, "of a member", mine, producer, group, topic, member_id="m")
    _fetch_unstable(asking, group, topic)
    _end(asking, "other epoch", mine, late, commit=True, version=3)
    _end(asking, "other id", mine, other, commit=True, version=3)
    _end(asking, "commit", mine, producer, commit=True, version=3)
    _until_over(asking, mine)
    _end(asking, "commit again", mine, producer, commit=True, version=3)
    _end(asking, "abort after commit", mine, producer, commit=False, version=3)
    _read(asking, "committed", topic)
    _add(asking, "second", mine, producer, (topic, 0), in_versions=(3,))
    _send(asking, "second", mine, producer, topic, 0, sequence=1)
    _end(asking, "abort", mine, producer, commit=False, version=3)
    _until_over(asking, mine)
    _end(asking, "abort again", mine, producer, commit=False, version=3)
    _read(asking, "aborted", topic)
    fenced = _init(asking, "fence", mine)
    _add(asking, "fenced", mine, producer, (topic, 0))
    for version in (0, 1, 2, 3):
        _end(asking, "fenced", mine, producer, commit=True, version=version)
    _add_offsets(asking, "fenced", mine, producer, group)
    _send(asking, "fenced", mine, producer, topic, 0, sequence=2)
    _add(asking, "third", mine, fenced, (topic, 1), in_versions=(3,))
    _send(asking, "third", mine, fenced, topic, 1)
    _send(asking, "other txid", f"{mine}-not", fenced, topic, 1, sequence=1)


def _send(
    asking: Asking, name: str, transactional_id: str, producer: Producer, topic: str, index: int, *, sequence: int = 0
) -> None:
    data = {"index": index, "records": by(*producer, sequence, transactional=True)}
    body = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": [data]}],
    }

    def pick(answer: Any) -> Any:
        (partition,) = answer["responses"][0]["partition_responses"]
        return [partition["error_code"], partition["base_offset"]]

    for version in (9, 11):
        asking.ask(f"Produce {name}", ApiKey.PRODUCE, body, version, pick)


def _read(asking: Asking, name: str, topic: str) -> None:
    def pick(answer: Any) -> Any:
        (partition,) = (one for found in answer["responses"] for one in found["partitions"])
        for aborted in partition["aborted_transactions"] or ():
            del aborted["producer_id"]
        return partition

    for level in (0, 1):
        body = fetch_body([ask_for(topic)], isolation_level=level)
        asking.ask(f"Fetch {name}, level {level}", ApiKey.FETCH, body, 12, pick)
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        topics = [{"name": topic, "partitions": [asked]}]
        offsets = {"replica_id": -1, "isolation_level": level, "topics": topics, "timeout": 1000}
        asking.ask(f"ListOffsets {name}, level {level}", ApiKey.LIST_OFFSETS, offsets, 8)


def _fetch_unstable(asking: Asking, group: str, topic: str) -> None:
    for stable in (False, True):
        asked = [{"name": topic, "partition_indexes": [0]}]
        body = {
            "require_stable": stable,
            "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": asked}],
        }
        asking.ask(f"OffsetFetch pending, stable {stable}", ApiKey.OFFSET_FETCH, body, 8)


def _until_over(asking: Asking, transactional_id: str) -> None:
    def is_over() -> bool:
        body: Mapping[str, Any] = {"transactional_ids": [transactional_id]}
        (state,) = asking.requests.ask(ApiKey.DESCRIBE_TRANSACTIONS, body, 0).transaction_states
        return state.error_code is ErrorCode.none and state.transaction_state.startswith("Complete")

    eventually(is_over)


def _descriptions(asking: Asking) -> None:
    def described(answer: Any) -> Any:
        for state in answer["transaction_states"]:
            state["producer_id"] = state["producer_id"] >= 0
            state["transaction_start_time"] = state["transaction_start_time"] != -1
        return answer["transaction_states"]

    for name, ids in (
        ("mine", [f"{asking.prefix}mine"]),
        ("unknown", [f"{asking.prefix}none"]),
        ("without name", [""]),
        ("idle", [f"{asking.prefix}v0"]),
    ):
        body: Mapping[str, Any] = {"transactional_ids": ids}
        asking.ask(f"DescribeTransactions {name}", ApiKey.DESCRIBE_TRANSACTIONS, body, 0, described)

    def listed(answer: Any) -> Any:
        states = [one for one in answer["transaction_states"] if one["transactional_id"].startswith("U")]
        for one in states:
            del one["producer_id"]
        return {**answer, "transaction_states": sorted(states, key=lambda one: one["transactional_id"])}

    for name, given in (
        ("ongoing", {"state_filters": ["Ongoing"]}),
        ("unknown state", {"state_filters": ["foo"]}),
        ("of nobody", {"producer_id_filters": [NOBODY[0]]}),
        ("all", {}),
    ):
        body = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **given}
        asking.ask_all(f"ListTransactions {name}", ApiKey.LIST_TRANSACTIONS, body, listed)


def _markers(asking: Asking, topic: str) -> None:
    """What brokers, and admins that end a hanging transaction, send."""
    for name, of_topic, index in (
        ("of nobody", topic, 2),
        ("unknown part", topic, 9),
        ("unknown topic", "nope-y", 0),
        ("bad name", "a/b", 0),
    ):
        marker = {
            "producer_id": NOBODY[0],
            "producer_epoch": 0,
            "transaction_result": False,
            "topics": [{"name": of_topic, "partition_indexes": [index]}],
            "coordinator_epoch": 0,
        }
        asking.ask(f"WriteTxnMarkers {name}", ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]}, 1)
