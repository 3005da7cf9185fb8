package coordinator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/wire"
)

// Client is a rank's connection to the coordinator, for one session.
type Client struct {
	rank    int
	session int // the number of the session; Join sets it
	opts    ClientOptions
	send    func(*Message) error
	quit    func() // ends the connection once all messages are sent
	wg      sync.WaitGroup
	done    chan struct{} // closed when the connection has ended and no more messages arrive

	// The lock `reading` tells whether all received messages are handled. The method listen holds the
	// write lock while it reads and handles messages. So if another goroutine holds the read lock,
	// and the connection has no unread input, all messages received so far are handled.
	reading sync.RWMutex
	conn    *net.TCPConn // nil if this rank runs in the coordinator's process

	// hasPending and awaitOthers are nil unless this rank runs in the coordinator's process.
	hasPending  func() bool               // reports whether the coordinator or this rank has received a message and not handled it
	awaitOthers func(ctx context.Context) // Server.awaitOthers

	mu          sync.Mutex
	answerer    func(*Failure) []byte
	groups      map[string]*Group
	waits       map[answerKey]chan *Message
	questions   uint64 // the number of the latest Post or Query; its answer has the same number
	leaving     bool
	hasReceived bool // a message has arrived since the last tick
	silence     silence
	reported    *Failure // the latest failure that this rank reported
	undecided   int      // the number of ticks since this rank's latest report
	abandoned   bool     // see Group.Lost
}

// ClientOptions are the options of a client.
type ClientOptions struct {
	Options
	Size int
	// Host describes the process that hosts the coordinator, for error messages. HostRank is the
	// rank that hosts the coordinator. It is -1 if no rank hosts the coordinator.
	Host     string
	HostRank int
	// Addr is the address, host:port, at which Find connects to the coordinator; "": the published addresses.
	Addr string
}

// answerKey identifies the message that a goroutine waits for.
type answerKey struct {
	verb       Verb
	group, key string
	number     uint64
}

// dialPause is the time between two attempts to connect with a coordinator that has ended the connection.
const dialPause = 100 * time.Millisecond

// Dial connects a rank to the coordinator at addr, which is host:port. If the rank or the coordinator is
// very busy, the coordinator may close the connection during the handshake, because this rank seems to
// send nothing. Dial then connects again, until ctx ends. The caller must call Join next.
func Dial(ctx context.Context, addr string, rank int, o ClientOptions) (*Client, error) {
	o.Options = o.withDefaults()
	conn, err := o.connect(ctx, addr, rank)
	for handshake.IsHangUp(err) && ctx.Err() == nil {
		select {
		case <-time.After(dialPause):
			conn, err = o.connect(ctx, addr, rank)
		case <-ctx.Done():
			err = fmt.Errorf("the coordinator ended the last connection during the handshake: %w", err)
		}
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w; %w", cause, err)
	}
	if err != nil {
		return nil, fmt.Errorf("the coordinator, in %s: %w", o.Host, err)
	}
	box := wire.NewOutbox(maxPending)
	c := newClient(rank, o)
	c.conn, c.quit = conn, box.Close
	c.send = func(m *Message) error {
		if !box.Put(wire.Encode(m)) {
			return fmt.Errorf("more than %d bytes wait to be sent, because the coordinator does not read", maxPending)
		}
		return nil
	}
	c.wg.Go(func() {
		if err := box.Run(conn); err == nil {
			conn.CloseWrite()
		}
	})
	c.wg.Go(c.listen)
	c.wg.Go(c.tick)
	return c, nil
}

