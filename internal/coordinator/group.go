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

	failed  chan struct{} // closed when failure is set
	settled chan struct{} // closed when all ranks have acknowledged the group's failure

	// The client's mu guards failure, counts, awaited and onLeaving.
	failure   *Failure
	counts    map[string]int // by name: the number of calls of Count with this name
	awaited   string         // the key of the Gather that this rank waits for, or waited for last
	onLeaving func(ranks []int, values [][]byte, done func())
}

// Rank returns this rank's number in the job.
func (g *Group) Rank() int { return g.client.rank }

// Key returns a key that all members of the group know and no process outside the job knows. The
// members can use it for connections between themselves.
func (g *Group) Key() []byte {
	h := hmac.New(sha256.New, g.client.opts.Key)
	fmt.Fprintf(h, "%d %s", g.client.session, g.Name)
	return h.Sum(nil)
}

// Make makes a group of some ranks. All members must call it. When all have called it, Make returns
// the members' values, in the order of members.
func (g *Group) Make(ctx context.Context, name string, members []int, value []byte) (*Group, [][]byte, error) {
	c := g.client
	c.mu.Lock()
	made := c.group(name)
	made.Members = members
	c.mu.Unlock()
	values, err := made.exchange(ctx, &Message{Verb: Gather, Group: name, Key: JoinKey, Ranks: members, Value: value}, answerKey{verb: Gathered, group: name, key: JoinKey})
	return made, values, err
}

// Gather waits until all members have called it with this key, and returns their values, in the
// order of Members. It returns nil if all values are empty. A key can be used once.
func (g *Group) Gather(ctx context.Context, key string, value []byte) ([][]byte, error) {
	return g.exchange(ctx, &Message{Verb: Gather, Group: g.Name, Key: key, Value: value}, answerKey{verb: Gathered, group: g.Name, key: key})
}

// Missing returns the members that have not called Gather with this key. For LeaveKey, Missing
// returns the members that have not left.
func (g *Group) Missing(ctx context.Context, key string) ([]int, error) {
	m, err := g.question(ctx, &Message{Verb: Query, Key: key}, Queried)
	if err != nil {
		return nil, err
	}
	return m.Ranks, nil
}

// Post stores this rank's value of a key for the other members. The value replaces the value that
// this rank posted before with this key. When Post has returned, Posted returns the value on all
// members.
func (g *Group) Post(ctx context.Context, key string, value []byte) error {
	if len(value) > maxPost {
		return fmt.Errorf("posting %d bytes, at most %d", len(value), maxPost)
	}
	_, err := g.question(ctx, &Message{Verb: Post, Key: key, Value: value}, Posted)
	return err
}

// Posted returns the values of a key that the given ranks posted last. The value of a rank that has
// posted nothing is empty.
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

// question sends m with a number of its own, and waits for the answer with the same number. The
// number is needed because several goroutines may send the same message, and because an answer may
// arrive after its goroutine has stopped waiting.
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

// await returns a channel that receives the next message with this key. The caller must call forget
// when it no longer waits for the message.
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
	case a := <-answer: // the answer has arrived too
		return a, nil
	default:
	}
	if f := g.Failure(); f != nil {
		return nil, f
	}
	return nil, cmp.Or(context.Cause(ctx), errClosed)
}

// Bound returns a context that ends when ctx ends or when the group fails. If the group fails, the
// cause of the context is the Failure. The caller must call the returned function to release the
// context.
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

// Failed returns a channel that is closed when the group breaks: the coordinator has chosen the
// group's failure, or this rank has lost the coordinator.
func (g *Group) Failed() <-chan struct{} { return g.failed }

// Settled returns a channel that is closed when all ranks know of the group's failure. Then this rank
// may abort transfers: no rank reports a call that uses these transfers as successful any more.
func (g *Group) Settled() <-chan struct{} { return g.settled }

// Failure returns why the group broke, which is the same on all ranks. It returns nil if the group
// has not failed.
func (g *Group) Failure() *Failure {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	return g.failure
}

