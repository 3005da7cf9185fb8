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
	for rank, theirs := range lists {
		if len(theirs) != len(lists[0]) {
			return &ModelMismatchError{What: what, Rank: rank, Index: -1, Theirs: strconv.Itoa(len(theirs)), Rank0: strconv.Itoa(len(lists[0]))}
		}
		for i, p := range theirs {
			if p != lists[0][i] {
				return &ModelMismatchError{What: what, Rank: rank, Index: i, Theirs: p, Rank0: lists[0][i]}
			}
		}
	}
	return fmt.Errorf("reducer: the ranks' digests of their %ss differ, the lists do not", what)
}
