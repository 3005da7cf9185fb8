package coordinator

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Group is this rank's part in some ranks, all or a part.
type Group struct {
	Name    string
	Members []int // by their numbers in the job
	client  *Client

	failed  chan struct{} // closed when failure is decided
	settled chan struct{} // closed when all ranks have acknowledged that

	// Guarded by the client's mu.
	failure *Failure
	counts  map[string]int
	awaited string // the key of the gather that it waits for, or waited for last
	begin   func(ranks []int, values [][]byte, done func())
}

// Rank is this rank's number in the job.
func (g *Group) Rank() int { return g.client.rank }

// Key is a key that all members of the group have, and nobody outside the job, for connections
// of their own.
func (g *Group) Key() []byte {
	h := hmac.New(sha256.New, g.client.opts.Key)
	fmt.Fprintf(h, "%d %s", g.client.session, g.Name)
	return h.Sum(nil)
}

// Make makes a group of some ranks, all of which call it, as Join does the group of all.
func (g *Group) Make(ctx context.Context, name string, members []int, value []byte) (*Group, [][]byte, error) {
	c := g.client
	c.mu.Lock()
	made := c.group(name)
	made.Members = members
	c.mu.Unlock()
	values, err := made.exchange(ctx, &Message{Verb: Gather, Group: name, Key: JoinKey, Ranks: members, Value: value}, gatherKey{verb: Gathered, group: name, key: JoinKey})
	return made, values, err
}

// Gather gives the members a value, and returns those of all, by member, when all have given
// theirs: nil where all are empty. A key is used once.
func (g *Group) Gather(ctx context.Context, key string, value []byte) ([][]byte, error) {
	return g.exchange(ctx, &Message{Verb: Gather, Group: g.Name, Key: key, Value: value}, gatherKey{verb: Gathered, group: g.Name, key: key})
}

// Missing returns the members that have not given their value of a key. With LeaveKey it is
// those that have not left.
func (g *Group) Missing(ctx context.Context, key string) ([]int, error) {
	m, err := g.question(ctx, &Message{Verb: Watch, Key: key}, Watched)
	if err != nil {
		return nil, err
	}
	return m.Ranks, nil
}

// Post gives a value of a key, in place of the one that this rank gave before. It returns once
// the value is there for all members that ask for it.
func (g *Group) Post(ctx context.Context, key string, value []byte) error {
	if len(value) > maxPost {
		return fmt.Errorf("posting %d bytes, at most %d", len(value), maxPost)
	}
	_, err := g.question(ctx, &Message{Verb: Post, Key: key, Value: value}, Posted)
	return err
}

// Posted returns the values of a key that ranks gave last; empty are those of ranks that gave none.
func (g *Group) Posted(ctx context.Context, key string, ranks []int) (values [][]byte, err error) {
	for some := range slices.Chunk(ranks, postsAtOnce) {
		theirs, err := g.question(ctx, &Message{Verb: Post, Key: key, Ranks: some}, Posted)
		if err != nil {
			return nil, err
		}
		values = append(values, theirs.Values...)
	}
	return values, nil
}

// Count counts the calls with a name on this rank, from 1: what all members do in the same order
// has the same number on each.
func (g *Group) Count(name string) int {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.counts[name]++
	return g.counts[name]
}

func (g *Group) exchange(ctx context.Context, m *Message, key gatherKey) ([][]byte, error) {
	answer, err := g.ask(ctx, m, key)
	if err != nil {
		return nil, err
	}
	return answer.Values, nil
}

// question asks what has an answer of its own: others may ask the same, and an answer may come
// when nobody waits for it any more.
func (g *Group) question(ctx context.Context, m *Message, answer Verb) (*Message, error) {
	c := g.client
	c.mu.Lock()
	c.questions++
	m.Number = c.questions
	c.mu.Unlock()
	m.Group = g.Name
	return g.ask(ctx, m, gatherKey{answer, m.Group, m.Key, m.Number})
}

// ask says something and waits for the answer, the group's failure, or the end of ctx.
func (g *Group) ask(ctx context.Context, m *Message, key gatherKey) (*Message, error) {
	answer, forget := g.await(key)
	defer forget()
	return g.say(ctx, m, answer)
}

// await has the next message of a key come by a channel, until forget.
func (g *Group) await(key gatherKey) (answer chan *Message, forget func()) {
	c := g.client
	answer = make(chan *Message, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits[key] = answer
	if key.verb == Gathered {
		g.awaited = key.key
	}
	return answer, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waits, key)
	}
}

// say is what ask does, of a key that is awaited.
func (g *Group) say(ctx context.Context, m *Message, answer chan *Message) (*Message, error) {
	if err := g.client.send(m); err != nil {
		return nil, err
	}
	select {
	case a := <-answer:
		return a, nil
	case <-g.failed:
	case <-g.client.done: // the group was left
	case <-ctx.Done():
	}
	select {
	case a := <-answer: // it came before
		return a, nil
	default:
	}
	if f := g.Failure(); f != nil {
		return nil, f
	}
	return nil, cmp.Or(context.Cause(ctx), errClosed)
}

// Bound is a context that ends with ctx or, with its Failure as the cause, when the group fails.
// The function releases it.
func (g *Group) Bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-g.failed:
			cancel(g.Failure())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Failed is closed once the group's failure is decided, or the coordinator is lost. Settled
// is closed once all ranks know of it: what one of them does from then on is taken by none
// for the result of a call.
func (g *Group) Failed() <-chan struct{} { return g.failed }

// Settled is explained at Failed.
func (g *Group) Settled() <-chan struct{} { return g.settled }

