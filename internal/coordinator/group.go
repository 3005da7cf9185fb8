package coordinator

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/goddp/goddp/internal/rootcause"
)

// Group is this rank's handle on a group of ranks.
type Group struct {
	Name    string // "" for the group of all ranks
	Members []int  // the members' numbers in the job
	client  *Client

	failed  chan struct{} // closed when failure is set
	settled chan struct{} // see Settled

	// The client's mu guards failure, counts, awaited and onLeaving.
	failure   *Failure
	counts    map[string]int // by name: the number of calls of Count with this name
	awaited   string         // the key of the Gather that this rank waits for, or waited for last
	onLeaving func(ranks []int, values [][]byte, done func())
	onFailure func() // nil: none
}

// Rank returns this rank's number in the job.
func (g *Group) Rank() int { return g.client.rank }

// Key returns a key that all members of the group can compute. The members can use the key for
// connections between themselves. In a job with a secret, no process outside the job knows the key. In
// a job without a secret, every process that can read the job's store can compute it.
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

// Missing returns the members that the gather of a key waits for: the members that have not called
// Gather with this key. Missing returns nil if no member has called it, or if all members have. For
// LeaveKey, Missing returns the members that have not left.
func (g *Group) Missing(ctx context.Context, key string) ([]int, error) {
	m, err := g.question(ctx, &Message{Verb: Query, Key: key}, Queried)
	if err != nil {
		return nil, err
	}
	return m.Ranks, nil
}

// Post stores this rank's value of a key for the other members. The value replaces the value that
// this rank posted before with this key. An empty value withdraws it. When Post has returned, Posted
// returns the value on all members. Post and Posted also work in a group that has failed, while the
// coordinator can be reached.
func (g *Group) Post(ctx context.Context, key string, value []byte) error {
	if len(value) > maxPost {
		return fmt.Errorf("posting %d bytes: want at most %d", len(value), maxPost)
	}
	_, err := g.question(ctx, &Message{Verb: Post, Key: key, Value: value}, Posted)
	return err
}

