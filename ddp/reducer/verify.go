package reducer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// Param is a parameter as it is registered.
type Param struct {
	Name  string
	Shape device.Shape
	DType device.DType
}

func (p Param) bytes() int { return p.Shape.Len() * p.DType.Size() }

func (p Param) String() string { return fmt.Sprintf("%q %v%v", p.Name, p.DType, p.Shape) }

// Verify returns a [*ModelMismatchError] on every rank when the ranks' lists
// differ in number or in how an element prints: for a Param, its name, shape
// and element type. what is "parameter", "buffer" or the like. All ranks call it.
func Verify[T any](ctx context.Context, pg *comm.ProcessGroup, what string, list []T) error {
	mine := make([]string, len(list))
	for i, v := range list {
		mine[i] = fmt.Sprint(v)
	}
	sum := sha256.New()
	for _, s := range mine {
		fmt.Fprintln(sum, s)
	}
	// The digests are equal but for a mistake; only then are the lists sent.
	digests, err := comm.AllGatherObject(ctx, pg, [32]byte(sum.Sum(nil)))
	if err != nil {
		return err
	}
	differ := false
	for _, d := range digests {
		differ = differ || d != digests[0]
	}
	if !differ {
		return nil
	}
	lists, err := comm.AllGatherObject(ctx, pg, mine)
	if err != nil {
		return err
	}
	if e := mismatch(what, lists); e != nil {
		return e
	}
	return fmt.Errorf("reducer: the ranks' digests of their %ss differ, the lists do not", what)
}

// mismatch says where ranks' lists first differ from rank 0's, in number or else in
// an element; nil where they do not.
func mismatch(what string, lists [][]string) *ModelMismatchError {
	e := &ModelMismatchError{What: what, Index: -1, Rank0: strconv.Itoa(len(lists[0]))}
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