// Failure is why the group broke, on all ranks the same; nil before.
func (g *Group) Failure() *Failure {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	return g.failure
}

// Fail reports a failure. It is decided once the ranks asked have answered or were lost. It
// returns at once: Failed tells what was decided. Where a rank asked does not answer within some
// intervals, or the coordinator does not, it is f.
func (g *Group) Fail(f *Failure, asked ...int) { g.report(*f, &Message{Ranks: asked}) }

func (g *Group) report(f Failure, m *Message) {
	c := g.client
	f.Reporter, f.Group = c.rank, g.Name
	m.Verb, m.Group, m.Failure = Fail, g.Name, &f
	c.mu.Lock()
	c.reported, c.undecided = &f, 0
	c.mu.Unlock()
	c.send(m) // the end of the connection is a failure
}

// Expect says which gather comes next: who is late is who has not come there.
func (g *Group) Expect(key string) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.awaited = key
}

// GiveUp reports that this rank does not go on making the group, because of err, and returns
// why the group was not made, as all are told. Where that is this rank's report, it says who
// was waited for in vain.
func (g *Group) GiveUp(err error, late bool) error {
	if errors.As(err, new(*Failure)) {
		return err
	}
	g.client.mu.Lock()
	key := g.awaited
	g.client.mu.Unlock()
	g.Fail(&Failure{Text: err.Error(), Key: key, Late: late})
	<-g.failed
	return g.Failure()
}

// Decide ends what Fail, or Inquire, of this rank began.
func (g *Group) Decide(f *Failure) { g.report(*f, &Message{Final: true}) }

// Inquire reports a failure and asks ranks what they know of it. When ctx ends it returns the
// answers so far. Those that left answer with nothing. Decide follows. Where another failure
// is decided meanwhile, or another rank asks already, the error is that failure.
func (g *Group) Inquire(ctx context.Context, f *Failure, ranks []int) (answers map[int][]byte, err error) {
	m := &Message{Verb: Fail, Group: g.Name, Failure: f, Ranks: ranks, WantAnswers: true}
	answer, err := g.ask(ctx, m, gatherKey{verb: Answered, group: g.Name})
	if err != nil && ctx.Err() != nil {
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime/2)
		defer cancel()
		answer, err = g.ask(again, m, gatherKey{verb: Answered, group: g.Name})
	}
	if err != nil {
		return nil, err
	}
	answers = map[int][]byte{}
	for i, r := range answer.Ranks {
		answers[r] = answer.Values[i]
	}
	return answers, nil
}

// OnAsked has f tell what this rank knows of a failure that another one looks into. It is
// called in a goroutine of its own, and returns soon.
func (g *Group) OnAsked(f func(*Failure) []byte) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.client.know = f
}

// Host is whose process the coordinator is in, and its rank; -1: it has none.
func (g *Group) Host() (host string, rank int) { return g.client.opts.Host, g.client.opts.HostRank }

// Abandon breaks all groups on this rank, without the coordinator, which does not decide: its
// process may be suspended. The other ranks find the same by themselves.
func (g *Group) Abandon(f *Failure) {
	f.Reporter, f.Group = g.client.rank, g.Name
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.client.abandon(f)
}

// Leave leaves the group in good order, at value. It returns when all members have left
// together or, if ctx ends before, when the others have come as far as value and need this
// rank no more: then alone is true. The rank stays in the session.
func (g *Group) Leave(ctx, life context.Context, value []byte) (alone bool, err error) {
	answer, forget := g.await(gatherKey{verb: Left, group: g.Name})
	defer forget()
	left, err := g.say(ctx, &Message{Verb: Leave, Group: g.Name, Value: value}, answer)
	if err != nil && ctx.Err() != nil {
		left, err = g.say(life, &Message{Verb: Leave, Group: g.Name, Value: value, Alone: true}, answer)
	}
	if err != nil {
		return false, err
	}
	g.forget()
	return left.Alone || left.Verb == Settled, nil
}

// OnLeaving has f called, in a goroutine of its own, when members leave alone, at values. It
// calls done once this rank has come as far. Without it, this rank needs nobody that leaves.
func (g *Group) OnLeaving(f func(ranks []int, values [][]byte, done func())) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.begin = f
}

// Quiet tells whether the group has not failed. What has reached this host, and has not been
// read yet, counts as told. It is false wherever the operating system does not say what is
// unread.
func (g *Group) Quiet() bool {
	c := g.client
	if c.unheard != nil && c.unheard() {
		return false
	}
	if c.conn != nil {
		if !c.reading.TryRLock() {
			return false
		}
		defer c.reading.RUnlock()
		if some, err := unread(c.conn); some || err != nil {
			return false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return g.failure == nil && c.silence < leaseTicks
}

// Lost tells whether the groups broke without the coordinator: nobody knows when all ranks know.
func (g *Group) Lost() bool {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	return g.client.abandoned
}

// Depart leaves the group in good order, and waits for nobody. The rank stays in the session.
func (g *Group) Depart() {
	g.client.send(&Message{Verb: Leave, Group: g.Name})
	g.forget()
}

// forget has what happens from now on be nothing to a group that this rank has left.
func (g *Group) forget() {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	if g.Name != "" {
		delete(g.client.groups, g.Name)
	}
}

// fail notes the failure of a group; the first stays. The client's mu is held.
func (g *Group) fail(f *Failure) {
	if g.failure == nil {
		g.failure = f
		close(g.failed)
	}
}

// answerTime is how long the coordinator may take to say what answers it has.
const answerTime = time.Second
