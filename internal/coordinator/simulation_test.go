package coordinator

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

// The simulation runs the core with simulated ranks in virtual time. The ranks join, make some
// steps and leave. In each step a rank posts a value, passes a token to the next rank, and
// waits for the token of the previous rank. When a rank has received the token, it must be able to
// read the value that the previous rank posted. Meanwhile some ranks die, hang, are suspended, lose
// connections, make mistakes, leave early or never join. Every message takes a random time. Messages
// of one connection keep their order.

// The number of steps, and durations in virtual time.
const (
	simSteps    = 3
	simDelay    = 5 * time.Millisecond   // the longest delay of a message
	simCompute  = 20 * time.Millisecond  // the longest computation of a step
	simJoin     = time.Minute            // the timeout of joining
	simTimeout  = 10 * time.Second       // the timeout of a step
	simAnswers  = time.Second            // the time after which a reporter decides without all answers
	simGrace    = 2 * time.Second        // the time for which a rank waits for the others to leave
	simSilence  = 10 * time.Minute       // the time after which a silent rank is lost
	simLateness = 100 * time.Millisecond // the time between the loss of the coordinator and the end of the rank's process
)

// fault is something that goes wrong on a simulated rank.
type fault uint8

const (
	dies         fault = iota // the rank's process ends
	exitsEarly                // the rank's process ends before it joins, and the launcher reports this end
	neverComes                // the rank's process does not start
	hangs                     // the rank's program hangs, but its client answers the coordinator
	stops                     // the rank's process is suspended forever
	losesData                 // the rank's connection to the next rank breaks
	losesControl              // the rank's connection to the coordinator breaks
	errs                      // the rank's program makes an invalid call, and the rank reports it
	leavesEarly               // the rank leaves before its last step
	differs                   // the rank's options differ from the options of the other ranks
	faults                    // the number of kinds of faults
)

func (f fault) String() string {
	return [...]string{"dies", "exits early", "never comes", "hangs", "stops", "loses data", "loses control", "errs", "leaves early", "differs"}[f]
}

type simEvent struct {
	at  time.Duration
	seq int
	do  func()
}

type simQueue []simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(e any)   { *q = append(*q, e.(simEvent)) }
func (q *simQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

type simulation struct {
	core   *Core
	rng    *rand.Rand
	queue  simQueue
	now    time.Duration
	seq    int
	ranks  []*simRank
	faulty map[int]fault
	trace  []string
	traces bool
	broken []string // descriptions of the violated invariants
}

// simRank is a simulated rank.
type simRank struct {
	sim *simulation
	id  int

	// up, down and data are arrival times: of the latest message from this rank to the coordinator,
	// from the coordinator to this rank, and from this rank to the next rank.
	up, down, data time.Duration

	dead, stopped, hung, unconnected bool
	joined                           bool
	step                             int  // the number of the current step, from 1
	waits                            bool // the rank waits for the token of its current step from the previous rank
	tokens                           int  // the step of the latest token that has arrived
	cutBefore, cutBehind             bool // cutBefore: the connection from the previous rank has ended; cutBehind: the one to the next rank
	reported                         bool // the rank has reported a failure
	leaving, gone                    bool
	// leavingAcks are the messages Leaving that the rank has not acknowledged. The key is the number
	// of the message. The value is the step that the rank must reach before it acknowledges.
	leavingAcks map[uint64]int
	failure     *Failure
	settled     bool
	messages    int
}

func newSimulation(core *Core, size int, seed uint64, faulty int) *simulation {
	s := &simulation{core: core, rng: rand.New(rand.NewPCG(seed, uint64(size))), faulty: map[int]fault{}}
	for r := range size {
		s.ranks = append(s.ranks, &simRank{sim: s, id: r, leavingAcks: map[uint64]int{}})
	}
	for range faulty {
		s.faulty[s.rng.IntN(size)] = fault(s.rng.IntN(int(faults)))
	}
	for _, r := range s.ranks {
		f, faulty := s.faulty[r.id]
		start := s.some(simCompute)
		switch {
		case faulty && f == neverComes:
			continue
		case faulty && f == exitsEarly:
			s.after(start, func() { s.deliver(s.core.Exited(r.id, "exit code 1")) })
			continue
		}
		s.after(start, r.start)
		if faulty {
			s.after(start+s.some(3*simCompute), func() { r.fault(f) })
		}
	}
	return s
}

func (s *simulation) some(most time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(most))) + 1
}

