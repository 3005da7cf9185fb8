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
)

// reaperVar marks a process that is to be a reaper. Its stdin is a socket to the agent.
const reaperVar = "GODDP_REAPER"

const (
	// orphanLimit is how long processes that were sent SIGKILL are waited for.
	orphanLimit = 5 * time.Second
	// deadAgentLimit is the same where the agent is dead: nobody waits, and a process
	// stuck in a driver may take a minute to die.
	deadAgentLimit = 2 * time.Minute
	// reapDelay is how long an orphan may be a zombie while the job runs, so that a
	// burst of them is reaped at once.
	reapDelay = 50 * time.Millisecond
)

// canReap is set by ReaperMain: starting this executable again is safe only if its
// main asks first whether it is a reaper.
var canReap atomic.Bool

// ReaperMain must be called first in main, or in TestMain, of a program that calls
// [Run]. In a process that Run started as a reaper it does not return; elsewhere it
// does so at once, and lets Run start reapers.
func ReaperMain() {
	if os.Getenv(reaperVar) == "" {
		canReap.Store(true)
		return
	}
	// A signal to every process of the machine, or of the session, reaches this one
	// too, which must outlive the others. What is ignored stays ignored in the workers,
	// and what is caught does not stay caught: so each signal is left as it is there.
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	conn, err := newMessageConn(os.Stdin)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s is set, but stdin is no socket of an agent: %v\n", reaperVar, err)
		os.Exit(1)
	}
	r := newReaper(conn, setSubreaper(true) == nil)
	r.serve()
	r.killAll()
	for _, folder := range r.folders {
		_ = os.RemoveAll(folder) // nobody is left to be told of an error
	}
	os.Exit(0)
}

// reaper starts the workers of a job, waits for them, signals them, and kills what
// they leave behind, as the agent tells it. It is a process of its own, or, in
// programs that do not call ReaperMain, a goroutine of the agent.
type reaper struct {
	conn      *messageConn
	subreaper bool // orphans become this process's children
	watcher   *watcher
	exits     chan exit

	// The rest belongs to the goroutine that calls serve.
	folders  []string       // to be removed if the agent dies
	workers  map[int]*child // that have not ended, by local rank
	refusing bool           // a worker of this attempt could not be started
	groups   []int          // process groups of this attempt's workers that have ended
	cleaned  int            // the last attempt whose orphans are gone; -1 before the first
	kill     chan struct{}  // closed to make the removal of orphans kill; nil if there is none
	removals chan orphanReport
}

// child is a worker as its parent knows it.
type child struct {
	local int
	pid   int
	pidfd int // -1 where there are none
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

// serve does what the agent says until the connection ends.
func (r *reaper) serve() {
	// The parent-death signal of a worker reports the death of the thread that forked it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	requests := make(chan func())
	go r.receive(requests) // ends with the connection
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

// receive passes on what the agent asks for.
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
			case q.Orphans != nil:
				r.removeOrphans(q.Orphans)
			}
			closeAll(files)
		}
	}
}

// report tells the agent. One that is dead does not hear it.
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
	err := fmt.Errorf("%d files came with the request, want stdout and stderr at least", len(files))
	if len(files) >= 2 {
		c.cmd.Stdout, c.cmd.Stderr, c.cmd.ExtraFiles = files[0], files[1], files[2:]
		err = c.cmd.Start()
	}
	if err != nil {
		r.refusing = true
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

// signal sends a signal to the groups of workers, and wakes those of their processes
// that are suspended, which would not act on it otherwise. No worker that has been
// waited for is in workers, so that its group's number cannot be another's.
func (r *reaper) signal(q *signalRequest) {
	for _, local := range q.Locals {
		if c := r.workers[local]; c != nil {
			_ = syscall.Kill(-c.pid, q.Signal) // ESRCH: it has just ended
			if q.Signal != syscall.SIGKILL {
				_ = syscall.Kill(-c.pid, syscall.SIGCONT)
			}
		}
	}
}

// exited waits for a worker that has ended.
func (r *reaper) exited(e exit) *exitReport {
	status := e.status()
	if r.workers[e.c.local] == e.c {
		delete(r.workers, e.c.local)
	}
	r.groups = append(r.groups, e.c.pid)
	return &exitReport{PID: e.c.pid, Status: status, At: e.at}
}

// removeOrphans begins to remove what an attempt left behind, or makes a removal that
// has begun kill. A request that comes when all is done has no effect.
func (r *reaper) removeOrphans(q *orphanRequest) {
	if q.Attempt <= r.cleaned {
		return
	}
	if r.kill == nil {
		r.kill = make(chan struct{})
		find, kill := r.find(), r.kill
		go func() { // ends when all is gone, or orphanLimit after kill is closed
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

// find is how orphans are found: below this process if they become its children, else
// in the process groups of the workers.
func (r *reaper) find() finder {
	if r.subreaper {
		return descendants
	}
	return groupMembers(slices.Clone(r.groups))
}

// killAll kills the workers and all they started, when the agent is dead.
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
