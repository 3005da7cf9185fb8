package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// endedError is why a context ended, when its cause says more than its error.
type endedError struct{ err, cause error }

func (e *endedError) Error() string   { return e.cause.Error() }
func (e *endedError) Unwrap() []error { return []error{e.err, e.cause} }

// contextError returns why ctx ended: its error, and its cause where the two differ.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err {
		return err
	}
	return &endedError{err, cause}
}

// unreachableError is why Dial gave up: how its context ended, and why the last attempt
// failed.
type unreachableError struct{ ended, last error }

// Error says nothing of a deadline: an OpError tells the time.
func (e *unreachableError) Error() string {
	if errors.Is(e.ended, context.DeadlineExceeded) {
		return e.last.Error()
	}
	return e.ended.Error() + ": " + e.last.Error()
}

func (e *unreachableError) Unwrap() []error { return []error{ErrServerLost, e.ended, e.last} }

// muteError is why an attempt to connect took too long: something took the connection.
type muteError struct{ err error }

func (e *muteError) Error() string { return "what listens there does not answer as a store does" }
func (e *muteError) Unwrap() error { return e.err }

// netError is an error of package net, which says with every cause what was tried and at
// which address. So do the errors around it: its text is the cause alone, and the address
// that a name stands for.
type netError struct {
	error
	addr string // as the program has it
}

func (e netError) Error() string {
	var lookup *net.DNSError
	var call *os.SyscallError
	switch {
	case errors.As(e.error, &lookup):
		return lookup.Err
	case errors.As(e.error, &call):
		var op *net.OpError
		if errors.As(e.error, &op) && op.Addr != nil && op.Addr.String() != e.addr {
			return fmt.Sprintf("%v: %v", op.Addr, call.Err)
		}
		return call.Err.Error()
	}
	return e.error.Error()
}

func (e netError) Unwrap() error { return e.error }

// rounded leaves two digits of a time, for people.
func rounded(d time.Duration) time.Duration {
	unit := time.Microsecond
	for d/unit >= 100 {
		unit *= 10
	}
	return d.Round(unit)
}