func (s *simulation) after(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, simEvent{s.now + d, s.seq, do})
}

func (s *simulation) logf(format string, args ...any) {
	if s.traces {
		s.trace = append(s.trace, fmt.Sprintf("%12v ", s.now)+fmt.Sprintf(format, args...))
	}
}

func (s *simulation) breakf(format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf(format, args...))
}

// run runs the simulation until no event is left, and then checks the invariants.
func (s *simulation) run() {
	for len(s.queue) > 0 {
		e := heap.Pop(&s.queue).(simEvent)
		s.now = e.at
		e.do()
	}
	s.check()
}

// arrives schedules the function do for the time at which a message arrives that is sent now. *last is
// the arrival time of the previous message on the same connection. The new message does not arrive
// before *last, and arrives sets *last to its arrival time.
func (s *simulation) arrives(last *time.Duration, do func()) {
	at := max(s.now+s.some(simDelay), *last)
	*last = at
	s.after(at-s.now, do)
}

// deliver schedules the arrival of the messages that the core sends.
func (s *simulation) deliver(out []Outgoing) {
	for _, o := range out {
		for _, to := range o.To {
			if to == Sender {
				continue
			}
			r := s.ranks[to]
			r.count(o.Message)
			s.arrives(&r.down, func() {
				if !r.dead && !r.stopped && !r.unconnected {
					r.receive(o.Message)
				}
			})
		}
	}
}

// count counts a message from or to a rank, unless the message is about joining, querying, posting or
// leaving.
func (r *simRank) count(m *Message) {
	if m.Verb != Join && m.Verb != Gathered && m.Verb != Query && m.Verb != Queried && m.Verb != Post && m.Verb != Posted && m.Verb != Leave {
		r.messages++
	}
}

// say sends a message to the coordinator.
func (r *simRank) say(m *Message) {
	s := r.sim
	if r.dead || r.stopped || r.unconnected {
		return
	}
	r.count(m)
	s.arrives(&r.up, func() {
		s.logf("rank %d: %v #%d final=%v ask=%v", r.id, m.Verb, m.Number, m.Final, m.Ranks)
		out, err := s.core.Step(r.id, m)
		if err != nil {
			s.breakf("rank %d broke the protocol: %v", r.id, err)
		}
		for _, o := range out {
			s.logf("  %s", describe(&o))
		}
		s.deliver(out)
	})
}

// cut ends the connection to the coordinator after some time.
func (r *simRank) cut(after time.Duration) {
	s := r.sim
	s.after(after, func() {
		s.arrives(&r.up, func() {
			s.logf("rank %d: connection ended", r.id)
			s.deliver(s.core.Lost(r.id, "its connection ended"))
		})
	})
}

func (r *simRank) before() *simRank { return r.sim.ranks[(r.id+len(r.sim.ranks)-1)%len(r.sim.ranks)] }
func (r *simRank) behind() *simRank { return r.sim.ranks[(r.id+1)%len(r.sim.ranks)] }

func (r *simRank) others() (ranks []int) {
	for _, o := range r.sim.ranks {
		if o != r {
			ranks = append(ranks, o.id)
		}
	}
	return ranks
}

// cutData ends the data connections to the neighbors.
func (r *simRank) cutData() {
	s, behind, before := r.sim, r.behind(), r.before()
	s.arrives(&r.data, func() { behind.cutBefore = true; behind.look() })
	s.after(s.some(simDelay), func() { before.cutBehind = true; before.look() })
}

