package scheduler

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"hoss.dev/examples/hossv1"
)

const (
	proposalPods = 1000 // the ledger's script must not run long
	mostTries    = 3    // proposals for a pod; then the dispatcher decides anew
	none16       = 0xFFFF
	none32       = 0xFFFFFFFF
)

// work is a batch of pods from the dispatcher. A pod is a row of it.
type work struct {
	id        uint64
	uids      []byte // 16 each
	classes   []uint32
	attempts  []uint16
	specs     map[uint32]*hossv1.PodSpec // of its classes
	scope     *hossv1.NodeScope
	conflicts *hossv1.ConflictRule
	tries     []int // proposals that the ledger refused
}

// part is some rows of a work batch.
type part struct {
	work *work
	rows []int
}

// waiting is refused pods, until the view knows why.
type waiting struct {
	part
	missing map[uint32]uint64
}

// sent is a proposal without a verdict.
type sent struct {
	part
	pods *proposedPods
}

// A scheduler stands between the streams and the algorithm. One goroutine, that of loop, has all of its
// state. A pod in hand is in exactly one place: the queue, the algorithm, a proposal, or those that wait. A
// new epoch empties all of them, because the dispatcher then gives the pods to anybody.
type scheduler struct {
	options
	algorithm Algorithm
	events    chan func()
	failed    error
	view      *view
	link      *outbox[*hossv1.WorkerMessage] // nil: no stream
	proposals proposals

	epoch        uint64
	leaving      bool
	placing      bool
	classes      map[uint32]*hossv1.PodSpec
	queue        []part
	untilSeen    []waiting
	untilVerdict []part // this scheduler's own pods may be in their way
	sent         map[uint64]sent
	nextID       uint64
	started      time.Time
	busySeconds  float64
	microsPerPod float64
	conflicts    uint64
	proposed     uint64
	failures     map[string]bool
}

func newScheduler(algorithm Algorithm, given options) *scheduler {
	s := &scheduler{
		options: given, algorithm: algorithm, events: make(chan func()), view: newView(), started: time.Now(),
		classes: map[uint32]*hossv1.PodSpec{}, sent: map[uint64]sent{}, nextID: 1, failures: map[string]bool{},
	}
	s.proposals = proposals{unanswered: map[proposalKey]*hossv1.ProposalBatch{}, later: s.later}
	return s
}

// loop runs one event after the other, and places what there is, until done.
func (s *scheduler) loop(done <-chan struct{}) error {
	for s.failed == nil {
		select {
		case event := <-s.events:
			event()
		case <-done:
			return nil
		}
		for !s.placing && len(s.queue) > 0 && s.view.complete() {
			s.placeNext()
		}
	}
	return s.failed
}

func (s *scheduler) later(delay time.Duration, event func()) {
	time.AfterFunc(delay, func() { s.events <- event })
}

// From the dispatcher

// welcomed: a new epoch; the dispatcher gives all pods in hand to anybody.
func (s *scheduler) welcomed(welcome *hossv1.Welcome) {
	s.epoch = welcome.Epoch
	s.proposals.abandon()
	for _, proposal := range s.sent {
		s.view.forgetAll(proposal.pods)
	}
	for _, spec := range s.classes {
		s.view.forgetSpec(spec)
	}
	clear(s.sent)
	clear(s.classes)
	s.queue, s.untilSeen, s.untilVerdict = nil, nil, nil
	slog.Info("registered", "scheduler", s.name, "epoch", s.epoch)
}

func (s *scheduler) received(message *hossv1.DispatcherMessage) {
	switch kind := message.Kind.(type) {
	case *hossv1.DispatcherMessage_Welcome:
		s.welcomed(kind.Welcome)
	case *hossv1.DispatcherMessage_Work:
		s.accept(kind.Work)
	case *hossv1.DispatcherMessage_View:
		answer := &hossv1.CacheView{Id: kind.View.Id, Idle: s.idle()}
		for _, shard := range sortedKeys(s.view.seqs) {
			answer.Shards = append(answer.Shards,
				&hossv1.ShardView{Shard: shard, Seq: s.view.seqs[shard], Digest: s.view.digest(shard)})
		}
		s.send(&hossv1.WorkerMessage{Kind: &hossv1.WorkerMessage_View{View: answer}})
	case *hossv1.DispatcherMessage_Drain:
		s.giveBack()
	case *hossv1.DispatcherMessage_Recall:
		s.recall(kind.Recall)
		s.heartbeat()
	case *hossv1.DispatcherMessage_Decisions:
		answer := &hossv1.DecisionAnswer{Id: kind.Decisions.Id} // it remembers none
		s.send(&hossv1.WorkerMessage{Kind: &hossv1.WorkerMessage_Decisions{Decisions: answer}})
	}
}

