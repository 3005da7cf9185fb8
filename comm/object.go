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
	"github.com/goddp/goddp/internal/rootcause"
)

// BroadcastObject copies *v of rank root to *v of all ranks. The value may be of any type that
// encoding/gob can encode, such as a configuration. If the value cannot be encoded, or takes
// more than 1 GiB encoded, BroadcastObject returns an error on every rank.
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
	st, err := pg.stage(device.Uint8, sizes[root], data)
	if err != nil {
		return err
	}
	if err := pg.finish(ctx, pg.Broadcast(st.t, root), st); err != nil {
		return err
	}
	if data, err = st.take(ctx); err != nil || pg.rank == root {
		return err
	}
	var got T // a new value, because gob skips fields that are zero in its input: *v would keep its old values of these fields
	if err := decode(data, &got); err != nil {
		return fmt.Errorf("rank %d: BroadcastObject from rank %d: %w", pg.rank, root, err)
	}
	*v = got
	return nil
}

// AllGatherObject returns the values of all ranks, by rank, on every rank. If the value of any
// rank cannot be encoded, or takes more than 1 GiB encoded, AllGatherObject returns an error on
// every rank.
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

// AllGatherInts returns the integers of all ranks, by rank, on every rank. All ranks must give
// the same number of integers, at least one. AllGatherInts takes one collective;
// AllGatherObject takes two.
func AllGatherInts(ctx context.Context, pg *ProcessGroup, v []int64) ([][]int64, error) {
	all, err := pg.exchange(ctx, v)
	if err != nil {
		return nil, fmt.Errorf("rank %d: AllGatherInts: %w", pg.rank, err)
	}
	return all, nil
}

// GatherObject returns the values of all ranks, by rank, on rank root, and nil on the other
// ranks. It costs as much as AllGatherObject.
func GatherObject[T any](ctx context.Context, pg *ProcessGroup, v T, root int) ([]T, error) {
	vs, err := AllGatherObject(ctx, pg, v)
	if err != nil || pg.rank != root {
		return nil, err
	}
	return vs, nil
}

// Agree makes all ranks succeed or fail together. All ranks must call it, each with its own
// error or nil. If all ranks give nil, Agree returns nil on every rank. Else it returns an
// error on every rank. The text of this error is the same on all ranks. It names each given
// error once, after the ranks that gave it. On a rank that gave an error, the returned error
// also wraps met.
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
	first := slices.IndexFunc(failed, func(f []int64) bool { return f[0] != 0 })
	if first < 0 {
		return nil // without an error on any rank, Agree takes a single collective
	}
	texts, err := AllGatherObject(ctx, pg, text)
	switch {
	case err != nil && met != nil:
		// Another rank may already have all texts and exit, which breaks the group on this rank. So err
		// counts as an effect of met.
		return &agreedError{errors.Join(met, err).Error(), met, pg.inJob(pg.rank)}
	case err != nil:
		return err
	}
	var distinct []string // the ranks' errors, in the order of the first ranks that have them
	ranks := map[string][]int{}
	for r, t := range texts {
		if failed[r][0] == 0 {
			continue
		}
		if ranks[t] == nil {
			distinct = append(distinct, t)
		}
		ranks[t] = append(ranks[t], r)
	}
	var parts []string
	for _, t := range distinct {
		parts = append(parts, fmt.Sprintf("%s: %s", rootcause.Ranks(ranks[t]), t))
	}
	return &agreedError{strings.Join(parts, "; "), met, pg.inJob(first)}
}

// agreedError is what Agree returns.
type agreedError struct {
	text  string
	met   error // this rank's error, or nil
	first int   // the first rank that gave an error, by its number in the job
}

func (e *agreedError) Error() string { return e.text }

func (e *agreedError) Unwrap() error { return e.met }

// objectSizes returns the sizes in bytes of all ranks' encoded objects, on every rank. unfit is
// the error of encoding this rank's object, or nil. If any rank could not encode its object, or
// an object is larger than maxObject, objectSizes returns an error on every rank.
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
			return nil, fmt.Errorf("the encoded object of rank %d has %d bytes: want at most %d", r, s[0], maxObject)
		}
		sizes[r] = int(s[0])
	}
	return sizes, nil
}

// maxObject is the largest size of an encoded object, in bytes. The ranks check the sizes
// before they allocate memory for the objects.
const maxObject = 1 << 30

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func decode(data []byte, v any) error { return gob.NewDecoder(bytes.NewReader(data)).Decode(v) }
