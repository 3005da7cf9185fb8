package coordinator

import (
	"bufio"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/handshake"
)

// Client is a rank's connection to the coordinator, for one session.
type Client struct {
	rank    int
	session int // set by Join
	opts    ClientOptions
	send    func(*Message) error
	quit    func() // ends the connection once all has been sent
	wg      sync.WaitGroup
	done    chan struct{} // closed when nothing comes any more

	// reading is held while what has come is read and carried out: whoever has it shared,
	// and finds nothing unread, knows all that the coordinator has said.
	reading sync.RWMutex
	conn    *net.TCPConn              // nil in the coordinator's process
	unheard func() bool               // there: whether something has not been carried out
	others  func(ctx context.Context) // there: awaitOthers

	mu        sync.Mutex
	know      func(*Failure) []byte
	groups    map[string]*Group
	waits     map[gatherKey]chan *Message
	questions uint64 // Post and Watch: their answers have their numbers
	leaving   bool
	heard     bool // since the last tick
	silence   silence
	reported  *Failure // the latest one that this rank reported
	undecided int      // ticks since
	abandoned bool     // the groups broke without the coordinator
}

// ClientOptions are a client's.
type ClientOptions struct {
	Options
	Size int
	// Host is whose process the coordinator is in, for people, and HostRank its rank; -1: it
	// has none.
	Host     string
	HostRank int
}

// gatherKey names what a rank waits for.
type gatherKey struct {
	verb       Verb
	group, key string
	number     uint64
}

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

func (e *Failure) Error() string {
	switch e.Kind {
	case Lost:
		return fmt.Sprintf("rank %d lost: %s", e.Ranks[0], e.Text)
	case Departed:
		return fmt.Sprintf("ranks %v left: they closed the process group", e.Ranks)
	case Exited:
		return fmt.Sprintf("rank %d has ended before it joined: %s", e.Ranks[0], e.Text)
	case Duplicate:
		return fmt.Sprintf("two processes say that they are rank %d: %s: they are of two jobs, or one was started twice: %s", e.Ranks[0], e.Text, handshake.Remedy)
	case Unreachable, Different:
		return e.Text
	}
	if len(e.Absent) > 0 {
		return fmt.Sprintf("%s: ranks %v have not come", e.Text, e.Absent)
	}
	return e.Text
}

// Dial connects rank to the coordinator at addr, host:port. Join follows.
func Dial(ctx context.Context, addr string, rank int, o ClientOptions) (*Client, error) {
	o.Options = o.withDefaults()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("the coordinator, in %s: %w", o.Host, err)
	}
	conn := nc.(*net.TCPConn)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	own := handshake.Party{Role: handshake.Rank, Job: o.Job, HasSecret: o.HasSecret, Rank: rank, Process: handshake.ThisProcess()}
	_, err = handshake.Dial(conn, own, o.Key)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = tune(conn)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("the coordinator, in %s: %w", o.Host, err)
	}
	box := newOutbox()
	c := newClient(rank, o)
	c.conn, c.quit = conn, box.close
	c.send = func(m *Message) error {
		if !box.put(encode(m)) {
			return fmt.Errorf("more than %d bytes that the coordinator has not taken", 2*maxMessage)
		}
		return nil
	}
	c.wg.Go(func() {
		if err := box.run(conn); err == nil {
			conn.CloseWrite()
		}
	})
	c.wg.Go(c.listen)
	c.wg.Go(c.tick)
	return c, nil
}

func newClient(rank int, o ClientOptions) *Client {
	c := &Client{rank: rank, opts: o, done: make(chan struct{}), groups: map[string]*Group{}, waits: map[gatherKey]chan *Message{}}
	all := make([]int, o.Size)
	for r := range all {
		all[r] = r
	}
	c.group("").Members = all
	return c
}

// group is the group of a name, which a failure may name before this rank does. mu is held,
// or the client not shared yet.
func (c *Client) group(name string) *Group {
	g := c.groups[name]
	if g == nil {
		g = &Group{Name: name, client: c, counts: map[string]int{}, failed: make(chan struct{}), settled: make(chan struct{})}
		c.groups[name] = g
		if root := c.groups[""]; root.failure != nil {
			g.fail(root.failure)
			if closed(root.settled) {
				close(g.settled)
			}
		}
	}
	return g
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

// Root is the group of all ranks.
func (c *Client) Root() *Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.group("")
}

