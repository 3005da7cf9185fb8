package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	text := `{"traceEvents":[{"ph":"X","pid":0,"tid":1,"cat":"kernel","name":"a","ts":1,"dur":2},{"ph":"X","pid":0,"tid":1,"cat":"kernel","name":"b","ts":5,"dur":5}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{path}, 0, "0.007 77.8%", ""},
		{[]string{"--json", path}, 0, `"compute_ns":7000,`, ""},
		{[]string{"--help"}, 0, "goddp trace [flags] FILE...", ""},
		{[]string{path, path}, 1, "", "rank 0 is in "},
		{[]string{path + "2"}, 1, "", "no such file"},
		{nil, 2, "", "want at least one file"},
		{[]string{"--what", path}, 2, "", "unknown flag"},
	} {
		code, stdout, stderr := goddp(t, append([]string{"trace"}, test.args...)...)
		if code != test.code || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) || test.stderr == "" && stderr != "" {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q; want %d, %q, %q", test.args, code, stdout, stderr, test.code, test.stdout, test.stderr)
		}
	}
}
