package store

import (
	"bytes"
	"context"
	"fmt"
)

// The requests below are what PyTorch's clients send, and no rank of goddp.

func (c *Client) Append(ctx context.Context, key string, value []byte) error {
	return c.do(ctx, "append", []string{key}, [][]byte{value}, func(cn *clientConn, k []string) error {
		return cn.tell(ctx, request{op: opAppend, keys: k, values: [][]byte{value}})
	})
}

func (c *Client) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (now []byte, err error) {
	values := [][]byte{expected, desired}
	err = c.do(ctx, "compareandset", []string{key}, values, func(cn *clientConn, k []string) error {
		rep, err := cn.exchange(ctx, request{op: opCompareSet, keys: k, values: values})
		if err == nil {
			now = rep.values[0]
		}
		return err
	})
	return now, err
}

func (c *Client) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	return c.get(ctx, "multiget", opMultiGet, keys)
}

func (c *Client) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	if len(keys) == 0 {
		return nil
	}
	return c.do(ctx, "multiset", keys, values, func(cn *clientConn, k []string) error {
		return cn.tell(ctx, request{op: opMultiSet, keys: k, values: values})
	})
}

func (c *Client) NumKeys(ctx context.Context) (n int64, err error) {
	err = c.do(ctx, "numkeys", nil, nil, func(cn *clientConn, _ []string) error {
		rep, err := cn.exchange(ctx, request{op: opNumKeys})
		n = rep.number
		return err
	})
	return n, err
}

// ping sends a PING request. A store of an early PyTorch 2.x does not support it, and closes the
// connection.
func (c *Client) ping(ctx context.Context) error {
	return c.do(ctx, "ping", nil, nil, func(cn *clientConn, _ []string) error {
		const nonce = 0x676f6464 // an arbitrary number
		rep, err := cn.exchange(ctx, request{op: opPing, number: nonce})
		if err == nil && rep.number != nonce {
			err = fmt.Errorf("ping of %#x answered with %#x", nonce, rep.number)
		}
		return err
	})
}

func (l *Local) Append(ctx context.Context, key string, value []byte) error {
	return l.do(ctx, "append", []string{key}, [][]byte{value}, func(k []string) error {
		return l.table.append(k[0], value, l.table.limits.TableBytes)
	})
}

func (l *Local) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (now []byte, err error) {
	err = l.do(ctx, "compareandset", []string{key}, [][]byte{expected, desired}, func(k []string) error {
		v, err := l.table.compareAndSet(k[0], expected, bytes.Clone(desired), l.table.limits.TableBytes)
		now = bytes.Clone(v)
		return err
	})
	return now, err
}

func (l *Local) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	return l.get(ctx, "multiget", keys)
}

func (l *Local) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return l.do(ctx, "multiset", keys, values, func(k []string) error {
		return l.table.setAll(k, cloneAll(values), l.table.limits.TableBytes)
	})
}

func (l *Local) NumKeys(ctx context.Context) (n int64, err error) {
	err = l.do(ctx, "numkeys", nil, nil, func([]string) error {
		n = l.table.len()
		return nil
	})
	return n, err
}

// handle returns another handle on the same table. Closing one handle does not close the
// other.
func (l *Local) handle() *Local { return newLocal(l.table) }
