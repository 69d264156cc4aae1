"""The order of runs, what becomes of those that fail, and what is kept of a comparison that is
interrupted."""

import os
import signal
from typing import Any

import pytest

from hoss.errors import HossError
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hossctl.compare.cells import Plan
from hossctl.compare.document import Cell, Comparison, ComparisonRun, DecisionTimes, MachineInfo, Overcommit
from hossctl.compare.measuring import Measuring, notes_on
from hossctl.load.playing import trace_of
from hossctl.traces.recording import TracePod

MACHINE = MachineInfo(
    cpu="a cpu", cores=2, memory_mib=4096, system="Linux", python="3.11", versions={"hoss": "1"}
)


def a_cell(**fields: Any) -> Cell:
    return Cell(**{"mode": "multi-hoss", "load": "uniform", "workers": 2, "nodes": 20, "fill": 0.5, **fields})


def a_run(cell: Cell, repetition: int, **fields: Any) -> ComparisonRun:
    figures: dict[str, Any] = {
        "cell": cell, "repetition": repetition, "seed": 1, "started": "2026-01-01T00:00:00+00:00", "pods": 10,
        "bound": 10, "unschedulable": 0, "seconds": 1.0, "pods_per_second": 10.0, "latency": {},
        "latency_curve": [],
        "jobs": 1, "proposals": 10, "conflicts": 0, "jobs_with_conflicts": 0, "retries": 0,
        "wasted_decisions": 0,
        "workers": [], "overcommit": Overcommit(nodes=0, worst=0.5, excess={}), "unschedulable_with_room": 0,
        "utilisation": {}, "fragmentation": {}, "services": {}, "violations": [],
    }  # fmt: skip
    return ComparisonRun(**{**figures, **fields})


def measuring(cells, one_run, *, repeat=2):
    return Measuring(Plan(cells, repeat, seed=1), MACHINE, "hoss bench compare", one_run=one_run)


CELLS = [a_cell(), a_cell(workers=4)]


def test_all_cells_are_run_once_before_any_is_run_again():
    done = measuring(CELLS, lambda cell, repetition, _plan, _stop: a_run(cell, repetition))
    told = []
    done.run(lambda count, remark: told.append((count, remark)))
    assert [(run.cell.workers, run.repetition) for run in done.runs] == [(2, 0), (4, 0), (2, 1), (4, 1)]
    assert [count for count, _ in told] == [0, 1, 2, 3, 4]
    assert done.comparison.finished
    assert not done.interrupted


def test_a_run_that_fails_is_noted_and_the_others_are_measured():
    def one_run(cell, repetition, _plan, _stop):
        if cell.workers == 4:
            raise HossError("nothing has changed for 30 s")
        return a_run(cell, repetition)

    done = measuring(CELLS, one_run, repeat=1)
    done.run()
    assert [run.cell.workers for run in done.runs] == [2]
    assert done.left_out == 1
    assert (
        "multi-hoss uniform 4w 20 nodes 50% full, repetition 1, was left out: nothing has"
        in done.comparison.notes[-1]
    )


def test_a_first_run_that_fails_ends_the_comparison():
    def one_run(_cell, _repetition, _plan, _stop):
        raise HossError("no redis-server")

    with pytest.raises(HossError, match="no redis-server"):
        measuring(CELLS, one_run).run()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_measured_before_a_signal_is_kept_and_marked(number):
    def one_run(cell, repetition, _plan, _stop):
        if cell.workers == 4:
            os.kill(os.getpid(), number)
            return a_run(cell, repetition, complete=False, bound=3)
        return a_run(cell, repetition)

    before = signal.getsignal(number)
    done = measuring(CELLS, one_run)
    done.run()
    assert signal.getsignal(number) is before
    assert done.interrupted
    document = done.comparison
    assert [run.complete for run in document.runs] == [True, False]
    assert not document.finished
    assert document.notes[-1] == "interrupted: 2 of 4 runs"
    assert Comparison.model_validate_json(document.as_json()) == document


def test_a_run_that_was_interrupted_before_its_first_pod_is_no_run():
    def one_run(cell, repetition, _plan, _stop):
        os.kill(os.getpid(), signal.SIGINT)
        return a_run(cell, repetition, complete=False, bound=0)

    done = measuring(CELLS, one_run)
    done.run()
    assert done.runs == []


def test_the_document_says_that_there_were_more_workers_than_cores():
    assert notes_on(Plan([a_cell()], 1, 1), MACHINE) == []
    (note,) = notes_on(Plan([a_cell(workers=8)], 1, 1), MACHINE)
    assert note.startswith("up to 8 workers on 2 cores")


def test_the_document_says_what_decision_cost_a_foreign_redis_and_churn_mean_for_its_figures():
    cells = [a_cell(decision=DecisionTimes(task_ms=1)), a_cell(load="churn")]
    notes = " ".join(notes_on(Plan(cells, 1, 1, redis_url="redis://elsewhere"), MACHINE))
    for word in ("decision cost", "Redis was one that runs elsewhere", "churn"):
        assert word in notes


@pytest.mark.parametrize(("speedup", "said"), [(0.0, []), (10.0, ["trace comes at a rate of its own"])])
def test_the_document_says_that_a_trace_in_its_own_time_shows_no_throughput(speedup, said):
    pods = [TracePod(Workload(f"p{second}", PodTemplate(PodSpec())), second, None) for second in (0.0, 60.0)]
    trace = trace_of([], pods, speedup)
    notes = notes_on(Plan([a_cell(load="trace")], 1, 1, traces={"trace": trace}), MACHINE)
    assert [note.partition(":")[0] for note in notes] == said
