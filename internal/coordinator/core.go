package coordinator

import (
	"fmt"
	"maps"
	"slices"
)

// Core decides which messages the coordinator of one session sends. It is a pure state machine:
// its inputs are the messages and deaths of ranks, its outputs messages. It has no goroutine, no
// clock and no connection. It is not safe for concurrent use.
type Core struct {
	size     int
	ranks    []rank
	first    int  // the first rank that joined; -1: none has joined
	isolated bool // a group's failure does not break the others
	number   uint64
	groups   map[string]*group
	acks     map[uint64]*acknowledgement
	out      []Outgoing // the output of the current Step
}

// Sender, as an element of Outgoing.To, is the connection on which the message of this Step
// arrived. It is used if that connection is not the rank's, because the join was refused.
const Sender = -1

// Outgoing is a message for some ranks.
type Outgoing struct {
	To      []int
	Message *Message
}

// rank is what the core knows of one process.
type rank struct {
	state   state
	process string
	options []Option
}

type state uint8

const (
	absent  state = iota // the rank has not joined
	present              // the rank is connected
	left                 // the rank left the session without a failure
	lost                 // the rank's connection ended before it left
)

// group is a group of ranks.
type group struct {
	name    string // "" for the group of all ranks
	members []int
	gathers map[string]*gather
	posts   map[string]map[int][]byte // by key and rank
	last    string                    // the key of the latest complete gather
	made    bool                      // all members are ready or, in the group of all ranks, have joined
	left    gather                    // the members that have left
	alone   bool                      // a member left without waiting for the others
	failure *inquiry

	leaving   []int    // the members that leave alone and have not been announced
	values    [][]byte // their values
	announced bool     // the latest announcement has not been acknowledged by all
}

// gather collects a value from each member.
type gather struct {
	values map[int][]byte
	some   bool // at least one value is not empty
}

// The keys of gathers that each member of a group does once.
const (
	JoinKey  = "join"  // the member joins the group
	ReadyKey = "ready" // the member can use the group
	LeaveKey = "leave" // the member leaves, by the message Leave
)

// inquiry is a failure that was reported. It may be decided.
type inquiry struct {
	number   uint64
	failure  Failure
	wants    bool         // the reporter wants the answers, and decides itself
	asked    []int        // the ranks that were asked
	owed     map[int]bool // the asked ranks that have not answered
	answers  map[int][]byte
	answered bool // the reporter has got the answers
	// impatient are ranks that asked for a decision although another rank is the reporter. If
	// one of them asks again, its own failure is decided: the reporter may be suspended.
	impatient map[int]bool
	decided   bool
}

// acknowledgement tracks a message that ranks must acknowledge before the coordinator notifies
// others.
type acknowledgement struct {
	owed   map[int]bool // the ranks that have not acknowledged
	notify []int        // the ranks that are notified when all have
	group  *group
	leave  bool // the message says that the ranks in notify leave the group
}

// NewCore returns the core of a session of size ranks.
func NewCore(size int) *Core {
	c := &Core{size: size, first: -1, ranks: make([]rank, size), groups: map[string]*group{}, acks: map[uint64]*acknowledgement{}}
	all := make([]int, size)
	for r := range all {
		all[r] = r
	}
	c.groups[""] = newGroup("", all)
	return c
}

func newGroup(name string, members []int) *group {
	return &group{name: name, members: members, gathers: map[string]*gather{}, posts: map[string]map[int][]byte{}}
}