func (s *scheduler) idle() bool {
	return !s.placing && len(s.queue)+len(s.untilSeen)+len(s.untilVerdict)+len(s.sent) == 0
}

func (s *scheduler) heartbeat() {
	backlog := 0
	for _, queued := range s.queue {
		backlog += len(queued.rows)
	}
	s.send(&hossv1.WorkerMessage{Kind: &hossv1.WorkerMessage_Heartbeat{Heartbeat: &hossv1.Heartbeat{
		BusySeconds: s.busySeconds, WorkingSeconds: s.busySeconds, ClockSeconds: time.Since(s.started).Seconds(),
		MicrosPerPod: s.microsPerPod, SeenMicros: s.microsPerPod, Backlog: uint32(backlog),
		Ready: s.view.complete(), Conflicts: s.conflicts, Proposed: s.proposed, Synchronisation: "push",
	}}})
}

func (s *scheduler) accept(message *hossv1.WorkBatch) {
	for _, definition := range message.Classes {
		s.classes[definition.Id] = definition.Spec
	}
	w := &work{
		id: message.BatchId, uids: message.Uids, tries: make([]int, len(message.Uids)/16),
		specs: map[uint32]*hossv1.PodSpec{}, scope: message.Scope, conflicts: message.Conflicts,
	}
	classes, counts := column32(message.RunClasses), column32(message.RunCounts)
	for run, count := range counts {
		w.specs[classes[run]] = s.classes[classes[run]]
		attempts := uint16(0)
		if len(message.RunAttempts) > 0 {
			attempts = binary.LittleEndian.Uint16(message.RunAttempts[2*run:])
		}
		w.classes = append(w.classes, slices.Repeat([]uint32{classes[run]}, int(count))...)
		w.attempts = append(w.attempts, slices.Repeat([]uint16{attempts}, int(count))...)
	}
	for _, number := range message.ForgottenClasses {
		if spec := s.classes[number]; spec != nil {
			s.view.forgetSpec(spec)
			delete(s.classes, number)
		}
	}
	rows := make([]int, len(w.classes))
	for row := range rows {
		rows[row] = row
	}
	whole := part{w, rows}
	switch {
	case s.leaving:
		s.returned(whole)
	case message.GangMinimum > 0 || w.conflicts.GetAllOrNothing():
		s.refuse(whole, "scheduler "+s.name+" places no gangs", s.view.seqs)
	default:
		s.queue = append(s.queue, whole)
	}
}

// giveBack returns everything that is not at the ledger.
func (s *scheduler) giveBack() {
	for _, queued := range append(s.queue, s.untilVerdict...) {
		s.returned(queued)
	}
	for _, refused := range s.untilSeen {
		s.returned(refused.part)
	}
	s.queue, s.untilSeen, s.untilVerdict = nil, nil, nil
}

// recall returns up to so many pods of these batches that were never proposed, the last ones first.
func (s *scheduler) recall(recall *hossv1.Recall) {
	wanted := int(recall.Pods)
	var kept []part
	for _, queued := range slices.Backward(s.queue) {
		var back, left []int
		for _, row := range slices.Backward(queued.rows) {
			if wanted > 0 && queued.work.tries[row] == 0 && slices.Contains(recall.BatchIds, queued.work.id) {
				back, wanted = append(back, row), wanted-1
			} else {
				left = append(left, row)
			}
		}
		s.returned(part{queued.work, back})
		if slices.Reverse(left); len(left) > 0 {
			kept = append(kept, part{queued.work, left})
		}
	}
	slices.Reverse(kept)
	s.queue = kept
}

// From the resolvers

func (s *scheduler) applied(message *hossv1.FeedMessage) error {
	was := s.view.complete()
	if err := s.view.apply(message); err != nil {
		return err
	}
	s.untilSeen = slices.DeleteFunc(s.untilSeen, func(refused waiting) bool {
		again := message.Snapshot || s.view.caughtUp(refused.missing)
		if again {
			s.queue = append(s.queue, refused.part)
		}
		return again
	})
	if s.view.complete() && !was {
		s.heartbeat() // the dispatcher gives work to ready workers only
	}
	return nil
}

