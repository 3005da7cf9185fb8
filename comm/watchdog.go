package comm

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/comm/internal/watchdog"
	"github.com/goddp/goddp/internal/flight"
)

// watchdogLoop is the watchdog of the groups of one Init, or of one rank of Local, including
// the groups split from them. Its goroutine runs the method loop. The watchdog keeps a list of
// the calls in flight and their deadlines. The backend notifies the watchdog of the progress of
// calls, and the core decides how the watchdog handles a failure. The watchdog never calls a
// driver, because a driver may hang.
type watchdogLoop struct {
	mode             ErrorMode
	heartbeat        time.Duration
	monitoring       bool
	reportStragglers bool // whether to log which ranks make the other ranks wait
	world            World
	log              *slog.Logger
	exit             func(code int)
	recorder         *flight.Recorder
	dumps            func() (string, error) // returns the folder of flight records; nil if none are written

	core     watchdog.Core    // decides how to handle failures; only loop uses it
	clock    watchdog.Clock   // detects suspensions of the process; only loop uses it
	notices  watchdog.Notices // counts suspensions for the log; only loop uses it
	failure  error            // the failure that the watchdog handles
	survives atomic.Bool      // the program answers a failure by Reconfigure
	turns    atomic.Int64     // loop increments it when loop begins to work and when loop begins to wait, so it is odd while loop works

	startTime time.Time     // the time 0 of the watchdog's clock
	epoch     int64         // startTime in Unix nanoseconds
	wake      chan struct{} // capacity 1: wakes loop, because of an event or of an earlier deadline
	leaving   chan struct{} // closed when the program closes the group of Init
	done      chan struct{} // closed when loop has ended
	broken    chan struct{} // closed when a group has broken
	leaveOnce sync.Once
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup // the watchdog's goroutines other than loop, which end when ctx ends
	breakOnce sync.Once

	// mu guards the fields from events to hookTimeout.
	mu          sync.Mutex
	events      []event
	diagnosis   string        // what the ranks' flight records say about an overdue call of this rank
	oldest      *Work         // the first call in the list of calls in flight, which is in the order of their start
	newest      *Work         // the last call in the list of calls in flight
	next        time.Duration // the time at which loop must check deadlines: no call in flight has an earlier deadline
	groups      []*group
	hooks       []func(context.Context, error)
	hookTimeout time.Duration
}

// event is an input of the watchdog's goroutine.
type event struct {
	kind  watchdog.Event
	call  *Work  // if kind is Overdue: the overdue call
	group *group // if kind is Broke: the broken group
}

// far is a time later than any deadline.
const far = time.Duration(math.MaxInt64)

// newWatchdogLoop starts the watchdog of a rank's groups, which outlives ctx. The caller must call stop.
func newWatchdogLoop(ctx context.Context, j *joiner, recorder *flight.Recorder) *watchdogLoop {
	f := j.env.Failures
	d := &watchdogLoop{
		mode: j.ErrorMode, heartbeat: f.Heartbeat, monitoring: f.Monitoring, reportStragglers: f.ReportStragglers, world: j.world, log: j.Log, exit: j.exit,
		core: watchdog.Core{Mode: watchdog.Mode(j.ErrorMode)}, hookTimeout: j.ShutdownTimeout, recorder: recorder,
		startTime: time.Now(), wake: make(chan struct{}, 1), leaving: make(chan struct{}), done: make(chan struct{}), broken: make(chan struct{}), next: far,
	}
	d.survives.Store(j.isElastic)
	d.epoch = d.startTime.UnixNano()
	if j.env.Flight.DumpOnFailure {
		d.dumps = func() (string, error) { return flight.Dir(j.env.Flight) }
	}
	d.ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	d.wg.Go(d.monitor)
	go d.loop()
	return d
}