// Join joins a session, gives the others a value, and returns those of all, by rank, when all
// have joined. Options must be the same on all ranks. apart tells that a failure in a group
// breaks no other one.
func (c *Client) Join(ctx context.Context, session int, options []Option, apart bool, value []byte) ([][]byte, error) {
	c.session = session
	m := &Message{Verb: Join, Session: session, Process: handshake.ThisProcess().String(), Options: options, Apart: apart, Value: value}
	return c.Root().exchange(ctx, m, gatherKey{verb: Gathered, key: JoinKey})
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

// answerTime is how long the coordinator may take to say what answers it has.
const answerTime = time.Second

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

// Depart leaves the session and ends the connection. In the coordinator's process it waits until
// the others' connections have ended too, or ctx ends.
func (c *Client) Depart(ctx context.Context) {
	c.send(&Message{Verb: Leave, Final: true})
	if c.conn == nil && c.opts.HostRank == c.rank {
		c.others(ctx)
	}
	c.Close()
}

// Close ends the connection. A rank that has not left is lost to the others.
func (c *Client) Close() {
	c.mu.Lock()
	c.leaving = true
	c.mu.Unlock()
	c.quit()
	if c.conn != nil { // a coordinator that is suspended does not end it
		timer := time.AfterFunc(flushTime, func() { c.conn.Close() })
		defer timer.Stop()
	}
	c.wg.Wait()
}

// listen carries out what the coordinator says.
func (c *Client) listen() {
	defer close(c.done)
	defer c.conn.Close()
	in := bufio.NewReaderSize(c.conn, readSize)
	for {
		awaitInput(c.conn) // of an error the read tells
		c.reading.Lock()
		m, err := decode(in, maxMessage)
		for ; err == nil; m, err = decode(in, maxMessage) {
			if c.receive(m); in.Buffered() == 0 {
				break
			}
		}
		c.reading.Unlock()
		if err != nil {
			c.lost(err)
			return
		}
	}
}

// receive carries out what the coordinator says.
func (c *Client) receive(m *Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = true
	switch m.Verb {
	case Asked:
		c.answer(m)
	case Failed:
		c.broken(m.Group, m.Failure)
		if m.Number > 0 { // else it is this connection's alone
			c.send(&Message{Verb: Ack, Number: m.Number})
		}
	case Settled:
		if m.Alone {
			c.hand(gatherKey{verb: Left, group: m.Group}, m)
		} else {
			c.settled(m.Group)
		}
	case Leaving:
		done := sync.OnceFunc(func() { c.send(&Message{Verb: Ack, Number: m.Number}) })
		if g := c.groups[m.Group]; g != nil && g.begin != nil {
			go g.begin(m.Ranks, m.Values, done)
		} else {
			done()
		}
	case Left, Answered:
		c.hand(gatherKey{verb: m.Verb, group: m.Group}, m)
	case Gathered, Watched, Posted:
		c.hand(gatherKey{m.Verb, m.Group, m.Key, m.Number}, m)
	}
}

// answer tells what this rank knows of a failure. mu is held.
func (c *Client) answer(m *Message) {
	know := c.know
	if !m.WantAnswers || know == nil {
		c.send(&Message{Verb: Ack, Number: m.Number})
		return
	}
	c.wg.Go(func() { c.send(&Message{Verb: Ack, Number: m.Number, Value: know(m.Failure)}) })
}

// hand gives a message to whoever waits for it. mu is held.
func (c *Client) hand(key gatherKey, m *Message) {
	if answer := c.waits[key]; answer != nil {
		delete(c.waits, key)
		answer <- m
	}
}

// broken notes the failure of a group, or of all. mu is held.
func (c *Client) broken(name string, f *Failure) {
	c.group(name).fail(f)
	if name == "" {
		for _, g := range c.groups {
			g.fail(f)
		}
	}
}

// fail notes the failure of a group; the first stays. The client's mu is held.
func (g *Group) fail(f *Failure) {
	if g.failure == nil {
		g.failure = f
		close(g.failed)
	}
}

// settled notes that all ranks know of a failure. mu is held.
func (c *Client) settled(name string) {
	for _, g := range c.groups {
		if (name == "" || name == g.Name) && g.failure != nil && !closed(g.settled) {
			close(g.settled)
		}
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// leaseTicks is after how many ticks of the coordinator's silence this rank takes nothing
// for the result of a call: another one may have failed, and not be able to tell. A report
// that is not decided for so long breaks the groups of its rank.
const leaseTicks = 5

// lost notes that the coordinator is gone, or does not answer. The others find the same, or
// are told that this rank is lost. Nothing settles that: when the lease is over, all know.
func (c *Client) lost(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving || c.group("").failure != nil {
		c.broken("", &Failure{Kind: Unreachable, Reporter: c.rank, Text: "the connection to the coordinator is closed"})
		c.settled("")
		return
	}
	text := fmt.Sprintf("the coordinator, in %s, is lost: %v", c.opts.Host, why)
	if errors.Is(why, io.EOF) || errors.Is(why, syscall.ECONNRESET) {
		text = fmt.Sprintf("the coordinator, in %s, is lost: its process ended, or this rank was refused", c.opts.Host)
	}
	f := &Failure{Kind: Unreachable, Reporter: c.rank, Text: text}
	if r := c.opts.HostRank; r >= 0 {
		f.Kind, f.Ranks = Lost, []int{r}
	}
	c.abandon(f)
}

// abandon breaks all groups without the coordinator. mu is held.
func (c *Client) abandon(f *Failure) {
	c.broken("", f)
	c.abandoned = true
	time.AfterFunc((leaseTicks+1)*c.opts.Interval, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settled("")
	})
}

// reportedIn is the group that this rank's latest report is about; nil: there is none, or it has left.
func (c *Client) reportedIn() *Group {
	if c.reported == nil {
		return nil
	}
	return c.groups[c.reported.Group]
}

// tick tells the coordinator that this rank runs, and finds that it does not.
func (c *Client) tick() {
	ticker := time.NewTicker(c.opts.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-c.done:
			return
		}
		c.mu.Lock()
		var undecided *Failure
		if g := c.reportedIn(); g != nil && g.failure == nil {
			f := c.reported
			if c.undecided++; c.silence > leaseTicks {
				c.broken("", f)
				c.settled("") // no rank takes a call for done any more
			} else if c.undecided%leaseTicks == 0 { // a rank that is asked is suspended, or one that has reported
				undecided = f
			}
		}
		say := c.silence.tick(c.heard)
		c.heard = c.conn == nil // it is in this process
		over := c.silence > c.opts.silent()
		c.mu.Unlock()
		if undecided != nil {
			c.send(&Message{Verb: Fail, Group: undecided.Group, Failure: undecided, Final: true})
		}
		if over {
			c.lost(fmt.Errorf("it has not been heard of for %v", c.opts.Silence))
			c.conn.Close()
			return
		}
		if say {
			c.send(&Message{Verb: Alive})
		}
	}
}
