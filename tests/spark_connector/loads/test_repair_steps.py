"""The rules of repair, case by case, and that they always come to an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.loads.commit import Newest
from spark_connector.loads.rules import Act, StagedLoad, Step, repair_steps


@pytest.mark.parametrize(
    ("newest", "staged", "steps"),
    [
        pytest.param(Newest(), [], [], id="nothing has ever been loaded"),
        pytest.param(Newest(3, "c3"), [], [], id="all in order"),
        pytest.param(Newest(3, None, published=True), [], [], id="the newest entry is a stream's"),
        pytest.param(
            Newest(3, "c3", published=False),
            [StagedLoad("c3", 3, complete=True), StagedLoad("x3", 3, complete=True)],
            [Step(Act.PUBLISH, "c3")],
            id="publishing comes before anything else",
        ),
        pytest.param(
            Newest(3, "c3"),
            [
                StagedLoad("c3", 3, complete=False),
                StagedLoad("x3", 3, complete=True),
                StagedLoad("x2", 2, complete=False),
            ],
            [Step(Act.DISCARD, "x2"), Step(Act.DISCARD, "c3"), Step(Act.DISCARD, "x3")],
            id="attempts at numbers that are taken are void",
        ),
        pytest.param(
            Newest(3, "c3"), [StagedLoad("x4", 4, complete=False)], [], id="a partial attempt at the next may be alive"
        ),
        pytest.param(
            Newest(3, "c3"),
            [
                StagedLoad("y4", 4, complete=True),
                StagedLoad("x4", 4, complete=True),
                StagedLoad("w4", 4, complete=False),
            ],
            [Step(Act.COMMIT, "x4")],
            id="one complete attempt is committed",
        ),
        pytest.param(Newest(), [StagedLoad("x1", 1, complete=True)], [Step(Act.COMMIT, "x1")], id="the very first"),
        pytest.param(Newest(3, "c3"), [StagedLoad("x5", 5, complete=True)], [], id="not next: its log is another one"),
    ],
)
def test_repair_steps(newest: Newest, staged: list[StagedLoad], steps: list[Step]) -> None:
    assert repair_steps(newest, staged) == steps


@given(
    st.integers(0, 3),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=6),
)
def test_repair_comes_to_an_end_with_nothing_void_left(
    sequence: int, published: bool, attempts: list[tuple[int, bool]]
) -> None:
    newest = Newest(sequence, f"c{sequence}", published) if sequence else Newest()
    staged = {f"a{i}": StagedLoad(f"a{i}", number, complete) for i, (number, complete) in enumerate(attempts)}
    for _ in range(2 * len(attempts) + 3):
        steps = repair_steps(newest, list(staged.values()))
        if not steps:
            break
        for step in steps:
            if step.act is Act.PUBLISH:
                newest = Newest(newest.sequence, newest.load_id)
                staged.pop(step.load_id, None)
            elif step.act is Act.COMMIT:
                newest = Newest(newest.sequence + 1, step.load_id, published=False)
            else:
                staged.pop(step.load_id)
    else:
        pytest.fail("repair does not end")
    assert newest.published
    assert all(attempt.sequence > newest.sequence for attempt in staged.values())
    assert not any(a.complete and a.sequence == newest.sequence + 1 for a in staged.values())