func (r *simRank) start() {
	r.joined = true
	options := []Option{{"WORLD_SIZE", fmt.Sprint(len(r.sim.ranks))}}
	if r.sim.faulty[r.id] == differs && slices.Contains(r.sim.faults(), r.id) {
		options[0].Value = "1000000"
	}
	r.say(&Message{Verb: Join, Process: fmt.Sprintf("process %d", r.id), Options: options})
	r.sim.after(simJoin, func() {
		if r.step == 0 && r.failure == nil && !r.unconnected {
			r.say(&Message{Verb: Fail, Failure: &Failure{Text: "timed out", Key: JoinKey}})
		}
	})
}

func (r *simRank) fault(f fault) {
	s := r.sim
	if r.gone || r.failure != nil {
		return
	}
	s.logf("rank %d %v", r.id, f)
	switch f {
	case dies:
		r.dead = true
		r.cut(0)
		r.cutData()
	case hangs:
		r.hung, r.waits = true, false
	case stops:
		r.stopped = true
		r.cut(simSilence)
	case losesData:
		behind := r.behind()
		r.cutBehind, behind.cutBefore = true, true
		r.look()
		behind.look()
	case losesControl:
		r.unconnected = true
		r.cut(0)
		s.after(simLateness, func() { r.cutData() }) // the rank's process ends, because it has lost the coordinator
	case errs:
		r.report(&Message{Failure: &Failure{Text: "bad call", Ranks: []int{r.id}}})
	case leavesEarly:
		if r.step > 0 && !r.reported {
			r.leave()
		}
	}
}

// report reports a failure to the coordinator. A rank reports only its first failure.
func (r *simRank) report(m *Message) {
	if r.gone || r.reported || r.failure != nil || r.step == 0 || r.leaving && !m.WantAnswers {
		return
	}
	r.reported = true
	m.Verb = Fail
	r.say(m)
	if len(m.Ranks) > 0 {
		r.sim.after(simAnswers, func() {
			switch {
			case r.failure != nil || r.gone:
			case m.WantAnswers:
				r.say(&Message{Verb: Fail, WantAnswers: true, Failure: m.Failure})
			default:
				r.decide(m.Failure, nil)
			}
		})
	}
}

// decide asks the coordinator to choose f as the failure. It repeats the request until the coordinator
// has chosen a failure.
func (r *simRank) decide(f *Failure, culprits []int) {
	if r.failure == nil && !r.gone && !r.dead && !r.stopped && !r.unconnected {
		final := *f
		if culprits != nil {
			final.Ranks = culprits
		}
		r.say(&Message{Verb: Fail, Final: true, Failure: &final})
		r.sim.after(simGrace, func() { r.decide(&final, nil) })
	}
}

// next begins the next step, or leaves after the last step.
func (r *simRank) next() {
	r.step++
	step := r.step
	s := r.sim
	s.after(s.some(simCompute), func() {
		switch {
		case r.dead || r.stopped || r.hung || r.unconnected || r.failure != nil || r.leaving:
			return
		case r.step > simSteps:
			r.leave()
			return
		}
		r.say(&Message{Verb: Post, Key: "step", Value: []byte{byte(step)}})
	})
}

// pass passes the step's token to the next rank, and waits for the token of the previous rank.
func (r *simRank) pass() {
	s, step, behind := r.sim, r.step, r.behind()
	if r.hung || r.failure != nil || r.leaving {
		return
	}
	if r.cutBehind {
		r.report(&Message{Ranks: []int{behind.id}, Failure: &Failure{Text: "write", Ranks: []int{r.id, behind.id}}})
		return
	}
	s.arrives(&r.data, func() {
		if !behind.cutBefore {
			behind.tokens = step
			behind.look()
		}
	})
	r.waits = true
	s.after(simGrace, func() {
		if r.step == step && r.waits && r.failure == nil {
			r.say(&Message{Verb: Query, Key: LeaveKey})
		}
	})
	s.after(simTimeout, func() {
		if r.step == step && r.waits {
			r.report(&Message{Ranks: r.others(), WantAnswers: true, Failure: &Failure{Text: "timed out", Ranks: []int{r.before().id}}})
		}
	})
	r.look()
}

