package main

import (
	"slices"
	"testing"
)

// The name of a run is what its path has, and the others have not.
func TestDifferences(t *testing.T) {
	for _, test := range []struct{ paths, want []string }{
		{[]string{"/data/runs/one/run.jsonl", "/data/runs/two/run.jsonl"}, []string{"one", "two"}},
		{[]string{"a/x/run.jsonl", "b/x/run.jsonl", "b/run.jsonl"}, []string{"a/x", "b/x", "b"}},
		{[]string{"run.jsonl", "old/run.jsonl"}, []string{"run", "old/run"}},
		{[]string{"a/run.jsonl", "a/run.jsonl"}, []string{"run", "run"}},
	} {
		if got := differences(test.paths); !slices.Equal(got, test.want) {
			t.Errorf("%q: got %q, want %q", test.paths, got, test.want)
		}
	}
}
