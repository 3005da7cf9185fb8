package coordinator

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

// The simulation of Membership runs an elastic job in virtual time: workers that train together, their
// GPUs, the agent that starts, kills and reaps them, a Core for each epoch, and the Membership. A
// worker's step is a reduction to which each member contributes. Its GPU computes the reduction, and then
// the gate commits the step unless the host has refused it. A GPU runs on while its process is suspended.
// If a member aborts its transfers, reductions that still read from it yield garbage.
//
// Meanwhile workers die, also while others recover, are suspended and continue, join and leave. The workers are on several
// nodes. A node dies, or is cut off from the host of the coordinator, but its workers still exchange data with those of
// other nodes. Its agent kills them when the lease is over, and the host counts them as gone after twice that time.

// mutant is a wrong implementation. The simulation must find each of them.
type mutant uint8

const (
	correct            mutant = iota
	acksBeforeRefusal         // a host acknowledges a failure before it refuses the running step
	abortsUnsettled           // a host aborts its transfers before all have acknowledged
	beginsTooEarly            // a worker counts as gone when its connection has ended
	takesOldReports           // a report of an earlier epoch counts as one of this epoch
	joinerIsSource            // the state is that of the last rank, not of the last step
	overwritesHolders         // the source sends the state also to those that hold it
	receivesInPlace           // a member overwrites its own state before it has received all of the new one
	countsSamplesEarly        // the position in the data moves before the step is committed
	neverKillsSilent          // suspended workers are waited for
	leaseIgnored              // an agent that has lost the host does not kill its workers
	mutants
)

func (m mutant) String() string {
	return [...]string{"correct", "acks before refusal", "aborts unsettled", "begins too early", "takes old reports", "joiner is source",
		"overwrites holders", "receives in place", "counts samples early", "never kills silent", "lease ignored"}[m]
}

// Durations in virtual time, and the number of steps of a job.
const (
	elasticSteps    = 6
	elasticSilence  = time.Second            // the time after which a silent worker is expelled
	elasticFaults   = 400 * time.Millisecond // the time in which faults happen, except those in a recovery
	elasticLease    = 300 * time.Millisecond // the time after which an agent that has lost the host kills its workers
	elasticNodes    = 3
	elasticEpochs   = 20                    // the number of epochs after which the faults must be over
	elasticPatience = 60 * time.Millisecond // the time for which a worker waits that wishes to join or to leave
	elasticBound    = 20 * time.Second      // the time by which a job must have ended
)

type elasticJob struct {
	mutant     mutant
	rng        *rand.Rand
	queue      simQueue
	now        time.Duration
	seq        int
	membership *Membership
	min        int
	sessions   []*elasticSession  // by epoch, from 1
	workers    []*elasticWorker   // by id
	cutOff     [elasticNodes]bool // by node; node 0 has the host and is never cut off
	trace      []string
	broken     []string
}

// elasticSession is an epoch: its core, and what the members contributed to its reductions.
type elasticSession struct {
	core    *Core
	order   Order
	given   map[int]map[int]uint64 // by step and rank
	aborted bool                   // a member has aborted its transfers, so that reductions yield garbage
}

type elasticWorker struct {
	job  *elasticJob
	id   int
	node int

	alive, stopped bool
	gone           bool     // its end is reported
	inbox          []func() // what arrived while the worker was suspended
	up, down       time.Duration

	history  []uint64 // by step: the state after it
	position int      // the number of steps whose samples the worker has consumed
	holds    bool

	session         *elasticSession // nil: the worker waits for the next epoch
	epoch, rank     int
	refused, failed bool
	done            bool
}

func newElasticJob(m mutant, seed uint64) *elasticJob {
	j := &elasticJob{mutant: m, rng: rand.New(rand.NewPCG(seed, 7))}
	size := 3 + j.rng.IntN(14)
	j.min = 1 + j.rng.IntN(size)
	j.membership = NewMembership(j.min)
	for range size {
		j.start(j.rng.IntN(elasticNodes))
	}
	for range 1 + j.rng.IntN(6) {
		j.after(j.some(elasticFaults), j.fault)
	}
	return j
}

func (j *elasticJob) some(most time.Duration) time.Duration {
	return time.Duration(j.rng.Int64N(int64(most))) + 1
}