// look continues with the next step if the token has arrived. It reports a failure if the token cannot
// arrive any more.
func (r *simRank) look() {
	switch {
	case r.dead || r.stopped || r.hung || r.unconnected || r.failure != nil || !r.waits:
	case r.tokens >= r.step:
		r.waits = false
		r.say(&Message{Verb: Post, Key: "step", Ranks: []int{r.before().id}})
		r.acknowledge()
		r.next()
	case r.cutBefore:
		before := r.before().id
		r.report(&Message{Ranks: []int{before}, Failure: &Failure{Text: "read", Ranks: []int{before, r.id}}})
	}
}

// leave leaves the group without a failure. If the rank has not left simGrace later, it sends Leave with
// Alone: it no longer waits for the others to leave. If the rank has not left simTimeout after the call
// of leave, it reports a failure.
func (r *simRank) leave() {
	r.leaving = true
	at := []byte{byte(r.step)}
	r.say(&Message{Verb: Leave, Value: at})
	r.acknowledge()
	r.sim.after(simGrace, func() {
		if !r.gone {
			r.say(&Message{Verb: Leave, Value: at, Alone: true})
		}
	})
	r.sim.after(simTimeout, func() {
		if !r.gone {
			r.report(&Message{Ranks: r.others(), WantAnswers: true, Failure: &Failure{Text: "closed without the others"}})
		}
	})
}

// acknowledge acknowledges the messages Leaving. A rank acknowledges a message Leaving when the rank has
// reached the step in the message. If the rank is leaving too, it acknowledges all of them.
func (r *simRank) acknowledge() {
	for number, step := range r.leavingAcks {
		if r.step >= step || r.leaving {
			delete(r.leavingAcks, number)
			r.say(&Message{Verb: Ack, Number: number})
		}
	}
}

// end leaves the session and ends the process.
func (r *simRank) end() {
	if !r.gone {
		r.say(&Message{Verb: Leave, Final: true})
		r.gone = true
		r.cut(0)
		r.cutData()
	}
}

func (r *simRank) receive(m *Message) {
	s := r.sim
	switch m.Verb {
	case Gathered:
		r.next()
	case Asked:
		answer := []byte("busy")
		if r.waits && !r.hung {
			answer = []byte("waits")
		}
		r.say(&Message{Verb: Ack, Number: m.Number, Value: answer})
	case Answered:
		var busy []int
		for _, o := range s.ranks {
			i := slices.Index(m.Ranks, o.id)
			if o == r && r.hung || o != r && (i < 0 || string(m.Values[i]) == "busy") {
				busy = append(busy, o.id)
			}
		}
		r.decide(&Failure{Text: "behind"}, busy)
	case Failed:
		if r.failure != nil {
			s.breakf("rank %d was told of two failures: %v and %v", r.id, *r.failure, *m.Failure)
		}
		r.failure = m.Failure
		if m.Number > 0 {
			r.say(&Message{Verb: Ack, Number: m.Number})
		}
		if s.rng.IntN(3) == 0 { // the rank's process ends because of the failure, and does not wait for Settled
			r.settled = true
			r.dead = true
			r.cut(0)
			r.cutData()
		}
	case Settled:
		r.settled = r.failure != nil
		if r.failure == nil && !r.leaving {
			s.breakf("rank %d: settled without a failure", r.id)
		}
		r.end()
	case Left:
		r.end()
	case Queried:
		if before := r.before().id; r.waits && !slices.Contains(m.Ranks, before) {
			r.report(&Message{Ranks: []int{before}, Failure: &Failure{Text: "left", Ranks: []int{before}}})
		}
	case Posted:
		switch {
		case m.Values == nil:
			r.pass()
		case len(m.Values[0]) == 0 || int(m.Values[0][0]) < r.step-1:
			s.breakf("rank %d has the token of step %d and reads %v", r.id, r.step-1, m.Values)
		}
	case Leaving:
		r.leavingAcks[m.Number] = int(slices.Max(slices.Concat(m.Values...)))
		r.acknowledge()
	}
}

