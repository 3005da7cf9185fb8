package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Store is the key-value store shared by the processes of a job. Several goroutines may call its methods
// at the same time; a call that waits does not delay other calls. The caller owns the values that it
// passes and receives: the store copies them.
type Store interface {
	// Set sets key to value.
	Set(ctx context.Context, key string, value []byte) error

	// Get waits until key exists and returns its value.
	Get(ctx context.Context, key string) ([]byte, error)

	// Add adds delta to the integer at key and returns the sum. A missing key counts as 0. The value is
	// stored in decimal. Add returns [ErrNotInteger] if the value is not a decimal integer, or if the sum
	// does not fit into int64.
	Add(ctx context.Context, key string, delta int64) (int64, error)
}

var (
	// ErrServerLost matches the error of a call if the server cannot be reached, has ended, did not answer
	// in time, or rejected the request. The protocol rejects a request by closing the connection; the
	// server's log says why. The server may or may not have performed the request.
	ErrServerLost = errors.New("server lost")

	// ErrClosed is in the error of a call on a closed handle, and of a call on
	// [Server.Local] after its server is closed.
	ErrClosed = errors.New("store closed")

	// ErrLimit is in the error of a call that would exceed one of the [Limits].
	ErrLimit = errors.New("limit exceeded")

	// ErrNotInteger matches the error of an Add to a value that is not a decimal integer, or if the sum
	// overflows. A [Client] returns ErrServerLost instead.
	ErrNotInteger = errors.New("not an integer")
)

// An OpError is the error of every failed call on a [Store].
type OpError struct {
	Op      string        // the name of the method, in lower case
	Keys    []string      // the keys as the caller gave them
	Addr    string        // the server's address, or "local"
	Elapsed time.Duration // time from the call to its failure
	Err     error
}

func (e *OpError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "store %s: %s", e.Addr, e.Op)
	const shown = 4
	for i, k := range e.Keys {
		if i == shown {
			fmt.Fprintf(&b, " and %d more", len(e.Keys)-shown)
			break
		}
		fmt.Fprintf(&b, " %q", k)
	}
	fmt.Fprintf(&b, ": %v (after %v)", e.Err, rounded(e.Elapsed))
	return b.String()
}

func (e *OpError) Unwrap() error { return e.Err }

// prefixKey turns a caller's key into the key used in the table and on the wire. It is the
// only place that adds PyTorch's slash.
func prefixKey(key string) string { return "/" + key }

func prefixKeys(keys []string) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = prefixKey(k)
	}
	return out
}