// Step handles a message of a rank and returns the messages to send. If it returns an error, the
// rank has violated the protocol and its connection must be closed.
func (c *Core) Step(from int, m *Message) ([]Outgoing, error) {
	c.out = nil
	if m.Verb == Join {
		c.join(from, m)
		return c.out, nil
	}
	if from < 0 || from >= c.size || c.ranks[from].state != present && c.ranks[from].state != left {
		return nil, fmt.Errorf("%v of rank %d, which has not joined", m.Verb, from)
	}
	for _, r := range m.Ranks {
		if r < 0 || r >= c.size {
			return nil, fmt.Errorf("%v of rank %d names rank %d of %d", m.Verb, from, r, c.size)
		}
	}
	g := c.groups[m.Group]
	switch {
	case m.Verb == Ack:
		c.answer(from, m.Number, m.Value)
		return c.out, nil
	case g == nil && m.Verb == Gather && m.Key == JoinKey:
		g = newGroup(m.Group, m.Ranks)
		c.groups[m.Group] = g
	case g == nil && m.Verb == Fail && m.Failure != nil: // all members have left the group: the failure concerns this rank alone
		f := *m.Failure
		f.Reporter, f.Group = from, m.Group
		c.send(&Message{Verb: Failed, Group: m.Group, Failure: &f}, from)
		return c.out, nil
	case g == nil:
		return nil, nil
	}
	if !g.has(from) {
		return nil, fmt.Errorf("%v of rank %d in group %q, of which it is no member", m.Verb, from, m.Group)
	}
	var err error
	switch m.Verb {
	case Gather:
		err = c.gather(g, from, m)
	case Fail:
		err = c.fail(g, from, m)
	case Leave:
		c.leave(g, from, m)
	case Query:
		c.send(&Message{Verb: Queried, Number: m.Number, Group: m.Group, Key: m.Key, Ranks: g.missing(m.Key)}, from)
	case Post:
		err = c.post(g, from, m)
	case Alive:
	default:
		err = fmt.Errorf("rank %d sent %v, which only the coordinator may send", from, m.Verb)
	}
	return c.out, err
}

// Lost handles the end of a rank's connection. how describes it. The end is a failure unless the
// rank had left.
func (c *Core) Lost(r int, how string) []Outgoing {
	c.out = nil
	if c.ranks[r].state == present {
		c.remove(r, lost, Failure{Kind: Lost, Reporter: nobody, Ranks: []int{r}, Text: how})
	}
	return c.out
}

// Exited handles the end of a rank's process. how describes it. The end is a failure if the rank
// had not joined, because the other ranks wait for it.
func (c *Core) Exited(r int, how string) []Outgoing {
	c.out = nil
	if c.ranks[r].state == absent {
		c.remove(r, lost, Failure{Kind: Exited, Reporter: nobody, Ranks: []int{r}, Text: how})
	}
	return c.out
}

// Ended reports whether all ranks have left or were lost, so that no more messages can arrive.
func (c *Core) Ended() bool {
	return !slices.ContainsFunc(c.ranks, func(r rank) bool { return r.state == absent || r.state == present })
}

// join lets a rank join. If the rank does not fit the others, it breaks the session or, if all
// ranks have joined already, refuses the new connection alone.
func (c *Core) join(from int, m *Message) {
	root := c.groups[""]
	refuse := func(f Failure) {
		f.Reporter, f.Ranks = nobody, []int{from}
		if !root.made && (root.failure == nil || !root.failure.decided) {
			c.decide(root, f)
		}
		c.send(&Message{Verb: Failed, Failure: &f}, Sender)
	}
	if from < 0 || from >= c.size {
		refuse(Failure{Kind: Different, Text: fmt.Sprintf("rank %d in a job of %d ranks", from, c.size)})
		return
	}
	r := &c.ranks[from]
	if r.state == present || r.state == left {
		refuse(Failure{Kind: Duplicate, Text: fmt.Sprintf("%s, and %s", r.process, m.Process)})
		return
	}
	*r = rank{state: present, process: m.Process, options: m.Options}
	if c.first < 0 {
		c.first, c.isolated = from, m.Isolated
	}
	if root.failure != nil && root.failure.decided {
		c.sendSettledFailure(root, from)
		return
	}
	if text := differ(c.ranks[c.first].options, r.options, c.first, from); text != "" {
		c.decide(root, Failure{Kind: Different, Reporter: nobody, Ranks: []int{c.first, from}, Text: text})
		return
	}
	c.collect(root, JoinKey, from, m.Value)
}

// differ describes the first difference between the options of two ranks. It returns "" if there
// is none.
func differ(a, b []Option, rankA, rankB int) string {
	value := func(options []Option, name string) string {
		for _, o := range options {
			if o.Name == name {
				return o.Value
			}
		}
		return "not known"
	}
	for _, o := range append(slices.Clone(a), b...) {
		if va, vb := value(a, o.Name), value(b, o.Name); va != vb {
			return fmt.Sprintf("%s is %s on rank %d, and %s on rank %d", o.Name, va, rankA, vb, rankB)
		}
	}
	return ""
}

