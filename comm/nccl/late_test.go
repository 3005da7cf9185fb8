//go:build cgo && linux

package nccl

import (
	"fmt"
	"testing"
)

func TestWhoIsLate(t *testing.T) {
	for value, want := range map[string]string{
		"":                                   `opened NCCL's library: [0 1 2]`,
		"2/0 0/0 ":                           `opened NCCL's library: [1]`,
		"2/0 0/0 0/1 1/0 ":                   `made its device ready: [1 2]`,
		"1/0 2/0 0/0 0/1 1/1 2/1 ":           `come out of ncclCommInitRankConfig: [0 1 2]`,
		"1/0 2/0 0/0 0/1 1/1 2/1 1/2 0/2 ":   `come out of ncclCommInitRankConfig: [2]`,
		"0/2 1/2 2/2 1/3 2/3 ":               `mapped its peers' memory: [0]`,
		"0/0 7/0 -1/0 x 1/ 2/0 0/1 0/2 1/1 ": `made its device ready: [2]`,
	} {
		next, ranks := late(value, 3)
		if got := fmt.Sprintf("%v: %v", next, ranks); got != want {
			t.Errorf("%q: got %s, want %s", value, got, want)
		}
	}
	if next, ranks := late("0/3 1/3 ", 2); next != allSteps {
		t.Errorf("with all behind them %v are late, want none", ranks)
	}
}