// takeVerdict takes the answer to a proposal.
func (s *scheduler) takeVerdict(proposal *hossv1.ProposalBatch, verdict *hossv1.VerdictBatch) {
	answered, known := s.sent[proposal.BatchId]
	if proposal.Epoch != s.epoch || !known {
		return
	}
	delete(s.sent, proposal.BatchId)
	switch {
	case verdict.Invalid != "" && len(verdict.Verdicts) == 0:
		slog.Error("proposal_invalid", "scheduler", s.name, "reason", verdict.Invalid)
		s.view.forgetAll(answered.pods)
		s.answer(answered.part, hossv1.OutcomeCode_OUTCOME_INVALID, outcome{reason: verdict.Invalid})
	case slices.Contains(verdict.Verdicts, byte(hossv1.Verdict_STALE_EPOCH)):
		slog.Warn("fenced", "scheduler", s.name, "epoch", s.epoch)
		s.view.forgetAll(answered.pods)
		if s.link != nil {
			s.link.close()
		}
	default:
		s.settle(answered, verdict)
	}
	s.queue = append(s.queue, s.untilVerdict...)
	s.untilVerdict = nil
}

// settle answers the bound pods, and tries the refused ones again later.
func (s *scheduler) settle(answered sent, verdict *hossv1.VerdictBatch) {
	w, nodes := answered.work, column32(verdict.Nodes)
	found := outcome{}
	var bound, again, tired []int
	committed := false
	for position, row := range answered.rows {
		code := hossv1.Verdict(verdict.Verdicts[position])
		if code != hossv1.Verdict_COMMITTED {
			s.view.forget(answered.pods, position)
		}
		if code == hossv1.Verdict_COMMITTED || code == hossv1.Verdict_DUPLICATE {
			committed = committed || code == hossv1.Verdict_COMMITTED
			bound, found.nodes = append(bound, row), append(found.nodes, nodes[position])
			continue
		}
		found.refused = append(found.refused, uint32(row))
		if w.tries[row]++; w.tries[row] >= mostTries {
			tired = append(tired, row)
		} else {
			again = append(again, row)
		}
	}
	seqs := map[uint64]bool{}
	for position := range len(verdict.DuplicateSeqs) / 8 {
		seqs[binary.LittleEndian.Uint64(verdict.DuplicateSeqs[8*position:])] = true
	}
	if committed {
		seqs[verdict.Seq] = true
		s.view.commit(answered.pods, verdict.Seq)
	}
	for _, seq := range sortedKeys(seqs) {
		found.commits = append(found.commits, &hossv1.CommitRef{Shard: verdict.Shard, Seq: seq})
	}
	s.conflicts += uint64(len(found.refused))
	s.answer(part{w, bound}, hossv1.OutcomeCode_OUTCOME_BOUND, found)
	s.answer(part{w, tired}, hossv1.OutcomeCode_OUTCOME_CONFLICT, outcome{reason: "refused repeatedly by the ledger"})
	if len(again) == 0 {
		return
	}
	missing := map[uint32]uint64{verdict.Shard: verdict.AsOfSeq}
	for _, position := range verdict.Awaits {
		missing[position.Shard] = max(missing[position.Shard], position.Seq)
	}
	switch {
	case s.leaving:
		s.returned(part{w, again})
	case s.view.caughtUp(missing):
		s.queue = append(s.queue, part{w, again})
	default:
		s.untilSeen = append(s.untilSeen, waiting{part{w, again}, missing})
	}
}

// Placing

func (s *scheduler) placeNext() {
	next := s.queue[0]
	s.queue = s.queue[1:]
	if len(next.rows) > proposalPods {
		s.queue = slices.Insert(s.queue, 0, part{next.work, next.rows[proposalPods:]})
		next.rows = next.rows[:proposalPods]
	}
	next, batch := s.batch(next)
	if batch.Pods == 0 {
		return
	}
	epoch, seqs, seen := s.epoch, map[uint32]uint64{}, make([]uint64, s.view.shards)
	for shard, seq := range s.view.seqs {
		seqs[shard], seen[shard] = seq, s.view.seen(shard)
	}
	snapshot, began := s.view.snapshot(), time.Now()
	s.placing = true
	late := time.AfterFunc(s.limit, func() {
		s.events <- func() {
			s.failed = fmt.Errorf("did not place %d pods in %s: let Place end within its budget",
				batch.Pods, s.limit)
		}
	})
	go func() {
		nodes, problem := answered(s.algorithm, batch, snapshot, s.budget)
		s.events <- func() {
			late.Stop()
			s.placing = false
			took := time.Since(began)
			s.busySeconds += took.Seconds()
			s.microsPerPod = smoothed(s.microsPerPod, took.Seconds()*1e6/float64(batch.Pods))
			switch {
			case s.epoch != epoch: // the pods are somebody else's by now
			case problem != nil:
				s.failedOnce(next, problem.Error())
			case s.leaving:
				s.returned(next)
			default:
				s.propose(next, batch, nodes, seqs, seen)
			}
		}
	}()
}

