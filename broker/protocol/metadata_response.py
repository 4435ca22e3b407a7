"""The Metadata response, assembled from encoded topics.

Called by api/metadata.py. kio needs 30 ms to encode a thousand partitions, and every client asks for them every few
minutes. So kio encodes each topic once (`encode_topic`), and its bytes are cached. kio encodes the rest of the response
without topics, and the topics are inserted before its end, which has a fixed size in each version. Tests compare the
result with kio's own encoding in every version.
"""

from __future__ import annotations

import functools
import io
import struct
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from kio.serial import entity_writer
from kio.static.constants import EntityType

from broker.protocol.api_keys import ApiKey
from broker.protocol.entities import build, entity_class
from broker.protocol.messages import Request, encode_response
from broker.protocol.wire import array_length

_FIRST_FLEXIBLE = 9


def encode_topic(version: int, topic: Mapping[str, Any]) -> bytes:
    """One element of `topics`, from a mapping in kio's field names."""
    entity, write = _topic_codec(version)
    out = io.BytesIO()
    write(out, build(entity, topic))
    return out.getvalue()


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
def _topic_codec(version: int) -> tuple[Any, Any]:
    response = entity_class(ApiKey.METADATA, version, EntityType.response)
    entity = typing.get_args(typing.get_type_hints(response)["topics"])[0]
    return entity, entity_writer(entity)


def _bytes_after_topics(version: int) -> int:
    """The size of the cluster's authorized operations (8 to 10), error code (from 13) and empty tags (from 9)."""
    operations = 4 if 8 <= version <= 10 else 0
    error_code = 2 if version >= 13 else 0
    return operations + error_code + (version >= _FIRST_FLEXIBLE)