func (j *elasticJob) after(d time.Duration, do func()) {
	j.seq++
	heap.Push(&j.queue, simEvent{j.now + d, j.seq, do})
}

func (j *elasticJob) logf(format string, args ...any) {
	j.trace = append(j.trace, fmt.Sprintf("%12v ", j.now)+fmt.Sprintf(format, args...))
}

func (j *elasticJob) breakf(format string, args ...any) {
	j.logf(format, args...)
	j.broken = append(j.broken, fmt.Sprintf(format, args...))
}

// run runs the job until no event is left or the time is over, and checks that it has ended.
func (j *elasticJob) run() {
	for len(j.queue) > 0 && j.now < elasticBound && len(j.broken) == 0 {
		e := heap.Pop(&j.queue).(simEvent)
		j.now = e.at
		e.do()
	}
	for _, w := range j.workers {
		if len(j.broken) == 0 && (w.alive && !j.cutOff[w.node] || w.done && len(w.history) != elasticSteps) {
			j.breakf("worker %d has not ended: epoch %d, %d steps, stopped %v, failed %v", w.id, w.epoch, len(w.history), w.stopped, w.failed)
		}
	}
	if !slices.ContainsFunc(j.workers, func(w *elasticWorker) bool { return w.done }) && len(j.broken) == 0 {
		j.breakf("no worker has made all steps")
	}
}

// start starts a worker on a node, which is ready some time later.
func (j *elasticJob) start(node int) {
	w := &elasticWorker{job: j, id: len(j.workers), node: node, alive: true, holds: true}
	j.workers = append(j.workers, w)
	j.obey(j.membership.Start(w.id))
	j.after(j.some(100*time.Millisecond), w.report)
}

// fault makes something go wrong.
func (j *elasticJob) fault() {
	w := j.workers[j.rng.IntN(len(j.workers))]
	switch j.rng.IntN(7) {
	case 0, 1, 2:
		w.die()
	case 3:
		w.stop(j.some(2 * elasticSilence))
	case 4:
		w.stop(elasticBound)
	case 5:
		if j.rng.IntN(2) == 0 {
			j.start(0)
		} else if w.alive && j.living() > j.min {
			j.logf("worker %d shall leave", w.id)
			j.obey(j.membership.Leave(w.id))
		}
	case 6:
		j.cut(1+j.rng.IntN(elasticNodes-1), j.rng.IntN(2) == 0)
	}
}

// cut cuts a node off from the host, or lets it die.
func (j *elasticJob) cut(node int, dies bool) {
	if j.cutOff[node] {
		return
	}
	j.cutOff[node] = true
	j.logf("node %d is cut off, or dead: %v", node, dies)
	var lost []*elasticWorker
	for _, w := range j.workers {
		if w.node == node && !w.gone {
			lost = append(lost, w)
		}
	}
	kill := func() {
		for _, w := range lost {
			w.alive = false
		}
	}
	switch {
	case dies:
		kill()
	case j.mutant != leaseIgnored:
		j.after(elasticLease, kill)
	}
	j.after(j.some(elasticLease), func() { // the host notices, also of workers whose agent has reported their end before
		for _, w := range j.workers {
			if s := w.session; w.node == node && s != nil && !w.done {
				j.lost(s, w.rank)
			}
		}
	})
	j.after(2*elasticLease, func() {
		for _, w := range lost {
			j.gone(w, "its node was lost")
		}
	})
}

// gone reports that a worker's process has ended.
func (j *elasticJob) gone(w *elasticWorker, how string) {
	j.logf("worker %d is gone", w.id)
	w.gone = true
	for _, s := range j.sessions {
		if rank := slices.Index(s.order.Workers, w.id); rank >= 0 {
			j.deliver(s, s.core.Exited(rank, how))
		}
	}
	j.obey(j.membership.Gone(w.id, false))
	if j.living() < j.min && !w.done {
		j.start(0)
	}
}

func (j *elasticJob) living() (n int) {
	for _, w := range j.workers {
		if w.alive && !w.gone {
			n++
		}
	}
	return n
}

// die ends the worker's process. The agent reaps it, and the other end of its connection notices.
func (w *elasticWorker) die() {
	if !w.alive {
		return
	}
	j := w.job
	w.alive = false
	j.logf("worker %d dies in epoch %d after %d steps", w.id, w.epoch, len(w.history))
	if s, rank := w.session, w.rank; s != nil {
		w.sends(func() { j.lost(s, rank) })
	}
	j.after(j.some(50*time.Millisecond), func() {
		if !j.cutOff[w.node] { // otherwise nobody can report it
			j.gone(w, "killed")
		}
	})
}

