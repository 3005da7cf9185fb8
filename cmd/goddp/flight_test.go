package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/flight/analyze"
)

// record is what a rank of two records that made so many calls, each done.
func record(t *testing.T, mem []byte, rank, calls int) *flight.Recorder {
	t.Helper()
	r, err := flight.New(mem, flight.Identity{Rank: rank, WorldSize: 2, Job: "job of " + t.Name()}, 10)
	if err != nil {
		t.Fatal(err)
	}
	g := r.Group("default", rank, 2)
	for seq := range uint64(calls) {
		g.Begin(&backend.Call{Seq: seq + 1, Kind: backend.Barrier}, time.Now().UnixNano()).Ended(time.Now(), false)
	}
	return r
}

func write(t *testing.T, dir string, dumps ...*flight.Dump) {
	t.Helper()
	for _, d := range dumps {
		if _, err := d.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnalyze(t *testing.T) {
	good, bad, broken, unread := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	ahead, behind := record(t, nil, 0, 3), record(t, nil, 1, 2)
	write(t, good, record(t, nil, 0, 3).Dump(), record(t, nil, 1, 3).Dump())
	write(t, broken, record(t, nil, 0, 3).Dump())
	for _, dir := range []string{broken, unread} {
		if err := os.WriteFile(filepath.Join(dir, "rank_1.json"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dead := behind.Dump()
	dead.Ending, dead.Fate = flight.Died, "was killed by SIGKILL"
	write(t, bad, ahead.Dump(), dead)

	for _, test := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{good}, 0, "Nothing wrong: records of 2 of 2 ranks.", ""},
		{[]string{bad}, 1, "Most probable: rank 1 ", ""},
		{[]string{broken}, 1, "records of 1 of 2", "rank_1.json"},
		{[]string{unread}, 1, "", "rank_1.json: "},
		{[]string{t.TempDir()}, 2, "", "no dumps"},
		{[]string{t.TempDir() + "/none"}, 2, "", "no such file or directory"},
		{nil, 2, "", "want one folder"},
		{[]string{"--what", good}, 2, "", "unknown flag"},
		{[]string{"--help"}, 0, "goddp analyze [flags] DIR", ""},
	} {
		code, stdout, stderr := goddp(t, append([]string{"analyze"}, test.args...)...)
		if code != test.code || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) || test.stderr == "" && stderr != "" ||
			len(test.args) == 1 && strings.Contains(stderr, "--help") {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q; want %d, %q, %q", test.args, code, stdout, stderr, test.code, test.stdout, test.stderr)
		}
	}
	code, stdout, _ := goddp(t, "analyze", "--json", bad)
	var report analyze.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 1 || report.Findings[0].Kind != analyze.Dead {
		t.Errorf("--json: exit code %d, %q, %v", code, stdout, err)
	}
}
