"""What the handlers of transactional producers share: error codes by version, answers now or later, cached answers.

Version notes: clients that do not know PRODUCER_FENCED get INVALID_PRODUCER_EPOCH (KIP-588), those that do not know
TRANSACTION_ABORTABLE get INVALID_TXN_STATE (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, TypeAlias

from broker.api.context import Fields, Request
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_response, with_correlation_id

Answer: TypeAlias = Fields | Sequence[bytes]

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
    knows_fenced, knows_abortable = _FIRST_VERSIONS[api]
    if code is ErrorCode.producer_fenced and version < knows_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and version < knows_abortable:
        return ErrorCode.invalid_txn_state
    return code


def encoded_once(request: Request, key: Hashable, answer: Callable[[], Fields]) -> Sequence[bytes]:
    """The encoded result of `answer`, cached by API, version and `key`: a producer often gets the same answer again.

    `key` must contain everything else that the answer depends on.
    """
    cache_key = (request.api, request.version, key)
    frame = _ENCODED.get(cache_key)
    if frame is None:
        if len(_ENCODED) >= _MAX_ENCODED:
            _ENCODED.clear()
        frame = _ENCODED[cache_key] = encode_response(request, answer())
    return [with_correlation_id(frame, request.correlation_id)]


def producer_of(body: Any) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(body.producer_id, body.producer_epoch)


def when_known(
    code: ErrorCode | Awaitable[ErrorCode], answer: Callable[[ErrorCode], Answer]
) -> Answer | Awaitable[Answer]:
    """Call `answer` with the code, now or when it is known."""
    return answer(code) if isinstance(code, ErrorCode) else _after(code, answer)


async def _after(code: Awaitable[ErrorCode], answer: Callable[[ErrorCode], Answer]) -> Answer:
    return answer(await code)
