package comm

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/comm/internal/watchdog"
	"github.com/goddp/goddp/internal/flight"
)

// watch is the watchdog of the groups of one Init or Local, those split from
// them included: one goroutine, which knows the calls in flight and their
// deadlines. What a call is doing it is told by the backend, and what to do
// about a failure it asks its core. It never calls a driver, which may hang.
type watchdogLoop struct {
	mode             ErrorMode
	heartbeat        time.Duration
	monitoring       bool
	reportStragglers bool // whether to tell which ranks hold the others up
	world            World
	log              *slog.Logger
	exit             func(code int)
	recorder         *flight.Recorder
	dumps            func() (string, error) // where dumps go; nil: nowhere

	core    watchdog.Core  // loop's
	clock   watchdog.Clock // loop's
	failure error          // loop's: what core acts on
	turns   atomic.Int64   // odd while loop is at work: how often it began to be, and ceased

	startTime time.Time     // of its clock
	epoch     int64         // the same in Unix nanoseconds
	wake      chan struct{} // of one: there are events, or an earlier deadline
	leaving   chan struct{} // closed when the program closes the group
	done      chan struct{} // closed when loop has ended
	broken    chan struct{} // closed when it is told that a group broke
	leaveOnce sync.Once
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup // what asks and listens; ends with ctx
	breakOnce sync.Once

	mu          sync.Mutex
	events      []event
	finding     *finding // what this rank's overdue call comes down to
	oldest      *Work    // calls in flight, in the order of their start
	newest      *Work
	next        time.Duration // when loop checks deadlines; no call in flight has an earlier one
	groups      []*group
	hooks       []func(context.Context, error)
	hookTimeout time.Duration
}

// event is what loop is told.
type event struct {
	kind  watchdog.Event
	call  *Work  // Overdue
	group *group // Broke
}

// far is later than any deadline.
const far = time.Duration(math.MaxInt64)

// newWatchdogLoop starts the watchdog of a rank's groups. stop ends it.
func newWatchdogLoop(w World, recorder *flight.Recorder, o Options) *watchdogLoop {
	d := &watchdogLoop{
		mode: o.ErrorMode, heartbeat: o.heartbeat, monitoring: o.monitoring, reportStragglers: o.reportStragglers, world: w, log: o.Log, exit: o.exit,
		core: watchdog.Core{Mode: o.ErrorMode}, hookTimeout: o.ShutdownTimeout, recorder: recorder,
		startTime: time.Now(), wake: make(chan struct{}, 1), leaving: make(chan struct{}), done: make(chan struct{}), broken: make(chan struct{}), next: far,
	}
	d.epoch = d.startTime.UnixNano()
	if o.flight.DumpOnFailure {
		d.dumps = o.dumps
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.wg.Go(d.monitor)
	go d.loop()
	return d
}

// stop ends the watchdog once it has done what a failure asks for: the program
// closes the group.
func (d *watchdogLoop) stop() {
	d.tell(event{kind: watchdog.Leave})
	<-d.done
	for _, g := range d.all() {
		if g.stragglers != nil && g.rank == 0 {
			g.stragglers.report(d)
		}
	}
	d.cancel()
	d.wg.Wait()
	d.recorder.Close()
}

// leave notes that the program is closing the group: nobody has to end the
// process for it.
func (d *watchdogLoop) leave() { d.leaveOnce.Do(func() { close(d.leaving) }) }

// now is the time on the watchdog's clock, which is the monotonic one: every call
// needs it.
func (d *watchdogLoop) now() time.Duration { return time.Since(d.startTime) }

// tell gives loop an event.
func (d *watchdogLoop) tell(e event) {
	d.mu.Lock()
	d.events = append(d.events, e)
	d.mu.Unlock()
	d.poke()
}

func (d *watchdogLoop) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// loop looks at the clock every tick, at deadlines when one passes, and acts on
// failures.
func (d *watchdogLoop) loop() {
	defer close(d.done)
	timer := time.NewTimer(watchdog.Tick)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-d.wake:
		}
		d.turns.Add(1)
		now := d.now()
		if suspended := d.clock.Look(now); suspended > 0 {
			d.extend(now, suspended)
		}
		next, late := d.findOverdue(now)
		for _, w := range late {
			d.tell(event{kind: watchdog.Overdue, call: w})
		}
		for _, e := range d.take() {
			d.handle(e)
			if e.kind == watchdog.Leave {
				return
			}
		}
		if d.reportStragglers {
			for _, g := range d.all() {
				if g.stragglers != nil {
					g.stragglers.publish(d)
				}
			}
		}
		d.turns.Add(1)
		timer.Reset(min(next-d.now(), watchdog.Tick))
	}
}

// take returns the events that came.
func (d *watchdogLoop) take() []event {
	d.mu.Lock()
	defer d.mu.Unlock()
	events := d.events
	d.events = nil
	return events
}

