package page

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/telemetry"
)

// The bounds on what a run holds, whatever its workers send.
const (
	maxNames   = 256  // different names of values
	maxParts   = 32   // different parts of a step
	maxNumbers = 64   // numbers of a rank's condition
	maxRefused = 1000 // names that are counted, but not kept
	maxRanks   = 4096 // ranks
	maxEvents  = 200
	maxLines   = 200     // lines of a rank's output
	maxLine    = 1 << 10 // bytes of such a line
	maxReport  = 64 << 10
	mostPoints = 4096    // buckets of a series
	leastPoint = 64      // the same when there are many series
	maxBuckets = 1 << 20 // of all series; a bucket has 36 bytes
)

// The two times of a step that a run computes itself.
const (
	stepTime = "step" // the sum of all parts
	workTime = "work" // the sum of the parts that wait for no other rank
)

// shared are the parts of a step in which all ranks wait for each other, or only one works.
var shared = map[string]bool{telemetry.Wait: true, telemetry.Log: true, telemetry.Checkpoint: true, telemetry.Evaluation: true}

// Info says which run it is.
type Info struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Started time.Time `json:"started"`
}

// A Worker is a process of the run.
type Worker struct {
	Rank  int    `json:"rank"`
	Node  int    `json:"node"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	State string `json:"state"` // "running", or how it ended
}

// Running is the state of a worker that has not ended.
const Running = "running"

// An Event is something that happened to the run.
type Event struct {
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

// A Line is a line of a rank's output.
type Line struct {
	Text string `json:"text"`
	Err  bool   `json:"err,omitempty"` // of stderr
}

// key names a series.
type key struct {
	kind telemetry.Kind
	name string
	rank int
}

// A Run holds what is known of a job, in bounded memory. Its methods may be called by any goroutine.
type Run struct {
	mu      sync.Mutex
	version int64 // counts the changes
	info    Info
	now     func() time.Time

	series  map[key]*series
	points  int // the most buckets of a series
	names   map[string]bool
	parts   map[string]bool
	refused map[string]bool // the first maxRefused names that found no room
	ranks   map[int]*rank
	workers map[int]Worker
	events  []Event

	sampled             time.Time // when the ranks' conditions were last added to the curves
	worldSize, restarts int
	status              string // "running", or how the job ended
	ended               time.Time
	failure             string // the report of the failure
	culprits            []int
	checkpoint          *Saved // the last complete checkpoint; nil: none
}

// rank is what a run holds of one rank.
type rank struct {
	step      int64
	at        time.Time // when the last report came
	dropped   uint64
	pace      pace
	condition condition
	lines     []Line // a ring
	next      int    // the index of its oldest line
}

// NewRun returns an empty run.
func NewRun(info Info) *Run {
	return &Run{
		info: info, now: time.Now, series: map[key]*series{}, points: mostPoints, names: map[string]bool{}, parts: map[string]bool{},
		refused: map[string]bool{}, ranks: map[int]*rank{}, workers: map[int]Worker{}, status: Running,
	}
}

// change calls f while it holds the run.
func (r *Run) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version++
	f()
}

// rank returns what the run holds of a rank, or nil if there are too many.
func (r *Run) rank(n int) *rank {
	k := r.ranks[n]
	if k == nil && n >= 0 && n < maxRanks {
		k = &rank{}
		r.ranks[n] = k
	}
	return k
}

// Report adds the records of a datagram that a rank has sent.
func (r *Run) Report(number int, datagram []byte) error {
	var err error
	r.change(func() {
		k := r.rank(number)
		if k == nil {
			return
		}
		k.dropped, err = telemetry.Decode(datagram, func(rec *telemetry.Record) { r.record(number, k, rec) })
	})
	return err
}

func (r *Run) record(number int, k *rank, rec *telemetry.Record) {
	if rec.Kind != telemetry.State { // a state comes also from a rank that hangs
		k.at = r.now()
	}
	switch rec.Kind {
	case telemetry.State:
		k.condition = condition{r.now(), map[string]float64{}}
		for _, v := range rec.Values[:min(len(rec.Values), maxNumbers)] {
			k.condition.numbers[v.Name] = v.Number
		}
		if number == 0 && r.now().Sub(r.sampled) >= sampleEvery {
			r.sampled = r.now()
			r.addConditions(k.step)
		}
		return
	case telemetry.Values:
		for _, v := range rec.Values {
			if v.Name == telemetry.CheckpointSeconds {
				r.checkpoint = &Saved{rec.Step, time.Unix(0, rec.Time)}
			} else { // a checkpoint may be durable some steps later
				k.step = rec.Step
			}
			if r.admit(r.names, maxNames, v.Name) {
				r.add(key{telemetry.Values, v.Name, number}, rec.Step, v.Number)
			}
		}
		return
	}
	k.step = rec.Step
	steps := float64(max(rec.Steps, 1))
	whole, work := 0.0, 0.0
	for _, v := range rec.Values {
		if !(v.Number >= 0) || !r.admit(r.parts, maxParts, v.Name) {
			continue
		}
		r.add(key{telemetry.Times, v.Name, number}, rec.Step, v.Number/steps)
		if whole += v.Number; !shared[v.Name] {
			work += v.Number
		}
	}
	r.add(key{telemetry.Times, stepTime, number}, rec.Step, whole/steps)
	r.add(key{telemetry.Times, workTime, number}, rec.Step, work/steps)
	k.pace.add(r.now(), steps, rec.Values)
}

// addConditions adds the conditions of all ranks to their curves, at the same step, so that the curves can be merged.
func (r *Run) addConditions(step int64) {
	for n, k := range r.ranks {
		if r.now().Sub(k.condition.at) > freshTime {
			continue
		}
		for name, v := range k.condition.numbers {
			at := key{telemetry.Values, name, n}
			if isNews := v != 0 || r.series[at] != nil; isNews && !isConstant[name] && r.admit(r.names, maxNames, name) {
				r.add(at, step, v)
			}
		}
	}
}

// admit reports whether there is room for a name, and adds it.
func (r *Run) admit(names map[string]bool, most int, name string) bool {
	if names[name] {
		return true
	}
	if len(names) >= most {
		if len(r.refused) < maxRefused {
			r.refused[name] = true
		}
		return false
	}
	names[name] = true
	return true
}

func (r *Run) add(k key, step int64, value float64) {
	s := r.series[k]
	if s == nil {
		for len(r.series)*r.points >= maxBuckets && r.points > leastPoint {
			r.points /= 2
			for _, s := range r.series {
				s.shrink(r.points)
			}
		}
		if len(r.series)*leastPoint >= maxBuckets {
			return
		}
		s = &series{}
		r.series[k] = s
	}
	s.add(step, value, r.points)
}

// Round says that so many ranks train together from now on. Workers that have ended are forgotten.
func (r *Run) Round(worldSize, restarts int) {
	r.change(func() {
		r.worldSize, r.restarts = worldSize, restarts
		maps.DeleteFunc(r.workers, func(n int, w Worker) bool { return n >= worldSize || w.State != Running })
		for _, k := range r.ranks {
			k.pace, k.condition = pace{}, condition{}
		}
	})
}

// Worker says that a process has begun or ended.
func (r *Run) Worker(w Worker) {
	r.change(func() {
		if w.Rank >= 0 && w.Rank < maxRanks {
			r.workers[w.Rank] = w
		}
	})
}

// Event adds an event.
func (r *Run) Event(text string) {
	r.change(func() {
		if len(r.events) == maxEvents {
			r.events = slices.Delete(r.events, 0, maxEvents/10)
		}
		r.events = append(r.events, Event{r.now(), limit(text, maxLine)})
	})
}

// Line adds a line of a rank's output.
func (r *Run) Line(number int, text string, isErr bool) {
	r.change(func() {
		k := r.rank(number)
		if k == nil {
			return
		}
		l := Line{limit(text, maxLine), isErr}
		if len(k.lines) < maxLines {
			k.lines = append(k.lines, l)
			return
		}
		k.lines[k.next] = l
		k.next = (k.next + 1) % maxLines
	})
}

// End says how the run has ended: "succeeded", "failed", "stopped". report is the report of the failure, if there was one, and
// culprits are the ranks that caused it.
func (r *Run) End(status, report string, culprits []int) {
	r.change(func() {
		r.status, r.ended, r.failure, r.culprits = status, r.now(), limit(report, maxReport), culprits
	})
}

// limit returns at most n bytes of a text, as valid UTF-8.
func limit(text string, n int) string {
	if len(text) > n {
		text = text[:n] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// Lines returns the last lines of a rank, oldest first.
func (r *Run) Lines(number int) []Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.ranks[number]
	if k == nil {
		return nil
	}
	return k.last()
}

// last returns the last lines of the rank, oldest first.
func (k *rank) last() []Line { return slices.Concat(k.lines[k.next:], k.lines[:k.next]) }

// Version counts the changes of the run.
func (r *Run) Version() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}
