package store

import "context"

// Prefix returns a view of s in which the key k is the key "prefix/k" of s, like PyTorch's
// PrefixStore. Prefix(Prefix(s, "a"), "b") maps k to "a/b/k". NumKeys of the view counts
// all keys of s. Close of the view does nothing; the caller closes s.
func Prefix(s Store, prefix string) Store {
	return &prefixed{s: s, prefix: prefix + "/"}
}

type prefixed struct {
	s      Store
	prefix string // ends with a slash
}

func (p *prefixed) key(key string) string { return p.prefix + key }

func (p *prefixed) keys(keys []string) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = p.key(k)
	}
	return out
}

func (p *prefixed) Set(ctx context.Context, key string, value []byte) error {
	return p.s.Set(ctx, p.key(key), value)
}

func (p *prefixed) Get(ctx context.Context, key string) ([]byte, error) {
	return p.s.Get(ctx, p.key(key))
}

func (p *prefixed) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return p.s.Add(ctx, p.key(key), delta)
}

func (p *prefixed) Wait(ctx context.Context, keys ...string) error {
	return p.s.Wait(ctx, p.keys(keys)...)
}

func (p *prefixed) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return p.s.CompareAndSet(ctx, p.key(key), expected, desired)
}

func (p *prefixed) Delete(ctx context.Context, key string) (bool, error) {
	return p.s.Delete(ctx, p.key(key))
}

func (p *prefixed) Check(ctx context.Context, keys ...string) (bool, error) {
	return p.s.Check(ctx, p.keys(keys)...)
}

func (p *prefixed) Append(ctx context.Context, key string, value []byte) error {
	return p.s.Append(ctx, p.key(key), value)
}

func (p *prefixed) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	return p.s.MultiGet(ctx, p.keys(keys)...)
}

func (p *prefixed) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return p.s.MultiSet(ctx, p.keys(keys), values)
}

func (p *prefixed) NumKeys(ctx context.Context) (int64, error) { return p.s.NumKeys(ctx) }

func (p *prefixed) Close() error { return nil }
