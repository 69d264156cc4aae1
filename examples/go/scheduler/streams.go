package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"hoss.dev/examples/hossv1"
)

// An outbox is what one stream still has to send. Putting never blocks.
type outbox[T any] struct {
	mutex  sync.Mutex
	items  []T
	closed bool
	more   chan struct{}
}

func newOutbox[T any]() *outbox[T] { return &outbox[T]{more: make(chan struct{}, 1)} }

func (o *outbox[T]) put(item T) {
	o.mutex.Lock()
	o.items = append(o.items, item)
	o.mutex.Unlock()
	o.wake()
}

// close ends the stream after what was put so far.
func (o *outbox[T]) close() {
	o.mutex.Lock()
	o.closed = true
	o.mutex.Unlock()
	o.wake()
}

func (o *outbox[T]) wake() {
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// write sends what comes, until the stream or the outbox ends.
func (o *outbox[T]) write(stream grpc.ClientStream) {
	for {
		o.mutex.Lock()
		items, closed := o.items, o.closed
		o.items = nil
		o.mutex.Unlock()
		for _, item := range items {
			if stream.SendMsg(item) != nil {
				return // the reader learns why
			}
		}
		if closed {
			_ = stream.CloseSend() // its error is the reader's, too
			return
		}
		select {
		case <-o.more:
		case <-stream.Context().Done():
			return
		}
	}
}

// again calls once until it is refused for good or the context ends; after a break it waits a tenth of a
// second, and up to a second if breaks follow one another.
func again(ctx context.Context, what string, once func(context.Context) (worked bool, err error)) error {
	delay := 100 * time.Millisecond
	for {
		stream, cancel := context.WithCancel(ctx)
		worked, err := once(stream)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		switch status.Code(err) {
		case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied:
			return fmt.Errorf("%s: %s", what, status.Convert(err).Message())
		}
		if worked {
			delay = 100 * time.Millisecond
		}
		if err != nil && !errors.Is(err, io.EOF) {
			slog.Info("interrupted", "stream", what, "error", err.Error())
		}
		select {
		case <-time.After(delay/2 + rand.N(delay/2)):
		case <-ctx.Done():
			return nil
		}
		delay = min(2*delay, time.Second)
	}
}

// do runs an event in the scheduler's goroutine and waits for it.
func (s *scheduler) do(ctx context.Context, event func()) {
	done := make(chan struct{})
	select {
	case s.events <- func() { event(); close(done) }:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// followLink keeps the scheduler registered with the active dispatcher. Messages without a stream are
// dropped: the next epoch starts with no state.
func (s *scheduler) followLink(
	ctx context.Context, client hossv1.WorkerLinkClient, register *hossv1.Register,
) error {
	return again(ctx, "the dispatcher", func(ctx context.Context) (bool, error) {
		stream, err := client.Connect(ctx, grpc.WaitForReady(true))
		if err != nil {
			return false, err
		}
		out := newOutbox[*hossv1.WorkerMessage]()
		out.put(&hossv1.WorkerMessage{Kind: &hossv1.WorkerMessage_Register{Register: register}})
		go out.write(stream)
		defer s.do(ctx, func() { s.link = nil })
		for welcomed := false; ; {
			message, err := stream.Recv()
			if err != nil {
				return welcomed, err
			}
			if welcome := message.GetWelcome(); welcome != nil {
				welcomed = true
				go s.beat(ctx, out, time.Duration(welcome.HeartbeatMs)*time.Millisecond)
			}
			s.do(ctx, func() { s.link = out; s.received(message) })
		}
	})
}

func (s *scheduler) beat(ctx context.Context, out *outbox[*hossv1.WorkerMessage], period time.Duration) {
	for ctx.Err() == nil {
		s.do(ctx, func() {
			if s.link == out {
				s.heartbeat()
			}
		})
		select {
		case <-time.After(period):
		case <-ctx.Done():
		}
	}
}

// followFeed follows the nodes. Changes come in order and without gaps; a break is resumed.
func (s *scheduler) followFeed(ctx context.Context, client hossv1.ResolverClient) error {
	positions, ledger := map[uint32]*hossv1.ShardPosition{}, ""
	return again(ctx, "the node feed", func(ctx context.Context) (worked bool, err error) {
		request := &hossv1.FeedRequest{Subscriber: s.name, LedgerEpoch: ledger}
		for _, shard := range sortedKeys(positions) {
			request.Resume = append(request.Resume, positions[shard])
		}
		stream, err := client.Feed(ctx, request)
		for err == nil {
			message, broken := stream.Recv()
			if broken != nil {
				return worked, broken
			}
			at := positions[message.Shard]
			if !message.Snapshot && (at == nil || at.Seq != message.PreviousSeq) {
				delete(positions, message.Shard)
				return worked, errors.New("a gap; it starts with a snapshot")
			}
			if s.do(ctx, func() { err = s.applied(message) }); err != nil || ctx.Err() != nil {
				return worked, err
			}
			positions[message.Shard] = &hossv1.ShardPosition{
				Shard: message.Shard, Seq: message.Seq, Nonce: message.Nonce,
			}
			if message.Snapshot {
				ledger = message.LedgerEpoch
			}
			worked = true
		}
		return worked, err
	})
}

type proposalKey struct {
	shard uint32
	id    uint64
}

// proposals are sent again until they are answered. Each copy has a higher number of sending, and the ledger
// decides nothing for a lower one. An answer of a stream that ended is not taken. So when an answer is taken,
// earlier copies that a resolver still holds are void, and the pods can be placed elsewhere.
type proposals struct {
	unanswered map[proposalKey]*hossv1.ProposalBatch
	sending    uint64
	putOff     map[proposalKey]bool           // on the present stream, without a verdict since
	stream     *outbox[*hossv1.ProposalBatch] // nil: none
	leave      context.CancelFunc             // ends the present stream
	later      func(time.Duration, func())
}

func (p *proposals) send(proposal *hossv1.ProposalBatch) {
	proposal.Sending = p.sending
	p.unanswered[proposalKey{proposal.Shard, proposal.BatchId}] = proposal
	if p.stream != nil {
		p.stream.put(proposal)
	}
}

// abandon drops answers to everything sent so far, in an epoch that is over.
func (p *proposals) abandon() {
	clear(p.unanswered)
	p.sending = 0
}

func (p *proposals) sendAgain(key proposalKey) {
	last := p.unanswered[key]
	if last == nil || p.stream == nil {
		return
	}
	if last.Sending == p.sending {
		p.sending++
	}
	next := proto.Clone(last).(*hossv1.ProposalBatch) // the last one may be in the hands of its stream
	next.Sending = p.sending
	p.unanswered[key] = next
	p.stream.put(next)
}

// opened: a new stream; everything unanswered is sent on it.
func (p *proposals) opened(stream *outbox[*hossv1.ProposalBatch], leave context.CancelFunc) {
	p.stream, p.leave, p.putOff = stream, leave, map[proposalKey]bool{}
	for key := range p.unanswered {
		p.sendAgain(key)
	}
}

// taken is the proposal that this verdict answers, or nil. A resolver that puts one off twice is left: it may
// be cut off from a ledger that others reach.
func (p *proposals) taken(
	stream *outbox[*hossv1.ProposalBatch], verdict *hossv1.VerdictBatch,
) *hossv1.ProposalBatch {
	key := proposalKey{verdict.Shard, verdict.BatchId}
	proposal := p.unanswered[key]
	if stream != p.stream || proposal == nil {
		return nil
	}
	if verdict.Unavailable == "" {
		delete(p.unanswered, key)
		clear(p.putOff)
		return proposal
	}
	slog.Info("proposal_delayed", "reason", verdict.Unavailable)
	if p.putOff[key] {
		p.stream = nil
		p.leave()
		return nil
	}
	p.putOff[key] = true
	p.later(time.Duration(verdict.RetryAfterMs)*time.Millisecond, func() {
		if p.stream == stream {
			p.sendAgain(key)
		}
	})
	return nil
}

// followVerdicts keeps the stream of proposals. A stream stays with its resolver.
func (s *scheduler) followVerdicts(ctx context.Context, client hossv1.ResolverClient) error {
	return again(ctx, "the resolver", func(ctx context.Context) (worked bool, err error) {
		ctx, leave := context.WithCancel(ctx)
		defer leave()
		stream, err := client.Propose(ctx, grpc.WaitForReady(true))
		if err != nil {
			return false, err
		}
		out := newOutbox[*hossv1.ProposalBatch]()
		go out.write(stream)
		s.do(ctx, func() { s.proposals.opened(out, leave) })
		for {
			verdict, err := stream.Recv()
			if err != nil {
				return worked, err
			}
			worked = worked || verdict.Unavailable == ""
			s.do(ctx, func() {
				if proposal := s.proposals.taken(out, verdict); proposal != nil {
					s.takeVerdict(proposal, verdict)
				}
			})
		}
	})
}
