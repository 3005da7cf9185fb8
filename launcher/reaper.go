package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/launcher/internal/failure"
)

const (
	// orphanLimit is how long the reaper waits for orphans after SIGKILL.
	orphanLimit = 5 * time.Second
	// deadAgentLimit replaces orphanLimit if the agent is dead. It is longer because nobody waits
	// for the reaper then, and a process stuck in a driver may take a minute to die.
	deadAgentLimit = 2 * time.Minute
	// reapDelay is how long the reaper collects ended orphans before it waits for them, so
	// that it handles a burst at once.
	reapDelay = 50 * time.Millisecond
)

// canReap is true once ReaperMain was called. Only then is it safe to start this executable
// again as a reaper.
var canReap atomic.Bool

// ReaperMain must be called first in main, or in TestMain, of a program that calls [Run].
// In a process that Run started as a reaper, ReaperMain does not return. In any other
// process it returns at once, and Run may start reapers from then on.
func ReaperMain() {
	if os.Getenv(jobenv.ReaperVar) == "" {
		canReap.Store(true)
		return
	}
	// The reaper must outlive the workers, so it must survive a signal to every process of
	// the machine or the session. It catches the signals instead of ignoring them, because
	// the workers would inherit ignored signals, but do not inherit caught ones.
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	conn, err := newMessageConn(os.Stdin)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s is set, but stdin is not an agent's socket: %v\n", jobenv.ReaperVar, err)
		os.Exit(1)
	}
	r := newReaper(conn, setSubreaper(true) == nil)
	r.serve()
	r.killAll()
	for _, folder := range r.folders {
		_ = os.RemoveAll(folder) // an error can be reported to nobody
	}
	os.Exit(0)
}

// reaper is the parent of a job's workers. At the agent's request it starts, signals and
// waits for them, and kills the processes that they leave behind. It is a process, or a
// goroutine of the agent in programs that do not call ReaperMain.
type reaper struct {
	conn      *messageConn
	subreaper bool // orphans become this process's children
	watcher   *watcher
	exits     chan exit

	// Only the goroutine that calls serve uses the following fields.
	folders  []string       // folders to remove if the agent dies
	workers  map[int]*child // workers that have not ended, by local rank
	refusing bool           // a worker of this attempt could not be started
	groups   []int          // process groups of this attempt's workers that have ended
	cleaned  int            // the last attempt whose orphans are gone; -1 before the first
	kill     chan struct{}  // closed to make the removal of orphans use SIGKILL; nil if none is in progress
	removals chan orphanReport
}

// child is a worker process, as the reaper knows it.
type child struct {
	local int
	pid   int
	pidfd int // -1 if the system has no pidfds
	cmd   *exec.Cmd
}

func newReaper(conn *messageConn, subreaper bool) *reaper {
	exits := make(chan exit)
	return &reaper{
		conn:      conn,
		subreaper: subreaper,
		watcher:   newWatcher(exits),
		exits:     exits,
		workers:   map[int]*child{},
		cleaned:   -1,
		removals:  make(chan orphanReport, 1),
	}
}

// serve performs the agent's requests until the connection ends.
func (r *reaper) serve() {
	// A worker's parent-death signal is sent when the thread that forked the worker ends,
	// so this thread must live as long as serve.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	requests := make(chan func())
	go r.receive(requests) // returns when the connection ends
	var deaths chan os.Signal
	if r.subreaper {
		deaths = make(chan os.Signal, 1)
		signal.Notify(deaths, syscall.SIGCHLD)
		defer signal.Stop(deaths)
	}
	var reapTime <-chan time.Time
	for {
		select {
		case perform, ok := <-requests:
			if !ok {
				return
			}
			perform()
		case e := <-r.exits:
			r.report(report{Exited: r.exited(e)})
		case done := <-r.removals:
			r.cleaned, r.kill, r.refusing, r.groups = done.Attempt, nil, false, nil
			r.report(report{Orphans: &done})
		case <-deaths:
			if reapTime == nil {
				reapTime = time.After(reapDelay)
			}
		case <-reapTime:
			reapTime = nil
			reapOrphans(func(pid int) bool { return r.isWorker(pid) })
		}
	}
}

// receive turns the agent's requests into functions for serve to call. It closes requests
// when the connection ends.
func (r *reaper) receive(requests chan<- func()) {
	defer close(requests)
	for {
		var q request
		files, err := r.conn.receive(&q)
		if err != nil {
			return // the agent is dead
		}
		requests <- func() {
			switch {
			case q.Discard != nil:
				r.folders = append(r.folders, string(q.Discard))
			case q.Start != nil:
				r.start(q.Start, files)
			case q.Signal != nil:
				r.signal(q.Signal)
			case q.Group != 0:
				_, _ = groupMembers([]int{q.Group})(func(target int) { _ = syscall.Kill(target, syscall.SIGKILL) })
			case q.Orphans != nil:
				r.removeOrphans(q.Orphans)
			}
			closeAll(files)
		}
	}
}

