package coordinator

import (
	"fmt"
	"maps"
	"slices"
)

// Core decides what the coordinator of one session says. It has no goroutine, no clock
// and no connection: it is told what ranks said and that they were lost, and answers with
// what to send. It is not safe for concurrent use.
type Core struct {
	size   int
	ranks  []rank
	first  int  // the first that joined; -1: none has
	apart  bool // a group's failure does not break the others
	number uint64
	groups map[string]*group
	acks   map[uint64]*acknowledgement
	out    []Outgoing // of the Step under way
}

// Sender stands in Outgoing.To for the connection on which the Step's message came, where
// that is not the rank's.
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
	absent  state = iota // it has not joined
	present              // it is connected
	left                 // it left the session in good order
	lost                 // its connection ended without that
)

// group is some ranks, all or a part.
type group struct {
	name    string
	members []int
	gathers map[string]*gather
	posts   map[string]map[int][]byte // by key and rank
	last    string                    // the key of the gather that was complete last
	made    bool                      // all members are ready or, of the group of all, have joined
	left    gather
	alone   bool // one of those that left did not wait for the others
	failure *inquiry

	leaving   []int // those that leave alone, and have not been announced
	values    [][]byte
	announced bool // an announcement has not been acknowledged yet
}

// gather collects a value from each member.
type gather struct {
	values map[int][]byte
	some   bool // any value has bytes
}

// Keys of what each member of a group does once.
const (
	JoinKey  = "join"  // it joins the group
	ReadyKey = "ready" // it can use the group
	LeaveKey = "leave" // it leaves, by a Leave
)

// inquiry is a failure that was reported, until it is decided, and from then on.
type inquiry struct {
	number   uint64
	failure  Failure
	wants    bool         // the reporter decides, by the answers
	asked    []int        // who is to answer
	owed     map[int]bool // those of them that have not
	answers  map[int][]byte
	answered bool // the reporter has them
	// impatient ranks wanted to decide, and have not reported this one. Who says so again
	// does: the reporter may be suspended.
	impatient map[int]bool
	decided   bool
}

// acknowledgement is a message that ranks have to acknowledge, so that others go on.
type acknowledgement struct {
	owed   map[int]bool
	notify []int // who hears that all have
	group  *group
	leave  bool // it is about these, who leave the group
}

// NewCore returns the coordinator of a session of this many ranks.
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

// Step takes what a rank said and returns what to send. Its error says that the rank broke
// the protocol: its connection must be closed.
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
	case g == nil && m.Verb == Fail && m.Failure != nil: // all have left it: that concerns this rank alone
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
	case Watch:
		c.send(&Message{Verb: Watched, Number: m.Number, Group: m.Group, Key: m.Key, Ranks: g.missing(m.Key)}, from)
	case Post:
		err = c.post(g, from, m)
	case Alive:
	default:
		err = fmt.Errorf("rank %d said %v, which is the coordinator's to say", from, m.Verb)
	}
	return c.out, err
}

// Lost notes that a rank's connection ended, and how. It is no failure if the rank had left.
func (c *Core) Lost(r int, how string) []Outgoing {
	c.out = nil
	if c.ranks[r].state == present {
		c.gone(r, lost, Failure{Kind: Lost, Reporter: nobody, Ranks: []int{r}, Text: how})
	}
	return c.out
}

// Exited notes that a rank's process ended, and how. Unless it had joined, the others wait
// for it in vain.
func (c *Core) Exited(r int, how string) []Outgoing {
	c.out = nil
	if c.ranks[r].state == absent {
		c.gone(r, lost, Failure{Kind: Exited, Reporter: nobody, Ranks: []int{r}, Text: how})
	}
	return c.out
}

// Over tells that no rank will say anything any more: all that joined left or were lost.
func (c *Core) Over() bool {
	return !slices.ContainsFunc(c.ranks, func(r rank) bool { return r.state == absent || r.state == present })
}

