package store

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
)

// Limits bound the content of a store and the size of one request. A zero field means the
// default. The limits of a server decide. A client checks its own limits before it sends a
// request, and when it receives a reply.
type Limits struct {
	KeyBytes     int   // size of a key, with the slash before it; default 8 KiB
	ValueBytes   int   // size of a value; default 8 MiB
	Keys         int   // number of keys in the table; default 1 Mi
	TableBytes   int64 // memory of all keys and values of the table; default 512 MiB
	RequestKeys  int   // number of keys of a request; default 128 Ki
	RequestBytes int   // size of a request or reply on the wire; default 64 MiB
	WaitBytes    int   // memory of the keys of a wait; default 1 MiB
}

func (l Limits) withDefaults() Limits {
	return Limits{
		KeyBytes:     cmp.Or(l.KeyBytes, 8<<10),
		ValueBytes:   cmp.Or(l.ValueBytes, 8<<20),
		Keys:         cmp.Or(l.Keys, 1<<20),
		TableBytes:   cmp.Or(l.TableBytes, 512<<20),
		RequestKeys:  cmp.Or(l.RequestKeys, 128<<10),
		RequestBytes: cmp.Or(l.RequestBytes, 64<<20),
		WaitBytes:    cmp.Or(l.WaitBytes, 1<<20),
	}
}

// check returns an error if a request with these keys and values exceeds a limit.
func (l Limits) check(keys []string, values [][]byte) error {
	if len(keys) > l.RequestKeys {
		return limitError("keys in a request", len(keys), l.RequestKeys)
	}
	total := 0
	for _, k := range keys {
		if len(k) > l.KeyBytes {
			return limitError("bytes in a key", len(k), l.KeyBytes)
		}
		total += len(k)
	}
	for _, v := range values {
		if len(v) > l.ValueBytes {
			return limitError("bytes in a value", len(v), l.ValueBytes)
		}
		total += len(v)
	}
	if total > l.RequestBytes {
		return limitError("bytes in a request", total, l.RequestBytes)
	}
	return nil
}

func limitError[T int | int64 | uint64, M int | int64](what string, got T, most M) error {
	return fmt.Errorf("%w: %d %s, at most %d", ErrLimit, got, what, most)
}

// Memory sizes of objects, in bytes. A request with many short keys takes several times its size on
// the wire.
const (
	stringHeader = 16
	sliceHeader  = 24
	entryBytes   = 128 // an entry of the table, without the bytes of its key and value
)

// allocBytes returns an upper bound for the memory of an allocation of n bytes. The allocator
// rounds up by at most 15 bytes or an eighth.
func allocBytes(n int) int {
	if n == 0 {
		return 0
	}
	return n + n/8 + 16
}

// A pool is an amount of memory that the requests of several connections share.
type pool struct {
	limit int64
	taken atomic.Int64
}

// ownBytes is the memory that each connection may use before it takes from a pool. It suffices for
// a rank's requests in an ordinary job.
const ownBytes = 16 << 10

// An account counts the memory that one connection holds for its current request, its pending wait
// and its reply. The first ownBytes are always available. The rest comes from a pool.
type account struct {
	pool *pool

	mu   sync.Mutex
	held int64
}

// take takes n bytes. The caller must return them by give.
func (a *account) take(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	shared := beyondOwn(a.held+int64(n)) - beyondOwn(a.held)
	if shared > 0 {
		if taken := a.pool.taken.Add(shared); taken > a.pool.limit {
			a.pool.taken.Add(-shared)
			return limitError("bytes in flight", taken, a.pool.limit)
		}
	}
	a.held += int64(n)
	return nil
}

// give returns n bytes.
func (a *account) give(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pool.taken.Add(beyondOwn(a.held-int64(n)) - beyondOwn(a.held))
	a.held -= int64(n)
}

func beyondOwn(held int64) int64 { return max(0, held-ownBytes) }