// connect opens a connection and performs the handshake.
func (o *ClientOptions) connect(ctx context.Context, addr string, rank int) (*net.TCPConn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn := nc.(*net.TCPConn)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	self := handshake.Party{Role: handshake.Rank, Job: o.Job, HasSecret: o.HasSecret, Rank: rank, Process: handshake.ThisProcess()}
	_, _, err = handshake.Dial(conn, self, o.Key)
	if !stop() && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = detectDeadHost(conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func newClient(rank int, o ClientOptions) *Client {
	c := &Client{rank: rank, opts: o, done: make(chan struct{}), groups: map[string]*Group{}, waits: map[answerKey]chan *Message{}}
	c.group("").Members = ranksOf(o.Size)
	return c
}

// group returns the group with a name, and creates it if the client does not know it yet. The caller
// must hold mu, except in newClient, where no other goroutine knows the client yet.
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

// Root returns the group of all ranks.
func (c *Client) Root() *Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.group("")
}

// Join joins a session and waits until all ranks have joined. It returns the values of all ranks, by
// rank. The options must be equal on all ranks. So must be the parameter isolated, but Join does not
// check this: the coordinator uses the value of the first rank that joins. If isolated is true, a failure
// reported in one group breaks only that group. A failure of the group of all ranks, such as a rank's
// death, still breaks all groups.
func (c *Client) Join(ctx context.Context, session int, options []Option, isolated bool, value []byte) ([][]byte, error) {
	c.session = session
	m := &Message{Verb: Join, Session: session, Process: handshake.ThisProcess().String(), Options: options, Isolated: isolated, Value: value}
	return c.Root().exchange(ctx, m, answerKey{verb: Gathered, key: JoinKey})
}

// Depart leaves the session and ends the connection. On the rank that hosts the coordinator, Depart
// first waits until the connections of the other ranks have ended, or ctx ends.
func (c *Client) Depart(ctx context.Context) {
	c.send(&Message{Verb: Leave, Final: true})
	if c.conn == nil && c.opts.HostRank == c.rank {
		c.awaitOthers(ctx)
	}
	c.Close()
}

// Close ends the connection. If this rank has not left the session, the coordinator notifies the other
// ranks that this rank is lost.
func (c *Client) Close() {
	c.mu.Lock()
	c.leaving = true
	c.mu.Unlock()
	c.quit()
	if c.conn != nil { // normally the coordinator now ends the connection; if the coordinator is suspended, the timer does
		timer := time.AfterFunc(flushTime, func() { c.conn.Close() })
		defer timer.Stop()
	}
	c.wg.Wait()
}

// listen reads and handles the coordinator's messages until the connection ends.
func (c *Client) listen() {
	defer close(c.done)
	defer c.conn.Close()
	in := bufio.NewReaderSize(c.conn, readSize)
	for {
		awaitInput(c.conn) // if the connection has failed, decode returns the error
		c.reading.Lock()
		m, err := decode(in)
		for ; err == nil; m, err = decode(in) {
			if c.receive(m); in.Buffered() == 0 {
				break
			}
		}
		c.reading.Unlock()
		if err != nil {
			c.coordinatorLost(err)
			return
		}
	}
}

// receive handles one message of the coordinator.
func (c *Client) receive(m *Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hasReceived = true
	switch m.Verb {
	case Asked:
		c.answer(m)
	case Failed:
		c.noteFailure(m.Group, m.Failure)
		if m.Number > 0 { // a Failed without a number needs no Ack: this connection is refused, or the group has ended
			c.send(&Message{Verb: Ack, Number: m.Number})
		}
	case Settled:
		if m.Alone {
			c.deliverTo(answerKey{verb: Left, group: m.Group}, m)
		} else {
			c.settled(m.Group)
		}
	case Leaving:
		done := sync.OnceFunc(func() { c.send(&Message{Verb: Ack, Number: m.Number}) })
		if g := c.groups[m.Group]; g != nil && g.onLeaving != nil {
			go g.onLeaving(m.Ranks, m.Values, done)
		} else {
			done()
		}
	case Begun, Released:
		c.deliverTo(answerKey{verb: Begun}, m)
	case Left, Answered:
		c.deliverTo(answerKey{verb: m.Verb, group: m.Group}, m)
	case Gathered, Queried, Posted:
		c.deliverTo(answerKey{m.Verb, m.Group, m.Key, m.Number}, m)
	}
}

// answer answers m, a message Asked, by an Ack. If the coordinator wants an answer, the function that is
// registered with OnAsked makes it, in a new goroutine. Otherwise the Ack is empty. The caller must hold
// mu.
func (c *Client) answer(m *Message) {
	answerer := c.answerer
	if !m.WantAnswers || answerer == nil {
		c.send(&Message{Verb: Ack, Number: m.Number})
		return
	}
	c.wg.Go(func() { c.send(&Message{Verb: Ack, Number: m.Number, Value: answerer(m.Failure)}) })
}

// deliverTo gives a message to the goroutine that waits for key, if there is one. The caller must
// hold mu.
func (c *Client) deliverTo(key answerKey, m *Message) {
	if answer := c.waits[key]; answer != nil {
		delete(c.waits, key)
		answer <- m
	}
}

// noteFailure notes the failure of the group with this name, or of all groups if name is "". The
// caller must hold mu.
func (c *Client) noteFailure(name string, f *Failure) {
	c.group(name).fail(f)
	if name == "" {
		for _, g := range c.groups {
			g.fail(f)
		}
	}
}

// settled closes the channel settled of the group with this name, or of all groups if name is "". The
// caller knows that no rank reports a call of these groups as successful any more. Groups that have not
// failed do not change. The caller must hold mu.
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

// leaseTicks is a number of ticks with two uses:
//
//   - While the coordinator has been silent for fewer ticks, this rank assumes that the coordinator
//     would have notified this rank of a failure. After leaseTicks of silence, this rank reports no
//     call as successful (Group.Quiet).
//   - If the coordinator has not decided leaseTicks after a report of this rank, this rank acts itself
//     (Client.tick).
const leaseTicks = 5

// coordinatorLost breaks all groups because the connection to the coordinator has ended or the
// coordinator is silent. If the coordinator has ended, the other ranks lose it too. If only the
// connection of this rank has ended, the coordinator notifies the other ranks that this rank is lost.
// In both cases this rank cannot receive the message Settled any more. So abandon closes the channels
// Settled after some time. If this rank is leaving, or all groups have failed already, coordinatorLost
// closes the channels Settled at once.
func (c *Client) coordinatorLost(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving || c.group("").failure != nil {
		c.noteFailure("", &Failure{Kind: Unreachable, Reporter: c.rank, Text: "the connection to the coordinator is closed"})
		c.settled("")
		return
	}
	text := fmt.Sprintf("the coordinator, in %s, is lost: %v", c.opts.Host, why)
	if handshake.IsHangUp(why) {
		text = fmt.Sprintf("the coordinator, in %s, is lost: its process ended or called exec, or this rank was refused", c.opts.Host)
	}
	f := &Failure{Kind: Unreachable, Reporter: c.rank, Text: text}
	if r := c.opts.HostRank; r >= 0 {
		f.Kind, f.Ranks = Lost, []int{r}
	}
	c.abandon(f)
}

// abandon breaks all groups with the failure f, without the coordinator. After leaseTicks+1 intervals,
// abandon closes the channels Settled. By then every other rank has received a failure or has noticed
// that the coordinator is silent, so no rank reports a call as successful any more. The caller must hold
// mu.
func (c *Client) abandon(f *Failure) {
	c.noteFailure("", f)
	c.abandoned = true
	time.AfterFunc((leaseTicks+1)*c.opts.Interval, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settled("")
	})
}