// join takes a rank in. Ranks that do not fit each other break the session, unless all are
// there already: then the one that came is refused alone.
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
		c.first, c.apart = from, m.Apart
	}
	if root.failure != nil && root.failure.decided {
		c.tellLate(root, from)
		return
	}
	if text := differ(c.ranks[c.first].options, r.options, c.first, from); text != "" {
		c.decide(root, Failure{Kind: Different, Reporter: nobody, Ranks: []int{c.first, from}, Text: text})
		return
	}
	c.collect(root, JoinKey, from, m.Value)
}

// differ says in what two ranks' options differ.
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

func (c *Core) gather(g *group, from int, m *Message) error {
	if m.Key == JoinKey && !slices.Equal(g.members, m.Ranks) {
		return fmt.Errorf("rank %d joins group %q as one of %v, others as one of %v", from, g.name, m.Ranks, g.members)
	}
	if a := g.gathers[m.Key]; a != nil {
		if _, twice := a.values[from]; twice {
			return fmt.Errorf("rank %d gives its value of %q twice", from, m.Key)
		}
	}
	if g.failure == nil || !g.failure.decided { // else it has been told
		c.collect(g, m.Key, from, m.Value)
	}
	return nil
}

// collect adds a member's value, and gives all members the values once they are all there.
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
	c.send(done, c.heard(g)...)
}

func (a *gather) add(from int, value []byte) {
	if a.values == nil {
		a.values = map[int][]byte{}
	}
	a.values[from] = value
	a.some = a.some || len(value) > 0
}

// missing is the members that have not given their value of a key. Nobody misses in what
// is complete.
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

// maxPost bounds a value that a rank posts. postsAtOnce of them fit into a message.
const (
	maxPost     = 1 << 20
	postsAtOnce = maxMessage / 2 / maxPost
)

// post takes a rank's value, and answers with those of the ranks that it asks for.
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

// scope is the group that breaks when g fails: all ranks', unless groups fail apart, g is only
// being made, or the failure is confined to it.
func (c *Core) scope(g *group, f *Failure) *group {
	if c.apart || !g.made || f.Confined {
		return g
	}
	return c.groups[""]
}