func smoothed(before, now float64) float64 {
	if before == 0 {
		return now
	}
	return before + 0.2*(now-before)
}

// failedOnce: not unschedulable, because no change of a node would wake the pods, and others may place them.
func (s *scheduler) failedOnce(pods part, problem string) {
	if !s.failures[problem] && len(s.failures) < proposalPods {
		s.failures[problem] = true
		slog.Error("scheduler_failed", "scheduler", s.name, "error", problem)
	}
	reason := "scheduler " + s.name + " failed: " + problem
	s.answer(pods, hossv1.OutcomeCode_OUTCOME_CONFLICT, outcome{reason: reason})
}

// batch is what the algorithm is asked, and the rows of it. The others are answered.
func (s *scheduler) batch(given part) (part, *Batch) {
	batch, kept := &Batch{}, part{work: given.work}
	for begin := 0; begin < len(given.rows); {
		class := given.work.classes[given.rows[begin]]
		end := begin
		for end < len(given.rows) && given.work.classes[given.rows[end]] == class {
			end++
		}
		run, spec := part{given.work, given.rows[begin:end]}, given.work.specs[class]
		request, offered := s.view.request(spec)
		if without := unsupported(spec); without != "" {
			s.refuse(run, "scheduler "+s.name+" does not know about "+without, s.view.seqs)
		} else if !offered {
			s.refuse(run, "no node has a resource that the pod requests", s.view.seqs)
		} else {
			admitted := s.view.admitted(spec, given.work.scope)
			batch.Runs = append(batch.Runs, Run{spec, request, admitted, batch.Pods, end - begin})
			kept.rows = append(kept.rows, run.rows...)
			batch.Pods += end - begin
		}
		begin = end
	}
	return kept, batch
}

func (s *scheduler) propose(
	pods part, batch *Batch, nodes []int, seqs map[uint32]uint64, seen []uint64,
) {
	var left []int
	byShard := map[uint32][]int{} // positions
	for position, node := range nodes {
		if node == NoNode {
			left = append(left, pods.rows[position])
		} else {
			shard := uint32(node) % s.view.shards
			byShard[shard] = append(byShard[shard], position)
		}
	}
	if len(left) > 0 && (len(s.sent) > 0 || len(byShard) > 0) {
		s.untilVerdict = append(s.untilVerdict, part{pods.work, left})
	} else if len(left) > 0 {
		s.refuse(part{pods.work, left}, fmt.Sprintf("scheduler %s has room on none of %d nodes that admit it",
			s.name, mostAdmitting(batch)), seqs)
	}
	table := newSlots(batch, pods)
	for _, shard := range sortedKeys(byShard) {
		proposed := &proposedPods{shard: shard}
		rows, uids, slots, indexes := []int{}, []byte{}, []uint16{}, []uint32{}
		for _, position := range byShard[shard] {
			row, slot := pods.rows[position], table.of[position]
			rows, slots, indexes = append(rows, row), append(slots, slot), append(indexes, uint32(nodes[position]))
			uids = append(uids, pods.work.uids[16*row:16*row+16]...)
			proposed.nodes = append(proposed.nodes, nodes[position])
			proposed.requests = append(proposed.requests, batch.Runs[slot].Request)
		}
		s.view.assume(proposed)
		s.sent[s.nextID] = sent{part{pods.work, rows}, proposed}
		proposal := &hossv1.ProposalBatch{
			Worker: s.name, Epoch: s.epoch, BatchId: s.nextID, Shard: shard, SnapshotSeq: seqs[shard],
			Resources: uint32(len(batch.Runs[0].Request)), Uids: uids, Slots: column(slots), Candidates: 1,
			Nodes: column(indexes), Requests: column(table.requests), Priorities: column(table.priorities),
			Attempts: column(table.attempts), Groups: table.groups, SlotGroups: column(table.slotGroups),
			Criteria:    pods.work.conflicts.GetCriteria(),
			DisplaceGap: pods.work.conflicts.GetDisplaceGap(),
		}
		if s.view.shards > 1 { // without several shards a hold ends before anybody sees it
			proposal.Seen = column(seen)
		}
		s.proposals.send(proposal)
		s.nextID++
		s.proposed += uint64(len(rows))
	}
}

