package coordinator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
