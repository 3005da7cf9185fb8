package buckets

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
)

// List is a list that must be equal on all ranks.
type List struct {
	What  string // the kind of an item, such as "parameter" or "buffer"
	Items []string
}

// Listed makes a List whose items are the values as fmt.Sprint prints them. A Param prints as its name,
// element type and shape.
func Listed[T any](what string, values []T) List {
	l := List{What: what, Items: make([]string, len(values))}
	for i, v := range values {
		l.Items[i] = fmt.Sprint(v)
	}
	return l
}

// OnAll returns, by index, what all ranks have. has says what this rank has, and is equally long on all ranks. If it is
// empty, OnAll uses no collective.
func OnAll(ctx context.Context, pg *comm.ProcessGroup, has []bool) ([]bool, error) {
	if len(has) == 0 {
		return nil, nil
	}
	lacks := make([]int64, len(has))
	for i := range has {
		if !has[i] {
			lacks[i] = 1
		}
	}
	ranks, err := comm.AllGatherInts(ctx, pg, lacks)
	if err != nil {
		return nil, err
	}
	all := make([]bool, len(has))
	for i := range all {
		all[i] = !slices.ContainsFunc(ranks, func(lacks []int64) bool { return lacks[i] != 0 })
	}
	return all, nil
}

// Verify compares lists between the ranks. If the items of a list, or their number, differ on some rank
// from rank 0, every rank gets a [*reducer.ModelMismatchError] that describes the first list that differs. All
// ranks must call Verify with the same number of lists. If no list differs, Verify uses one collective.
func Verify(ctx context.Context, pg *comm.ProcessGroup, lists ...List) error {
	if pg == nil {
		return fmt.Errorf("reducer: comparing the ranks: %w", comm.ErrNoGroup)
	}
	// The ranks compare digests of the lists first. They send the lists only if the digests differ.
	digests, err := comm.AllGatherInts(ctx, pg, digest(lists))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(digests, func(d []int64) bool { return !slices.Equal(d, digests[0]) }) {
		return nil
	}
	ranks, err := comm.AllGatherObject(ctx, pg, lists)
	if err != nil {
		return err
	}
	for i, l := range lists {
		items := make([][]string, len(ranks))
		for r, theirs := range ranks {
			if len(theirs) != len(lists) {
				return fmt.Errorf("reducer: rank %d compares %d lists, rank %d compares %d", r, len(theirs), pg.Rank(), len(lists))
			}
			items[r] = theirs[i].Items
		}
		if e := mismatch(l.What, items); e != nil {
			return e
		}
	}
	return errors.New("reducer: the digests of the ranks' lists differ, but the lists are equal: this is a bug in goddp or damaged memory")
}

// digest returns a hash of lists as integers, which a collective can gather.
func digest(lists []List) []int64 {
	hash := sha256.New()
	for _, l := range lists {
		fmt.Fprintf(hash, "%q %d\n", l.What, len(l.Items))
		for _, item := range l.Items {
			fmt.Fprintf(hash, "%q\n", item)
		}
	}
	words := make([]int64, sha256.Size/8)
	for sum := hash.Sum(nil); len(sum) > 0; sum = sum[8:] {
		words[len(words)-len(sum)/8] = int64(binary.LittleEndian.Uint64(sum))
	}
	return words
}

// mismatch describes the first difference between the list of rank 0 and the lists of the other ranks. It
// compares the numbers of items first, and then the items. It returns nil if all lists are equal.
func mismatch(what string, lists [][]string) *reducer.ModelMismatchError {
	e := &reducer.ModelMismatchError{What: what, Index: -1, Rank0: strconv.Itoa(len(lists[0]))}
	differ := func(rank int, theirs string) {
		if e.Ranks = append(e.Ranks, rank); len(e.Ranks) == 1 {
			e.Rank, e.Theirs = rank, theirs
		}
	}
	for rank, theirs := range lists {
		if len(theirs) != len(lists[0]) {
			differ(rank, strconv.Itoa(len(theirs)))
		}
	}
	for i := 0; len(e.Ranks) == 0 && i < len(lists[0]); i++ {
		e.Index, e.Rank0 = i, lists[0][i]
		for rank, theirs := range lists {
			if theirs[i] != e.Rank0 {
				differ(rank, theirs[i])
			}
		}
	}
	if len(e.Ranks) == 0 {
		return nil
	}
	return e
}
