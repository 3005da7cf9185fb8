package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/jobenv"
)

// Main is the main function of a worker process: it runs train and ends the process. SIGINT and
// SIGTERM cancel train's context, which also aborts the groups that train has made. A second signal
// ends the process as it would without Main. In a program that asks for stop requests
// ([ProcessGroup.StopRequested], [github.com/goddp/goddp/ddp.Model.Stopping]) the first signal is
// only a request. The context then ends at the next signal, or when half of the launcher's shutdown
// timeout has passed.
//
// If train returns nil, Main closes the groups that train made with this context and left open,
// because the other ranks may still be in their last call. If closing a group fails, Main acts
// as if train had returned that error.
//
// The exit code is 0 if train returns nil and 1 if it returns an error. It is 128 plus the
// signal's number if train returns an error after a signal ended its context, or nil after the
// ranks agreed to stop. Main also writes an error of train, or a panic on train's goroutine, to
// the file that TORCHELASTIC_ERROR_FILE names, for the launcher's report. If train ends its
// goroutine by [runtime.Goexit], as FailNow of package testing does, that is an error.
func Main(train func(context.Context) error) { os.Exit(run(train)) }

func run(train func(context.Context) error) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	m := &mainRun{ctx: ctx, stop: &stopper{file: os.Getenv(jobenv.StopFileVar)}}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	defer close(done)
	go m.handleSignals(signals, done, cancel)
	hasReturned := false
	defer func() {
		p := recover()
		switch {
		case p != nil:
			report(&jobenv.ErrorFile{Message: fmt.Sprintf("panic: %v", p), Callstack: ended(string(debug.Stack()))})
			panic(p)
		case !hasReturned:
			stack := ended(string(debug.Stack()))
			report(&jobenv.ErrorFile{Message: errGoexit.Error(), Callstack: stack})
			complain("error: %v\n\n%s", errGoexit, stack)
			os.Exit(1) // nothing else would end the process
		}
	}()
	err := train(context.WithValue(ctx, mainRunKey{}, m))
	hasReturned = true
	if err == nil || errors.Is(err, ErrReleased) {
		err = m.closeGroups()
	}
	if err == nil {
		accepted := m.stop.acceptedSignal()
		if accepted == 0 {
			return 0
		}
		m.stop.writeState(jobenv.StopDone)
		return 128 + int(accepted)
	}
	var sig *SignalError
	report(&jobenv.ErrorFile{Message: err.Error(), CausedBy: causedBy(err), Interrupted: isInterruption(err)})
	complain("error: %v\n", err)
	if errors.As(context.Cause(ctx), &sig) {
		if n, ok := sig.Signal.(syscall.Signal); ok {
			return 128 + int(n)
		}
	}
	return 1
}

// mainRun is one run of Main: its context, its stop requests and its groups.
type mainRun struct {
	ctx  context.Context // ends because of a signal, or because train has returned
	stop *stopper

	mu     sync.Mutex
	groups []*ProcessGroup // the open groups that were made with Main's context, oldest first
}

type mainRunKey struct{}

// mainRunOf returns the run of Main that ctx belongs to. ctx may be Main's context or derived
// from Main's context. mainRunOf returns nil outside Main.
func mainRunOf(ctx context.Context) *mainRun {
	m, _ := ctx.Value(mainRunKey{}).(*mainRun)
	return m
}

// stopper returns the stopper of the run. Outside Main, m is nil, and stopper returns a new
// stopper, which receives no signals.
func (m *mainRun) stopper() *stopper {
	if m == nil {
		return &stopper{}
	}
	return m.stop
}

// hasEnded reports whether Main's context has ended.
func (m *mainRun) hasEnded() bool { return m != nil && m.ctx.Err() != nil }

// handleSignals acts on the process's signals. It returns when done is closed, or after it has
// called cancel to end Main's context.
func (m *mainRun) handleSignals(signals chan os.Signal, done <-chan struct{}, cancel context.CancelCauseFunc) {
	start := time.Now()
	var sig os.Signal
	var timer *awake.Timer
	var fired chan struct{}
	arm := func(d time.Duration) {
		expired := make(chan struct{})
		fired, timer = expired, awake.AfterFunc(d, func() { close(expired) })
	}
	defer func() {
		if timer != nil {
			timer.Stop()
		}
	}()
	limit := jobenv.ShutdownTimeout() / 2
	var late time.Duration // how long the ranks had to agree to stop, if they did not agree in that time; else 0
	for {
		e := stopEvent{kind: stopLate}
		select {
		case sig = <-signals:
			n, _ := sig.(syscall.Signal)
			e = stopEvent{kind: stopSignal, signal: n, at: time.Since(start), abort: m.stop.aborts()}
		case <-fired:
			fired = nil
		case <-done:
			return
		}
		switch m.stop.step(e) {
		case stopWait:
			arm(limit)
			if m.stop.file == "" { // under golaunch, the launcher prints this line
				line := fmt.Sprintf("%v: waiting up to %v for all ranks to finish the step; again to abort\n", sig, limit)
				within(logTime, func() { _, _ = os.Stderr.WriteString(line) })
			}
		case stopExpire:
			// Expire the deadlines, so that the watchdogs of the waiting ranks find out which
			// rank they wait for. A rank that waits for no other rank may end by itself
			// meanwhile.
			late = limit
			m.expireDeadlines()
			arm(reasonTime)
		case stopEnd:
			signal.Stop(signals) // the next signal has its default effect
			cancel(&SignalError{Signal: sig, After: late})
			return
		}
	}
}