// stop suspends the worker's process. Its GPU runs on.
func (w *elasticWorker) stop(d time.Duration) {
	if !w.alive || w.stopped {
		return
	}
	j := w.job
	w.stopped = true
	j.logf("worker %d stops for %v", w.id, d)
	j.after(elasticSilence, func() {
		switch {
		case !w.stopped || !w.alive:
		case w.session != nil && !w.session.core.Ended():
			j.lost(w.session, w.rank)
		case j.mutant != neverKillsSilent:
			j.obey(j.membership.Expel(w.id)) // between two epochs
		}
	})
	j.after(d, func() {
		if w.stopped = false; w.alive {
			j.logf("worker %d continues", w.id)
			inbox := w.inbox
			w.inbox = nil
			for _, do := range inbox {
				w.handle(do)
			}
		}
	})
}

// handle calls do on the worker's host: now, when it continues, or never.
func (w *elasticWorker) handle(do func()) {
	switch {
	case !w.alive:
	case w.stopped:
		w.inbox = append(w.inbox, do)
	default:
		do()
	}
}

// sends and receives deliver a message in order, after some time, unless the worker's node is cut off.
func (w *elasticWorker) sends(do func()) {
	w.up = max(w.job.now+w.job.some(simDelay), w.up)
	w.job.after(w.up-w.job.now, w.unlessCutOff(do))
}

func (w *elasticWorker) receives(do func()) {
	w.down = max(w.job.now+w.job.some(simDelay), w.down)
	w.job.after(w.down-w.job.now, w.unlessCutOff(func() { w.handle(do) }))
}

func (w *elasticWorker) unlessCutOff(do func()) func() {
	return func() {
		if !w.job.cutOff[w.node] {
			do()
		}
	}
}

// lost handles the end of a member's connection, or its silence. Its agent kills it.
func (j *elasticJob) lost(s *elasticSession, rank int) {
	j.deliver(s, s.core.Lost(rank, "lost"))
	id := s.order.Workers[rank]
	switch {
	case j.mutant == beginsTooEarly:
		j.obey(j.membership.Gone(id, false))
	case j.mutant != neverKillsSilent:
		j.obey(j.membership.Expel(id))
	}
}

// obey carries out orders.
func (j *elasticJob) obey(orders []Order) {
	for _, o := range orders {
		j.logf("%+v", o)
		switch o.Verb {
		case Begin:
			j.begin(o)
		case Kill, Release:
			for _, id := range o.Workers {
				w := j.workers[id]
				j.after(j.some(simDelay), w.unlessCutOff(w.die))
			}
		case Wait:
			if j.living() < j.min {
				j.start(0)
			}
		case Notice:
			s := j.sessions[len(j.sessions)-1]
			j.deliver(s, s.core.Change())
		}
	}
}

// hurryLater ends the wait of workers that wish to join or to leave, unless another epoch begins before.
func (j *elasticJob) hurryLater() {
	epoch := len(j.sessions)
	j.after(elasticPatience, func() {
		if len(j.sessions) == epoch && j.membership.isWaiting() {
			j.obey(j.membership.Hurry())
		}
	})
}

