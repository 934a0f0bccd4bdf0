"""The benchmark: rates, ratios of each round, slow stretches, verdicts; and the plan of what stands beside what."""

import itertools
from contextlib import nullcontext
from dataclasses import replace

import pytest

from benchmarks import changes
from benchmarks.apps.changes_app import NOTE
from benchmarks.article.drain import Drained
from benchmarks.article.workers import Handled
from benchmarks.bench import Scale
from benchmarks.calibration import Calibration, slow_stretches
from benchmarks.changes import IN_ORDER, ONE_WORKER, Article, OnChange
from benchmarks.database import NotMeasured
from benchmarks.drain import Drain
from benchmarks.figures import Figure, Reading, Sample, Target, Verdict, drain_rate, percentile, ratios
from benchmarks.plan import ALONE, COMPARED
from benchmarks.record import Record
from benchmarks.report import Result, page

USUAL = Calibration(cpu=0.020, write=0.001)
SLOW = Calibration(cpu=0.030, write=0.001)
SLOW_DISK = Calibration(cpu=0.020, write=0.004)


def figure(*values, rounds=None):
    numbers = rounds or range(1, len(values) + 1)
    return Figure("key", "label", "", [Reading(n, value) for n, value in zip(numbers, values, strict=True)])


def test_a_drain_is_measured_from_its_middle_to_the_last_task():
    warm_up, clocked = [0.0, 10.0, 20.0, 30.0], [30.5, 31.0, 31.5, 32.0]
    assert drain_rate([*clocked, *warm_up]) == 4 / 2.0
    assert drain_rate([*warm_up, *clocked], end=34.0) == 4 / 4.0


def test_a_percentile_is_one_of_the_values():
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile([5.0, 1.0, 3.0], 0.99) == 5.0


def test_ratios_are_of_what_both_have():
    ours = [Sample("drain", "drain", 900.0, "tasks/s"), Sample("memory", "memory", 70.0, "MiB")]
    theirs = [Sample("drain", "drain", 300.0, "tasks/s"), Sample("idle", "idle", 0.0, "")]
    assert [(s.key, s.value) for s in ratios(ours, theirs, "celery", "Celery")] == [("celery/drain/ratio", 3.0)]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([10, 11, 12, 10.5, 30], Verdict.REACHED),
        ([9, 8, 9.9, 3, 9], Verdict.MISSED),
        ([10, 11, 12, 9.9, 30], Verdict.OPEN),  # its median is 11, but its range crosses the bound
        ([19], Verdict.OPEN),
        ([10, 11, 12, 13], Verdict.OPEN),
    ],
)
def test_a_target_is_decided_by_five_rounds_that_agree(values, verdict):
    assert Target("what", "key", least=10).judge(figure(*values)) == verdict
    assert Target("what", "key", least=10).judge(None) == Verdict.MISSING


def test_several_readings_of_one_round_are_one_round():
    assert Target("what", "key", most=2).judge(figure(1, 1, 1, 1, 1, rounds=[1, 1, 2, 2, 3])) == Verdict.OPEN


@pytest.mark.parametrize("off", [SLOW, SLOW_DISK, Calibration(cpu=0.010, write=0.001)])
def test_the_stretches_on_both_sides_of_a_calibration_that_is_off_are_slow(off):
    assert slow_stretches([USUAL, USUAL, off, USUAL, USUAL]) == [False, True, True, False]


def test_a_ratio_is_flagged_when_one_of_its_two_samples_is():
    calibrations = iter([USUAL, USUAL, USUAL, SLOW, USUAL, USUAL])
    record = Record("file", lambda _: next(calibrations))
    stretches = [record.measured([Sample(name, name, 1.0, "")]) for name in "abcde"]
    record.derived([Sample("a/b", "", 1.0, "")], stretches[0], stretches[1])
    record.derived([Sample("b/c", "", 1.0, "")], stretches[1], stretches[2])
    found = {key: [reading.slow for reading in figure.readings] for key, figure in record.figures().items()}
    assert found == {"a": [False], "b": [False], "c": [True], "d": [True], "e": [False], "a/b": [False], "b/c": [True]}


def test_what_was_measured_before_a_failure_is_kept():
    def breaks_off():
        yield Sample("before", "", 1.0, "")
        raise NotMeasured("no server")

    record = Record("file", lambda _: USUAL)
    with pytest.raises(NotMeasured):
        record.measured(breaks_off())
    record.measured([Sample("after", "", 2.0, "")])
    assert list(record.figures()) == ["before", "after"]


