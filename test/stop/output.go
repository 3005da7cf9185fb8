package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
)

// output collects the output of a job. It is safe for concurrent use.
type output struct {
	mu      sync.Mutex
	data    bytes.Buffer
	written chan struct{} // capacity 1; holds a value after a Write
}

func newOutput() *output { return &output{written: make(chan struct{}, 1)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.written <- struct{}{}:
	default:
	}
	return o.data.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.data.String()
}

// await waits until isReady returns true for the whole output so far.
func (o *output) await(ctx context.Context, isReady func(said string) bool) error {
	for !isReady(o.String()) {
		select {
		case <-o.written:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// pids waits until each rank has printed its process id, and returns the ids by rank.
func (o *output) pids(ctx context.Context, ranks int) (pids []int, err error) {
	found := 0
	err = o.await(ctx, func(said string) bool {
		pids, found = make([]int, ranks), 0
		for line := range strings.Lines(said) {
			var rank, pid int
			if _, said, ok := strings.Cut(line, "]: "); ok && strings.HasSuffix(said, "\n") {
				if n, _ := fmt.Sscanf(said, "rank %d is pid %d", &rank, &pid); n == 2 && rank < ranks {
					pids[rank] = pid
					found++
				}
			}
		}
		return found == ranks
	})
	if err != nil {
		return nil, fmt.Errorf("%d of %d ranks have started: %w", found, ranks, err)
	}
	return pids, nil
}
