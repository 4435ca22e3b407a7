"""The decision: what is written is what is read, whatever it holds; what follows from it; what hostile text does."""

from __future__ import annotations

import base64
import contextlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.errors import ConnectorError
from spark_connector.write.decision import (
    ATTEMPT_IDS,
    Decision,
    Fail,
    Finish,
    Nothing,
    Prepared,
    Record,
    Standing,
    may_withdraw,
    next_step,
    overtaken,
    pack,
    parse_part,
    unpack,
)
from spark_connector.write.write_plan import SinkNames, named_sink

PREPARED = st.builds(
    Prepared,
    partition=st.integers(0, 100_000),
    number=st.integers(0, 2**15 - 1),
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**15 - 1),
    rows=st.integers(0, 2**48),
)
DECISIONS = st.builds(
    Decision,
    batch_id=st.integers(0, 2**62),
    prepared=st.lists(PREPARED, max_size=50).map(lambda rows: tuple(sorted(rows))),
    withdrawn=st.booleans(),
    run=st.integers(0, 2**32 - 1),
)
UNREADABLE = r"^\[PYKAFKA_SINK_DECISION_UNREADABLE\] the group of this query does not hold the query's last decision: "
ONE, TWO = Prepared(0, 4, 7, 1, 10), Prepared(1, 0, 8, 1, 20)


@given(DECISIONS, st.integers(0, 2**79), st.integers(60, 4096))
def test_what_is_packed_comes_back_in_parts_that_fit(decision: Decision, stamp: int, limit: int) -> None:
    texts = pack(decision, stamp, limit=limit)
    assert all(len(text) <= limit for text in texts)
    parts = [parse_part(text) for text in texts]
    assert [(part.stamp, part.number, part.parts) for part in parts] == [
        (stamp, number, len(texts)) for number in range(len(texts))
    ]
    assert unpack(decision.batch_id, parts) == decision


def test_a_batch_of_many_tasks_needs_few_parts() -> None:
    tasks = tuple(Prepared(n, 900 + n % 3, 4_000_000 + 3 * n, n % 5, 1_000_000 + n * n) for n in range(400))
    assert len(pack(Decision(3, tasks), 1)) <= 2


@given(st.text(max_size=200) | st.sampled_from(pack(Decision(1, (ONE, TWO)), 5)).flatmap(lambda t: st.just(t[:-3])))
def test_other_text_is_an_error_that_says_so(text: str) -> None:
    with pytest.raises(ConnectorError, match=UNREADABLE):
        unpack(1, [parse_part(text)])


@given(st.binary(max_size=60), st.integers(0, 200))
def test_a_damaged_decision_never_raises_anything_else(noise: bytes, at: int) -> None:
    (text,) = pack(Decision(1, (ONE, TWO)), 5)
    damaged = text[: 20 + at] + noise.decode("latin-1") + text[20 + at + 1 :]
    with contextlib.suppress(ConnectorError):
        unpack(1, [parse_part(damaged)])


STORED = Decision(
    9,
    (
        Prepared(0, 1, 200, 0, 127),
        Prepared(3, 128, 200, 2, 128),
        Prepared(4, 0, 100, 300, 1 << 40),
        Prepared(5, 2, 101, 0, 0),
    ),
    run=16_384,
)
PLAIN = bytes.fromhex(
    "808002"  # the run
    "00 02 9003 00 fe01"
    "06 8002 00 04 8002"
    "02 00 c701 d804 808080808040"
    "02 04 02 00 00"
)


def part(plain: bytes, number: int = 0, parts: int = 1) -> str:
    """A part whose numbers are `plain`."""
    return f"3 D 5 {number}/{parts} {base64.urlsafe_b64encode(zlib.compress(plain)).decode()}"