// begin begins an epoch, and checks that it may begin.
func (j *elasticJob) begin(o Order) {
	if o.Epoch != len(j.sessions)+1 {
		j.breakf("epoch %d follows %d", o.Epoch, len(j.sessions))
		return
	}
	if o.Epoch > elasticEpochs {
		j.breakf("epoch %d begins, and the job has made %d steps", o.Epoch, o.Steps)
	}
	if len(o.Workers) < j.min {
		j.breakf("epoch %d begins with %d workers, at least %d", o.Epoch, len(o.Workers), j.min)
	}
	if len(j.sessions) > 0 {
		for _, id := range j.sessions[len(j.sessions)-1].order.Workers {
			if w := j.workers[id]; w.alive && w.session != nil {
				j.breakf("epoch %d begins while worker %d is in epoch %d", o.Epoch, id, w.epoch)
			}
		}
	}
	var last *elasticWorker // of the living members, one that has committed most
	for _, id := range o.Workers {
		if w := j.workers[id]; last == nil || len(w.history) > len(last.history) {
			last = w
		}
	}
	if j.mutant == joinerIsSource {
		o.Source = len(o.Workers) - 1
	}
	if o.Source < 0 {
		j.breakf("no member of epoch %d holds step %d", o.Epoch, o.Steps)
		return
	}
	if source := j.workers[o.Workers[o.Source]]; len(source.history) < len(last.history) || !source.holds {
		j.breakf("epoch %d begins with the state of worker %d after %d steps, and worker %d has made %d", o.Epoch, source.id, len(source.history), last.id, len(last.history))
	}
	if o.Epoch > 1 && o.Epoch < 6 && j.rng.IntN(2) == 0 { // also in the recovery
		j.after(j.some(4*simDelay), j.workers[o.Workers[j.rng.IntN(len(o.Workers))]].die)
	}
	s := &elasticSession{core: NewCore(len(o.Workers)), order: o, given: map[int]map[int]uint64{}}
	j.sessions = append(j.sessions, s)
	j.hurryLater()
	for rank, id := range o.Workers {
		w := j.workers[id]
		w.receives(func() { w.join(s, rank) })
		if !w.alive { // its connection has ended
			j.lost(s, rank)
		}
	}
}

// deliver sends a core's messages to the members.
func (j *elasticJob) deliver(s *elasticSession, out []Outgoing) {
	for _, o := range out {
		for _, to := range o.To {
			w := j.workers[s.order.Workers[to]]
			w.receives(func() {
				if w.session == s {
					w.receive(o.Message)
				}
			})
		}
	}
}

// say sends a message to the core of the worker's epoch.
func (w *elasticWorker) say(m *Message) {
	s, rank := w.session, w.rank
	w.sends(func() {
		if out, err := s.core.Step(rank, m); err == nil { // after the worker counts as lost, its messages are errors
			w.job.deliver(s, out)
		}
	})
}

// report reports that the worker is ready.
func (w *elasticWorker) report() {
	w.handle(func() {
		w.session, w.failed = nil, false
		r := Ready{Epoch: w.epoch, Steps: len(w.history), Holds: w.holds}
		w.sends(func() {
			if w.job.mutant == takesOldReports {
				r.Epoch = w.job.membership.epochOf(w.id)
			}
			if w.alive {
				w.job.obey(w.job.membership.Ready(w.id, r))
				w.job.hurryLater()
			}
		})
	})
}

// join joins an epoch.
func (w *elasticWorker) join(s *elasticSession, rank int) {
	if w.job.rng.IntN(100) == 0 { // the order did not arrive: the connection broke, and the worker reports again
		w.job.logf("worker %d misses epoch %d", w.id, s.order.Epoch)
		w.report()
		return
	}
	w.session, w.rank, w.epoch = s, rank, s.order.Epoch
	w.refused, w.failed = false, false
	w.say(&Message{Verb: Join, Process: fmt.Sprint(w.id)})
}

func (w *elasticWorker) receive(m *Message) {
	j, s := w.job, w.session
	switch m.Verb {
	case Gathered:
		w.transfer()
	case Failed:
		w.failed = true
		if j.mutant == acksBeforeRefusal {
			j.after(j.some(10*simDelay), func() { w.refused = w.refused || w.session == s })
		} else {
			w.refused = true
		}
		w.say(&Message{Verb: Ack, Number: m.Number})
		if j.mutant == abortsUnsettled {
			s.aborted = true
		}
	case Settled:
		if !w.failed {
			return
		}
		s.aborted = true
		j.after(j.some(2*simCompute), func() { w.handle(func() { w.leave(s) }) }) // the device drains
	case Left:
		j.logf("worker %d has done its work", w.id)
		w.done = len(w.history) == elasticSteps
		if w.done {
			w.die()
		} else {
			w.leave(s)
		}
	}
}

// leave leaves an epoch that has failed or that all leave, and waits for the next one.
func (w *elasticWorker) leave(s *elasticSession) {
	if w.session != s {
		return
	}
	w.say(&Message{Verb: Leave, Final: true})
	w.report()
}

