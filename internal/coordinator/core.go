package coordinator

import (
	"fmt"
	"maps"
	"slices"

	"github.com/goddp/goddp/internal/rootcause"
)

// Core decides which messages the coordinator sends in one session. It is a pure state machine.
// Its inputs are the messages of ranks and the ends of their connections and processes. Its outputs
// are messages. It has no goroutine, no clock and no connection. It is not safe for concurrent use.
type Core struct {
	size     int
	ranks    []rank
	first    int    // the first rank that joined; -1: none has joined
	isolated bool   // a failure reported in one group breaks only that group (Message.Isolated)
	number   uint64 // the number of the latest message Asked, Failed or Leaving
	groups   map[string]*group
	acks     map[uint64]*acknowledgement
	out      []Outgoing // the output of the current Step
}

// Sender, as an element of Outgoing.To, stands for the connection that sent the message of this
// Step. The core uses Sender to refuse a Join. The core cannot use a rank's number there: the number
// in the Join is wrong, or belongs to another connection.
const Sender = -1

// Outgoing is a message for some ranks.
type Outgoing struct {
	To      []int
	Message *Message
}

// rank is the core's state of one rank.
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
	posts   map[string]map[int][]byte // by key and rank: the latest posted value
	readers []reader                  // wait for values that some rank has not posted yet
	last    string                    // the key of the latest complete gather
	made    bool                      // all members have sent ReadyKey; for the group of all ranks: all ranks have joined
	left    gather                    // the members that have left
	alone   bool                      // a member left without waiting for the others
	failure *inquiry                  // the reported or chosen failure; nil if there is none

	leaving   []int    // the members that leave without waiting, and that no Leaving has named yet
	values    [][]byte // the values of the members in the field leaving
	announced bool     // the core has sent Leaving, and some members have not acknowledged it
}

// gather collects one value from each member of a group.
type gather struct {
	values map[int][]byte
	some   bool // at least one value is not empty
}

// Keys of gathers. Each member of a group takes part once in the gather of each key.
const (
	JoinKey  = "join"  // the member joins the group
	ReadyKey = "ready" // the member can use the group
	LeaveKey = "leave" // the member leaves; it sends the message Leave, not Gather
)

// inquiry is the core's state of a group's failure. Before the decision, it holds a rank's report and
// the answers of the asked ranks. After the decision, it holds the chosen failure.
type inquiry struct {
	number   uint64
	failure  Failure
	wants    bool         // Message.WantAnswers: the reporter wants the answers of the asked ranks, and decides itself
	asked    []int        // the ranks that were asked about the failure
	owed     map[int]bool // the asked ranks that have not answered
	answers  map[int][]byte
	answered bool // the core has sent the answers to the reporter
	// impatient are the ranks that have sent one Fail with Final although the failure in this
	// inquiry is the report of another rank. If such a rank sends a second one, the core chooses the
	// failure in this second Fail, because the other rank may be suspended.
	impatient map[int]bool
	decided   bool // the coordinator has chosen this failure
}

// acknowledgement tracks a message that some ranks must acknowledge. When all of them have
// acknowledged, the coordinator sends Settled.
type acknowledgement struct {
	owed   map[int]bool // the ranks that have not acknowledged the message
	notify []int        // the ranks that receive Settled when all ranks have acknowledged
	group  *group
	leave  bool // the message is Leaving, and the ranks in notify leave
}

// NewCore returns the core of a session of `size` ranks.
func NewCore(size int) *Core {
	c := &Core{size: size, first: -1, ranks: make([]rank, size), groups: map[string]*group{}, acks: map[uint64]*acknowledgement{}}
	c.groups[""] = newGroup("", ranksOf(size))
	return c
}

// ranksOf returns the ranks of a group of all ranks.
func ranksOf(size int) []int {
	all := make([]int, size)
	for r := range all {
		all[r] = r
	}
	return all
}

