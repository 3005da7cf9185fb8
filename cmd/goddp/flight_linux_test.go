package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/jobenv"
)

// TestDump plays golaunch and its worker at once.
func TestDump(t *testing.T) {
	shared, err := flight.NewShared(10)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	t.Setenv(jobenv.FlightFDVar, strconv.Itoa(int(shared.File().Fd())))
	mem, err := flight.Inherited()
	if err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := goddp(t, "dump", strconv.Itoa(os.Getpid())); code != 1 || !strings.Contains(stderr, "no flight record of job") {
		t.Errorf("before anything is recorded: exit code %d, %q", code, stderr)
	}
	defer record(t, mem, 1, 3).Close()

	t.Setenv("TMPDIR", t.TempDir())
	chosen := filepath.Join(t.TempDir(), "new")
	for _, args := range [][]string{{strconv.Itoa(os.Getpid())}, {"-d", chosen, "job of TestDump"}} {
		code, stdout, stderr := goddp(t, append([]string{"dump"}, args...)...)
		path := strings.TrimSuffix(stdout, "\n")
		if code != 0 || !strings.Contains(stderr, "goddp analyze "+filepath.Dir(path)) {
			t.Errorf("%v: exit code %d, %q, %q", args, code, stdout, stderr)
		}
		d, err := flight.ReadFile(path)
		if err != nil || d.Rank != 1 || d.PID != os.Getpid() || len(d.Records) != 3 {
			t.Errorf("%v: %+v, %v", args, d, err)
		}
	}
	if d, err := flight.ReadFile(filepath.Join(chosen, "rank_1.json")); err != nil || d == nil {
		t.Errorf("the folder that was asked for: %v", err)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-d", "/dev/null/x", "job of TestDump"}, 1, "goddp dump: mkdir /dev/null: not a directory\n"},
		{[]string{"-d", "/proc/self", "job of TestDump"}, 1, "rank_1.json"},
		{[]string{"another"}, 1, `no flight record of job "another"`}, {nil, 2, "want one job"}, {[]string{"-x"}, 2, "unknown shorthand flag"},
	} {
		if code, _, stderr := goddp(t, append([]string{"dump"}, test.args...)...); code != test.code || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "What they mean") {
			t.Errorf("%v: exit code %d, %q; want %d, %q", test.args, code, stderr, test.code, test.want)
		}
	}
}
