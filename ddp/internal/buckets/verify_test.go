package buckets

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
)

// If lists differ between ranks, the error names the first list that differs. Verify also finds an item
// that is in the first list on one rank and in the second list on the others.
func TestVerify(t *testing.T) {
	onRanks(t, func(pg *comm.ProcessGroup) error {
		odd := pg.Rank() == 1
		pick := func(mine, others []string) []string {
			if odd {
				return mine
			}
			return others
		}
		same := List{"same", []string{"x", "y"}}
		for _, c := range []struct {
			lists []List
			want  *reducer.ModelMismatchError
		}{
			{[]List{same, {"item", pick([]string{"a", "c"}, []string{"a", "b"})}}, &reducer.ModelMismatchError{What: "item", Index: 1, Rank0: "b", Theirs: "c"}},
			{[]List{{"item", pick([]string{"a"}, nil)}, same}, &reducer.ModelMismatchError{What: "item", Index: -1, Rank0: "0", Theirs: "1"}},
			{[]List{{"first", pick([]string{"a"}, nil)}, {"second", pick(nil, []string{"a"})}}, &reducer.ModelMismatchError{What: "first", Index: -1, Rank0: "0", Theirs: "1"}},
			{[]List{{"line", pick([]string{"a\nb", "c"}, []string{"a", "b\nc"})}}, &reducer.ModelMismatchError{What: "line", Index: 0, Rank0: "a", Theirs: "a\nb"}},
		} {
			var got *reducer.ModelMismatchError
			if err := Verify(t.Context(), pg, c.lists...); !errors.As(err, &got) {
				return fmt.Errorf("got %v, want %v", err, c.want)
			}
			if got.What != c.want.What || got.Index != c.want.Index || got.Rank0 != c.want.Rank0 || got.Theirs != c.want.Theirs || !slices.Equal(got.Ranks, []int{1}) {
				return fmt.Errorf("got %+v, want %+v", got, c.want)
			}
		}
		return nil
	})
}
