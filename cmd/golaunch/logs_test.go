package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "4096": 4096, "3KiB": 3 << 10, "100MiB": 100 << 20, "2 GiB": 2 << 30, "7TiB": 7 << 40} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "MiB", "1.5GiB", "10MB", "9999999TiB", "1 MiB 2"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q is accepted as %d", text, got)
		}
	}
}

func TestLogFilesAreRotated(t *testing.T) {
	dir := t.TempDir()
	got := runIt(t, []string{"PET_LOG_KEEP=2"}, "--log-dir", dir, "--redirects=1", "--log-max-size=4", "bash", "-c", "seq 1 9")
	if got.code != 0 || got.stdout != "" {
		t.Fatalf("got %+v", got)
	}
	for name, want := range map[string]string{"stdout.log": "9\n", "stdout.log.1": "7\n8\n", "stdout.log.2": "5\n6\n"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*", "attempt_0", "0", name))
		if err != nil || len(paths) != 1 {
			t.Fatalf("%s: %q, %v", name, paths, err)
		}
		if data, err := os.ReadFile(paths[0]); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v, want %q", name, data, err, want)
		}
	}
}

func TestLogFormat(t *testing.T) {
	for _, env := range []string{"PET_LOG_FORMAT=json", ""} {
		args := []string{"--log-format=json", "bash", "-c", "echo hello; exit 3"}
		if env != "" {
			args = args[1:]
		}
		got := runIt(t, []string{env}, args...)
		var line struct {
			Line   string
			Source string
		}
		if err := json.Unmarshal([]byte(got.stdout), &line); err != nil || line.Line != "hello" || line.Source != "worker" {
			t.Errorf("stdout %q: %v", got.stdout, err)
		}
		var report struct {
			Source  string
			Failure struct {
				ExitCode int `json:"exit_code"`
			}
		}
		if err := json.Unmarshal([]byte(got.stderr), &report); err != nil || report.Source != "golaunch" || report.Failure.ExitCode != 3 || got.code != 3 {
			t.Errorf("exit code %d, stderr %q: %v", got.code, got.stderr, err)
		}
	}
	if got := runIt(t, nil, "--log-format=xml", "true"); got.code != 2 || !strings.Contains(got.stderr, `--log-format "xml": want text or json`) {
		t.Errorf("got %+v", got)
	}
}

func TestOneNodeShowsTheOutputOfAll(t *testing.T) {
	_, endpoint := testkit.Port(t)
	outcomes := make([]outcome, 2)
	var wg sync.WaitGroup
	for i := range outcomes {
		cmd := agentOf(t, endpoint, []string{"PET_LOG_ALL_NODES=1"}, "--nnodes=2", "bash", "-c", `echo "of rank $RANK"`)
		wg.Go(func() { outcomes[i] = finish(t, cmd) })
	}
	wg.Wait()
	shown := 0 // number of times that a node shows the output of node 1; the other is the host
	for i, got := range outcomes {
		if got.code != 0 {
			t.Errorf("exit code %d of node %d:\n%s", got.code, i, got.stderr)
		}
		shown += strings.Count(got.stdout, "[node 1, default1]: of rank 1\n")
	}
	if shown != 2 {
		t.Errorf("the nodes show %+v", outcomes)
	}
}