// faults returns the ranks that have a fault, in ascending order.
func (s *simulation) faults() []int {
	var ranks []int
	for r := range s.faulty {
		ranks = append(ranks, r)
	}
	slices.Sort(ranks)
	return ranks
}

// check checks the invariants: all ranks receive the same failure and then Settled, no rank waits
// forever, and the counted messages (see count) are at most 10 per rank.
func (s *simulation) check() {
	var first *simRank
	total := 0
	for _, r := range s.ranks {
		total += r.messages
		if r.failure != nil {
			if first == nil {
				first = r
			} else if f, g := fmt.Sprint(*first.failure), fmt.Sprint(*r.failure); f != g {
				s.breakf("rank %d has the cause %s, rank %d %s", first.id, f, r.id, g)
			}
			if !r.settled && !r.dead && !r.stopped && !r.unconnected {
				s.breakf("rank %d was told of a failure and never hears that all were", r.id)
			}
			continue
		}
		if f := s.faulty[r.id]; r.joined && !r.gone && !r.dead && !r.stopped && !r.unconnected && !(r.hung && f == hangs && first == nil) {
			s.breakf("rank %d waits for ever: step %d, waits %v, reported %v, leaving %v", r.id, r.step, r.waits, r.reported, r.leaving)
		}
	}
	if most := 10 * len(s.ranks); total > most {
		s.breakf("%d messages among %d ranks, at most %d", total, len(s.ranks), most)
	}
	if first != nil {
		s.checkCause(first.failure)
	}
}

// checkCause checks that a failure names a rank that has a fault. If only one rank has a fault, the
// failure must be of the right kind and name only this rank.
func (s *simulation) checkCause(f *Failure) {
	named := slices.Concat(f.Ranks, f.Absent)
	guilty := func(r int) bool {
		if _, ok := s.faulty[r]; ok {
			return true
		}
		before := (r + len(s.ranks) - 1) % len(s.ranks)
		return s.faulty[before] == losesData && slices.Contains(s.faults(), before)
	}
	if !slices.ContainsFunc(named, guilty) {
		s.breakf("the cause %+v names nobody of %v", *f, s.faulty)
	}
	if len(s.faulty) > 1 {
		return
	}
	var rank int
	var what fault
	for rank, what = range s.faulty {
	}
	want := map[fault]Kind{dies: Lost, exitsEarly: Exited, losesControl: Lost, leavesEarly: Departed, differs: Different}[what]
	also := map[fault]Kind{stops: Lost, losesData: Departed}[what] // another allowed kind: the rank may be lost, or may leave, before the coordinator asks it
	if f.Kind != want && (also == "" || f.Kind != also) {
		s.breakf("rank %d %v, and the cause is %+v, want kind %q", rank, what, *f, want)
	}
	if what != differs && what != losesData && !slices.Equal(named, []int{rank}) {
		s.breakf("rank %d %v, and the cause names %v", rank, what, named)
	}
}

// The function check finds no violated invariant in any simulated schedule.
func TestSimulation(t *testing.T) {
	run := func(size int, seed uint64) {
		for _, traces := range []bool{false, size <= 16} {
			s := newSimulation(NewCore(size), size, seed, 1+int(seed%3))
			s.traces = traces
			if s.run(); len(s.broken) == 0 {
				return
			}
			if traces || size > 16 {
				t.Fatalf("%d ranks, seed %d, faults %v:\n%s\n%s", size, seed, s.faulty, strings.Join(s.broken, "\n"), strings.Join(s.trace, "\n"))
			}
		}
	}
	small, thousand, tenThousand := 1000, 2, 0
	if testkit.IsLong() && !testkit.Race { // one goroutine has no races
		small, thousand, tenThousand = 10_000, 30, 2
	}
	for seed := range small {
		run(3+seed%14, uint64(seed))
	}
	for seed := range thousand {
		run(1000, uint64(seed))
	}
	for seed := range tenThousand {
		run(10_000, uint64(seed))
	}
}
