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

// Group is this rank's handle on a group of ranks.
type Group struct {
	Name    string // "" for the group of all ranks
	Members []int  // the members' numbers in the job
	client  *Client

	failed  chan struct{} // closed when failure is decided
	settled chan struct{} // closed when all ranks have acknowledged the failure

	// The client's mu guards the fields below.
	failure   *Failure
	counts    map[string]int // by name: the number of calls of Count
	awaited   string         // the key of the gather that this rank waits for, or waited for last
	onLeaving func(ranks []int, values [][]byte, done func())
}

// Rank returns this rank's number in the job.
func (g *Group) Rank() int { return g.client.rank }

// Key returns a key that all members of the group know and no process outside the job knows. The
// members use it for connections of their own.
func (g *Group) Key() []byte {
	h := hmac.New(sha256.New, g.client.opts.Key)
	fmt.Fprintf(h, "%d %s", g.client.session, g.Name)
	return h.Sum(nil)
}

// Make makes a group of some ranks. All members must call it. It returns the values of the
// members, in the order of members, when all have called it.
func (g *Group) Make(ctx context.Context, name string, members []int, value []byte) (*Group, [][]byte, error) {
	c := g.client
	c.mu.Lock()
	made := c.group(name)
	made.Members = members
	c.mu.Unlock()
	values, err := made.exchange(ctx, &Message{Verb: Gather, Group: name, Key: JoinKey, Ranks: members, Value: value}, answerKey{verb: Gathered, group: name, key: JoinKey})
	return made, values, err
}

// Gather returns the values that all members give, in the order of Members, when all have called
// it with this key. It returns nil if all values are empty. A key can be used once.
func (g *Group) Gather(ctx context.Context, key string, value []byte) ([][]byte, error) {
	return g.exchange(ctx, &Message{Verb: Gather, Group: g.Name, Key: key, Value: value}, answerKey{verb: Gathered, group: g.Name, key: key})
}

// Missing returns the members that have not given their value of a key. With LeaveKey it returns
// the members that have not left.
func (g *Group) Missing(ctx context.Context, key string) ([]int, error) {
	m, err := g.question(ctx, &Message{Verb: Query, Key: key}, Queried)
	if err != nil {
		return nil, err
	}
	return m.Ranks, nil
}

// Post stores a value of a key for the other members, and replaces the value that this rank posted
// before. When Post has returned, Posted returns the value on all members.
func (g *Group) Post(ctx context.Context, key string, value []byte) error {
	if len(value) > maxPost {
		return fmt.Errorf("posting %d bytes, at most %d", len(value), maxPost)
	}
	_, err := g.question(ctx, &Message{Verb: Post, Key: key, Value: value}, Posted)
	return err
}

// Posted returns the values of a key that the given ranks posted last. The value of a rank that
// posted none is empty.
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

// Count returns how often this rank has called Count with this name, including this call. If all
// members make the same calls in the same order, they get the same numbers.
func (g *Group) Count(name string) int {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.counts[name]++
	return g.counts[name]
}

// exchange sends a message and returns the values of the answer.
func (g *Group) exchange(ctx context.Context, m *Message, key answerKey) ([][]byte, error) {
	answer, err := g.ask(ctx, m, key)
	if err != nil {
		return nil, err
	}
	return answer.Values, nil
}

// question sends a message with a number of its own, and waits for the answer with that number.
// Several goroutines may ask the same question, and an answer may arrive after its goroutine has
// stopped waiting.
func (g *Group) question(ctx context.Context, m *Message, answer Verb) (*Message, error) {
	c := g.client
	c.mu.Lock()
	c.questions++
	m.Number = c.questions
	c.mu.Unlock()
	m.Group = g.Name
	return g.ask(ctx, m, answerKey{answer, m.Group, m.Key, m.Number})
}

// ask sends a message and waits for the answer, the group's failure, or the end of ctx.
func (g *Group) ask(ctx context.Context, m *Message, key answerKey) (*Message, error) {
	answer, forget := g.await(key)
	defer forget()
	return g.say(ctx, m, answer)
}

