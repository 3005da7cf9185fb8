package comm

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/device"
)

// BroadcastObject sets *v of all ranks to that of rank root: any small value
// that encoding/gob can carry, such as a configuration. A value that cannot be
// carried, or takes more than 1 GiB, is an error on every rank.
func BroadcastObject[T any](ctx context.Context, pg *ProcessGroup, v *T, root int) error {
	var data []byte
	var unfit error
	if pg.rank == root {
		data, unfit = encode(v)
	}
	sizes, err := objectSizes(ctx, pg, data, unfit)
	if err != nil {
		return fmt.Errorf("rank %d: BroadcastObject: %w", pg.rank, err)
	}
	st, err := stage(pg.dev, device.Uint8, sizes[root], data)
	if err != nil {
		return err
	}
	if err := pg.finish(ctx, pg.Broadcast(st.t, root), st); err != nil {
		return err
	}
	if data, err = st.take(ctx); err != nil || pg.rank == root {
		return err
	}
	var got T // gob adds to what it decodes into
	if err := decode(data, &got); err != nil {
		return fmt.Errorf("rank %d: BroadcastObject from rank %d: %w", pg.rank, root, err)
	}
	*v = got
	return nil
}

// AllGatherObject gives every rank the values of all, by rank. A value that
// cannot be carried, or takes more than 1 GiB, is an error on every rank.
func AllGatherObject[T any](ctx context.Context, pg *ProcessGroup, v T) ([]T, error) {
	data, unfit := encode(&v)
	counts, err := objectSizes(ctx, pg, data, unfit)
	if err != nil {
		return nil, fmt.Errorf("rank %d: AllGatherObject: %w", pg.rank, err)
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

// AllGatherInts gives every rank the integers of all, by rank: at least one, and
// as many from each. It is AllGatherObject with a single collective.
func AllGatherInts(ctx context.Context, pg *ProcessGroup, v []int64) ([][]int64, error) {
	all, err := pg.exchange(ctx, v)
	if err != nil {
		return nil, fmt.Errorf("rank %d: AllGatherInts: %w", pg.rank, err)
	}
	return all, nil
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

// Agree lets the ranks fail together: all call it, each with the error that it
// met on its own, or nil. It returns nil on every rank, or on every rank an
// error that says which ranks met what; on those that met one it wraps it.
func Agree(ctx context.Context, pg *ProcessGroup, met error) error {
	var text string
	var mine int64
	if met != nil {
		text, mine = met.Error(), 1
	}
	failed, err := AllGatherInts(ctx, pg, []int64{mine})
	if err != nil {
		return errors.Join(met, err)
	}
	if !slices.ContainsFunc(failed, func(f []int64) bool { return f[0] != 0 }) {
		return nil // as a rule: one collective
	}
	texts, err := AllGatherObject(ctx, pg, text)
	if err != nil {
		return errors.Join(met, err)
	}
	var others []string
	for r, t := range texts {
		if failed[r][0] != 0 && r != pg.rank {
			others = append(others, fmt.Sprintf("rank %d: %s", r, t))
		}
	}
	switch {
	case met == nil:
		return errors.New(strings.Join(others, "; "))
	case len(others) == 0:
		return fmt.Errorf("rank %d: %w", pg.rank, met)
	}
	return fmt.Errorf("rank %d: %w; %s", pg.rank, met, strings.Join(others, "; "))
}

// objectSizes gives every rank the sizes in bytes of all ranks' encoded
// objects, or an error on every rank when one could not be encoded.
func objectSizes(ctx context.Context, pg *ProcessGroup, data []byte, unfit error) ([]int, error) {
	mine := int64(len(data))
	if unfit != nil {
		mine = -1
	}
	all, err := pg.exchange(ctx, []int64{mine})
	if err != nil {
		return nil, errors.Join(unfit, err)
	}
	if unfit != nil {
		return nil, unfit
	}
	sizes := make([]int, pg.size)
	for r, s := range all {
		switch {
		case s[0] < 0:
			return nil, fmt.Errorf("rank %d could not encode its object", r)
		case s[0] > maxObject:
			return nil, fmt.Errorf("rank %d has an object of %d bytes encoded, at most %d", r, s[0], maxObject)
		}
		sizes[r] = int(s[0])
	}
	return sizes, nil
}

// maxObject bounds an encoded object, in bytes, before memory is taken for it.
const maxObject = 1 << 30

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func decode(data []byte, v any) error { return gob.NewDecoder(bytes.NewReader(data)).Decode(v) }
