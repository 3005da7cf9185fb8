package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTrace(t *testing.T) {
	dir := t.TempDir()
	path, after, empty := filepath.Join(dir, "trace.json"), filepath.Join(dir, "after.json"), filepath.Join(dir, "empty.json")
	text := `{"traceEvents":[{"ph":"M","name":"process_name","pid":0,"args":{"name":"rank 0"}},
{"ph":"X","pid":0,"tid":1,"cat":"kernel","name":"a","ts":1,"dur":2},{"ph":"X","pid":0,"tid":1,"cat":"kernel","name":"b","ts":5,"dur":5},
{"ph":"X","pid":0,"tid":1,"cat":"compute","name":"forward","ts":1,"dur":2},{"ph":"X","pid":0,"tid":1,"cat":"compute","name":"optimizer","ts":5,"dur":5}]}`
	for path, text := range map[string]string{path: text, after: strings.ReplaceAll(text, `"dur":5`, `"dur":4`), empty: ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	merged, picture := filepath.Join(dir, "merged.json"), filepath.Join(dir, "step.svg")
	for _, test := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{path}, 0, "0.007  77.8%", ""},
		{[]string{"--json", path}, 0, `"compute_ns":7000,`, ""},
		{[]string{"--before", filepath.Join(dir, "tr*.json"), after}, 0, "0.007  0.006  -0.001  -14.3%  compute", ""},
		{[]string{"--json", "--before", path, after}, 0, `"kernels":[{"name":"b","before_ns":5000,"after_ns":4000},{"name":"a",`, ""},
		{[]string{"--merge", merged, "--svg", picture, path}, 0, "", ""},
		{[]string{merged}, 0, "0.007  77.8%", ""},
		{[]string{"--help"}, 0, "goddp trace [flags] FILE...", ""},
		{[]string{path, path}, 1, "", "rank 0 is in "},
		{[]string{path + "2"}, 1, "", "no such file"},
		{[]string{empty}, 1, "", "goddp trace: " + empty + ": the file is empty: want a trace\n"},
		{[]string{"--before", empty, path}, 1, "", "goddp trace: " + empty + ": the file is empty"},
		{nil, 2, "", "want at least one file"},
		{[]string{"--json", "--merge", merged, path}, 2, "", "want them without --json and --before"},
		{[]string{"--svg", picture, "--before", path, after}, 2, "", "want them without --json and --before"},
		{[]string{"--what", path}, 2, "", "unknown flag"},
	} {
		code, stdout, stderr := goddp(t, append([]string{"trace"}, test.args...)...)
		if code != test.code || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) || test.stderr == "" && stderr != "" {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q; want %d, %q, %q", test.args, code, stdout, stderr, test.code, test.stdout, test.stderr)
		}
	}
	drawn, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"One training step of rank 0", "forward", "milliseconds", "computes"} {
		if !strings.Contains(string(drawn), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
}