// await returns a channel that receives the next message with a key. The caller must call forget
// when it no longer waits.
func (g *Group) await(key answerKey) (answer chan *Message, forget func()) {
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

// say sends a message and waits for the answer on a channel that await returned.
func (g *Group) say(ctx context.Context, m *Message, answer chan *Message) (*Message, error) {
	if err := g.client.send(m); err != nil {
		return nil, err
	}
	select {
	case a := <-answer:
		return a, nil
	case <-g.failed:
	case <-g.client.done: // the connection has ended
	case <-ctx.Done():
	}
	select {
	case a := <-answer: // the answer arrived before the other event
		return a, nil
	default:
	}
	if f := g.Failure(); f != nil {
		return nil, f
	}
	return nil, cmp.Or(context.Cause(ctx), errClosed)
}

// Bound returns a context that ends with ctx or when the group fails. In the latter case its cause
// is the Failure. The caller must call the returned function to release the context.
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

// Failed returns a channel that is closed when the group's failure is decided, or when the
// coordinator is lost.
func (g *Group) Failed() <-chan struct{} { return g.failed }

// Settled returns a channel that is closed when all ranks know of the group's failure. From then
// on this rank may abort transfers: no rank reports their results as those of a successful call.
func (g *Group) Settled() <-chan struct{} { return g.settled }

// Failure returns why the group broke, which is the same on all ranks. It returns nil if the group
// has not failed.
func (g *Group) Failure() *Failure {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	return g.failure
}

// Fail reports a failure. The coordinator decides it when the ranks in asked have answered or were
// lost. Fail returns at once; Failed says when a failure is decided, and Failure which one. If an
// asked rank or the coordinator does not answer within some intervals, the failure is f.
func (g *Group) Fail(f *Failure, asked ...int) { g.report(*f, &Message{Ranks: asked}) }

// report sends a failure in the message m.
func (g *Group) report(f Failure, m *Message) {
	c := g.client
	f.Reporter, f.Group = c.rank, g.Name
	m.Verb, m.Group, m.Failure = Fail, g.Name, &f
	c.mu.Lock()
	c.reported, c.undecided = &f, 0
	c.mu.Unlock()
	c.send(m) // no error check: if the connection has ended, that is a failure already
}

// Expect says that this rank waits for the gather with this key next. If the group times out, the
// members that have not joined that gather are the missing ones.
func (g *Group) Expect(key string) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.awaited = key
}

// GiveUp reports that this rank stops making the group because of err. late says that its time is
// over. GiveUp returns the failure that the coordinator decided, which is the same on all ranks. If
// that is this rank's report, it names the ranks that this rank waited for.
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

// Decide asks the coordinator to decide the failure f. It ends an inquiry that Fail or Inquire of
// this rank has started.
func (g *Group) Decide(f *Failure) { g.report(*f, &Message{Final: true}) }

// Inquire reports a failure and asks ranks what they know of it. It returns their answers, by rank,
// when all have answered, or the answers so far when ctx ends. The answer of a rank that has left
// is empty. The caller must call Decide next. If another failure is decided meanwhile, Inquire
// returns that failure as its error.
func (g *Group) Inquire(ctx context.Context, f *Failure, ranks []int) (answers map[int][]byte, err error) {
	m := &Message{Verb: Fail, Group: g.Name, Failure: f, Ranks: ranks, WantAnswers: true}
	answer, err := g.ask(ctx, m, answerKey{verb: Answered, group: g.Name})
	if err != nil && ctx.Err() != nil {
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime/2)
		defer cancel()
		answer, err = g.ask(again, m, answerKey{verb: Answered, group: g.Name})
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

// OnAsked registers f, which answers the inquiries of other ranks. f is called in a goroutine of its
// own and must return soon.
func (g *Group) OnAsked(f func(*Failure) []byte) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.client.answerer = f
}

// Host returns a description of the process that hosts the coordinator, and its rank, or -1 if it
// is no rank.
func (g *Group) Host() (host string, rank int) { return g.client.opts.Host, g.client.opts.HostRank }

// Abandon breaks all groups on this rank with the failure f, without the coordinator, which does
// not answer. Its process may be suspended. The other ranks find the same by themselves.
func (g *Group) Abandon(f *Failure) {
	f.Reporter, f.Group = g.client.rank, g.Name
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.client.abandon(f)
}

// Leave leaves the group, which is no failure. value says how far this rank has come. Leave returns when
// all members have left. If ctx ends before, it returns as soon as the other members have come as
// far as value and need this rank no more; alone is then true. life bounds that second wait. The
// rank stays in the session.
func (g *Group) Leave(ctx, life context.Context, value []byte) (alone bool, err error) {
	answer, forget := g.await(answerKey{verb: Left, group: g.Name})
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

// OnLeaving registers f, which is called in a goroutine of its own when members leave alone. values
// say how far they have come. f must call done when this rank has come as far. If no f is
// registered, this rank needs no member that leaves.
func (g *Group) OnLeaving(f func(ranks []int, values [][]byte, done func())) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.onLeaving = f
}

// Quiet reports whether the group has not failed, as far as this host has been told. A message that
// has reached this host, but has not been read, counts: Quiet then returns false. Quiet also
// returns false if the operating system cannot say whether there is unread input, or if the
// coordinator has been silent for leaseTicks.
func (g *Group) Quiet() bool {
	c := g.client
	if c.hasPending != nil && c.hasPending() {
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

// Lost reports whether the groups broke without a decision of the coordinator, so that no Settled
// will arrive.
func (g *Group) Lost() bool {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	return g.client.abandoned
}

// Depart leaves the group without waiting for the other members. That is no failure. The rank stays in
// the session.
func (g *Group) Depart() {
	g.client.send(&Message{Verb: Leave, Group: g.Name})
	g.forget()
}

// forget removes a group that this rank has left from the client, so that later messages do not
// concern it.
func (g *Group) forget() {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	if g.Name != "" {
		delete(g.client.groups, g.Name)
	}
}

// fail notes the failure of a group. Only the first failure counts. The caller must hold the
// client's mu.
func (g *Group) fail(f *Failure) {
	if g.failure == nil {
		g.failure = f
		close(g.failed)
	}
}

// answerTime bounds how long the coordinator may take to return the answers that it has.
const answerTime = time.Second
