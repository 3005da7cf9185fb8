package store

import (
	"cmp"
	"fmt"
)

// Limits bound what a store holds and what one request can ask of it. A zero
// field is the default. Those of a server rule; a client checks its own before
// it sends, and holds a server's replies to them.
type Limits struct {
	KeyBytes     int   // one key, with the slash of the wire; default 8 KiB
	ValueBytes   int   // one value; default 8 MiB
	Keys         int   // keys in the table; default 1 Mi
	TableBytes   int64 // all keys and values of the table; default 512 MiB
	RequestKeys  int   // keys of one request; default 128 Ki
	RequestBytes int   // one request, or its reply; default 64 MiB
}

func (l Limits) withDefaults() Limits {
	return Limits{
		KeyBytes:     cmp.Or(l.KeyBytes, 8<<10),
		ValueBytes:   cmp.Or(l.ValueBytes, 8<<20),
		Keys:         cmp.Or(l.Keys, 1<<20),
		TableBytes:   cmp.Or(l.TableBytes, 512<<20),
		RequestKeys:  cmp.Or(l.RequestKeys, 128<<10),
		RequestBytes: cmp.Or(l.RequestBytes, 64<<20),
	}
}

// check reports the first limit that a request with these keys and values passes.
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