// reportedIn returns the group in which this rank reported its latest failure. It returns nil if
// this rank has reported no failure, or has left the group.
func (c *Client) reportedIn() *Group {
	if c.reported == nil {
		return nil
	}
	return c.groups[c.reported.Group]
}

// tick sends Alive every interval, and detects that the coordinator is silent. While this rank has
// reported a failure and the coordinator has not decided, tick also does one of two things:
//
//   - If the coordinator has been silent for more than leaseTicks, tick breaks all groups with the
//     reported failure.
//   - Otherwise, tick asks the coordinator for a decision every leaseTicks ticks.
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
				c.noteFailure("", f)
				c.settled("") // at once: the coordinator has been silent on all ranks for leaseTicks, so Quiet is false on all ranks
			} else if c.undecided%leaseTicks == 0 { // do not wait longer: an asked rank, or the reporter of another failure, may be suspended
				undecided = f
			}
		}
		say := c.silence.tick(c.hasReceived)
		c.hasReceived = c.conn == nil // a coordinator in this process is never silent
		isLost := c.silence > c.opts.silent()
		c.mu.Unlock()
		if undecided != nil {
			c.send(&Message{Verb: Fail, Group: undecided.Group, Failure: undecided, Final: true})
		}
		if isLost {
			c.coordinatorLost(fmt.Errorf("no message arrived from it for %v", c.opts.Silence))
			c.conn.Close()
			return
		}
		if say {
			c.send(&Message{Verb: Alive})
		}
	}
}
