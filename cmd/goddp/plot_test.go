package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPlot(t *testing.T) {
	dir := t.TempDir()
	run := filepath.Join(dir, "run.jsonl")
	if err := os.WriteFile(run, []byte("{\"time\":1,\"step\":1,\"loss\":2}\n{\"time\":2,\"step\":2,\"loss\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	drawing := filepath.Join(dir, "c.svg")
	for _, test := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{run, "-o", drawing}, 0, ""},
		{[]string{run, "-o", drawing, "--axes=", "--names="}, 0, ""},
		{[]string{run, "-o", drawing, "-x", "hours"}, 2, `--axes "hours": want steps or seconds`},
		{[]string{run, "-o", drawing, "-y", "los"}, 1, `no finite numbers named "los"`},
		{nil, 2, "want at least one file"},
	} {
		code, _, stderr := goddp(t, append([]string{"plot"}, test.args...)...)
		if code != test.code || !strings.Contains(stderr, test.stderr) || test.stderr == "" && stderr != "" {
			t.Errorf("%q: exit code %d, stderr %q; want %d, %q", test.args, code, stderr, test.code, test.stderr)
		}
	}
}

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
