package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"
)

// Main is a worker's main: it runs train and ends the process. SIGINT and
// SIGTERM end train's context; a second one ends the process as it would
// without Main. The exit code is 0 when train returns nil, 1 when it returns
// an error, and 128 plus the signal's number when it returns one after a
// signal. An error, or a panic on train's goroutine, is also written to the
// file that TORCHELASTIC_ERROR_FILE names, for the launcher's report.
func Main(train func(context.Context) error) { os.Exit(run(train)) }

func run(train func(context.Context) error) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals) // a second one has its default effect
			cancel(&SignalError{s})
		case <-done:
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			report(fmt.Sprintf("panic: %v", p), string(debug.Stack()), nil)
			panic(p)
		}
	}()
	err := train(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "error: %v\n", err)
	var lost *PeerLostError
	if errors.As(err, &lost) {
		report(err.Error(), "", &lost.Peer)
	} else {
		report(err.Error(), "", nil)
	}
	var sig *SignalError
	if errors.As(context.Cause(ctx), &sig) {
		if n, ok := sig.Signal.(syscall.Signal); ok {
			return 128 + int(n)
		}
	}
	return 1
}

// SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal os.Signal }

func (e *SignalError) Error() string { return "signal: " + e.Signal.String() }

// report tells the launcher what went wrong, and whoever reads its output if
// that fails.
func report(message, stack string, echo *int) {
	if err := writeErrorFile(message, stack, echo); err != nil {
		fmt.Fprintf(os.Stderr, "writing the error file: %v\n", err)
	}
}

// writeErrorFile tells the launcher what went wrong, in torchelastic's format,
// if it asks. A rank that failed because it lost another, echo, says which: it is
// not the cause.
func writeErrorFile(message, stack string, echo *int) error {
	path := os.Getenv("TORCHELASTIC_ERROR_FILE")
	if path == "" {
		return nil
	}
	now := float64(time.Now().UnixMicro()) / 1e6
	info := map[string]string{"py_callstack": stack, "timestamp": strconv.FormatFloat(now, 'f', 6, 64)}
	if echo != nil {
		info["lost_rank"] = strconv.Itoa(*echo)
	}
	content, err := json.Marshal(map[string]any{"message": map[string]any{"message": message, "extraInfo": info}})
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}
