"""Which files a compaction puts together."""

from __future__ import annotations

from spark_connector.loads.compaction import CompactionOptions, TableFile, plan_bins

HOUR = 3_600_000
NOW = 1_000 * HOUR
OPTIONS = CompactionOptions(target_file_size=100)


def files(*sizes: int, values: tuple[str | None, ...] = (), added_ms: int = 0) -> list[TableFile]:
    return [TableFile(f"{values}-{added_ms}-{n}", size, 1, values, added_ms + n) for n, size in enumerate(sizes)]


def sizes_of(found: list[list[TableFile]]) -> list[list[int]]:
    return [[file.size for file in chosen] for chosen in found]


def test_small_files_are_put_together_up_to_the_target_size_in_the_order_of_their_loads() -> None:
    assert sizes_of(plan_bins(files(30, 31, 32, 33, 34, 35), OPTIONS, NOW)) == [[30, 31, 32], [33, 34]]


def test_a_file_of_about_the_target_size_stays() -> None:
    assert sizes_of(plan_bins(files(20, 75, 20, 500, 20), OPTIONS, NOW)) == [[20, 20, 20]]


def test_files_of_two_partition_values_are_never_mixed() -> None:
    given = [*files(10, 10, values=("a",)), *files(11, 11, values=(None,)), *files(12, values=("b",))]
    assert sizes_of(plan_bins(given, OPTIONS, NOW)) == [[10, 10], [11, 11]]


def test_a_file_that_may_be_rewound_stays() -> None:
    given = [*files(10, 10), *files(11, 11, added_ms=NOW - 23 * HOUR)]
    assert sizes_of(plan_bins(given, OPTIONS, NOW)) == [[10, 10]]
    assert sizes_of(plan_bins(given, CompactionOptions(0, 100), NOW)) == [[10, 10, 11, 11]]


def test_a_file_waits_until_the_others_are_half_as_large_together() -> None:
    assert sizes_of(plan_bins(files(60, 3, 3, 2), OPTIONS, NOW)) == [[3, 3, 2]]
    assert sizes_of(plan_bins(files(18, 3, 3, 3), OPTIONS, NOW)) == [[18, 3, 3, 3]]
    assert plan_bins(files(60, 3), OPTIONS, NOW) == plan_bins([], OPTIONS, NOW) == []


def test_a_row_is_written_anew_few_times() -> None:
    options, size, written = CompactionOptions(target_file_size=1 << 20), 0, 0
    there: list[TableFile] = []
    for load in range(1024):
        there.append(TableFile(str(load), 1, 1, (), 0))
        for chosen in plan_bins(there, options, NOW):
            size = sum(file.size for file in chosen)
            written += size
            names = {file.path for file in chosen}
            there = [file for file in there if file.path not in names]
            there.append(TableFile(f"{load}-compacted", size, 1, (), 0))
    assert len(there) < 20
    assert written <= 1024 * 18