// transfer sends the source's state to the members that lack it, and begins to train.
func (w *elasticWorker) transfer() {
	j, s := w.job, w.session
	source := j.workers[s.order.Workers[s.order.Source]]
	lacks := !w.holds || len(w.history) < s.order.Steps
	if w == source || !lacks && j.mutant != overwritesHolders {
		w.step()
		return
	}
	if j.mutant == overwritesHolders || j.mutant == receivesInPlace {
		w.holds = false
	}
	j.after(j.some(simCompute), func() {
		w.handle(func() {
			if source.alive && source.epoch == s.order.Epoch && w.session == s && !w.failed {
				w.history, w.position, w.holds = slices.Clone(source.history[:s.order.Steps]), s.order.Steps, true
				w.step()
			}
		})
	})
}

// step makes the next step, or leaves the epoch.
func (w *elasticWorker) step() {
	j, s := w.job, w.session
	next := len(w.history)
	if next == elasticSteps {
		w.say(&Message{Verb: Leave})
		return
	}
	if j.mutant == countsSamplesEarly {
		w.position++
	} else {
		w.position = next + 1
	}
	position := w.position
	j.after(j.some(simCompute), func() {
		w.handle(func() {
			if w.session != s || w.failed {
				return
			}
			if s.given[next] == nil {
				s.given[next] = map[int]uint64{}
			}
			var before uint64
			if next > 0 {
				before = w.history[next-1]
			}
			s.given[next][w.rank] = digest(before, uint64(position), uint64(w.rank))
			if position != next+1 {
				j.breakf("worker %d trains sample %d in step %d", w.id, position, next+1)
			}
			if len(s.given[next]) == len(s.order.Workers) {
				for _, id := range s.order.Workers {
					o := j.workers[id]
					j.after(j.some(2*simDelay), func() { o.gate(s, next) })
				}
			}
		})
	})
}

// gate ends a reduction on the worker's GPU, and commits the step unless the host has refused it.
func (w *elasticWorker) gate(s *elasticSession, step int) {
	j := w.job
	if !w.alive || w.session != s || w.refused {
		return
	}
	h := digest(uint64(step))
	for rank := range s.order.Workers {
		h = digest(h, s.given[step][rank])
	}
	if s.aborted {
		h = j.rng.Uint64()
	}
	w.history = append(w.history, h)
	j.logf("worker %d commits step %d of epoch %d", w.id, step+1, w.epoch)
	for _, o := range j.workers {
		if j.cutOff[w.node] || j.cutOff[o.node] { // nobody will take over its state
			continue
		}
		if o.alive && o.holds && len(o.history) > step && !slices.Equal(o.history[:step+1], w.history) {
			j.breakf("workers %d and %d differ after step %d", w.id, o.id, step+1)
		}
	}
	if w.epoch < 6 && j.rng.IntN(60) == 0 { // while the others have not committed the step
		j.workers[s.order.Workers[j.rng.IntN(len(s.order.Workers))]].die()
	}
	if w.epoch < 6 && j.rng.IntN(30) == 0 && j.living() > j.min { // it may alone have the state
		j.obey(j.membership.Leave(w.id))
	}
	j.after(j.some(simDelay), func() {
		w.handle(func() {
			if w.session == s && !w.failed {
				w.step()
			}
		})
	})
}

func digest(values ...uint64) uint64 {
	h := fnv.New64a()
	for _, v := range values {
		fmt.Fprintf(h, "%x,", v)
	}
	return h.Sum64()
}

// Jobs survive: the simulation finds no violated invariant with the right implementation, and one with
// each wrong implementation.
func TestMembershipSimulation(t *testing.T) {
	seeds := 1000
	if testkit.IsLong() && !testkit.Race {
		seeds = 20_000
	}
	for seed := range seeds {
		j := newElasticJob(correct, uint64(seed))
		if j.run(); len(j.broken) > 0 {
			t.Fatalf("seed %d: %s\n%s", seed, strings.Join(j.broken, "\n"), strings.Join(j.trace, "\n"))
		}
	}
	for m := correct + 1; m < mutants; m++ {
		t.Run(m.String(), func(t *testing.T) {
			for seed := range seeds {
				j := newElasticJob(m, uint64(seed))
				if j.run(); len(j.broken) > 0 {
					t.Logf("seed %d: %s", seed, j.broken[0])
					return
				}
			}
			t.Errorf("no schedule of %d finds it", seeds)
		})
	}
}
