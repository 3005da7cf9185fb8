package store

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"sync"
)

// A table holds the keys and values of a store. Its keys are the keys of the protocol, which
// begin with a slash. A table does no I/O, starts no goroutine and never blocks: a wait is a
// *waiter that a later call completes.
//
// The table never changes a value in place, so the values that get returns may be read
// without the lock. The table owns the slices that are passed to it.
//
// The parameter `most` of a write is the maximum size in memory of the table after the write.
type table struct {
	limits Limits
	closed chan struct{} // closed under mu

	mu     sync.Mutex
	values map[string][]byte
	bytes  int64 // memory that all entries take
	// parked holds each pending waiter once, under the first key that it still waits for
	// (waiter.keys[waiter.next]). That key is not in values yet.
	parked map[string]map[*waiter]struct{}
}

// A waiter waits until all of its keys exist at the same time.
type waiter struct {
	keys []string
	next int           // keys[:next] existed when they were last checked
	done chan struct{} // closed when the wait has ended
	met  bool          // the wait ended because all keys exist; read it only after done is closed
}

func newTable(limits Limits) *table {
	return &table{
		limits: limits,
		closed: make(chan struct{}),
		values: make(map[string][]byte),
		parked: make(map[string]map[*waiter]struct{}),
	}
}

func (t *table) set(key string, value []byte, most int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.put(key, value, most)
}

// setAll sets keys[i] to values[i], under one lock. It stops at the first error.
func (t *table) setAll(keys []string, values [][]byte, most int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, key := range keys {
		if err := t.put(key, values[i], most); err != nil {
			return err
		}
	}
	return nil
}

// get returns the value of each key, nil for a key that does not exist, and whether all
// keys exist.
func (t *table) get(keys ...string) (values [][]byte, all bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	values, all = make([][]byte, 0, len(keys)), true
	for _, key := range keys {
		v, ok := t.values[key]
		all = all && ok
		values = append(values, v)
	}
	return values, all
}

func (t *table) has(keys []string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.missing(keys, 0) == len(keys)
}

func (t *table) add(key string, delta, most int64) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var old int64
	if v, ok := t.values[key]; ok {
		var err error
		if old, err = strconv.ParseInt(string(v), 10, 64); err != nil {
			return 0, fmt.Errorf("%w: %.64q", ErrNotInteger, v)
		}
	}
	if delta > 0 && old > math.MaxInt64-delta || delta < 0 && old < math.MinInt64-delta {
		return 0, fmt.Errorf("%w of 64 bits: %d + %d", ErrNotInteger, old, delta)
	}
	sum := old + delta
	if err := t.put(key, strconv.AppendInt(nil, sum, 10), most); err != nil {
		return 0, err
	}
	return sum, nil
}

// compareAndSet does what Store.CompareAndSet specifies.
func (t *table) compareAndSet(key string, expected, desired []byte, most int64) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, ok := t.values[key]
	switch {
	case !ok && len(expected) > 0:
		return expected, nil
	case !bytes.Equal(old, expected):
		return old, nil
	}
	if err := t.put(key, desired, most); err != nil {
		return nil, err
	}
	return desired, nil
}

func (t *table) append(key string, value []byte, most int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	// append may write into the spare capacity of the old value. Readers of the old value
	// do not see those bytes.
	return t.put(key, append(t.values[key], value...), most)
}

func (t *table) delete(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.values[key]
	if ok {
		delete(t.values, key)
		t.bytes -= entryCost(key, v)
	}
	return ok
}

func (t *table) len() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.values))
}

// wait returns a waiter for keys. The wait has already ended if all keys exist or the table
// is closed. A caller that no longer waits calls cancel.
func (t *table) wait(keys []string) *waiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := &waiter{keys: keys, done: make(chan struct{})}
	select {
	case <-t.closed:
		close(w.done)
	default:
		t.advance(w)
	}
	return w
}

// cancel ends w unless it has ended.
func (t *table) cancel(w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-w.done:
	default:
		t.unpark(w)
		close(w.done)
	}
}

// close ends every wait, and makes later waits end at once. It is called once.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.closed)
	for _, waiters := range t.parked {
		for w := range waiters {
			close(w.done)
		}
	}
	clear(t.parked)
}

// The caller of the methods below must hold mu.

// put stores value and advances the waiters that are parked under key.
func (t *table) put(key string, value []byte, most int64) error {
	size := t.bytes + entryCost(key, value)
	if old, exists := t.values[key]; exists {
		size -= entryCost(key, old)
	} else if len(t.values) >= t.limits.Keys {
		return limitError("keys in the table", len(t.values)+1, t.limits.Keys)
	}
	if len(value) > t.limits.ValueBytes {
		return limitError("bytes in a value", len(value), t.limits.ValueBytes)
	}
	if size > most && size > t.bytes {
		return limitError("bytes in the table", size, most)
	}
	t.values[key], t.bytes = value, size
	for w := range t.parked[key] {
		t.unpark(w)
		t.advance(w)
	}
	return nil
}

// entryCost returns the memory that an entry takes.
func entryCost(key string, value []byte) int64 {
	return int64(entryBytes + allocBytes(len(key)) + allocBytes(cap(value)))
}

// missing returns the index of the first of keys[from:] that does not exist, or
// len(keys).
func (t *table) missing(keys []string, from int) int {
	for i := from; i < len(keys); i++ {
		if _, ok := t.values[keys[i]]; !ok {
			return i
		}
	}
	return len(keys)
}

// advance parks w under its next missing key, or ends the wait if all keys exist. It checks the
// keys in order, and checks all of them again at the end, because a key may have been deleted in
// the meantime.
func (t *table) advance(w *waiter) {
	w.next = t.missing(w.keys, w.next)
	if w.next == len(w.keys) {
		w.next = t.missing(w.keys, 0)
	}
	if w.next == len(w.keys) {
		w.met = true
		close(w.done)
		return
	}
	key := w.keys[w.next]
	if t.parked[key] == nil {
		t.parked[key] = make(map[*waiter]struct{})
	}
	t.parked[key][w] = struct{}{}
}

// unpark removes w from t.parked.
func (t *table) unpark(w *waiter) {
	key := w.keys[w.next]
	delete(t.parked[key], w)
	if len(t.parked[key]) == 0 {
		delete(t.parked, key)
	}
}