// gather handles the message Gather.
func (c *Core) gather(g *group, from int, m *Message) error {
	if m.Key == JoinKey && !slices.Equal(g.members, m.Ranks) {
		return fmt.Errorf("rank %d joins group %q as one of %v, others as one of %v", from, g.name, m.Ranks, g.members)
	}
	if a := g.gathers[m.Key]; a != nil {
		if _, twice := a.values[from]; twice {
			return fmt.Errorf("rank %d gives its value of %q twice", from, m.Key)
		}
	}
	if g.failure == nil || !g.failure.decided { // otherwise the rank has already been sent the failure
		c.collect(g, m.Key, from, m.Value)
	}
	return nil
}

// collect adds a member's value. When all members have given theirs, it sends the values to all
// members.
func (c *Core) collect(g *group, key string, from int, value []byte) {
	a := g.gathers[key]
	if a == nil {
		a = &gather{}
		g.gathers[key] = a
	}
	a.add(from, value)
	if len(a.values) < len(g.members) {
		return
	}
	delete(g.gathers, key)
	g.last = key
	done := &Message{Verb: Gathered, Group: g.name, Key: key}
	if a.some {
		for _, r := range g.members {
			done.Values = append(done.Values, a.values[r])
		}
	}
	g.made = g.made || key == ReadyKey || key == JoinKey && g.name == ""
	c.send(done, c.presentMembers(g)...)
}

func (a *gather) add(from int, value []byte) {
	if a.values == nil {
		a.values = map[int][]byte{}
	}
	a.values[from] = value
	a.some = a.some || len(value) > 0
}