func mostAdmitting(batch *Batch) int {
	most := 0
	for _, run := range batch.Runs {
		admitting := 0
		for _, admitted := range run.Admitted {
			if admitted {
				admitting++
			}
		}
		most = max(most, admitting)
	}
	return most
}

// slots are what equal pods of a proposal share: one for each run.
type slots struct {
	of         []uint16 // by position in the batch
	requests   []int64  // a row for each run
	priorities []int32
	attempts   []uint16
	groups     [][]byte // PodGroup messages, each once
	slotGroups []uint16
}

func newSlots(batch *Batch, pods part) slots {
	table, positions := slots{}, map[string]uint16{}
	for number, run := range batch.Runs {
		table.of = append(table.of, slices.Repeat([]uint16{uint16(number)}, run.Count)...)
		table.requests = append(table.requests, run.Request...)
		table.priorities = append(table.priorities, run.Spec.Priority)
		table.attempts = append(table.attempts, pods.work.attempts[pods.rows[run.First]])
		group := groupOf(run.Spec)
		position, known := positions[string(group)]
		if !known {
			position = uint16(len(table.groups))
			positions[string(group)] = position
			table.groups = append(table.groups, group)
		}
		table.slotGroups = append(table.slotGroups, position)
	}
	return table
}

// groupOf is what the rules of other pods can look at in such a pod.
func groupOf(spec *hossv1.PodSpec) []byte {
	group := &hossv1.PodGroup{
		Namespace: spec.Namespace, Labels: spec.Labels, Affinity: spec.PodAffinity,
		ToleratesCordon: toleratesCordon(spec),
	}
	excess := &hossv1.CpuAndMemory{CpuMilli: spec.NonzeroCpuMilli, MemoryBytes: spec.NonzeroMemoryBytes}
	for _, asked := range spec.Requests {
		switch asked.Resource {
		case "cpu":
			excess.CpuMilli -= asked.Amount
		case "memory":
			excess.MemoryBytes -= asked.Amount
		}
	}
	if excess.CpuMilli != 0 || excess.MemoryBytes != 0 {
		group.Excess = excess
	}
	definition, _ := proto.MarshalOptions{Deterministic: true}.Marshal(group) // of a message made here
	return definition
}

// To the dispatcher

func (s *scheduler) send(message *hossv1.WorkerMessage) {
	if s.link != nil {
		s.link.put(message)
	}
}

// outcome is what an answer says besides its code.
type outcome struct {
	nodes   []uint32
	reason  string
	commits []*hossv1.CommitRef
	seen    []*hossv1.CommitRef
	refused []uint32
}

func (s *scheduler) returned(pods part) {
	s.answer(pods, hossv1.OutcomeCode_OUTCOME_RETURNED, outcome{})
}

// refuse: no node for these pods in the view at seqs, by shard.
func (s *scheduler) refuse(pods part, reason string, seqs map[uint32]uint64) {
	found := outcome{reason: reason}
	for _, shard := range sortedKeys(seqs) {
		found.seen = append(found.seen, &hossv1.CommitRef{Shard: shard, Seq: seqs[shard]})
	}
	s.answer(pods, hossv1.OutcomeCode_OUTCOME_UNSCHEDULABLE, found)
}

func (s *scheduler) answer(pods part, code hossv1.OutcomeCode, found outcome) {
	if len(pods.rows)+len(found.refused) == 0 {
		return
	}
	count, reason := len(pods.rows), uint16(none16)
	answer := &hossv1.Outcomes{
		BatchId: pods.work.id, Codes: slices.Repeat([]byte{byte(code)}, count), Commits: found.commits,
		Seen: found.seen, Refused: column(found.refused),
	}
	if found.reason != "" {
		reason, answer.ReasonTexts = 0, []string{strings.ToValidUTF8(found.reason, "?")}
	}
	positions := make([]uint32, count)
	for at, row := range pods.rows {
		positions[at] = uint32(row)
	}
	if found.nodes == nil {
		found.nodes = slices.Repeat([]uint32{none32}, count)
	}
	answer.Positions, answer.Nodes = column(positions), column(found.nodes)
	answer.Reasons = column(slices.Repeat([]uint16{reason}, count))
	s.send(&hossv1.WorkerMessage{Kind: &hossv1.WorkerMessage_Outcomes{Outcomes: answer}})
}
