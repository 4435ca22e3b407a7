"""The shared words of the pages: sparklines, bars, states and badges, as the templates make them."""

from __future__ import annotations

import math
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pykafka_ui.render import HEIGHT, MOST_POINTS, WIDTH, bar_places, known, sparkline_path, templates

POINTS = st.lists(st.none() | st.floats(min_value=-1, max_value=1e15) | st.sampled_from([math.nan, math.inf]))


def drawn(path: str) -> list[list[tuple[float, float]]]:
    """The lines of a path, each as its points."""
    assert re.fullmatch(r"(M[\d.]+ [\d.]+(L[\d.]+ [\d.]+)+)*", path), path
    lines = [line.split("L") for line in path.split("M")[1:]]
    return [[(float(x), float(y)) for x, _, y in (point.partition(" ") for point in line)] for line in lines]


@given(POINTS)
def test_a_line_stays_in_its_picture_whatever_the_numbers_are(points: list[float | None]) -> None:
    for line in drawn(sparkline_path(points)):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line)
        assert sorted(line) == sorted(line, key=lambda point: point[0]), "time goes to the right"


@given(st.lists(st.none() | st.floats(min_value=0, max_value=1e9), max_size=MOST_POINTS))
def test_gaps_stay_gaps(points: list[float | None]) -> None:
    runs = re.findall("k+", "".join("k" if one is not None else "-" for one in points))
    lines = drawn(sparkline_path(points))
    assert [len(run) if len(run) > 1 else 2 for run in runs] == [len(line) for line in lines]


def test_what_is_not_known_is_no_line_and_zero_is_one() -> None:
    assert sparkline_path([]) == sparkline_path([None, math.nan]) == ""
    low, high = drawn(sparkline_path([0, 0]))[0], drawn(sparkline_path([0, 7]))[0]
    assert low[0][1] == low[1][1] == high[0][1] > high[1][1], "0 is at the bottom"
    assert len({y for _, y in drawn(sparkline_path([5, 5, 5]))[0]}) == 1


def test_a_peak_among_many_points_is_seen() -> None:
    points: list[float | None] = [1.0] * 480
    points[333] = 100.0
    assert min(y for _, y in drawn(sparkline_path(points))[0]) == drawn(sparkline_path([1, 100]))[0][1][1]


@given(st.lists(st.tuples(st.just("ok"), st.floats(min_value=-1, max_value=2), st.just("words"))))
def test_a_bar_ends_at_its_end(parts: list[tuple[str, float, str]]) -> None:
    at = 0.0
    for _, x, width in bar_places(parts):
        assert width >= 0
        assert x >= at - 0.02
        at = x + width
    assert at <= 100.02


def macros() -> Any:
    return templates().get_template("macros.html").module


def test_each_has_words_for_who_does_not_see_it() -> None:
    made = macros()
    assert ">falls behind<" in made.state("warn", "falls behind")
    assert "<title>Lag: now 3, at most 1,200</title>" in made.spark([1200, None, 3], "Lag")
    assert "now ?, at most 3" in made.spark([3, None], "Lag"), "a gap now is not the number before it"
    assert "unknown" in made.spark([None], "Lag")
    assert "<title>Disk: 20 % used, 80 % free</title>" in made.bar(
        [("ok", 0.2, "20 % used"), ("", 0.8, "80 % free")], "Disk"
    )
    assert known([None, math.nan, 2]) == [2]


def test_names_are_escaped_in_them() -> None:
    made, name = macros(), "<script>"
    for html in (
        made.state("ok", name),
        made.badge(name, name),
        made.spark([1], name),
        made.bar([("ok", 1, name)], name),
    ):
        assert name not in html
