package comm

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"

	"github.com/goddp/goddp/device"
)

// BroadcastObject copies *v of rank root to *v of all ranks: any small value
// that encoding/gob can carry, such as a configuration.
func BroadcastObject[T any](ctx context.Context, pg *ProcessGroup, v *T, root int) error {
	var data []byte
	if pg.rank == root {
		var err error
		if data, err = encode(v); err != nil {
			return fmt.Errorf("rank %d: BroadcastObject: %w", pg.rank, err)
		}
	}
	sizes, err := pg.exchange(ctx, []int64{int64(len(data))})
	if err != nil {
		return err
	}
	st, err := stage(pg.dev, device.Uint8, int(sizes[root][0]), data)
	if err != nil {
		return err
	}
	if err := pg.Broadcast(st.t, root).Sync(ctx); err != nil {
		return err // the call may go on: its memory is left to the collector
	}
	if data, err = st.take(ctx); err != nil || pg.rank == root {
		return err
	}
	if err := decode(data, v); err != nil {
		return fmt.Errorf("rank %d: BroadcastObject from rank %d: %w", pg.rank, root, err)
	}
	return nil
}

// AllGatherObject gives every rank the values of all, by rank.
func AllGatherObject[T any](ctx context.Context, pg *ProcessGroup, v T) ([]T, error) {
	data, err := encode(&v)
	if err != nil {
		return nil, fmt.Errorf("rank %d: AllGatherObject: %w", pg.rank, err)
	}
	sizes, err := pg.exchange(ctx, []int64{int64(len(data))})
	if err != nil {
		return nil, err
	}
	counts := make([]int, pg.size)
	for r, s := range sizes {
		counts[r] = int(s[0])
	}
	flat, err := gather(ctx, pg, device.Uint8, data, counts)
	if err != nil {
		return nil, err
	}
	vs := make([]T, pg.size)
	for r, n := range counts {
		if err := decode(flat[:n], &vs[r]); err != nil {
			return nil, fmt.Errorf("rank %d: AllGatherObject from rank %d: %w", pg.rank, r, err)
		}
		flat = flat[n:]
	}
	return vs, nil
}

// GatherObject gives rank root the values of all, by rank; the others get
// nil. Objects are small: it costs what AllGatherObject does.
func GatherObject[T any](ctx context.Context, pg *ProcessGroup, v T, root int) ([]T, error) {
	vs, err := AllGatherObject(ctx, pg, v)
	if err != nil || pg.rank != root {
		return nil, err
	}
	return vs, nil
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func decode(data []byte, v any) error { return gob.NewDecoder(bytes.NewReader(data)).Decode(v) }