// Posted waits until all the given ranks have posted a value of a key, and returns the values that they
// posted last. It returns an error if one of them has left or is lost, and has posted none.
func (g *Group) Posted(ctx context.Context, key string, ranks []int) (values [][]byte, err error) {
	for len(values) < len(ranks) {
		m := &Message{Verb: Post, Key: key, Ranks: ranks[len(values):]}
		theirs, err := g.question(ctx, m, Posted)
		if err != nil {
			g.client.send(&Message{Verb: Post, Group: g.Name, Key: key, Number: m.Number, Final: true}) // no error check: without a connection, there is nothing to withdraw
			return nil, err
		}
		if len(theirs.Ranks) > 0 {
			return nil, fmt.Errorf("%s ended or left before posting a value of %q", rootcause.Ranks(theirs.Ranks), key)
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
	if n := len(answer.Values); n != 0 && n != len(g.Members) {
		return nil, fmt.Errorf("the coordinator returned the values of %d ranks, want %d", n, len(g.Members))
	}
	return answer.Values, nil
}

// question gives m a new number, sends m, and waits for the answer with the same number. The number is
// needed for two reasons: several goroutines may ask the same question, and an answer may arrive after
// its goroutine has stopped waiting.
func (g *Group) question(ctx context.Context, m *Message, answer Verb) (*Message, error) {
	c := g.client
	c.mu.Lock()
	c.questions++
	m.Number = c.questions
	c.mu.Unlock()
	m.Group = g.Name
	return g.ask(ctx, m, answerKey{answer, m.Group, m.Key, m.Number})
}

// ask sends a message and waits for the answer, the group's failure (unless it is a Post), or the end of ctx.
func (g *Group) ask(ctx context.Context, m *Message, key answerKey) (*Message, error) {
	answer, forget := g.await(key)
	defer forget()
	return g.say(ctx, m, answer)
}

// await returns a channel. The client sends the next message that has this answerKey to the channel,
// and no later message. The caller must call forget when the caller no longer waits for the message.
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
	failed := g.failed
	if m.Verb == Post {
		failed = nil
	}
	select {
	case a := <-answer:
		return a, nil
	case <-failed:
	case <-g.client.done: // the connection has ended
	case <-ctx.Done():
	}
	select {
	case a := <-answer: // the answer has arrived at the same time, so the call succeeds
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

// Settled returns a channel. When the channel is closed, no rank reports a call of the broken group as
// successful any more, so this rank may abort the group's transfers. The channel is closed when all
// ranks have acknowledged the group's failure. If this rank has lost the coordinator, the channel is
// closed when every other rank has had enough time to notice this too.
func (g *Group) Settled() <-chan struct{} { return g.settled }

// Failure returns why the group broke. It returns nil if the group has not failed. The failure is the
// same on all ranks if the coordinator chose it. A rank that breaks its groups without the coordinator
// may have another failure.
func (g *Group) Failure() *Failure {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	return g.failure
}

// Fail reports the failure f to the coordinator, and returns at once. The coordinator asks the ranks in
// the parameter asked. When these ranks have answered or are lost, the coordinator chooses f or another
// failure. Then the channel Failed is closed, and Failure returns the chosen failure.
//
// If an asked rank does not answer, this rank asks the coordinator to choose f after leaseTicks
// intervals. If the coordinator itself is silent for longer than that, this rank breaks its own groups
// with f, without the coordinator.
func (g *Group) Fail(f *Failure, asked ...int) { g.report(*f, &Message{Ranks: asked}) }

// report completes m as a message Fail with the failure f, and sends m. This restarts the time after
// which Client.tick asks for a decision.
func (g *Group) report(f Failure, m *Message) {
	c := g.client
	f.Reporter, f.Group = c.rank, g.Name
	m.Verb, m.Group, m.Failure = Fail, g.Name, &f
	c.mu.Lock()
	c.reported, c.undecided = &f, 0
	c.mu.Unlock()
	c.send(m) // no error check: if the connection has ended, the group has failed already
}

// Expect notes that this rank will next wait for the other members at the Gather with this key. If this
// rank then calls GiveUp, the reported failure names the members that have not called this Gather.
func (g *Group) Expect(key string) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.awaited = key
}

// GiveUp reports that this rank cannot make the group because of the error err. The parameter late says
// that err is a timeout. GiveUp waits until the group has failed, and returns the group's failure. If
// the coordinator chose this rank's report, the failure names the members that this rank waited for in
// a Gather (see Expect). If err is already a Failure, GiveUp reports nothing and returns err.
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

// Decide asks the coordinator to choose f as the failure of the group now, without waiting for answers
// of other ranks. There is one exception: while the coordinator asks ranks about a report of another rank,
// this rank's first call of Decide has no effect, and only its second call makes the coordinator choose f.
func (g *Group) Decide(f *Failure) { g.report(*f, &Message{Final: true}) }

// Inquire reports the failure f and asks the ranks in the parameter ranks what they know of f. When all
// of them have answered, Inquire returns the answers, by rank. If ctx ends first, Inquire returns the
// answers so far. The answer of a rank that has left is empty. If the coordinator chooses a failure
// before Inquire returns, Inquire returns this failure as its error. Unless the group has failed, the
// caller must call Decide next, even if Inquire has returned an error.
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

// OnAsked registers the function f, which answers when another rank calls Inquire. The client calls f
// in a new goroutine. f must return soon.
func (g *Group) OnAsked(f func(*Failure) []byte) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.client.answerer = f
}

// Host returns a description of the process that hosts the coordinator, and the rank that hosts the
// coordinator. The rank is -1 if no rank hosts it.
func (g *Group) Host() (host string, rank int) { return g.client.opts.Host, g.client.opts.HostRank }

// Abandon breaks all groups on this rank with the failure f, without the coordinator. Call Abandon if
// the coordinator does not answer, for example because the coordinator's process is suspended. The
// other ranks notice the coordinator's silence themselves.
func (g *Group) Abandon(f *Failure) {
	f.Reporter, f.Group = g.client.rank, g.Name
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.client.abandon(f)
}

// Leave leaves the group without a failure, and waits until all members have left. If ctx ends first,
// Leave stops waiting for the others to leave. Leave then waits only until the others have made as much
// progress as this rank, because from then on they do not need this rank. The parameter value is this
// rank's progress. The second wait ends with an error if the context `life` ends. The result alone
// reports whether this rank or another member left without waiting for all members. This rank stays in
// the session.
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

// OnLeaving registers the function f. The client calls f, in a new goroutine, when the ranks in the
// parameter ranks leave the group without waiting for the others. The parameter values holds the
// progress of these ranks. f must call done when this rank has reached the progress of all of them. If
// no function is registered, the client acknowledges the message Leaving at once.
func (g *Group) OnLeaving(f func(ranks []int, values [][]byte, done func())) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	g.onLeaving = f
}

// Quiet reports whether this rank may report a call as successful. Quiet returns true if all of these
// conditions hold:
//
//   - The group has not failed.
//   - This rank has handled all messages that have reached its host. On the rank that hosts the
//     coordinator, the coordinator has handled all messages of other ranks too. If the operating system
//     cannot say whether there is unread input, Quiet returns false.
//   - A message of the coordinator has arrived within the last leaseTicks intervals.
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

// Lost reports whether this rank has broken its groups itself, because it lost the connection to the
// coordinator or because the caller called Abandon. This rank then does not wait for the message
// Settled: the client closes the channel Settled after leaseTicks+1 intervals.
func (g *Group) Lost() bool {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	return g.client.abandoned
}

// Depart leaves the group without a failure, and returns at once. The coordinator does not ask the other
// members whether they still need this rank. If a member still needs this rank, and reports a failure
// about which this rank is to be asked, the group's failure is Departed. This rank stays in the session.
func (g *Group) Depart() {
	g.client.send(&Message{Verb: Leave, Group: g.Name})
	g.forget()
}

// forget removes the group, which this rank has left, from the client's groups.
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
		if g.onFailure != nil {
			g.onFailure()
		}
		close(g.failed)
	}
}

// OnFailure registers f, which is called when the group has failed, before any other rank learns that this rank knows of
// the failure. f must return at once.
func (g *Group) OnFailure(f func()) {
	g.client.mu.Lock()
	defer g.client.mu.Unlock()
	if g.onFailure = f; g.failure != nil {
		f()
	}
}

// answerTime/2 is the time for which Inquire waits, after ctx has ended, for the answers so far.
const answerTime = time.Second
