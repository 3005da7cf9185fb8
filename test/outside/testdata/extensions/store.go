package extensions

import (
	"bytes"
	"context"
	"strconv"
	"sync"

	"github.com/goddp/goddp/comm"
)

// memStore is a comm.Store that goroutines share.
type memStore struct {
	mu      sync.Mutex
	values  map[string][]byte
	changed chan struct{} // closed, and replaced, when a key is set
}

var _ comm.Store = (*memStore)(nil)

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

func (s *memStore) Get(ctx context.Context, key string) ([]byte, error) {
	for {
		s.mu.Lock()
		value, ok := s.values[key]
		changed := s.changed
		s.mu.Unlock()
		if ok {
			return bytes.Clone(value), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s *memStore) Add(_ context.Context, key string, delta int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := int64(0), error(nil)
	if old, ok := s.values[key]; ok {
		if n, err = strconv.ParseInt(string(old), 10, 64); err != nil {
			return 0, err
		}
	}
	s.set(key, strconv.AppendInt(nil, n+delta, 10))
	return n + delta, nil
}
