package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Store is a key-value store shared by the processes of a job. Its methods
// may be called by several goroutines at once; one that waits holds up no other.
// Values passed in and returned are copies: the caller owns them.
type Store interface {
	// Set makes value the value of key.
	Set(ctx context.Context, key string, value []byte) error

	// Get waits until key exists and returns its value.
	Get(ctx context.Context, key string) ([]byte, error)

	// Add adds delta to the integer at key, 0 if there is none, and returns the
	// sum. The value is kept in decimal. A value that is no decimal integer, or
	// a sum beyond int64, is an [ErrNotInteger].
	Add(ctx context.Context, key string, delta int64) (int64, error)

	// Wait returns once every key exists, all at the same time.
	Wait(ctx context.Context, keys ...string) error

	// CompareAndSet sets key to desired if its value is expected; an empty
	// expected also matches a key that does not exist. It returns the value of
	// key after the call: desired tells success. If key does not exist and
	// expected is not empty, nothing is set and expected is returned, as
	// PyTorch does.
	CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)

	// Delete removes key and reports whether it existed.
	Delete(ctx context.Context, key string) (bool, error)

	// Check reports whether every key exists.
	Check(ctx context.Context, keys ...string) (bool, error)

	// Append adds value at the end of the value of key, created if absent.
	Append(ctx context.Context, key string, value []byte) error

	// MultiGet waits until every key exists and returns their values in order.
	MultiGet(ctx context.Context, keys ...string) ([][]byte, error)

	// MultiSet sets keys[i] to values[i], in order. If a limit of the store is
	// reached on the way, the pairs before it stay set. MultiSet panics if there are
	// not as many values as keys.
	MultiSet(ctx context.Context, keys []string, values [][]byte) error

	// NumKeys returns the number of keys in the whole store.
	NumKeys(ctx context.Context) (int64, error)

	// Close releases this handle. Its pending and later calls fail with
	// [ErrClosed]; other handles and the values are not affected.
	Close() error
}

var (
	// ErrServerLost is in the error of a call whose server cannot be reached,
	// went away, did not answer in time, or refused the request by closing the
	// connection, as the protocol has it; the server's log says why. The
	// request may or may not have been carried out.
	ErrServerLost = errors.New("server lost")

	// ErrClosed is in the error of a call on a closed handle, and of a call on
	// [Server.Local] after its server is closed.
	ErrClosed = errors.New("store closed")

	// ErrLimit is in the error of a call that would pass one of the [Limits].
	ErrLimit = errors.New("limit exceeded")

	// ErrNotInteger is in the error of an Add to a value that is no decimal
	// integer, or that overflows. Through a [Client] it shows as ErrServerLost.
	ErrNotInteger = errors.New("not an integer")
)

// An OpError is the error of every failed call on a [Store].
type OpError struct {
	Op      string        // the method, in lower case
	Keys    []string      // the caller's keys, without any prefix the wire adds
	Addr    string        // the server's address, or "local"
	Elapsed time.Duration // from the call to its failure
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

// lengthError is the panic of a MultiSet with unequal numbers of keys and values.
type lengthError struct{ Keys, Values int }

func (e *lengthError) Error() string {
	return fmt.Sprintf("store: multiset of %d keys and %d values", e.Keys, e.Values)
}

// prefixKey is the name under which the table and the wire know a caller's key.
// It is the only place that knows of PyTorch's slash.
func prefixKey(key string) string { return "/" + key }

func prefixKeys(keys []string) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = prefixKey(k)
	}
	return out
}