// missing returns the members that have not given their value of a key. It returns nil if the
// gather is complete or has not begun.
func (g *group) missing(key string) (ranks []int) {
	a := g.gathers[key]
	switch {
	case key == LeaveKey:
		a = &g.left
	case a == nil:
		return nil
	}
	for _, r := range g.members {
		if _, gave := a.values[r]; !gave {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// maxPost is the largest size of a posted value in bytes. postsAtOnce posted values fit into
// one message.
const (
	maxPost     = 1 << 20
	postsAtOnce = maxMessage / 2 / maxPost
)

// post stores a rank's value and answers with the values of the ranks that it asks for.
func (c *Core) post(g *group, from int, m *Message) error {
	if len(m.Value) > maxPost || len(m.Ranks) > postsAtOnce {
		return fmt.Errorf("rank %d posts %d bytes of %q and asks for %d values, at most %d and %d", from, len(m.Value), m.Key, len(m.Ranks), maxPost, postsAtOnce)
	}
	if len(m.Value) > 0 {
		if g.posts[m.Key] == nil {
			g.posts[m.Key] = map[int][]byte{}
		}
		g.posts[m.Key][from] = m.Value
	}
	answer := &Message{Verb: Posted, Number: m.Number, Group: m.Group, Key: m.Key}
	for _, r := range m.Ranks {
		answer.Values = append(answer.Values, g.posts[m.Key][r])
	}
	c.send(answer, from)
	return nil
}

// scope returns the group that breaks when g fails: the group of all ranks, unless failures are
// isolated, g is still being made, or the failure is confined to g.
func (c *Core) scope(g *group, f *Failure) *group {
	if c.isolated || !g.made || f.Confined {
		return g
	}
	return c.groups[""]
}

// fail handles a report. If a failure is decided, the report is ignored. If another report waits
// for answers, the new one replaces it in two cases: the new report is more certain, or the other
// report asked the new reporter, whose failure may be the cause.
func (c *Core) fail(g *group, from int, m *Message) error {
	if m.Failure == nil {
		return fmt.Errorf("rank %d reports a failure without saying which", from)
	}
	if g.failure != nil && g.failure.decided {
		return nil // the reporter has been sent the decided failure, which caused the reported one
	}
	g = c.scope(g, m.Failure)
	f := *m.Failure
	f.Reporter, f.Group = from, m.Group
	q := g.failure
	switch {
	case q != nil && q.decided:
		return nil
	case m.Final && q != nil && q.failure.Reporter != from && !q.impatient[from]:
		q.impatient[from] = true // another failure has replaced the rank's own
		return nil
	case m.Final:
		c.decide(g, f)
		return nil
	case q != nil && m.WantAnswers && q.failure.Reporter == from:
		c.giveAnswers(q)
		return nil
	}
	next := &inquiry{failure: f, wants: m.WantAnswers, asked: m.Ranks, owed: map[int]bool{}, answers: map[int][]byte{}, impatient: map[int]bool{}}
	if q != nil && next.certainty() <= q.certainty() && !(q.owed[from] && !q.wants) {
		return nil
	}
	for _, r := range m.Ranks {
		switch {
		case r == from:
		case c.departed(m.Group, r):
			next.answers[r] = nil
		case c.ranks[r].state == present:
			next.owed[r] = true
		}
	}
	g.failure = next
	if len(next.owed) > 0 {
		c.number++
		next.number = c.number
		to := slices.DeleteFunc(slices.Clone(m.Ranks), func(r int) bool { return !next.owed[r] })
		c.send(&Message{Verb: Asked, Number: next.number, Group: f.Group, Failure: &f, WantAnswers: m.WantAnswers}, to...)
	}
	c.conclude(g)
	return nil
}

// certainty orders inquiries. A deadline that passed says little about the cause, a broken
// connection says more, and a failure that the reporter detected in itself says most.
func (q *inquiry) certainty() int {
	switch {
	case q.wants:
		return 0
	case len(q.asked) > 0:
		return 1
	}
	return 2
}

// conclude ends an inquiry if all asked ranks have answered.
func (c *Core) conclude(g *group) {
	q := g.failure
	if len(q.owed) > 0 {
		return
	}
	if !q.wants {
		departed := slices.DeleteFunc(slices.Clone(q.asked), func(r int) bool { return !c.departed(q.failure.Group, r) })
		if len(departed) > 0 { // the reporter still needs a rank that left without a failure
			q.failure.Kind, q.failure.Ranks = Departed, departed
		}
		c.decide(g, q.failure)
		return
	}
	c.giveAnswers(q)
}

// giveAnswers sends the answers so far to the reporter, once.
func (c *Core) giveAnswers(q *inquiry) {
	if q.answered {
		return
	}
	q.answered = true
	m := &Message{Verb: Answered, Number: q.number, Group: q.failure.Group}
	for _, r := range q.asked {
		if a, ok := q.answers[r]; ok {
			m.Ranks, m.Values = append(m.Ranks, r), append(m.Values, a)
		}
	}
	c.send(m, q.failure.Reporter)
}

// decide makes f the failure of g and sends it to all members. It is called once for a group.
func (c *Core) decide(g *group, f Failure) {
	if f.Key != "" {
		if of := c.groups[f.Group]; of != nil {
			f.Absent = of.missing(f.Key)
			if of.gathers[f.Key] == nil && f.Key != of.last && f.Key != LeaveKey { // no member has given a value
				f.Absent = of.members
			}
		}
	}
	c.number++
	g.failure = &inquiry{number: c.number, failure: f, decided: true}
	members := c.presentMembers(g)
	if len(members) > 0 {
		c.await(g, members, members, false)
	}
	c.sendFailure(g, members...)
}

// sendFailure sends the decided failure of a group.
func (c *Core) sendFailure(g *group, to ...int) {
	q := g.failure
	c.send(&Message{Verb: Failed, Number: q.number, Group: g.name, Failure: &q.failure}, to...)
}

// sendSettledFailure sends the decided failure to a rank that joined after the decision. The
// failure is settled for that rank, which has nothing to abort.
func (c *Core) sendSettledFailure(g *group, to int) {
	c.sendFailure(g, to)
	c.send(&Message{Verb: Settled, Number: g.failure.number, Group: g.name}, to)
}

// await makes the latest numbered message wait for the acknowledgements of some ranks. When all
// have acknowledged, the ranks in notify are notified.
func (c *Core) await(g *group, ranks, notify []int, leave bool) {
	a := &acknowledgement{owed: map[int]bool{}, notify: notify, group: g, leave: leave}
	for _, r := range ranks {
		a.owed[r] = true
	}
	c.acks[c.number] = a
	c.settle(c.number)
}

// settle notifies ranks if all acknowledgements of a message have arrived.
func (c *Core) settle(number uint64) {
	a := c.acks[number]
	if len(a.owed) > 0 {
		return
	}
	delete(c.acks, number)
	c.send(&Message{Verb: Settled, Number: number, Group: a.group.name, Alone: a.leave}, a.notify...)
	if a.leave {
		a.group.announced = false
		c.announce(a.group)
	}
}

// answer handles an acknowledgement, or an answer to an inquiry.
func (c *Core) answer(from int, number uint64, value []byte) {
	if a := c.acks[number]; a != nil {
		delete(a.owed, from)
		c.settle(number)
		return
	}
	for _, g := range c.groups {
		if q := g.failure; q != nil && q.number == number && !q.decided && q.owed[from] {
			delete(q.owed, from)
			q.answers[from] = value
			c.conclude(g)
		}
	}
}

// leave handles the message Leave: a rank leaves a group or, with Final, the session.
func (c *Core) leave(g *group, from int, m *Message) {
	if m.Final {
		c.remove(from, left, Failure{})
	}
	if len(g.left.values) == len(g.members) {
		return // all members have left, and the message that says so is on its way
	}
	g.left.add(from, nil)
	c.waiveAcks(from, g)
	if m.Alone {
		g.alone = true
		g.leaving, g.values = append(g.leaving, from), append(g.values, m.Value)
	}
	if len(g.left.values) < len(g.members) {
		c.announce(g)
		return
	}
	c.send(&Message{Verb: Left, Group: g.name, Alone: g.alone}, c.presentMembers(g)...)
	if g.name != "" {
		delete(c.groups, g.name)
	}
}

// announce tells the other members which members leave alone. Only one announcement is pending at
// a time. The next one includes all members that asked meanwhile, so that each does not cost a
// message to every rank.
func (c *Core) announce(g *group) {
	if g.announced || len(g.leaving) == 0 {
		return
	}
	rest := slices.DeleteFunc(g.missing(LeaveKey), func(r int) bool { return c.ranks[r].state != present })
	c.number++
	c.send(&Message{Verb: Leaving, Number: c.number, Group: g.name, Ranks: g.leaving, Values: g.values}, rest...)
	notify := g.leaving
	g.leaving, g.values, g.announced = nil, nil, true
	c.await(g, rest, notify, true)
}

// remove handles that a rank left or was lost. The rank owes no acknowledgement any more. If it
// was lost, why is the failure of its groups.
func (c *Core) remove(r int, to state, why Failure) {
	c.ranks[r].state = to
	c.waiveAcks(r, nil)
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		g := c.groups[name]
		q := g.failure
		switch {
		case !g.has(r) || q != nil && q.decided:
		case q != nil && q.failure.Reporter == r:
			c.decide(g, q.failure) // the rank reported this failure before it left or was lost
		case to == lost && (g.name == "" || c.isolated):
			c.decide(g, why)
		case q != nil && q.owed[r]:
			delete(q.owed, r)
			q.answers[r] = nil
			c.conclude(g)
		}
	}
}

// waiveAcks removes the acknowledgements that a rank owes. If the rank only leaves a group, it
// removes those about other members that leave the group.
func (c *Core) waiveAcks(r int, leaves *group) {
	for _, number := range slices.Sorted(maps.Keys(c.acks)) {
		if a := c.acks[number]; a.owed[r] && (leaves == nil || a.leave && a.group == leaves) {
			delete(a.owed, r)
			c.settle(number)
		}
	}
}

// departed reports whether a rank has left a group without a failure.
func (c *Core) departed(group string, r int) bool {
	if g := c.groups[group]; g != nil {
		if _, departed := g.left.values[r]; departed {
			return true
		}
	}
	return c.ranks[r].state == left
}

// has reports whether a rank is a member.
func (g *group) has(r int) bool { return g.name == "" || slices.Contains(g.members, r) }

// presentMembers returns the members of a group that are connected and have not left the session.
func (c *Core) presentMembers(g *group) (ranks []int) {
	for _, r := range g.members {
		if c.ranks[r].state == present {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

func (c *Core) send(m *Message, to ...int) {
	if len(to) > 0 {
		c.out = append(c.out, Outgoing{to, m})
	}
}
