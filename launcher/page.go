package launcher

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/page"
	"github.com/goddp/goddp/internal/telemetry"
)

// observer is told what happens on a node. Its methods wait for nothing, and any goroutine may call them. They are those of
// *page.Run.
type observer interface {
	Report(rank int, datagram []byte) error
	Worker(w page.Worker)
	Line(rank int, text string, isErr bool)
	Event(text string)
}

// view is what is known of the job, if this node hosts the rendezvous.
type view struct {
	run    *page.Run
	isOpen bool         // this node has hosted the rendezvous
	server *page.Server // nil: the job has no page, or not here
	dir    string       // the folder that keeps the run; "" if there is none
	folder *os.File     // dir, locked while this process saves the run in it
	done   chan struct{}
	saving sync.WaitGroup
}

// saveEvery is the time between two saves of a run.
const saveEvery = 30 * time.Second

// newView returns the view of a job, or nil if nobody looks at it.
func newView(c *Config) *view {
	if c.Page == "" && c.RunDir == "" {
		return nil
	}
	return &view{run: page.NewRun(page.Info{ID: c.RunID, Name: c.Name, Started: time.Now()}), dir: c.RunDir, done: make(chan struct{})}
}

// openView serves the job's page, and prints its address, and begins to keep the run, unless that was done.
func (a *agent) openView() (err error) {
	v := a.view
	if v == nil || v.isOpen {
		return nil
	}
	v.isOpen = true
	if a.cfg.Page != "" {
		if v.server, err = page.Serve(a.cfg.Page, a.cfg.PageToken, v.run); err != nil {
			return err
		}
	}
	if v.dir != "" {
		if err := v.keep(a.console); err != nil {
			_ = v.folder.Close()
			if v.server != nil {
				err = errors.Join(err, v.server.Close())
				v.server = nil
			}
			return err
		}
	}
	if v.server != nil {
		a.console.logf("page: %s", v.server.URL())
	}
	return nil
}

// keep makes the run go on that the folder holds, and saves the run from now on.
func (v *view) keep(console *console) error {
	err := os.MkdirAll(v.dir, 0o755)
	if err == nil {
		v.folder, err = os.Open(v.dir)
	}
	if err != nil {
		return fmt.Errorf("keeping the run: %w", err)
	}
	// Some network file systems have no locks: there nothing protects the run.
	if errors.Is(unix.Flock(int(v.folder.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return fmt.Errorf("keeping the run: another job keeps its run in %s: want a folder of its own for each", v.dir)
	}
	switch err := v.run.Load(v.dir); {
	case errors.Is(err, page.ErrNoRun):
	case err != nil:
		return err
	default:
		v.run.GoOn()
	}
	if err := v.run.Save(v.dir); err != nil { // now rather than in the end
		return err
	}
	v.saving.Go(func() {
		tick := time.NewTicker(saveEvery)
		defer tick.Stop()
		for isLast := false; !isLast; {
			select {
			case <-tick.C:
			case <-v.done:
				isLast = true
			}
			if err := v.run.Save(v.dir); err != nil {
				console.logf("%v", err)
			}
		}
	})
	return nil
}

// close says how the job ended, and closes the page.
func (v *view) close(err error) error {
	if v == nil || !v.isOpen {
		return nil
	}
	var failed *FailureError
	var signalled *SignalError
	switch {
	case err == nil:
		v.run.End("succeeded", "", nil)
	case errors.As(err, &failed):
		v.run.End("failed", failed.Report(), failed.culpritRanks())
	case errors.As(err, &signalled):
		v.run.End("stopped", err.Error(), nil)
	default:
		v.run.End("failed", err.Error(), nil)
	}
	close(v.done)
	v.saving.Wait()
	_ = v.folder.Close() // nil, if no run was kept
	if v.server == nil {
		return nil
	}
	return v.server.Close()
}

// watch opens what shows the workers of a round, if somebody looks at the job: the page itself on the host of the rendezvous,
// or else the connection with that host.
func (a *agent) watch() {
	a.unwatch()
	if !a.round.Watched {
		return
	}
	c, err := a.rendezvous.Watch()
	switch {
	case err != nil:
	case c != nil:
		a.remote = newRemoteRun(c)
		a.observer = a.remote
	default:
		if err = a.openView(); err == nil {
			a.observer = a.view.run
			a.view.run.Round(a.round.WorldSize, a.round.Restarts)
		}
	}
	if err != nil {
		a.console.logf("the job goes on without its page: %v", err)
		return
	}
	if a.remote == nil {
		a.observer.Event(fmt.Sprintf("round %d begins with %s", a.round.Number, count(a.round.WorldSize)))
	}
	a.console.watch(a.observer)
}

// unwatch closes the connection that watch has opened.
func (a *agent) unwatch() {
	a.console.watch(nil)
	a.remote.close()
	a.observer, a.remote = nil, nil
}

// showMembers shows the workers that train together from now on.
func (a *agent) showMembers(worldSize int) {
	if a.observer == nil {
		return
	}
	if a.remote == nil {
		a.view.run.Round(worldSize, a.round.Restarts)
	}
	for _, p := range a.procs {
		if p.PID != 0 && p.end == nil {
			a.showWorker(p)
		}
	}
}

// showWorker shows a worker and its state.
func (a *agent) showWorker(p *process) {
	if a.observer == nil {
		return
	}
	p.shownAs.Store(int64(p.Rank))
	w := page.Worker{Rank: p.Rank, Node: a.round.Node, Host: hostname(), PID: p.PID, State: page.Running}
	if p.end != nil {
		w.State = p.end.Status.String()
	}
	a.observer.Worker(w)
}

// reports is the channel on which the agent gets the numbers of a worker.
type reports struct {
	shownAs atomic.Int64 // the worker's rank on the page, which changes when others are lost
	conn    net.Conn     // nil: nobody looks at the job
}

// giveReports makes the channel of a worker's numbers, and returns the end that the worker inherits. The worker may
// ignore it.
func (s *spawner) giveReports(p *process) (theirs *os.File, err error) {
	p.shownAs.Store(int64(p.Rank))
	p.conn, theirs, err = telemetry.Pair()
	return theirs, err
}

// copyReports takes at most reportRate bytes from a worker in a second, and counts reportCost more for each datagram. A
// program that reports more loses it, as the kernel then has no room.
const (
	reportRate = 512 << 10
	reportCost = 256
)

// copyReports passes on the numbers of a worker until the channel is closed, or endSoon's deadline has passed.
func (p *process) copyReports(to observer) {
	defer p.conn.Close()
	buf := make([]byte, telemetry.MaxDatagram)
	report := func(datagram []byte) {
		_ = to.Report(int(p.shownAs.Load()), datagram) // a program that writes something else there has no numbers
	}
	for {
		n, err := p.conn.Read(buf)
		if socket, ok := p.conn.(*net.UnixConn); ok && errors.Is(err, os.ErrDeadlineExceeded) {
			takeBacklog(socket, buf, report)
		}
		if err != nil {
			return
		}
		report(buf[:n])
		time.Sleep(time.Second * time.Duration(n+reportCost) / reportRate)
	}
}

// endSoon makes copyReports return after it has read what the worker has sent.
func (r *reports) endSoon() {
	if r.conn != nil {
		_ = r.conn.SetReadDeadline(time.Now().Add(drainGrace)) // fails only if copyReports has closed it
	}
}
