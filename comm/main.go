package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/atomicfile"
	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/stopfile"
)

// Main is a worker's main: it runs train and ends the process. SIGINT and
// SIGTERM end train's context; a second one ends the process as it would
// without Main. In a program that asks for stop requests
// ([ProcessGroup.StopRequested], [github.com/goddp/goddp/ddp.Model.Stopping]) the first
// signal is a request, and only the next one, or half of the launcher's shutdown
// timeout, ends the context.
//
// When train returns nil, the groups that it made with this context
// and did not close are closed: the other ranks may still be in the last call. An
// error of that counts as train's. The exit code is 0 when train returns nil, 1 when
// it returns an error, and 128 plus the signal's number when it returns an error after a
// signal ended its context, or nil after its ranks agreed to stop. An error, or a panic on
// train's goroutine, is also written to the file that TORCHELASTIC_ERROR_FILE names, for
// the launcher's report.
func Main(train func(context.Context) error) { os.Exit(run(train)) }

func run(train func(context.Context) error) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var left unclosed
	stop := &stopper{file: os.Getenv(stopfile.Var)}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	defer close(done)
	go heedSignals(signals, done, stop, &left, cancel)
	defer func() {
		if p := recover(); p != nil {
			report(fmt.Sprintf("panic: %v", p), panicked(string(debug.Stack())), nil)
			panic(p)
		}
	}()
	err := train(context.WithValue(context.WithValue(ctx, unclosedKey{}, &left), stopperKey{}, stop))
	if err == nil {
		err = left.close()
	}
	if err == nil {
		accepted := stop.acceptedSignal()
		if accepted == 0 {
			return 0
		}
		stop.tell(stopfile.Done)
		return 128 + int(accepted)
	}
	fmt.Fprintf(os.Stderr, "error: %v\n", err)
	report(err.Error(), "", causedBy(err))
	var sig *SignalError
	if errors.As(context.Cause(ctx), &sig) {
		if n, ok := sig.Signal.(syscall.Signal); ok {
			return 128 + int(n)
		}
	}
	return 1
}

// heedSignals acts on the process's signals until done is closed, or the program's
// context has ended by cancel.
func heedSignals(signals chan os.Signal, done <-chan struct{}, stop *stopper, left *unclosed, cancel context.CancelCauseFunc) {
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
	limit := stopfile.Timeout() / 2
	var late time.Duration // how long the ranks had, if they did not agree
	for {
		e := stopEvent{kind: stopLate}
		select {
		case sig = <-signals:
			n, _ := sig.(syscall.Signal)
			e = stopEvent{kind: stopSignal, signal: n, at: time.Since(start), abort: stop.aborts()}
		case <-fired:
			fired = nil
		case <-done:
			return
		}
		switch stop.step(e) {
		case stopWait:
			if stop.file == "" { // else the launcher says so
				fmt.Fprintf(os.Stderr, "%v: waiting up to %v for all ranks to finish the step; again to abort\n", sig, limit)
			}
			arm(limit)
		case stopExpire:
			// The watchdogs of the ranks that wait find out for which one. A rank that
			// waits for none is left to end by itself.
			late = limit
			left.expire()
			arm(reasonTime)
		case stopEnd:
			signal.Stop(signals) // one more has its default effect
			cancel(&SignalError{Signal: sig, After: late})
			return
		}
	}
}

// panicked is the part of a stack, as debug.Stack has it, that led to the panic, and to
// those that it came of.
func panicked(stack string) string {
	head, rest, _ := strings.Cut(stack, "\n")
	if i := strings.Index(rest, "\npanic("); i >= 0 {
		lines := strings.SplitAfterN(rest[i+1:], "\n", 3) // the call of panic, and its place
		rest = lines[len(lines)-1]
	}
	return head + "\n" + rest
}

// SignalError is the cause of a context that a signal ended.
type SignalError struct {
	Signal os.Signal
	After  time.Duration // the signal was a stop request, and this rank did not finish its step within this time
}

func (e *SignalError) Error() string {
	text := "signal: " + e.Signal.String()
	if e.After > 0 {
		text += fmt.Sprintf(": asked to stop, this rank did not finish its step within %v", e.After)
	}
	return text
}

// unclosed are the groups that were made with Main's context.
type unclosed struct {
	mu     sync.Mutex
	groups []*ProcessGroup
}

type unclosedKey struct{}

// closeOnReturn has Main close the group, unless the program does, if ctx is Main's.
func closeOnReturn(ctx context.Context, pg *ProcessGroup) {
	u, ok := ctx.Value(unclosedKey{}).(*unclosed)
	if !ok {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.groups = append(u.groups, pg)
	pg.release.addClose(func() error {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.groups = slices.DeleteFunc(u.groups, func(g *ProcessGroup) bool { return g == pg })
		return nil
	})
}

// close closes what is left, the oldest first, which closes those split from it.
func (u *unclosed) close() error {
	var errs []error
	for pg := u.next(); pg != nil; pg = u.next() {
		if err := pg.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing the process group: %w", err))
		}
	}
	return errors.Join(errs...)
}

// expire lets the deadlines of all calls in flight pass.
func (u *unclosed) expire() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, pg := range u.groups {
		pg.watchdog.expire()
	}
}

// next takes the oldest group that is not closed, or nil.
func (u *unclosed) next() *ProcessGroup {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.groups) == 0 {
		return nil
	}
	pg := u.groups[0]
	u.groups = u.groups[1:]
	return pg
}

// causedBy returns the rank whose failure caused err on this rank: it could not join, was lost,
// gave up, or its call failed first. nil: err began on this rank.
func causedBy(err error) *int {
	var join *JoinError
	var lost *PeerLostError
	var aborted *AbortedError
	var mine, innermost *CallError
	errors.As(err, &mine)
	for call := mine; call != nil; {
		if innermost = call; !errors.As(innermost.Err, &call) {
			call = nil
		}
	}
	var origin *int
	switch {
	case errors.As(err, &join): // whoever else was lost may be another that waited for it
		origin = &join.Rank
	case errors.As(err, &lost):
		origin = &lost.Peer
	case errors.As(err, &aborted):
		origin = &aborted.By
	case innermost != nil:
		origin = &innermost.Rank
	}
	if origin != nil && mine != nil && *origin == mine.Rank {
		return nil
	}
	return origin
}

// report tells the launcher what went wrong, and whoever reads its output if
// that fails.
func report(message, stack string, culprit *int) {
	if err := writeErrorFile(message, stack, culprit); err != nil {
		fmt.Fprintf(os.Stderr, "writing the error file: %v\n", err)
	}
}

// writeErrorFile tells the launcher what went wrong, in torchelastic's format,
// if it asks. A rank that failed because another did, echo, says which: it is not
// the cause.
func writeErrorFile(message, stack string, culprit *int) error {
	path := os.Getenv("TORCHELASTIC_ERROR_FILE")
	if path == "" {
		return nil
	}
	now := float64(time.Now().UnixMicro()) / 1e6
	info := map[string]string{"py_callstack": stack, "timestamp": strconv.FormatFloat(now, 'f', 6, 64)}
	if culprit != nil {
		info["echo_of"] = strconv.Itoa(*culprit)
	}
	content, err := json.Marshal(map[string]any{"message": map[string]any{"message": message, "extraInfo": info}})
	if err != nil {
		return err
	}
	return atomicfile.WriteBytes(path, 0o644, content) // by Main and by the watchdog, of which one may end the process meanwhile
}