def test_a_decision_is_stored_in_the_form_that_other_versions_read() -> None:
    (text,) = pack(STORED, 5)
    head, _, packed = text.rpartition(" ")
    assert head == "3 D 5 0/1"
    assert zlib.decompress(base64.urlsafe_b64decode(packed)) == PLAIN
    assert unpack(9, [parse_part(part(PLAIN))]) == STORED
    assert pack(Decision(9, (), withdrawn=True), 7)[0].startswith("3 W 7 0/1 ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (part(b"\0\1\2"), "the decision for batch 1: 2 numbers"),
        (part(PLAIN)[:-4], "the decision for batch 1: it is cut off"),
        (part(PLAIN + b"\x80"), f"the decision for batch 1: .* a varint runs past the end of {len(PLAIN) + 1} bytes"),
        (part(b"\x80" * 10 + b"\1"), "the decision for batch 1: .* is longer than 10 bytes"),
        (part(PLAIN, 1, 1), "'3 D 5 1/1 .*' is not a part of a decision of this version"),
        ("2" + part(PLAIN)[1:], "'2 D 5 0/1 .*' is not a part of a decision of this version"),
    ],
)
def test_it_is_said_what_is_wrong_with_a_decision(text: str, why: str) -> None:
    with pytest.raises(ConnectorError, match=UNREADABLE + why + r"\. Only the query may commit to it\.$"):
        unpack(1, [parse_part(text)])


class TestNextStep:
    def test_without_rows_there_is_nothing_to_do(self) -> None:
        assert next_step(None, 0, []) == Nothing()
        assert next_step(Decision(4, (ONE,)), 5, []) == Nothing()

    def test_what_the_tasks_left_open_is_decided(self) -> None:
        assert next_step(None, 0, [TWO, ONE]) == Record(Decision(0, (ONE, TWO)))
        assert next_step(Decision(4, (ONE,)), 5, [TWO], run=77) == Record(Decision(5, (TWO,), run=77))

    def test_a_decided_batch_is_finished_by_the_decision_not_by_the_messages(self) -> None:
        decision = Decision(5, (ONE,))
        assert next_step(decision, 5, [], decided=[5]) == Finish(decision, ())
        again = ONE._replace(number=5)
        assert next_step(decision, 5, [again, TWO]) == Finish(decision, (again, TWO))
        assert next_step(decision, 5, [ONE._replace(epoch=2, rows=0)]) == Finish(decision, ())

    def test_a_driver_that_is_behind_fails(self) -> None:
        for step in (
            next_step(Decision(6, (ONE,)), 5, [TWO]),
            next_step(None, 5, [TWO], decided=[6]),
            next_step(Decision(6, (ONE,)), 5, []),
        ):
            assert isinstance(step, Fail)
            assert step.condition == "PYKAFKA_SINK_SUPERSEDED"
            assert step.message.startswith("batch 6 is committed already, and this is batch 5: ")

    def test_a_withdrawn_batch_is_written_anew(self) -> None:
        assert next_step(Decision(5, (), withdrawn=True), 5, [ONE]) == Record(Decision(5, (ONE,)))

    def test_the_batch_before_a_withdrawn_one_is_settled(self) -> None:
        withdrawn = Decision(5, (), withdrawn=True)
        assert withdrawn.final_batch == 4
        assert not isinstance(next_step(withdrawn, 4, [ONE]), Record)

    def test_tasks_that_skipped_a_batch_which_was_withdrawn_meanwhile_leave_a_hole(self) -> None:
        for decision in (None, Decision(5, (), withdrawn=True)):
            step = next_step(decision, 5, [ONE], decided=[5])
            assert isinstance(step, Fail)
            assert step.condition == "PYKAFKA_SINK_BATCH_WITHDRAWN"
            assert step.message.startswith("the decision for batch 5 was withdrawn while its tasks ran")

    @given(st.none() | DECISIONS, st.integers(0, 10), st.lists(PREPARED, max_size=5), st.lists(st.integers(0, 10)))
    def test_only_an_undecided_batch_whose_every_row_is_there_is_recorded(
        self, decision: Decision | None, batch_id: int, prepared: list[Prepared], decided: list[int]
    ) -> None:
        step = next_step(decision, batch_id, prepared, decided)
        if isinstance(step, Record):
            assert not decided
            assert decision is None or decision.final_batch < batch_id
            assert sorted(step.decision.prepared) == sorted(prepared)


