package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// endedError is the error of a context whose cause differs from its error.
type endedError struct{ err, cause error }

func (e *endedError) Error() string   { return e.cause.Error() }
func (e *endedError) Unwrap() []error { return []error{e.err, e.cause} }

// contextError returns an error that wraps the error of ctx, and ctx's cause if it is a
// different error.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err {
		return err
	}
	return &endedError{err, cause}
}

// unreachableError is the error of Dial if its context ends before Dial has connected. ended is the
// context's error, and last is the error of the last attempt.
type unreachableError struct{ ended, last error }

// Error does not mention a deadline, because the OpError around it says how long the call
// took.
func (e *unreachableError) Error() string {
	if errors.Is(e.ended, context.DeadlineExceeded) {
		return e.last.Error()
	}
	return e.ended.Error() + ": " + e.last.Error()
}

func (e *unreachableError) Unwrap() []error { return []error{ErrServerLost, e.ended, e.last} }

// muteError is the error of an attempt to connect that took too long although something
// accepted the connection.
type muteError struct{ err error }

func (e *muteError) Error() string {
	return "a program listens at this address, but it does not answer as a store"
}
func (e *muteError) Unwrap() error { return e.err }

// netError wraps an error of package net to shorten its text. The text is only the cause,
// and the resolved address if it differs from addr. The errors that wrap a netError state
// the operation and addr.
type netError struct {
	error
	addr string // as the caller gave it
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

// rounded rounds a time to two digits.
func rounded(d time.Duration) time.Duration {
	unit := time.Microsecond
	for d/unit >= 100 {
		unit *= 10
	}
	return d.Round(unit)
}
