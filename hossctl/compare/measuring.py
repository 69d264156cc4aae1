"""A comparison while it is measured: all its cells once, then all again, so that what the machine does meanwhile meets each alike."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hoss.errors import HossError
from hossctl.compare import kubernetes, running
from hossctl.compare.axes import ON_KUBERNETES, Load
from hossctl.compare.document import Cell, Comparison, Machine, Run
from hossctl.compare.interruption import Stop, stoppable
from hossctl.compare.kube_form import WITHOUT_FORM
from hossctl.compare.running import Plan, title, utc_now
from hossctl.compare.summary import MODE_TITLES, has_cost


def measured(cell: Cell, repetition: int, plan: Plan, stop: Stop) -> Run:
    """One run, wherever its mode runs."""
    if cell.mode in ON_KUBERNETES:
        return kubernetes.measured(cell, repetition, plan, stop)
    return running.measured(cell, repetition, plan, stop)


@dataclass(slots=True)
class Measuring:
    """A comparison while it is measured. `run` may be ended by Ctrl-C or SIGTERM: then `interrupted` is true, the run that was
    under way is there and marked, and the comparison has no end."""

    plan: Plan
    machine: Machine
    command: str
    started: str = field(default_factory=utc_now)
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    left_out: int = 0  # runs that failed
    one_run: Callable[[Cell, int, Plan, Stop], Run] = measured
    _finished: str = ""

    @property
    def comparison(self) -> Comparison:
        """What there is of it."""
        return Comparison(
            machine=self.machine,
            command=self.command,
            started=self.started,
            finished=self._finished,
            notes=[*notes_on(self.plan, self.machine), *self.notes],
            runs=self.runs,
        )

    def run(self, progress: Callable[[int, str], None] = lambda _done, _remark: None) -> None:
        """Measure everything. What fails is noted, and left out, but where nothing has been measured yet it is raised: the others
        would fail alike. `progress` hears before each run how many are behind it, and
        what it is."""
        with stoppable() as stop:
            for repetition in range(self.plan.repeat):
                for number, cell in enumerate(self.plan.cells):
                    progress(repetition * len(self.plan.cells) + number, title(cell))
                    self._add(cell, repetition, stop)
                    if stop.asked:
                        self.interrupted = True
                        self.notes.append(f"interrupted: {len(self.runs)} of {self.plan.runs} runs")
                        return
        progress(self.plan.runs, "done")
        self._finished = utc_now()

    def _add(self, cell: Cell, repetition: int, stop: Stop) -> None:
        try:
            run = self.one_run(cell, repetition, self.plan, stop)
        except HossError as exc:
            if not self.runs:
                raise
            self.left_out += 1
            self.notes.append(f"{title(cell)}, repetition {repetition + 1}, was left out: {exc}")
            return
        if run.complete or run.bound:
            self.runs.append(run)


def notes_on(plan: Plan, machine: Machine) -> list[str]:
    """What a reader must know before comparing figures."""
    notes = []
    most = max(cell.workers for cell in plan.cells)
    slow = any(has_cost(cell.decision) for cell in plan.cells)
    if most > machine.cores:
        note = f"up to {most} workers on {machine.cores} cores, which Redis, resolver and dispatcher use too: more workers take "
        notes.append(note + "turns on the cores, so their number shows what coordination costs, not how it scales")
    if slow:
        notes.append(
            "added decision cost is waited for and uses no core: runs with it show how schedulers scale that think"
        )
    if plan.redis_url:
        notes.append("Redis was one that runs elsewhere: its CPU time and memory are not counted")
    paced = ["churn"] if any(cell.load is Load.CHURN for cell in plan.cells) else []
    if plan.trace and plan.trace.seconds:
        paced.append("the trace")
    notes += [
        f"{load} comes at a rate of its own: its pods/s say whether a mode keeps up, not how fast it could be"
        for load in paced
    ]
    if any(cell.mode in ON_KUBERNETES for cell in plan.cells):
        notes += _notes_on_kubernetes(plan)
    return notes


def _notes_on_kubernetes(plan: Plan) -> Iterator[str]:
    titles = " and ".join(f"'{MODE_TITLES[mode]}'" for mode in ON_KUBERNETES)
    yield (
        f"{titles} pay for an API server and etcd, at which their pods are created one by one and bound, and the other modes do not: "
        "compare these two with one another"
    )
    left_out = {cell.load: WITHOUT_FORM[cell.load] for cell in plan.cells if cell.load in WITHOUT_FORM}
    told = [f"{load.value} ({why})" for load, why in left_out.items()]
    if any(has_cost(cell.decision) for cell in plan.cells):
        told.append("added decision cost (kube-scheduler has no such option)")
    if told:
        yield f"not measured on Kubernetes: {', '.join(told)}"
