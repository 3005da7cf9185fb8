package launcher

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/internal/page"
	"github.com/goddp/goddp/internal/telemetry"
)

// Page says how a job is shown: see [Config.Page].
type Page struct {
	// Addr is the address of the page: HOST, PORT or HOST:PORT. "" means a free port of the loopback interface. The page
	// is not encrypted, so the network of another interface must be trusted.
	Addr string
}

// view is the job's page, as the agent sees it. A nil view shows nothing.
type view struct {
	run    *page.Run
	server *page.Server
}

// openView opens the job's page, if the user wants one, and prints its address.
func (a *agent) openView() error {
	c := a.cfg
	if c.Page == nil {
		return nil
	}
	v := &view{run: page.NewRun(page.Info{ID: c.RunID, Name: c.Name, Started: time.Now()})}
	var err error
	if v.server, err = page.Serve(c.Page.Addr, v.run); err != nil {
		return err
	}
	a.view = v
	a.console.logf("page: %s", v.server.URL())
	a.console.note = func(text string) { v.run.Event("golaunch", text) }
	return nil
}

// close says how the job ended, and closes the page.
func (v *view) close(err error) error {
	if v == nil {
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
	return v.server.Close()
}

// showRound shows the workers of the current round that run.
func (a *agent) showRound(worldSize int) {
	if a.view == nil {
		return
	}
	a.view.run.Round(worldSize, a.round.Restarts)
	a.view.run.Event("round", fmt.Sprintf("%s train together", count(worldSize)))
	for _, p := range a.procs {
		if p != nil && p.PID != 0 && p.end == nil {
			a.showWorker(p)
		}
	}
}

// showWorker shows a worker and its state.
func (a *agent) showWorker(p *process) {
	if a.view == nil {
		return
	}
	p.shownAs.Store(int64(p.Rank))
	w := page.Worker{Rank: p.Rank, Node: a.round.Node, Host: hostname(), PID: p.PID, State: page.Running, Since: time.Now()}
	if p.end != nil {
		w.State, w.Since = p.end.Status.String(), p.end.Exited
	}
	a.view.run.Worker(w)
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

// copyReports shows the numbers of a worker until the channel is closed, or endSoon's deadline has passed.
func (p *process) copyReports(run *page.Run) {
	defer p.conn.Close()
	buf := make([]byte, telemetry.MaxDatagram)
	for {
		n, err := p.conn.Read(buf)
		if err != nil {
			return
		}
		_ = run.Report(int(p.shownAs.Load()), buf[:n]) // a program that writes something else there has no numbers
	}
}

// endSoon makes copyReports return after it has read what the worker has sent.
func (r *reports) endSoon() {
	if r.conn != nil {
		_ = r.conn.SetReadDeadline(time.Now().Add(drainGrace)) // fails only if copyReports has closed it
	}
}
