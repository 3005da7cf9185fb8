package store

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// Local is a [Store] in this process: a handle on a table. It needs no sockets and no
// goroutines. It waits on channels, so it works under testing/synctest.
type Local struct {
	table  *table
	once   sync.Once
	closed chan struct{}
}

var _ Store = (*Local)(nil)

// NewLocal returns a store in this process, which is empty and has the default [Limits].
func NewLocal() *Local { return newLocal(newTable(Limits{}.withDefaults())) }

func newLocal(t *table) *Local { return &Local{table: t, closed: make(chan struct{})} }

func (l *Local) Set(ctx context.Context, key string, value []byte) error {
	return l.do(ctx, "set", []string{key}, [][]byte{value}, func(k []string) error {
		return l.table.set(k[0], bytes.Clone(value), l.table.limits.TableBytes)
	})
}

func (l *Local) Get(ctx context.Context, key string) ([]byte, error) {
	values, err := l.get(ctx, "get", []string{key})
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

func (l *Local) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	err = l.do(ctx, "add", []string{key}, nil, func(k []string) error {
		sum, err = l.table.add(k[0], delta, l.table.limits.TableBytes)
		return err
	})
	return sum, err
}

func (l *Local) Wait(ctx context.Context, keys ...string) error {
	return l.do(ctx, "wait", keys, nil, func(k []string) error { return l.wait(ctx, k) })
}

func (l *Local) Delete(ctx context.Context, key string) (existed bool, err error) {
	err = l.do(ctx, "delete", []string{key}, nil, func(k []string) error {
		existed = l.table.delete(k[0])
		return nil
	})
	return existed, err
}

func (l *Local) Check(ctx context.Context, keys ...string) (exist bool, err error) {
	err = l.do(ctx, "check", keys, nil, func(k []string) error {
		exist = l.table.has(k)
		return nil
	})
	return exist, err
}

// Close releases the handle. It returns nil.
func (l *Local) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *Local) get(ctx context.Context, op string, keys []string) (values [][]byte, err error) {
	err = l.do(ctx, op, keys, nil, func(k []string) error {
		for {
			if v, all := l.table.get(k...); all {
				values = cloneAll(v)
				return nil
			}
			if err := l.wait(ctx, k); err != nil {
				return err
			}
		}
	})
	return values, err
}

func (l *Local) wait(ctx context.Context, keys []string) error {
	w := l.table.wait(keys)
	defer l.table.cancel(w)
	select {
	case <-w.done:
		if !w.met {
			return ErrClosed
		}
		return nil
	case <-ctx.Done():
		return contextError(ctx)
	case <-l.closed:
		return ErrClosed
	}
}

// do calls f with the table's keys. It wraps f's error in an OpError.
func (l *Local) do(ctx context.Context, op string, keys []string, values [][]byte, f func(keys []string) error) error {
	start := time.Now()
	names := prefixKeys(keys)
	err := l.usable(ctx)
	if err == nil {
		err = l.table.limits.check(names, values)
	}
	if err == nil {
		err = f(names)
	}
	if err != nil {
		return &OpError{Op: op, Keys: keys, Addr: "local", Elapsed: time.Since(start), Err: err}
	}
	return nil
}

// usable returns an error if the handle or the table is closed, or if ctx has ended.
func (l *Local) usable(ctx context.Context) error {
	select {
	case <-l.closed:
		return ErrClosed
	case <-l.table.closed:
		return ErrClosed
	case <-ctx.Done():
		return contextError(ctx)
	default:
		return nil
	}
}

func cloneAll(values [][]byte) [][]byte {
	out := make([][]byte, len(values))
	for i, v := range values {
		out[i] = bytes.Clone(v)
	}
	return out
}
