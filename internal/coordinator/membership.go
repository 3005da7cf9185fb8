package coordinator

import (
	"slices"
	"time"
)

// Membership decides which workers of an elastic job train together. A worker is a process, with an id
// for life. An epoch is a session with fixed members, in which each member has a rank. Membership is a
// pure state machine like [Core]: its inputs are the reports of workers and agents, its outputs are
// orders. It is not safe for concurrent use.
//
// It has one rule: the next epoch begins when every member of the current epoch is ready or gone, and
// at least min workers are ready. Before the first epoch, the members are the workers started so far.
//
// A worker is gone when its parent has reaped it. The end of its connection is not enough: a suspended
// process may run on as a member of the old epoch, and its GPU runs on in any case. A worker that
// cannot be reached is therefore killed (Expel), and the epoch waits until it is gone.
type Membership struct {
	min      int
	epoch    int
	members  []int     // the current epoch's members, by rank
	workers  []*worker // the workers that are not gone, in the order of their start
	notified bool      // the members have the order Notice
	delayed  bool      // a member that wishes to leave stays, because it alone had the state when the epoch began
	hurried  bool      // workers join and leave without delay
	ending   bool      // a worker has ended with success: nobody joins any more
	out      []Order
}

type worker struct {
	id       int
	report   *Ready // nil: not ready
	leaves   bool   // is no member of the next epoch
	expelled bool   // the agent has the order Kill
	released bool   // it has the order Release: its end is not the job's
}

// Ready is what a worker reports when it waits for the next epoch.
type Ready struct {
	Epoch int  // the epoch that the worker leaves; 0: none
	Steps int  // the number of steps that it has committed
	Holds bool // its state is exactly the result of these steps
	// Patience is how long the worker waits for the other members of the epoch that it leaves. Membership ignores it.
	Patience time.Duration `json:",omitempty"`
}

// An Order tells agents and workers what to do.
type Order struct {
	Verb    Ordered
	Workers []int // of Begin the members, by rank

	// The fields of Begin. Steps is the last step that any member has committed. The ranks Lacking do not
	// hold the state of that step, and copy it from the rank Source. If no member holds it, Source is -1,
	// and the members restore a checkpoint.
	Epoch, Steps, Source int
	Lacking              []int
}

// Ordered is the verb of an Order.
type Ordered uint8

const (
	Begin   Ordered = iota + 1 // Workers are the members of Epoch
	Kill                       // the agents of Workers kill them, and report Gone
	Notice                     // Workers shall return at a step's boundary and report Ready
	Wait                       // Workers are ready, but fewer than min
	Release                    // Workers are ready, and shall end: they wished to leave, or to join a job that ends
)

// NewMembership returns the membership of a job that needs at least min workers.
func NewMembership(min int) *Membership { return &Membership{min: min} }

// Start reports that an agent has started a worker. The ids of workers must differ.
func (m *Membership) Start(id int) []Order {
	m.out = nil
	m.workers = append(m.workers, &worker{id: id})
	if m.epoch == 0 {
		m.members = append(m.members, id)
	}
	return m.out
}

// Ready reports that a worker waits for the next epoch. A worker that comes from another epoch than the
// current one has missed that it was expelled, and is killed.
func (m *Membership) Ready(id int, r Ready) []Order {
	m.out = nil
	w := m.worker(id)
	if w == nil {
		return m.out // about to be gone
	}
	if w.expelled { // its process may have started after the order
		m.order(Order{Verb: Kill, Workers: []int{id}})
		return m.out
	}
	if want := m.epochOf(id); r.Epoch != want {
		m.expel(w)
		return m.out
	}
	w.report = &r
	m.advance()
	return m.out
}

// Unready reports that the connection has ended over which a worker reported Ready. The worker may come again.
func (m *Membership) Unready(id int) []Order {
	m.out = nil
	if w := m.worker(id); w != nil {
		w.report = nil
	}
	return m.out
}

// Gone reports that a worker's process has ended and was reaped. done says that it ended with success. If it was a
// member, all members have committed the last step then, and any number of them can end the job.
func (m *Membership) Gone(id int, done bool) []Order {
	m.out = nil
	if w := m.worker(id); done && slices.Contains(m.members, id) && !(w != nil && w.released) {
		m.ending, m.min = true, 1
	}
	m.workers = slices.DeleteFunc(m.workers, func(w *worker) bool { return w.id == id })
	m.advance()
	return m.out
}

// Expel kills a worker: it is at fault for a failure, or was silent for too long.
func (m *Membership) Expel(id int) []Order {
	m.out = nil
	if w := m.worker(id); w != nil {
		m.expel(w)
	}
	return m.out
}

