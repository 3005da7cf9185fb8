package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// tuning returns the arguments of a goddp tune whose runs take milliseconds.
func tuning(args ...string) []string {
	return append([]string{"tune", "-b", "1K", "-e", "4K", "-f", "4", "-n", "2", "-w", "0", "--repeat", "1", "--pairs", "3"}, args...)
}

func TestTuneTable(t *testing.T) {
	testkit.Long(t)
	// The child processes have the setting: a wrong value of this variable makes them fail.
	lines := strings.Join(launch(t, tuning("--try", "OMP_NUM_THREADS=1", "--try", "GODDP_DEBUG=NONSENSE")...), "\n")
	for _, want := range []string{
		`goddp tune all_reduce: ranks: 2, backend: host, pairs of runs: 3`,
		`size \(B\) +1K +4K *`,
		`default \(us\) +[0-9.]+ +[0-9.]+ *`,
		`default again +[0-9.]+ \[[0-9.]+, [0-9.]+\] +[0-9.]+ \[[0-9.]+, [0-9.]+\] *`,
		`OMP_NUM_THREADS=1 +[0-9.]+ \[[0-9.]+, [0-9.]+\][-+ ] +[0-9.]+ \[.*`,
		`GODDP_DEBUG=NONSENSE +failed: rank 0: exit status 1: .*NONSENSE.*`,
	} {
		if !regexp.MustCompile("(?m)^" + want + "$").MatchString(lines) {
			t.Errorf("no line %q in\n%s", want, lines)
		}
	}
}

// tune kills a run that exceeds the timeout, and reports that the run's setting failed. The runs with default settings
// have the same timeout, so it must be long enough for a busy machine. tune repeats a failed run. In this test the
// setting's first run fails at once and its second one never ends, so tune waits for only one timeout.
func TestTuneRunHasDeadline(t *testing.T) {
	testkit.Long(t)
	once := t.TempDir() + "/fails"
	if err := os.WriteFile(once, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := testkit.Run(t, process(t, tuning("--timeout", "10s", "--try", failOnceVar+"="+once+" "+stuckVar+"=1")...))
	if r.Code != 0 || !strings.Contains(r.Stdout, "failed: rank 0: goddp bench ran for more than 10s (--timeout)\n") {
		t.Errorf("exit code %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// A run that fails once is made again. The report can be a file of JSON.
func TestTuneRunsAgain(t *testing.T) {
	testkit.Long(t)
	fails, file := t.TempDir()+"/fails", t.TempDir()+"/tune.json"
	if err := os.WriteFile(fails, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := testkit.Output(t, process(t, tuning("AllGather", "--json", "-o", file, "--try", failOnceVar+"="+fails)...)); out != "" {
		t.Errorf("it prints %q", out)
	}
	var got struct {
		Collective  string
		Sizes       []int
		Comparisons []struct{ Error string }
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &got)
	}
	if _, left := os.Stat(fails); left == nil || err != nil || got.Collective != "all_gather" || len(got.Sizes) != 2 || len(got.Comparisons) != 2 || got.Comparisons[1].Error != "" {
		t.Errorf("%v: %s; the first failure is still to come: %v", err, text, left == nil)
	}
}

// If the output file cannot be created, tune fails before it measures anything.
func TestTuneCreatesOutputFirst(t *testing.T) {
	file := t.TempDir() + "/nowhere/tune.txt"
	r := testkit.Run(t, process(t, tuning("-o", file, "--try", "A=1")...))
	if r.Code != 1 || !strings.Contains(r.Stderr, file) || strings.Contains(r.Stderr, " runs, ") {
		t.Errorf("exit code %d, %s; want 1 and no runs", r.Code, r.Stderr)
	}
}

func TestTuneWithoutSettings(t *testing.T) {
	r := testkit.Run(t, process(t, tuning()...))
	if want := "the host backend has no settings to compare: name some with --try"; r.Code != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, want) {
		t.Errorf("%+v; want exit code 1 and %q", r, want)
	}
}

func TestTuneUsage(t *testing.T) {
	for line, want := range map[string]string{
		"tune a b":             "want one collective, got 2: a b",
		"tune gossip":          `unknown collective "gossip"`,
		"tune --pairs 2":       "--pairs 2: want 3 or more",
		"tune --timeout 0s":    "--timeout 0s: want more than 0",
		"tune --try NCCL_ALGO": `--try: "NCCL_ALGO" in the setting "NCCL_ALGO": want NAME=VALUE`,
		"tune -b 1G":           "--maxbytes 64M is less than --minbytes 1G",
	} {
		code, _, errs := goddp(t, strings.Fields(line)...)
		if code != 2 || !strings.Contains(errs, want) || !strings.Contains(errs, "goddp tune --help") {
			t.Errorf("%s: exit code %d, %q; want %q", line, code, errs, want)
		}
	}
}