// findOverdue finds the calls whose deadlines passed since the last findOverdue, and when
// to findOverdue again.
func (d *watchdogLoop) findOverdue(now time.Duration) (next time.Duration, late []*Work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now < d.next {
		return d.next, nil
	}
	d.next = far
	for w := d.oldest; w != nil; w = w.younger {
		switch {
		case w.isOverdue:
		case w.deadline <= now:
			w.isOverdue = true
			late = append(late, w)
		case w.deadline < d.next:
			d.next = w.deadline
		}
	}
	return d.next, late
}

// extend gives the calls in flight the time in which this process was suspended,
// as a look at the clock now tells: the ranks that they wait for may have been
// suspended with it.
func (d *watchdogLoop) extend(now, suspended time.Duration) {
	d.mu.Lock()
	inFlight := d.oldest != nil
	for w := d.oldest; w != nil; w = w.younger {
		w.deadline = watchdog.Extend(w.deadline, w.created, now, suspended)
	}
	d.mu.Unlock()
	if inFlight && !d.core.Over() {
		d.logf(slog.LevelInfo, "[Rank %d] this process did not run for %v: it was suspended, or had no processor. The deadlines of its calls are extended by as much",
			d.world.Rank, suspended.Round(time.Millisecond))
	}
}

// expire lets the deadlines of the calls in flight pass now.
func (d *watchdogLoop) expire() {
	now := d.now()
	d.mu.Lock()
	for w := d.oldest; w != nil; w = w.younger {
		w.deadline = min(w.deadline, now)
	}
	d.next = min(d.next, now)
	d.mu.Unlock()
	d.poke()
}

// allowed is how long a call had until its deadline: its timeout, unless expire let the
// deadline pass before.
func (d *watchdogLoop) allowed(w *Work) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return min(w.call.Timeout, w.deadline-w.created).Round(time.Millisecond)
}

// started adds a call to those in flight.
func (d *watchdogLoop) started(w *Work) {
	d.mu.Lock()
	w.older = d.newest
	if w.older != nil {
		w.older.younger = w
	} else {
		d.oldest = w
	}
	d.newest = w
	earlier := w.deadline < d.next
	if earlier {
		d.next = w.deadline
	}
	d.mu.Unlock()
	if earlier {
		d.poke()
	}
}

// ended removes a call from those in flight, and notes why it failed.
func (d *watchdogLoop) ended(w *Work, err error) {
	d.mu.Lock()
	if w.older != nil {
		w.older.younger = w.younger
	} else {
		d.oldest = w.younger
	}
	if w.younger != nil {
		w.younger.older = w.older
	} else {
		d.newest = w.older
	}
	w.older, w.younger, w.hasEnded = nil, nil, true
	d.mu.Unlock()
	if err != nil {
		d.failed(w.group, err)
	}
}

// isOver tells whether a call has ended.
func (d *watchdogLoop) hasEnded(w *Work) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return w.hasEnded
}

// failed notes the first failure of a group's calls.
func (d *watchdogLoop) failed(g *group, err error) {
	g.failure.CompareAndSwap(nil, &err)
	d.broke(g)
}

// broke notes that a group broke. It is the program's own doing if it closed that group, or
// its context ended.
func (d *watchdogLoop) broke(g *group) {
	if !g.closing.Load() && !g.main.hasEnded() {
		d.breakOnce.Do(func() {
			close(d.broken)
			d.tell(event{kind: watchdog.Broke, group: g})
		})
	}
}

// add puts a group under the watchdog.
func (d *watchdogLoop) add(g *group) {
	g.record = d.recorder.Group(g.name, g.rank, g.size)
	if d.reportStragglers && g.size > 1 {
		g.stragglers = &stragglers{group: g, total: make([]time.Duration, g.size)}
	}
	d.mu.Lock()
	d.groups = append(d.groups, g)
	d.mu.Unlock()
	if g.control.Name == "" && d.mode != NoErrorHandling {
		g.control.OnAsked(d.answer)
		d.wg.Go(func() { d.listen(g) })
	}
}

// remove takes a group away that the program closes.
func (d *watchdogLoop) remove(g *group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.groups = slices.DeleteFunc(d.groups, func(h *group) bool { return h == g })
}

// all are the groups under the watchdog.
func (d *watchdogLoop) all() []*group {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.groups)
}

// onShutdown adds a function to run before the process is ended.
func (d *watchdogLoop) onShutdown(f func(context.Context, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hooks = append(d.hooks, f)
}

// monitor ends the process when the watchdog itself is stuck: when loop has been at
// work without a pause for the heartbeat. It counts ticks, which a suspension of the
// process does not multiply.
func (d *watchdogLoop) monitor() {
	const ticks = 4
	ticker := time.NewTicker(d.heartbeat / ticks)
	defer ticker.Stop()
	var turn int64
	seen := 0 // ticks in a row at which loop was at work in this turn
	for {
		select {
		case <-ticker.C:
		case <-d.ctx.Done():
			return
		}
		switch now := d.turns.Load(); {
		case now%2 == 0:
			seen = 0
		case now != turn:
			turn, seen = now, 1
		default:
			seen++
		}
		if seen > ticks {
			d.stuck()
			return
		}
	}
}
