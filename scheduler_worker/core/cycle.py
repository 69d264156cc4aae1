"""One step of the scheduling cycle: the next run is taken from the backlog and placed, as far as it fits.

Pods that fit nowhere wait for room that is under way, or ask who could go for them, or are refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from scheduler_worker.core.answers import Answers
from scheduler_worker.core.backlog import Backlog
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.diagnosis import Diagnosis, gang_error
from scheduler_worker.core.guard import PluginFailed
from scheduler_worker.core.messages import PreemptionAnswer
from scheduler_worker.core.placing import Placing
from scheduler_worker.core.preempting import Preempting
from scheduler_worker.core.preemption import NEVER
from scheduler_worker.core.proposing import Proposing
from scheduler_worker.core.reliance import counts_on_others
from scheduler_worker.core.settling import Settling
from scheduler_worker.core.work import Run, Work


class Cycle:
    """Moves pods from the backlog into the draft, or to the answers."""

    def __init__(
        self,
        cache: NodeInfoCache,
        backlog: Backlog,
        placing: Placing,
        *,
        proposing: Proposing,
        settling: Settling,
        preempting: Preempting,
        answers: Answers,
        proposal_pods: int,
        step_seconds: float,
        assumption_seconds: float,
    ) -> None:
        """See scheduler.Limits for the last three."""
        self._cache = cache
        self._backlog = backlog
        self._placing = placing
        self._proposing = proposing
        self._draft = proposing.draft
        self._settling = settling
        self._preempting = preempting
        self._answers = answers
        self._proposal_pods = proposal_pods
        self._step_seconds = step_seconds
        self._assumption_seconds = assumption_seconds

    def step(self) -> int:
        """Place the next run, as far as the draft has room. How many pods that settled; 0: nothing can be done now.

        0 with runs left means that the draft must be taken first, or a verdict be heard.
        """
        self._backlog.look_again()
        room = self._proposal_pods - self._draft.pods
        following = self._backlog.next
        if following is None or room <= 0 or self._draft.work not in (None, following.work):
            return 0
        work = following.work
        if work.goes_alone and self._draft.pods:
            return 0
        together = self._backlog.of_work(work) if work.missing else (following,)
        if (self._settling or self._proposing.evicting) and any(
            counts_on_others(run.pod_class.spec) for run in together
        ):
            return 0  # it would count on pods of which some may be refused
        if work.missing:
            return 0 if self._draft.pods else self._step_gang(work)
        if not self._draft.precedes(following):
            return 0
        run = self._placing.current(self._backlog.take())
        glance = self._placing.suits_a_glance(run) and not work.goes_alone
        return self._glance(run, room) if glance else self._step_run(run, room)

    def preempt(self, answer: PreemptionAnswer, now: float) -> None:
        """Place pods that fitted nowhere where others can go for them; answer for those for which nobody can."""
        asked = self._preempting.take(answer)
        if asked is None:
            return
        run = asked.run = self._placing.current(asked.run)
        if (self._settling or self._proposing) and counts_on_others(run.pod_class.spec):
            self._backlog.add([run])
            return
        try:
            subject = self._placing.subject(run)
            expires_at = now + self._assumption_seconds
            draft, count = self._preempting.place(asked, subject, answer, run.pod_class.group, expires_at)
            self._proposing.evict(draft, expires_at)
        except PluginFailed as failure:
            self._refuse(run, self._placing.failures.note(failure))
            return
        left = run.rows[count:]
        if len(left) and len(asked.nodes):
            self._preempting.ask_again(asked, left, subject)
        elif len(left):
            self._refuse(replace(run, rows=left), asked.diagnosis(int(self._cache.present.sum())), asked.seqs)

    def _step_run(self, run: Run, room: int) -> int:
        """Place the run as far as there is room and time."""
        room = min(room, self._placing.costs.pods_in(self._step_seconds, run.pod_class.number) or room)
        if len(run.rows) > room:
            self._backlog.put_first([replace(run, rows=run.rows[room:])])
            run = replace(run, rows=run.rows[:room])
        count, why_not = self._placing.place(run, self._draft)
        if why_not is not None:
            self._not_placed(replace(run, rows=run.rows[count:]), why_not)
        return len(run.rows)

    def _glance(self, first: Run, room: int) -> int:
        """Place this run and those alike behind it at a glance. How many pods that settled."""
        placed, left = self._placing.glance(self._alike(first, room), self._draft)
        self._backlog.put_first(left)
        return placed or self.step()  # they get a look at all nodes

    def _alike(self, first: Run, room: int) -> Iterator[Run]:
        """This run and those behind it that a glance will do for, as many as go at once."""
        yield first
        for _ in range(1, min(room, self._placing.pods_at_a_glance)):
            following = self._backlog.next
            if following is None or following.work is not first.work:
                return
            if following.pod_class.priority != first.pod_class.priority:
                return
            if not self._placing.suits_a_glance(self._placing.current(following)):
                return
            yield self._placing.current(self._backlog.take())

    def _step_gang(self, work: Work) -> int:
        """Place what fits of the next gang if that makes its minimum, else nothing of it."""
        runs = [self._placing.current(run) for run in self._backlog.take_work(work)]
        # Large pods first: small ones spread, and would leave none of the nodes to them.
        runs.sort(key=lambda run: self._cache.share(run.pod_class.demand), reverse=True)
        if any(
            counts_on_others(run.pod_class.spec) for run in runs
        ):  # in the ledger's order, so that it judges what was counted on first
            runs.sort(key=lambda run: -run.pod_class.priority)
        reason: Diagnosis | None = None
        for run in runs:
            count, why_not = self._placing.place(run, self._draft)
            if why_not is not None:
                work.left.append(replace(run, rows=run.rows[count:]))
                reason = reason or why_not
        fitting, needed = self._draft.pods, work.missing
        if fitting < needed and work.gang is not None and reason is not None:
            under_way = [self._placing.room_under_way(run, reason) for run in work.left]
            self._proposing.forget_draft()
            work.take_left()
            if fitting + sum(room for room, _ in under_way) >= needed:
                self._backlog.wait_for([found for _, in_the_way in under_way for found in in_the_way], runs)
                return sum(len(run.rows) for run in runs)
            why = Diagnosis(gang_error(work.gang.name, fitting, needed, reason.text), reason.refused_by)
            self._answers.refuse(work, np.concatenate([run.rows for run in runs]), why, self._cache.seqs)
        return sum(len(run.rows) for run in runs)

    def _not_placed(self, run: Run, why_not: Diagnosis) -> None:
        """These pods fit nowhere: perhaps others can go for them."""
        spec = run.pod_class.spec
        drafted = self._draft.assumed(len(self._cache.schema))
        _, in_the_way = self._placing.room_under_way(run, why_not, drafted)
        if drafted in in_the_way:
            self._backlog.wait_for_draft(run)
        elif in_the_way:
            self._backlog.wait_for(in_the_way, [run])
        elif spec.priority <= run.work.lowest_priority or run.work.gang is not None:
            self._refuse(run, why_not)
        elif not spec.may_preempt:
            self._refuse(run, Diagnosis(f"{why_not.text} preemption: {NEVER}", why_not.refused_by))
        else:
            asking = replace(run, evicting=why_not)
            try:
                useless = self._preempting.ask(asking, why_not, self._placing.subject(run))
            except PluginFailed as failure:
                useless = self._placing.failures.note(failure)
            if useless is not None:
                self._refuse(run, useless)

    def _refuse(self, run: Run, why_not: Diagnosis, seqs: Mapping[int, int] | None = None) -> None:
        self._answers.refuse(run.work, run.rows, why_not, self._cache.seqs if seqs is None else seqs)
