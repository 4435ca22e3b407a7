"""Our broker answers scripted requests as Apache Kafka did, but where it is wanted otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.kafka_answers.areas import AREAS, SETTINGS, answers_of
from tests.compat.kafka_answers.asking import Answers, read_answers, write_answers
from tests.compat.kafka_answers.comparing import ABSENT, Difference, deviations, judge
from tests.compat.kafka_answers.differences import WANTED
from tests.support.broker_process import BrokerProcess

RECORDED = {"produce": 225, "fetch": 374, "topics": 293, "configs": 104, "groups": 357, "transactions": 202}
DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"


@pytest.fixture(scope="module")
def asked_broker(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("asked") / "data"
    with BrokerProcess(directory, SETTINGS, zookeeper=f"{zookeeper}/kafka-answers") as process:
        yield process
    assert "Traceback" not in process.output, process.output[-4_000:]


@pytest.mark.parametrize("area", AREAS)
def test_the_broker_answers_as_kafka_did(area: str, asked_broker: BrokerProcess) -> None:
    ours = answers_of(area, asked_broker.bootstrap, int(SETTINGS["broker.id"]), "asked-")
    unwanted, stale = judge(deviations(read_answers(area), ours), WANTED[area])
    assert not unwanted, "\n".join(map(str, unwanted))
    assert not stale, f"no difference any more: {stale}"


def test_nothing_of_what_was_recorded_is_left_out() -> None:
    assert {area: sum(map(len, read_answers(area).values())) for area in AREAS} == RECORDED


def test_every_wanted_difference_is_explained_in_the_document() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = [f"| {difference.what} | {difference.why} |" for area in WANTED.values() for difference in area]
    assert [row for row in rows if row not in text] == []


def test_a_difference_that_nobody_wants_and_one_that_is_gone_are_found() -> None:
    kafka: Answers = {"a": {"1": {"error": "none", "at": [{"offset": 1}]}}, "b": {"1": 5}}
    ours: Answers = {"a": {"1": {"error": "bad", "at": [{"offset": 2}]}}, "b": {"1": 5}}
    wanted = [Difference("", "", ("a",), {"error": "bad"}), Difference("gone", "", ("b",), {"": 6})]
    unwanted, stale = judge(deviations(kafka, ours), wanted)
    assert [(one.field, one.kafka, one.ours) for one in unwanted] == [("at.offset", 1, 2)]
    assert stale == ["gone: b", "gone: "]
    assert [one.ours for one in deviations({"a": {"1": 1}}, {})] == [ABSENT]
    longer = Difference("", "", ("b",), {"": lambda one: one.ours > one.kafka})
    for own, expected in ((6, []), (4, [4])):
        unwanted, _ = judge(deviations({"b": {"1": 5}}, {"b": {"1": own}}), [longer])
        assert [one.ours for one in unwanted] == expected


def test_answers_are_kept_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.compat.kafka_answers.asking.HERE", tmp_path)
    answers: Answers = {"a": {"1": [1], "2": [2], "3": [1]}, "b": {"-": True}}
    write_answers("area", answers)
    assert read_answers("area") == answers
    assert '"1,3":[1]' in (tmp_path / "area.json").read_text(encoding="utf-8")