// stop ends the watchdog. If the watchdog is handling a failure, stop waits until the failure
// is handled. ProcessGroup.Close calls stop.
func (d *watchdogLoop) stop() {
	d.notify(event{kind: watchdog.Leave})
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

// leave tells the watchdog that the program closes the group of Init, so the watchdog does not
// end the process.
func (d *watchdogLoop) leave() { d.leaveOnce.Do(func() { close(d.leaving) }) }

// now returns the time on the watchdog's clock. The clock is monotonic.
func (d *watchdogLoop) now() time.Duration { return time.Since(d.startTime) }

// notify queues an event and wakes the goroutine that runs the method loop.
func (d *watchdogLoop) notify(e event) {
	d.mu.Lock()
	d.events = append(d.events, e)
	d.mu.Unlock()
	d.poke()
}

// poke wakes the goroutine that runs the method loop.
func (d *watchdogLoop) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// loop is the watchdog's goroutine. It polls the clock every watchdog.Tick, detects overdue
// calls and handles failures.
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
		if suspended := d.clock.Poll(now); suspended > 0 {
			d.extend(now, suspended)
		}
		next, late := d.findOverdue(now)
		for _, w := range late {
			d.notify(event{kind: watchdog.Overdue, call: w})
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

// take returns the pending events and removes them.
func (d *watchdogLoop) take() []event {
	d.mu.Lock()
	defer d.mu.Unlock()
	events := d.events
	d.events = nil
	return events
}

// findOverdue returns the next deadline, and the calls whose deadlines have passed since the
// last call of findOverdue.
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

// extend extends the deadlines of the calls in flight after this process was suspended, because
// the ranks that the calls wait for may have been suspended at the same time. The clock has
// reported the suspension at time now; `suspended` is its length.
func (d *watchdogLoop) extend(now, suspended time.Duration) {
	d.mu.Lock()
	inFlight := d.oldest != nil
	for w := d.oldest; w != nil; w = w.younger {
		w.deadline = watchdog.Extend(w.deadline, w.created, now, suspended)
	}
	d.mu.Unlock()
	if !inFlight || d.core.Ended() {
		return
	}
	if n, total := d.notices.Add(now, suspended); n > 0 {
		d.logf(slog.LevelInfo, "[Rank %d] this process did not run for %v (count=%d): it was suspended, or had no processor. The deadlines of its calls are extended by as much",
			d.world.Rank, total.Round(time.Millisecond), n)
	}
}

// expire sets the deadlines of the calls in flight to now. It does not change a deadline that
// has already passed.
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

// allowed returns the time between the start of call w and its deadline. It is the call's
// timeout, or less if expire changed the deadline.
func (d *watchdogLoop) allowed(w *Work) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return min(w.call.Timeout, w.deadline-w.created).Round(time.Millisecond)
}

// started adds a call to the list of calls in flight.
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

// ended removes a call from the list of calls in flight. err is not nil if the call failed.
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

// hasEnded reports whether a call has ended.
func (d *watchdogLoop) hasEnded(w *Work) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return w.hasEnded
}

// failed records that a call of group g failed with err, unless another call of g failed
// before. Then it reports to loop that g broke.
func (d *watchdogLoop) failed(g *group, err error) {
	g.failure.CompareAndSwap(nil, &err)
	d.broke(g)
}

// broke notifies loop that group g broke. Only the first notification counts. broke does
// nothing if the program has closed g. If Main's context has ended, the program ends its groups
// itself, and broke does nothing either, except after a timeout: the launcher stops all ranks
// as soon as the first rank has failed, and this rank may be the one that hangs.
func (d *watchdogLoop) broke(g *group) {
	if g.closing.Load() || g.main.hasEnded() && !errors.Is(d.reason(g), ErrTimeout) {
		return
	}
	d.breakOnce.Do(func() {
		close(d.broken)
		d.notify(event{kind: watchdog.Broke, group: g})
	})
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

// remove removes a group that the program closes.
func (d *watchdogLoop) remove(g *group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.groups = slices.DeleteFunc(d.groups, func(h *group) bool { return h == g })
}

// all returns the groups under the watchdog.
func (d *watchdogLoop) all() []*group {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.groups)
}

// onShutdown adds a function that runs before the watchdog ends the process.
func (d *watchdogLoop) onShutdown(f func(context.Context, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hooks = append(d.hooks, f)
}

// monitor handles a stuck watchdog: it calls the method stuck if loop has worked for the time
// d.heartbeat without a pause. monitor counts ticks rather than time, because a suspension of
// the process produces a single tick.
func (d *watchdogLoop) monitor() {
	const ticks = 4
	ticker := time.NewTicker(d.heartbeat / ticks)
	defer ticker.Stop()
	var turn int64
	seen := 0 // number of consecutive ticks at which loop was working with the same value of turns
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