@pytest.mark.parametrize("group", [*ALONE, *COMPARED], ids=lambda group: group.ours.key)
def test_ours_is_next_to_each_counterpart_and_the_order_alternates(group):
    assert group.order(1) == group.order(2)[::-1] == group.order(3)
    pairs = {frozenset(pair) for pair in itertools.pairwise(member.key for member in group.order(1))}
    assert pairs == {frozenset((group.ours.key, other.key)) for other in group.beside}


def test_systems_are_compared_like_for_like():
    for group in COMPARED:
        for other in group.beside:
            if isinstance(other, Drain):
                pool, number = other.key.split("/")[1:3]
                assert f"fbtasks/{pool.replace('prefork', 'processes')}/{number}" == group.ours.key
                assert other.system.kept or other.latency == group.ours.latency
            if isinstance(other, Article):
                assert isinstance(group.ours, OnChange)
                assert (group.ours.ordered, group.ours.processes) == (other.ordered, other.processes)


def test_all_ratios_of_a_run_have_names_of_their_own():
    names = [other.key for group in COMPARED for other in group.beside]
    assert sorted(names) == sorted(set(names))


def test_a_small_drain_still_has_tasks_behind_those_that_are_timed():
    assert Scale(share=0.001, singles=50).share_of(10_000) == 150


@pytest.mark.parametrize(
    ("keys", "left", "wrong"),
    [
        ([[1, 2, 3]], 0, 0),
        ([[3], [1, 2]], 0, 0),
        ([[1, 2], [2, 3]], 0, 1),
        ([[1, 3]], 0, 1),
        ([[1, 2, 3, 9]], 0, 1),
        ([[1, 2, 3]], 2, 2),
    ],
)
def test_changes_handled_twice_or_never_or_left_are_counted(keys, left, wrong):
    found = Drained([1, 2, 3], [Handled(each) for each in keys], {"ring_bell": left})
    assert found.wrong == wrong
    assert found.ordered == (keys == [[1, 2, 3]])


LOST = [([1, 2, 2], "twice or never"), ([1], "twice or never"), ([2, 1], "not handled in their order"), ([1, 2], None)]


@pytest.mark.parametrize(("keys", "why"), LOST)
@pytest.mark.parametrize("ours", [True, False])
def test_what_loses_changes_or_their_order_has_no_figure(tmp_path, monkeypatch, ours, keys, why):
    class Bench:
        scale = Scale(changes=2)
        database = type("Database", (), {"url": ""})
        new_folder = staticmethod(lambda: tmp_path)

    def drain(way, url, folder, count):
        for process in (0, 1):  # every second call is noted by the other process
            notes = [NOTE.pack(key, moment) for moment, key in enumerate(keys) if moment % 2 == process]
            (folder / f"{process}").write_bytes(b"".join(notes))
        return [1, 2], 1.0

    monkeypatch.setattr(changes, "scratch_database", nullcontext)
    monkeypatch.setattr(OnChange, "_drain", drain)
    worker = Handled(keys, begun=1.0, ended=2.0)
    theirs = replace(ONE_WORKER, drain=lambda url, events: Drained([1, 2], [worker], {"ring_bell": 0}))
    with pytest.raises(NotMeasured, match=why) if why else nullcontext():
        assert [(sample.key, sample.value) for sample in (IN_ORDER if ours else theirs).measure(Bench)] == [
            ("handled", 2.0)
        ]


def test_a_page_marks_slow_readings_and_what_is_not_decided():
    ours, theirs = COMPARED[0].ours, COMPARED[0].beside[0]
    ratio = Figure(f"{theirs.key}/drain/ratio", "", "", [Reading(1, 9.0), Reading(2, 11.5, slow=True)])
    target = Target("drain", ratio.key, least=10)
    result = Result(
        machine={}, rounds=2, quick=False, minutes=8.0, calibrations=[USUAL], figures={ratio.key: ratio},
        pairs=[(ours, theirs)], versions={}, verdicts=[(target, target.judge(ratio))], notes=[],
    )  # fmt: skip
    shown = page(result)
    assert "not decided: 2 of 5 rounds" in shown
    assert "9, 11.5!" in shown