class TestMayWithdraw:
    DECISION = Decision(5, (ONE, TWO))
    TIMED_OUT = Standing("CompleteAbort", 2)
    OPEN = Standing("Ongoing", 1)

    @pytest.mark.parametrize("other", [OPEN, TIMED_OUT, Standing("PrepareAbort", 2)])
    def test_when_one_has_timed_out_and_none_was_committed(self, other: Standing) -> None:
        assert may_withdraw(self.DECISION, [self.TIMED_OUT, other])
        assert may_withdraw(self.DECISION, [other, self.TIMED_OUT])

    def test_never_without_the_state_of_each_transaction(self) -> None:
        for known in ([self.TIMED_OUT], [self.TIMED_OUT] * 3):
            with pytest.raises(ValueError, match="zip"):
                may_withdraw(self.DECISION, known)

    @pytest.mark.parametrize(
        "other",
        [
            None,
            Standing("CompleteCommit", 1),
            Standing("PrepareCommit", 1),
            Standing("Empty", 2),
            Standing("Ongoing", 2),
            Standing("CompleteAbort", 3),
            Standing("CompleteCommit", 2),
            Standing("Dead", 1),
        ],
    )
    def test_never_when_one_was_committed_or_may_have_been(self, other: Standing | None) -> None:
        assert not may_withdraw(self.DECISION, [self.TIMED_OUT, other])

    def test_not_while_all_can_still_be_committed(self) -> None:
        assert not may_withdraw(self.DECISION, [self.OPEN, self.OPEN])


class TestOvertaken:
    BEFORE = Decision(5, (ONE, TWO))  # attempt 4 at partition 0, attempt 0 at partition 1

    def test_attempts_that_follow_each_other_leave_nothing(self) -> None:
        assert overtaken(self.BEFORE, [(0, 5, 0), (1, 1, 0)]) == []
        assert overtaken(None, [(0, 0, 0), (1, 0, 0)]) == []

    def test_those_in_between_came_to_nothing_whoevers_they_were(self) -> None:
        assert overtaken(self.BEFORE, [(0, 7, 0), (1, 2, 1)]) == [(0, 5), (0, 6), (1, 1)]

    def test_where_the_decision_before_does_not_tell_spark_does(self) -> None:
        assert overtaken(self.BEFORE, [(2, 9, 2)]) == overtaken(None, [(2, 9, 2)]) == [(2, 7), (2, 8)]
        assert overtaken(None, [(2, 1, 3)]) == [(2, 0)]

    def test_an_id_that_is_in_use_again_is_not_touched(self) -> None:
        found = overtaken(self.BEFORE, [(0, 400, 0)])
        assert [number for _, number in found] == list(range(400 - ATTEMPT_IDS + 1, 400))
        assert 400 % ATTEMPT_IDS not in {number % ATTEMPT_IDS for _, number in found}

    def test_numbers_that_began_anew_leave_nothing(self) -> None:
        assert overtaken(Decision(5, (ONE._replace(number=32766),)), [(0, 0, 0)]) == []


def test_a_second_write_of_a_batch_under_one_name_is_told_from_a_repeated_one() -> None:
    decision = Decision(5, (ONE,), run=77)
    complaint = r"^\[PYKAFKA_SINK_NAME_TWICE\] batch 5 .*txnAppId='copy'.*a txnAppId of its own"
    with pytest.raises(ConnectorError, match=complaint):
        decision.refuse_namesake("copy", 5, 77)
    Decision(5, (ONE,)).refuse_namesake("copy", 5, 0)
    for batch, run in ((5, 78), (5, 0), (6, 77)):
        decision.refuse_namesake("copy", batch, run)
    Decision(5, (), withdrawn=True, run=77).refuse_namesake("copy", 5, 77)


def test_names_of_tasks_are_told_from_those_of_other_queries() -> None:
    names = SinkNames("prefix", "query")
    assert [names.task_of(names.of_partition(n)) for n in (0, 7, 123)] == [0, 7, 123]
    assert [names.task_of(names.of_attempt(n, 9 * n)) for n in (0, 7, 123)] == [0, 7, 123]
    assert names.task_of(names.of_task(3, 1 << 40)) == 3
    named = SinkNames("prefix", named_sink("7", "query"))
    others = [names.of_driver, named.of_driver, named.of_partition(1), named.of_attempt(1, 2)]
    for other in (*others, "prefix-query-", "prefix-query-1-2-3", "prefix-query2-1", "x", "prefix-query-\u0661"):
        assert names.task_of(other) is None
    assert named.task_of(named.of_attempt(1, 2)) == 1
    ids = [names.of_attempt(1, number) for number in range(100)]
    assert len(set(ids)) == ATTEMPT_IDS
    assert all(len(set(ids[n : n + ATTEMPT_IDS])) == ATTEMPT_IDS for n in range(90))
    assert names.of_partition(1) not in ids
    assert len({names.group(), names.group(1), names.group_of_done}) == 3