// errGoexit is the error of a function of the program that ended its goroutine.
var errGoexit = errors.New("the program called runtime.Goexit on its goroutine, as FailNow of package testing does")

// ended takes a stack in the format of debug.Stack. It returns the part of the stack below the
// latest call of panic or runtime.Goexit: the functions that the call ended.
func ended(stack string) string {
	head, rest, _ := strings.Cut(stack, "\n")
	for lines := strings.SplitAfter(rest, "\n"); len(lines) > 2; lines = lines[2:] { // a call, and its file and line
		if strings.HasPrefix(lines[0], "panic(") || strings.HasPrefix(lines[0], "runtime.Goexit(") {
			rest = strings.Join(lines[2:], "")
			break
		}
	}
	return head + "\n" + rest
}

// SignalError is the cause of a context that a signal ended.
type SignalError struct {
	Signal os.Signal
	// If the signal was a stop request and this rank did not finish its step in time, After is
	// how long the rank had to finish it. Else After is 0.
	After time.Duration
}

func (e *SignalError) Error() string {
	text := "signal: " + e.Signal.String()
	if e.After > 0 {
		text += fmt.Sprintf(": asked to stop, this rank did not finish its step within %v", e.After)
	}
	return text
}

// add makes Main close pg after train has returned, unless the program has closed pg before.
func (m *mainRun) add(pg *ProcessGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.groups = append(m.groups, pg)
	pg.kept.addClose(func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.groups = slices.DeleteFunc(m.groups, func(g *ProcessGroup) bool { return g == pg })
		return nil
	})
}

// closeGroups closes the open groups, oldest first. When it closes a group, it also closes the
// groups that were split from that group.
func (m *mainRun) closeGroups() error {
	var errs []error
	for pg := m.takeOldest(); pg != nil; pg = m.takeOldest() {
		if err := pg.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing the process group: %w", err))
		}
	}
	return errors.Join(errs...)
}

// expireDeadlines makes the deadlines of all calls in flight pass now.
func (m *mainRun) expireDeadlines() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pg := range m.groups {
		pg.watchdog.expire()
	}
}

// takeOldest removes the oldest open group from m.groups and returns that group, or nil if no
// group is open.
func (m *mainRun) takeOldest() *ProcessGroup {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.groups) == 0 {
		return nil
	}
	pg := m.groups[0]
	m.groups = m.groups[1:]
	return pg
}

// causedBy returns the rank whose failure caused err on this rank: the rank that could not
// join, was lost or aborted the group, whose call failed first, or whose error [Agree] passed
// on. It returns nil if err originated on this rank.
func causedBy(err error) *int {
	var join *failure.JoinError
	var lost *failure.PeerLostError
	var aborted *failure.AbortedError
	var agreed *agreedError
	var mine, innermost *failure.CallError
	errors.As(err, &mine)
	for call := mine; call != nil; {
		if innermost = call; !errors.As(innermost.Err, &call) {
			call = nil
		}
	}
	var origin *int
	switch {
	case errors.As(err, &join): // checked first: if another rank was lost later, it may have waited for the rank that could not join
		origin = &join.Rank
	case errors.As(err, &lost):
		origin = &lost.Peer
	case errors.As(err, &aborted):
		origin = &aborted.By
	case errors.As(err, &agreed) && agreed.met == nil:
		origin = &agreed.first
	case innermost != nil:
		origin = &innermost.Rank
	}
	if origin != nil && mine != nil && *origin == mine.Rank {
		return nil
	}
	return origin
}

// isInterruption reports whether err only says that the program was told to stop. It returns false
// for an error joined with another one, for example if a rank was told to stop while Agree passed
// its error on.
func isInterruption(err error) bool {
	switch e := err.(type) {
	case *SignalError:
		return true
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !isInterruption(err) })
	case interface{ Unwrap() error }:
		return isInterruption(e.Unwrap())
	}
	return err == context.Canceled
}

// report writes the error file. If it cannot write the file, it prints the reason to the
// standard error.
func report(e *jobenv.ErrorFile) {
	if err := e.Write(); err != nil {
		complain("writing the error file: %v\n", err)
	}
}

// complain prints one of the last lines of a process.
func complain(format string, args ...any) {
	within(lastTime, func() { fmt.Fprintf(os.Stderr, format, args...) })
}