// Leave reports that a worker shall leave, because its node is to be drained for example.
func (m *Membership) Leave(id int) []Order {
	m.out = nil
	if w := m.worker(id); w != nil {
		w.leaves = true
		m.advance()
	}
	return m.out
}

// Hurry ends the delays of those that wish to join or to leave. A worker that joins waits for others that start, because
// each change costs the members a step. A member that alone has the state leaves after the others have it.
func (m *Membership) Hurry() []Order {
	m.out, m.hurried = nil, true
	m.advance()
	return m.out
}

// isWaiting reports whether a worker that wishes to join or to leave may wait for Hurry.
func (m *Membership) isWaiting() bool {
	return m.delayed || m.epoch > 0 && slices.ContainsFunc(m.workers, func(w *worker) bool { return w.report != nil && m.epochOf(w.id) == 0 })
}

func (m *Membership) worker(id int) *worker {
	if i := slices.IndexFunc(m.workers, func(w *worker) bool { return w.id == id }); i >= 0 {
		return m.workers[i]
	}
	return nil
}

// CanGoOn reports whether enough workers are left, and one that may hold the state.
func (m *Membership) CanGoOn() bool {
	hasMember := slices.ContainsFunc(m.workers, func(w *worker) bool { return slices.Contains(m.members, w.id) })
	return m.epoch > 0 && hasMember && len(m.workers) >= m.min
}

// epochOf returns the epoch of which a worker is a member; 0: none.
func (m *Membership) epochOf(id int) int {
	if slices.Contains(m.members, id) {
		return m.epoch
	}
	return 0
}

func (m *Membership) expel(w *worker) {
	if !w.expelled {
		w.expelled, w.report = true, nil
		m.order(Order{Verb: Kill, Workers: []int{w.id}})
	}
}

func (m *Membership) order(o Order) { m.out = append(m.out, o) }

// advance begins the next epoch if the rule allows it.
func (m *Membership) advance() {
	var ready []*worker // members first, in the order of their ranks
	missing := 0        // members that are neither ready nor gone
	leaves := false     // a member wishes to leave
	joins := false      // a worker that is no member is ready
	starting := false   // another one is not
	for _, id := range m.members {
		switch w := m.worker(id); {
		case w == nil:
		case w.report != nil:
			ready = append(ready, w)
		default:
			missing++
			leaves = leaves || w.leaves
		}
	}
	isSteady := missing == len(m.members) // none has left the epoch
	for _, w := range m.workers {
		switch isMember := slices.Contains(m.members, w.id); {
		case isMember:
		case w.report != nil:
			ready = append(ready, w)
			joins = joins || !w.leaves && !m.ending
		default:
			starting = starting || !w.expelled
		}
	}
	wished := leaves && (!m.delayed || m.hurried) || joins && (!starting || m.hurried)
	switch {
	case missing == 0:
		m.begin(ready)
	case isSteady && wished && !m.notified && m.epoch > 0:
		m.notified = true
		m.order(Order{Verb: Notice, Workers: m.members})
	}
}

// begin begins the next epoch, of the ready workers that do not wish to leave. A worker that wishes to
// leave stays if it alone holds the state after the last step, and leaves after Hurry.
func (m *Membership) begin(ready []*worker) {
	var next, released []int
	o := Order{Verb: Begin, Epoch: m.epoch + 1, Source: -1}
	for _, w := range ready {
		o.Steps = max(o.Steps, w.report.Steps)
	}
	holds := func(w *worker) bool { return w.report.Holds && w.report.Steps == o.Steps }
	isHeld := slices.ContainsFunc(ready, func(w *worker) bool { return !w.leaves && holds(w) })
	for _, w := range ready {
		if w.leaves && (isHeld || !holds(w)) || m.ending && !slices.Contains(m.members, w.id) {
			w.released, released = true, append(released, w.id)
			continue
		}
		switch {
		case !holds(w):
			o.Lacking = append(o.Lacking, len(next))
		case o.Source < 0:
			o.Source = len(next)
		}
		next = append(next, w.id)
	}
	if len(released) > 0 {
		m.order(Order{Verb: Release, Workers: released})
	}
	if len(next) < max(m.min, 1) {
		if len(next) > 0 {
			m.order(Order{Verb: Wait, Workers: next})
		}
		return
	}
	m.epoch, m.members, m.notified, m.delayed, m.hurried = o.Epoch, next, false, false, false
	for _, id := range next {
		w := m.worker(id)
		w.report, m.delayed = nil, m.delayed || w.leaves
	}
	o.Workers = next
	m.order(o)
}