// Fail reports the failure f. The coordinator asks the ranks in asked. When they have answered or are
// lost, it chooses f or another failure as the failure of the group. Fail returns at once. When the
// channel Failed is closed, Failure returns the chosen failure. If an asked rank or the coordinator
// does not answer within a few intervals of heartbeats, f becomes the failure of the group.
func (g *Group) Fail(f *Failure, asked ...int) { g.report(*f, &Message{Ranks: asked}) }

// report sends a failure in the message m.
func (g *Group) report(f Failure, m *Message) {
	c := g.client
	f.Reporter, f.Group = c.rank, g.Name
	m.Verb, m.Group, m.Failure = Fail, g.Name, &f
	c.mu.Lock()
	c.reported, c.undecided = &f, 0
	c.mu.Unlock()
	c.send(m) // no error check: if the connection has ended, the group has failed already
}

// Expect says that this rank will next wait for the Gather with this key. If GiveUp is called, the
// failure names the members that have not called this Gather.
func (g *Group) Expect(key string) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.awaited = key
}

// GiveUp reports that this rank stops making the group because of err. late says that err is a
// timeout. GiveUp returns the failure that the coordinator has chosen, which is the same on all
// ranks. If the coordinator chose the failure that this rank reported, this failure names the ranks
// that this rank waited for.
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

// Decide asks the coordinator to make f the failure of the group now, without waiting for answers
// of other ranks. This ends an inquiry that this rank has started by Fail or Inquire.
func (g *Group) Decide(f *Failure) { g.report(*f, &Message{Final: true}) }

// Inquire reports the failure f and asks ranks what they know of it. When all have answered, Inquire
// returns their answers, by rank. When ctx ends first, it returns the answers so far. The answer of a
// rank that has left is empty. The caller must call Decide next. If the coordinator chooses another
// failure meanwhile, Inquire returns this failure as its error.
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

// OnAsked registers f, which answers the inquiries of other ranks. The client calls f in a goroutine
// of its own. f must return soon.
func (g *Group) OnAsked(f func(*Failure) []byte) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.client.answerer = f
}

// Host returns a description of the process that hosts the coordinator, and the rank of this process.
// The rank is -1 if the process is no rank.
func (g *Group) Host() (host string, rank int) { return g.client.opts.Host, g.client.opts.HostRank }

// Abandon breaks all groups on this rank with the failure f. It does not use the coordinator. The
// caller calls Abandon if the coordinator does not answer, for example because its process is
// suspended. The other ranks notice this silence themselves.
func (g *Group) Abandon(f *Failure) {
	f.Reporter, f.Group = g.client.rank, g.Name
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.client.abandon(f)
}

// Leave leaves the group without a failure, and waits until all members have left. value is this
// rank's progress. If ctx ends first, Leave only waits until the other members have reached the
// progress value and do not need this rank any more. alone reports that a member of the group left
// in this way. life bounds the second wait. The rank stays in the session.
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

// OnLeaving registers f. The client calls f, in a goroutine of its own, when ranks leave the group
// without waiting for the others. values are the progress of these ranks. f must call done when this
// rank has reached the same progress. If no f is registered, the client lets ranks leave at once.
func (g *Group) OnLeaving(f func(ranks []int, values [][]byte, done func())) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.onLeaving = f
}

// Quiet reports whether no message about a failure can have reached this host. It returns false if
// the group has failed, if a message has arrived that this process has not read, if the operating
// system cannot say whether there is unread input, or if the coordinator has been silent for
// leaseTicks.
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

// Lost reports whether this rank broke its groups without a decision of the coordinator. The message
// Settled then does not arrive.
func (g *Group) Lost() bool {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	return g.client.abandoned
}

// Depart leaves the group without a failure and without waiting for the other members. The rank stays
// in the session.
func (g *Group) Depart() {
	g.client.send(&Message{Verb: Leave, Group: g.Name})
	g.forget()
}

// forget removes a group that this rank has left from the client's groups.
func (g *Group) forget() {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	if g.Name != "" {
		delete(g.client.groups, g.Name)
	}
}

// fail sets the failure of a group and closes failed. If the group has already failed, fail does
// nothing. The caller must hold the client's mu.
func (g *Group) fail(f *Failure) {
	if g.failure == nil {
		g.failure = f
		close(g.failed)
	}
}

// answerTime: when ctx has ended, Inquire waits for half of this time until the coordinator returns the
// answers so far.
const answerTime = time.Second
