package store

import "context"

// Prefix returns a view of s in which the key k is the key "prefix/k" of s, like PyTorch's
// PrefixStore.
func Prefix(s Store, prefix string) Store {
	return &prefixed{s: s, prefix: prefix + "/"}
}

type prefixed struct {
	s      Store
	prefix string // ends with a slash
}

func (p *prefixed) Set(ctx context.Context, key string, value []byte) error {
	return p.s.Set(ctx, p.prefix+key, value)
}

func (p *prefixed) Get(ctx context.Context, key string) ([]byte, error) {
	return p.s.Get(ctx, p.prefix+key)
}

func (p *prefixed) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return p.s.Add(ctx, p.prefix+key, delta)
}
