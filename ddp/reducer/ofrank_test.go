package reducer

import (
	"errors"
	"testing"
)

func TestOfRankNamesTheRankOnce(t *testing.T) {
	for text, want := range map[string]string{
		"no luck":                         "ddp: rank 1: no luck",
		"rank 1: Barrier #1: no luck":     "ddp: rank 1: Barrier #1: no luck",
		"reducer: rank 1: no luck":        "ddp: reducer: rank 1: no luck",
		"rank 11: no luck":                "ddp: rank 1: rank 11: no luck",
		"parameters differ on rank 1, 2":  "ddp: rank 1: parameters differ on rank 1, 2",
		"recovering: rank 1: out of luck": "ddp: recovering: rank 1: out of luck",
	} {
		err := errors.New(text)
		if got := OfRank("ddp", 1, err); got.Error() != want || !errors.Is(got, err) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