func newGroup(name string, members []int) *group {
	return &group{name: name, members: members, gathers: map[string]*gather{}, posts: map[string]map[int][]byte{}}
}

// Step handles a message of the rank `from` and returns the messages to send. If Step returns an
// error, the rank has violated the protocol, and the caller must close the rank's connection.
func (c *Core) Step(from int, m *Message) ([]Outgoing, error) {
	c.out = nil
	if m.Verb == Join {
		c.join(from, m)
		return c.out, nil
	}
	if from < 0 || from >= c.size || c.ranks[from].state != present && c.ranks[from].state != left {
		return nil, fmt.Errorf("the coordinator received %v of rank %d, which has not joined", m.Verb, from)
	}
	for _, r := range m.Ranks {
		if r < 0 || r >= c.size {
			return nil, fmt.Errorf("%v of rank %d names rank %d, but the job has %d ranks", m.Verb, from, r, c.size)
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
	case g == nil && m.Verb == Fail && m.Failure != nil: // all members have left the group, so only the reporter receives the failure
		f := *m.Failure
		f.Reporter, f.Group = from, m.Group
		c.send(&Message{Verb: Failed, Group: m.Group, Failure: &f}, from)
		return c.out, nil
	case g == nil:
		return nil, nil
	}
	if !g.has(from) {
		return nil, fmt.Errorf("%v from rank %d, which is not a member of group %q", m.Verb, from, m.Group)
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

// Lost handles the end of the connection of rank r. The text `how` describes the end. The end is a
// failure unless the rank has left the session.
func (c *Core) Lost(r int, how string) []Outgoing {
	c.out = nil
	if c.ranks[r].state == present {
		c.remove(r, lost, Failure{Kind: Lost, Reporter: nobody, Ranks: []int{r}, Text: how})
	}
	return c.out
}

// Exited handles the end of the process of rank r. The text `how` describes the end. The end is a
// failure if the rank has not joined, because the other ranks wait for this rank. If the rank has
// joined, Exited does nothing: the end of the rank's connection arrives too, and Lost handles that end.
func (c *Core) Exited(r int, how string) []Outgoing {
	c.out = nil
	if c.ranks[r].state == absent {
		c.remove(r, lost, Failure{Kind: Exited, Reporter: nobody, Ranks: []int{r}, Text: how})
	}
	return c.out
}

// Change ends an epoch of an elastic job, because its members change.
func (c *Core) Change() []Outgoing {
	c.out = nil
	if root := c.groups[""]; root.failure == nil || !root.failure.decided {
		c.decide(root, Failure{Kind: Changed, Reporter: nobody, Text: "the members of the job change"})
	}
	return c.out
}

// Ended reports whether all ranks have left or were lost, so that no more messages can arrive.
func (c *Core) Ended() bool {
	return !slices.ContainsFunc(c.ranks, func(r rank) bool { return r.state == absent || r.state == present })
}

// join handles the message Join. A Join is wrong if the rank's number is not in the job, if another
// process has joined as this rank, or if the rank's options differ from the options of other ranks. A
// wrong Join fails the session while ranks are still joining. A wrong Join that comes after
// all ranks have joined does not harm the session: join only refuses its connection.
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
		refuse(Failure{Kind: Different, Text: fmt.Sprintf("rank %d is out of range for a job of %d ranks", from, c.size)})
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

// differ describes the first difference between the options of two ranks. It returns "" if the
// options are equal.
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
		return fmt.Errorf("the ranks disagree about the members of group %[2]q: rank %[1]d says %[3]v, others %[4]v", from, g.name, m.Ranks, g.members)
	}
	if a := g.gathers[m.Key]; a != nil {
		if _, twice := a.values[from]; twice {
			return fmt.Errorf("rank %d sent its value of %q twice", from, m.Key)
		}
	}
	if g.failure == nil || !g.failure.decided { // otherwise the group is broken, and the core has sent the failure to the rank
		c.collect(g, m.Key, from, m.Value)
	}
	return nil
}

// collect adds a member's value to a gather. When all members have given their values, collect sends
// the values to all members.
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

// missing returns the members that the gather of a key waits for. For LeaveKey, missing returns the
// members that have not left. For any other key, missing returns nil if no member has given its value
// or if all members have given theirs, because the core keeps no state of such a gather.
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

// scope returns the group that breaks when the failure f is reported in the group g. This group is g if
// failures are isolated, if g is still being made, or if f is confined to g. Otherwise it is the group
// of all ranks.
func (c *Core) scope(g *group, f *Failure) *group {
	if c.isolated || !g.made || f.Confined {
		return g
	}
	return c.groups[""]
}

// fail handles the message Fail, a report. If the core has already chosen a failure, fail ignores the
// report. If the core still waits for answers about an older report, the new report replaces the older
// one if it is closer to the root cause.
func (c *Core) fail(g *group, from int, m *Message) error {
	if m.Failure == nil {
		return fmt.Errorf("rank %d sent a failure report without a failure", from)
	}
	if m.Failure.Kind != Reported {
		return fmt.Errorf("rank %d reports a failure of kind %q, which only the coordinator may find", from, m.Failure.Kind)
	}
	if g.failure != nil && g.failure.decided {
		return nil // ignore the report: the core has already sent the chosen failure to the reporter
	}
	g = c.scope(g, m.Failure)
	f := *m.Failure
	f.Reporter, f.Group = from, m.Group
	q := g.failure
	switch {
	case q != nil && q.decided:
		return nil
	case m.Final && q != nil && q.failure.Reporter != from && !q.impatient[from]:
		q.impatient[from] = true // the inquiry is about another rank's report: only the next Fail with Final decides
		return nil
	case m.Final:
		c.decide(g, f)
		return nil
	case q != nil && m.WantAnswers && q.failure.Reporter == from:
		c.giveAnswers(q)
		return nil
	}
	next := &inquiry{failure: f, wants: m.WantAnswers, asked: m.Ranks, owed: map[int]bool{}, answers: map[int][]byte{}, impatient: map[int]bool{}}
	if q != nil {
		reports := []*inquiry{q, next}
		if rootcause.Sort(reports, (*inquiry).evidence); reports[0] == q {
			return nil
		}
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

// evidence returns what q tells about the cause. Without WantAnswers, the cause may be the failure of a
// rank that was asked and has not answered.
func (q *inquiry) evidence() rootcause.Evidence {
	e := rootcause.Evidence{Ranks: []int{q.failure.Reporter}}
	switch {
	case q.wants:
		e.Doubt = rootcause.Overdue
	case len(q.asked) > 0:
		e.Doubt, e.CausedBy = rootcause.Broken, slices.Collect(maps.Keys(q.owed))
	}
	return e
}

// conclude ends the inquiry of g if all asked ranks have answered. If the reporter wants to decide
// itself, conclude sends the answers to the reporter. Otherwise conclude chooses the failure.
func (c *Core) conclude(g *group) {
	q := g.failure
	if len(q.owed) > 0 {
		return
	}
	if !q.wants {
		departed := slices.DeleteFunc(slices.Clone(q.asked), func(r int) bool { return !c.departed(q.failure.Group, r) })
		if len(departed) > 0 { // these ranks are the cause: they have left, and the reporter still needed them
			q.failure.Kind, q.failure.Ranks = Departed, departed
		}
		c.decide(g, q.failure)
		return
	}
	c.giveAnswers(q)
}

// giveAnswers sends the answers so far to the reporter. A second call for the same inquiry does nothing.
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

// decide makes f the failure of g and sends f to all members. It is called once for a group.
func (c *Core) decide(g *group, f Failure) {
	if f.Key != "" {
		if of := c.groups[f.Group]; of != nil {
			f.Absent = of.missing(f.Key)
			if of.gathers[f.Key] == nil && f.Key != of.last && f.Key != LeaveKey { // no member has given a value of f.Key, so all members are absent
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

// sendFailure sends the chosen failure of a group to some ranks.
func (c *Core) sendFailure(g *group, to ...int) {
	q := g.failure
	c.send(&Message{Verb: Failed, Number: q.number, Group: g.name, Failure: &q.failure}, to...)
}

// sendSettledFailure sends the chosen failure of g to a rank that joined after the decision. It sends
// Settled at once, even if other ranks have not acknowledged the failure. This is safe: Settled allows
// the rank to abort its transfers, and the rank has none.
func (c *Core) sendSettledFailure(g *group, to int) {
	c.sendFailure(g, to)
	c.send(&Message{Verb: Settled, Number: g.failure.number, Group: g.name}, to)
}

// await notes that the ranks in the parameter ranks must acknowledge the message with the number
// c.number. When all of them have acknowledged this message, the ranks in the parameter notify receive
// Settled. The parameter leave is true if the message is Leaving.
func (c *Core) await(g *group, ranks, notify []int, leave bool) {
	a := &acknowledgement{owed: map[int]bool{}, notify: notify, group: g, leave: leave}
	for _, r := range ranks {
		a.owed[r] = true
	}
	c.acks[c.number] = a
	c.settle(c.number)
}

// settle sends Settled if the core no longer waits for any rank to acknowledge the message with this
// number.
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
		return // all members have left, and the core has already sent Left
	}
	g.left.add(from, nil)
	c.waiveAcks(from, g)
	c.read(g, "")
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

// announce sends Leaving: it tells the other members which members leave without waiting. Only one
// Leaving waits for acknowledgements at a time. The next Leaving names all members that asked to
// leave meanwhile, which saves messages.
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

// remove removes rank r, which has left the session or is lost. The parameter to is the rank's new
// state, `left` or `lost`. The core no longer waits for rank r to acknowledge or answer messages. If
// rank r is lost, the failure `why` becomes the failure of the group of all ranks and, if failures are
// isolated, of every group of rank r. If rank r is the reporter in the inquiry of a group, this report
// becomes the group's failure instead. Groups for which the core has already chosen a failure do not
// change.
func (c *Core) remove(r int, to state, why Failure) {
	c.ranks[r].state = to
	c.waiveAcks(r, nil)
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		g := c.groups[name]
		q := g.failure
		switch {
		case !g.has(r) || q != nil && q.decided:
		case q != nil && q.failure.Reporter == r:
			c.decide(g, q.failure) // the reporter, rank r, cannot decide any more: choose the failure that it reported
		case to == lost && (g.name == "" || c.isolated):
			c.decide(g, why)
		case q != nil && q.owed[r]:
			delete(q.owed, r)
			q.answers[r] = nil
			c.conclude(g)
		}
		g.readers = slices.DeleteFunc(g.readers, func(reader reader) bool { return reader.rank == r })
		c.read(g, "")
	}
}

// waiveAcks makes the core stop waiting for acknowledgements of rank r. If left is nil, rank r is gone,
// and need not acknowledge any message. Otherwise rank r has left only the group `left`, and need not
// acknowledge the messages Leaving of that group.
func (c *Core) waiveAcks(r int, left *group) {
	for _, number := range slices.Sorted(maps.Keys(c.acks)) {
		if a := c.acks[number]; a.owed[r] && (left == nil || a.leave && a.group == left) {
			delete(a.owed, r)
			c.settle(number)
		}
	}
}

// departed reports whether rank r has sent Leave for the group with this name or for the session.
func (c *Core) departed(group string, r int) bool {
	if g := c.groups[group]; g != nil {
		if _, departed := g.left.values[r]; departed {
			return true
		}
	}
	return c.ranks[r].state == left
}

// has reports whether rank r is a member of the group.
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
