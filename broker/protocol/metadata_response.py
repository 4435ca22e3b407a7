"""The Metadata response, assembled from encoded topics.

Called by api/metadata.py. Every client asks for all partitions every few minutes. So each topic is encoded once
(`encode_topic`), and its bytes are cached. The rest of the response is encoded without topics, and the topics are
inserted before its end, which has a fixed size in each version. Tests compare it with the encoding of the whole.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kio.static.constants import EntityType

from broker.protocol.api_keys import ApiKey
from broker.protocol.entities import entity_class, fields_of
from broker.protocol.messages import Request, encode_response
from broker.protocol.struct_writer import encode
from broker.protocol.wire import array_length

_FIRST_FLEXIBLE = 9


def encode_topic(version: int, topic: Mapping[str, Any]) -> bytes:
    """One element of `topics`, from a mapping in kio's field names."""
    return encode(_topic_class(version), topic)


def encode_metadata(request: Request, body: Mapping[str, Any], topics: Sequence[bytes]) -> list[bytes]:
    """The response frame, length first, in parts. `body` has everything but the topics."""
    frame = encode_response(request, {**body, "topics": ()})
    flexible = request.version >= _FIRST_FLEXIBLE
    end = len(frame) - _bytes_after_topics(request.version)
    count = array_length(len(topics), flexible)
    begin = end - len(array_length(0, flexible))
    size = begin - 4 + len(count) + sum(map(len, topics)) + len(frame) - end
    return [b"".join((struct.pack(">i", size), frame[4:begin], count, *topics, frame[end:]))]


@functools.cache
def _topic_class(version: int) -> Any:
    response = entity_class(ApiKey.METADATA, version, EntityType.response)
    return next(field.struct for field in fields_of(response) if field.name == "topics")


def _bytes_after_topics(version: int) -> int:
    """The size of the cluster's authorized operations (8 to 10), error code (from 13) and empty tags (from 9)."""
    operations = 4 if 8 <= version <= 10 else 0
    error_code = 2 if version >= 13 else 0
    return operations + error_code + (version >= _FIRST_FLEXIBLE)
