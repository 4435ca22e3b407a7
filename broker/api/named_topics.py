"""Topics that requests call by their ids (KIP-516): Produce from version 13 on, OffsetCommit and OffsetFetch from 10.

An id belongs to one topic for ever. So what a client sends for a topic that was deleted is refused with
UNKNOWN_TOPIC_ID, also when there is a new topic of its name.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from broker.api.context import ApiContext, Client
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import Permission

NO_ID: Final = uuid.UUID(int=0)


class NamedTopic(NamedTuple):
    """A topic of an OffsetCommit or OffsetFetch that calls it by its id."""

    name: str
    """If no topic has the id, one that no topic can have."""
    topic_id: uuid.UUID
    partitions: Sequence[Any]
    partition_indexes: Sequence[int]
    is_known: bool


def name_of(context: ApiContext, topic_id: uuid.UUID | None) -> str:
    """The name of the topic with this id, empty if there is none. Those that Kafka made before 2.8 have no id."""
    return "" if topic_id in (None, NO_ID) else context.topics.metadata.topic_names.get(topic_id, "")


def named_topics(context: ApiContext, topics: Sequence[Any]) -> Sequence[Any]:
    """The topics of a request, with their names if it calls them by their ids."""
    if not topics or field(topics[0], "name") is not None:
        return topics
    return [
        NamedTopic(
            name or f"id {topic.topic_id}",
            topic.topic_id or NO_ID,
            field(topic, "partitions", ()),
            field(topic, "partition_indexes", ()),
            bool(name),
        )
        for topic, name in ((topic, name_of(context, topic.topic_id)) for topic in topics)
    ]


def is_unknown_id(topic: Any) -> bool:
    """Whether a topic of `named_topics` was called by an id that no topic has."""
    return not field(topic, "is_known", True)


def check_named(context: ApiContext, client: Client, need: Permission, name: str, topic_id: uuid.UUID) -> None:
    """As `ApiContext.check`, for a topic called by its id; `name` is empty if no topic has it.

    Raises BrokerError `unknown_topic_id` or the code of the right. It does not tell the name.
    """
    if not name:
        raise BrokerError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
    if not context.allows(client, need, name):
        raise context.refusal(client, need, str(topic_id))
