"""What the requests of transactional producers have in common.

Used by the handlers of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and InitProducerId. Version rule: clients
that are older than PRODUCER_FENCED are told INVALID_PRODUCER_EPOCH (KIP-588), those older than
TRANSACTION_ABORTABLE are told INVALID_TXN_STATE (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any

from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, encode_response, with_correlation_id

__all__ = ["Answer", "code_for_version", "encoded_once", "later", "producer_of"]

Answer = Mapping[str, Any] | Sequence[bytes]

_ENCODED: dict[Hashable, bytes] = {}
_MAX_ENCODED = 2048

# API → (first version that knows PRODUCER_FENCED, first that knows TRANSACTION_ABORTABLE)
_FIRST_VERSIONS = {
    ApiKey.PRODUCE: (1 << 15, 11),
    ApiKey.INIT_PRODUCER_ID: (4, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (2, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (2, 4),
    ApiKey.END_TXN: (2, 4),
    ApiKey.TXN_OFFSET_COMMIT: (1 << 15, 4),
}


def code_for_version(api: ApiKey, version: int, code: ErrorCode) -> ErrorCode:
    """The error as a client of this version knows it."""
    knows_fenced, knows_abortable = _FIRST_VERSIONS[api]
    if code is ErrorCode.producer_fenced and version < knows_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and version < knows_abortable:
        return ErrorCode.invalid_txn_state
    return code


def encoded_once(request: Request, key: Hashable, answer: Callable[[], Mapping[str, Any]]) -> Sequence[bytes]:
    """What `answer` gives, encoded. It is asked once for each `key`, which names all that its answer depends on
    besides the API and its version: a producer gets the same answers again and again."""
    known = (request.api, request.version, key)
    frame = _ENCODED.get(known)
    if frame is None:
        if len(_ENCODED) >= _MAX_ENCODED:
            _ENCODED.clear()
        frame = _ENCODED[known] = encode_response(request, answer())
    return [with_correlation_id(frame, request.correlation_id)]


def producer_of(body: Any) -> ProducerIdAndEpoch:
    """Who sends the request."""
    return ProducerIdAndEpoch(body.producer_id, body.producer_epoch)


def later(code: ErrorCode | Awaitable[ErrorCode], answer: Callable[[ErrorCode], Answer]) -> Answer | Awaitable[Answer]:
    """The answer to a code that is there already, or comes."""
    return answer(code) if isinstance(code, ErrorCode) else _after(code, answer)


async def _after(code: Awaitable[ErrorCode], answer: Callable[[ErrorCode], Answer]) -> Answer:
    return answer(await code)