// report sends a message to the agent. It ignores an error: the agent is dead then.
func (r *reaper) report(message report) { _ = r.conn.send(message) }

func (r *reaper) isWorker(pid int) bool {
	for _, c := range r.workers {
		if c.pid == pid {
			return true
		}
	}
	return false
}

func (r *reaper) start(q *startRequest, files []*os.File) {
	if r.refusing {
		return
	}
	c := &child{local: q.Local, pidfd: -1}
	c.cmd = &exec.Cmd{Path: string(q.Path), Args: stringsOf(q.Args), Env: stringsOf(q.Env), Dir: string(q.Dir)}
	c.cmd.SysProcAttr = workerSysProcAttr(&c.pidfd)
	// Either way the worker leads a process group.
	c.cmd.SysProcAttr.Setsid, c.cmd.SysProcAttr.Setpgid = q.InSession, !q.InSession
	if q.HasStdin && len(files) > 0 {
		c.cmd.Stdin, files = files[0], files[1:]
	}
	err := fmt.Errorf("the request has %d file descriptors, want at least those of stdout and stderr", len(files))
	if len(files) >= 2 {
		c.cmd.Stdout, c.cmd.Stderr, c.cmd.ExtraFiles = files[0], files[1], files[2:]
		err = c.cmd.Start()
	}
	if err != nil {
		r.refusing = !q.Replaces
		answer := &startReport{Local: q.Local, Error: err.Error()}
		errors.As(err, &answer.Errno)
		r.report(report{Started: answer})
		return
	}
	c.pid = c.cmd.Process.Pid
	r.workers[c.local] = c
	r.report(report{Started: &startReport{Local: c.local, PID: c.pid}})
	r.watcher.add(c)
}

// signal sends a signal to the process groups of workers, and then SIGCONT, because
// suspended processes would not act on the signal. The reaper has not yet waited for any
// of r.workers, so no group's number can belong to another process.
func (r *reaper) signal(q *signalRequest) {
	for _, local := range q.Locals {
		if c := r.workers[local]; c != nil {
			_ = syscall.Kill(-c.pid, q.Signal) // fails with ESRCH if the worker has just ended
			if q.Signal != syscall.SIGKILL {
				_ = syscall.Kill(-c.pid, syscall.SIGCONT)
			}
		}
	}
}

// exited waits for a worker that has ended, and removes it from r.workers.
func (r *reaper) exited(e exit) *failure.Failure {
	status := e.status()
	if r.workers[e.c.local] == e.c {
		delete(r.workers, e.c.local)
	}
	r.groups = append(r.groups, e.c.pid)
	return &failure.Failure{PID: e.c.pid, Status: status, Exited: e.at}
}

// removeOrphans begins to remove the processes that an attempt left behind. If a removal
// is in progress, removeOrphans only makes the removal use SIGKILL. A request for an
// attempt whose orphans are gone has no effect.
func (r *reaper) removeOrphans(q *orphanRequest) {
	if q.Attempt <= r.cleaned {
		return
	}
	if r.kill == nil {
		r.kill = make(chan struct{})
		find, kill := r.find(), r.kill
		go func() { // ends when no orphan is left, or orphanLimit after kill is closed
			left := stopOrphans(find, q.Interval, orphanLimit, kill)
			left.Attempt = q.Attempt
			r.removals <- left
		}()
	}
	select {
	case <-r.kill:
	default:
		if q.Kill {
			close(r.kill)
		}
	}
}

// find returns a finder of orphans. A subreaper finds them below itself. Another process
// finds only those in the process groups of the workers.
func (r *reaper) find() finder {
	if r.subreaper {
		return descendants(0)
	}
	return groupMembers(slices.Clone(r.groups))
}

// killAll kills the workers and the processes that they started. It is called when the
// agent is dead.
func (r *reaper) killAll() {
	if !r.subreaper {
		limit := time.After(deadAgentLimit)
		for _, c := range r.workers {
			_ = syscall.Kill(-c.pid, syscall.SIGKILL)
		}
		for len(r.workers) > 0 {
			select {
			case e := <-r.exits:
				r.exited(e)
			case <-limit:
				return
			}
		}
	}
	killOrphans(r.find(), 100*time.Millisecond, deadAgentLimit)
}