// fail takes a report. What is decided stays. A report that is to be looked into gives way
// to one that is more certain, and to one of a rank that it names: what that rank met may
// be why the reporter met anything.
func (c *Core) fail(g *group, from int, m *Message) error {
	if m.Failure == nil {
		return fmt.Errorf("rank %d reports a failure without saying which", from)
	}
	if g.failure != nil && g.failure.decided {
		return nil // it has been told, and is why its reporter met anything in the group
	}
	g = c.scope(g, m.Failure)
	f := *m.Failure
	f.Reporter, f.Group = from, m.Group
	q := g.failure
	switch {
	case q != nil && q.decided:
		return nil
	case m.Final && q != nil && q.failure.Reporter != from && !q.impatient[from]:
		q.impatient[from] = true // another failure has taken its place
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

// certainty orders inquiries: a deadline that passed says little, a connection that broke
// more, and what the reporter knows by itself most.
func (q *inquiry) certainty() int {
	switch {
	case q.wants:
		return 0
	case len(q.asked) > 0:
		return 1
	}
	return 2
}

// conclude ends an inquiry that nobody owes an answer.
func (c *Core) conclude(g *group) {
	q := g.failure
	if len(q.owed) > 0 {
		return
	}
	if !q.wants {
		departed := slices.DeleteFunc(slices.Clone(q.asked), func(r int) bool { return !c.departed(q.failure.Group, r) })
		if len(departed) > 0 { // the reporter needs one that left in good order
			q.failure.Kind, q.failure.Ranks = Departed, departed
		}
		c.decide(g, q.failure)
		return
	}
	c.giveAnswers(q)
}

// giveAnswers gives the reporter the answers that there are, once.
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

// decide makes f the failure of g and tells all members. It is called once for a group.
func (c *Core) decide(g *group, f Failure) {
	if f.Key != "" {
		if of := c.groups[f.Group]; of != nil {
			f.Absent = of.missing(f.Key)
			if of.gathers[f.Key] == nil && f.Key != of.last && f.Key != LeaveKey { // nobody has given any
				f.Absent = of.members
			}
		}
	}
	c.number++
	g.failure = &inquiry{number: c.number, failure: f, decided: true}
	heard := c.heard(g)
	if len(heard) > 0 {
		c.await(g, heard, heard, false)
	}
	c.tell(g, heard...)
}

// tell sends the failure of a group that was decided.
func (c *Core) tell(g *group, to ...int) {
	q := g.failure
	c.send(&Message{Verb: Failed, Number: q.number, Group: g.name, Failure: &q.failure}, to...)
}

// tellLate tells a rank that came when the others had been told. It has nothing to abort.
func (c *Core) tellLate(g *group, to int) {
	c.tell(g, to)
	c.send(&Message{Verb: Settled, Number: g.failure.number, Group: g.name}, to)
}

// await has some ranks acknowledge what has the latest number, before others hear that
// they did.
func (c *Core) await(g *group, ranks, notify []int, leave bool) {
	a := &acknowledgement{owed: map[int]bool{}, notify: notify, group: g, leave: leave}
	for _, r := range ranks {
		a.owed[r] = true
	}
	c.acks[c.number] = a
	c.settle(c.number)
}

// settle tells that all have acknowledged.
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

// answer takes a rank's acknowledgement, or its answer to an inquiry.
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

// leave notes that a rank leaves a group or, with Final, the session.
func (c *Core) leave(g *group, from int, m *Message) {
	if m.Final {
		c.gone(from, left, Failure{})
	}
	if len(g.left.values) == len(g.members) {
		return // all have left together, which it is about to hear
	}
	g.left.add(from, nil)
	c.excuse(from, g)
	if m.Alone {
		g.alone = true
		g.leaving, g.values = append(g.leaving, from), append(g.values, m.Value)
	}
	if len(g.left.values) < len(g.members) {
		c.announce(g)
		return
	}
	c.send(&Message{Verb: Left, Group: g.name, Alone: g.alone}, c.heard(g)...)
	if g.name != "" {
		delete(c.groups, g.name)
	}
}

// announce tells the other members who leaves alone. There is one announcement at a time:
// of all that came meanwhile the next one tells, so that they do not cost a message to
// each rank each.
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

// gone notes that a rank left or was lost. It owes nothing any more; why is the failure of
// its groups if it was lost.
func (c *Core) gone(r int, to state, why Failure) {
	c.ranks[r].state = to
	c.excuse(r, nil)
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		g := c.groups[name]
		q := g.failure
		switch {
		case !g.has(r) || q != nil && q.decided:
		case q != nil && q.failure.Reporter == r:
			c.decide(g, q.failure) // it met that before
		case to == lost && (g.name == "" || c.apart):
			c.decide(g, why)
		case q != nil && q.owed[r]:
			delete(q.owed, r)
			q.answers[r] = nil
			c.conclude(g)
		}
	}
}

// excuse has a rank acknowledge nothing any more or, with a group that it leaves, not who else
// leaves that.
func (c *Core) excuse(r int, leaves *group) {
	for _, number := range slices.Sorted(maps.Keys(c.acks)) {
		if a := c.acks[number]; a.owed[r] && (leaves == nil || a.leave && a.group == leaves) {
			delete(a.owed, r)
			c.settle(number)
		}
	}
}

// departed tells whether a rank has left a group in good order.
func (c *Core) departed(group string, r int) bool {
	if g := c.groups[group]; g != nil {
		if _, departed := g.left.values[r]; departed {
			return true
		}
	}
	return c.ranks[r].state == left
}

// has tells whether a rank is a member.
func (g *group) has(r int) bool { return g.name == "" || slices.Contains(g.members, r) }

// heard is the members of a group that are there, and have not left the session.
func (c *Core) heard(g *group) (ranks []int) {
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
