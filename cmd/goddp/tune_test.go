package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/launcher"
)

// tuneQuickly are flags of a run that takes milliseconds.
var tuneQuickly = []string{"-b", "1K", "-e", "4K", "-f", "4", "-n", "2", "-w", "0", "--repeat", "1", "--pairs", "3"}

func TestTuneTable(t *testing.T) {
	// The child processes have the setting: a wrong value of this variable makes them fail.
	lines := launchTune(t, "--try", "OMP_NUM_THREADS=1", "--try", "GODDP_DEBUG=NONSENSE")
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

// launchTune runs "goddp tune" on two ranks, and returns what rank 0 prints.
func launchTune(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs strings.Builder
	_, err := launcher.Run(t.Context(), &launcher.Config{
		Args: append(append([]string{os.Args[0], "tune"}, tuneQuickly...), args...), Workers: 2, Stdout: &out, Stderr: &errs, Env: workerEnv(),
	})
	if err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	return strings.ReplaceAll(out.String(), "[default0]: ", "")
}

func TestTuneJSON(t *testing.T) {
	var got struct {
		Collective  string
		Ranks       int
		Sizes       []int
		Comparisons []struct{ Setting []string }
	}
	file := t.TempDir() + "/tune.json"
	if text := launchTune(t, "AllGather", "--json", "-o", file, "--try", "A=1,2 B=2"); text != "" {
		t.Errorf("it prints %q", text)
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &got)
	}
	if err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if got.Collective != "all_gather" || got.Ranks != 2 || len(got.Sizes) != 2 || got.Sizes[1] != 4<<10 || len(got.Comparisons) != 2 || strings.Join(got.Comparisons[1].Setting, " ") != "A=1,2 B=2" {
		t.Errorf("got %+v", got)
	}
}

// tune kills a run that exceeds the timeout, and reports that the run's setting failed. The runs with default settings
// have the same timeout, so it must be long enough for a busy machine. tune repeats a failed run. In this test the
// setting's first run fails at once and its second one never ends, so tune waits for only one timeout.
func TestTuneRunHasDeadline(t *testing.T) {
	fifo := t.TempDir() + "/token"
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Skip(err)
	}
	once := t.TempDir() + "/fails"
	if err := os.WriteFile(once, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	code, out, errs := goddp(t, append(append([]string{"tune"}, tuneQuickly...), "--timeout", "10s", "--try", failOnceVar+"="+once+" GODDP_TOKEN_FILE="+fifo)...)
	if code != 0 || !strings.Contains(out, "failed: rank 0: it ran for more than 10s") {
		t.Errorf("exit code %d after %v:\n%s%s", code, time.Since(start), out, errs)
	}
}

// A run that fails once is made again.
func TestTuneRunsAgain(t *testing.T) {
	file := t.TempDir() + "/fails"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := goddp(t, append(append([]string{"tune"}, tuneQuickly...), "--try", failOnceVar+"="+file)...)
	if _, err := os.Stat(file); code != 0 || strings.Contains(out, "failed") || err == nil {
		t.Errorf("exit code %d, %v:\n%s%s", code, err, out, errs)
	}
}

// If the output file cannot be created, tune fails before it measures anything.
func TestTuneCreatesOutputFirst(t *testing.T) {
	file := t.TempDir() + "/nowhere/tune.txt"
	code, _, errs := goddp(t, append(append([]string{"tune"}, tuneQuickly...), "-o", file, "--try", "A=1")...)
	if code != 1 || !strings.Contains(errs, file) || strings.Contains(errs, " runs, ") {
		t.Errorf("exit code %d, %s; want 1 and no runs", code, errs)
	}
}

func TestTuneWithoutSettings(t *testing.T) {
	code, out, errs := goddp(t, append([]string{"tune"}, tuneQuickly...)...)
	if want := "the host backend has no settings to compare: name some with --try"; code != 1 || out != "" || !strings.Contains(errs, want) {
		t.Errorf("exit code %d, %q, %q; want 1 and %q", code, out, errs, want)
	}
}

func TestTuneUsage(t *testing.T) {
	for line, want := range map[string]string{
		"tune a b":             "want one collective, got 2: a b",
		"tune gossip":          `there is no collective "gossip"`,
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
