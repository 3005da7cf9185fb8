package extensions

import (
	"bytes"
	"context"
	"strconv"
	"sync"

	"github.com/goddp/goddp/store"
)

// memStore is a store.Store that goroutines share.
type memStore struct {
	mu      sync.Mutex
	values  map[string][]byte
	changed chan struct{} // closed, and replaced, when a key is set
}

var _ store.Store = (*memStore)(nil)

func newMemStore() *memStore {
	return &memStore{values: map[string][]byte{}, changed: make(chan struct{})}
}

// set stores a copy of value. The caller holds mu.
func (s *memStore) set(key string, value []byte) {
	s.values[key] = bytes.Clone(value)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *memStore) Set(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(key, value)
	return nil
}

func (s *memStore) Wait(ctx context.Context, keys ...string) error {
	for {
		exist, _ := s.Check(ctx, keys...)
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if again, _ := s.Check(ctx, keys...); exist || again {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *memStore) Get(ctx context.Context, key string) ([]byte, error) {
	if err := s.Wait(ctx, key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.values[key]), nil
}

func (s *memStore) Add(_ context.Context, key string, delta int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := int64(0), error(nil)
	if old, ok := s.values[key]; ok {
		if n, err = strconv.ParseInt(string(old), 10, 64); err != nil {
			return 0, store.ErrNotInteger
		}
	}
	s.set(key, strconv.AppendInt(nil, n+delta, 10))
	return n + delta, nil
}

func (s *memStore) CompareAndSet(_ context.Context, key string, expected, desired []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.values[key]
	switch {
	case !ok && len(expected) > 0:
		return expected, nil
	case ok && !bytes.Equal(old, expected):
		return bytes.Clone(old), nil
	}
	s.set(key, desired)
	return desired, nil
}

func (s *memStore) Delete(_ context.Context, key string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.values[key]
	delete(s.values, key)
	return ok, nil
}

func (s *memStore) Check(_ context.Context, keys ...string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if _, ok := s.values[key]; !ok {
			return false, nil
		}
	}
	return true, nil
}

func (s *memStore) Append(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(key, append(bytes.Clone(s.values[key]), value...))
	return nil
}

func (s *memStore) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	values := make([][]byte, len(keys))
	for i, key := range keys {
		var err error
		if values[i], err = s.Get(ctx, key); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func (s *memStore) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	for i, key := range keys {
		if err := s.Set(ctx, key, values[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *memStore) NumKeys(context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.values)), nil
}

func (s *memStore) Close() error { return nil }
