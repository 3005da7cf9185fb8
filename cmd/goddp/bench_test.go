package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int{"8": 8, "1K": 1 << 10, "64m": 64 << 20, "1.5K": 1536, "2G": 2 << 30, "1e3": 1000} {
		if got, err := parseSize("minbytes", text); got != want || err != nil {
			t.Errorf("%q is %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "K", "0", "0.5", "-1", "nan", "1KK", "1 K", "inf", "1e30"} {
		if got, err := parseSize("minbytes", text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

// launch runs goddp on two ranks, and returns what rank 0 prints. The other rank must print nothing.
func launch(t *testing.T, args ...string) []string {
	t.Helper()
	ranks := testkit.World(t, 2, func(int) *exec.Cmd { return process(t, args...) })
	for r, p := range ranks {
		if code, out := p.Wait(), p.Stdout(); code != 0 || r > 0 && out != "" {
			t.Fatalf("rank %d: exit code %d, %q", r, code, out)
		}
	}
	return strings.Split(strings.TrimSuffix(ranks[0].Stdout(), "\n"), "\n")
}

func TestBenchTable(t *testing.T) {
	lines := launch(t, "bench", "AllGather", "-b", "1K", "-e", "16K", "-f", "4", "-n", "3", "-w", "1", "-c", "2", "-d", "half")
	want := []string{
		`# goddp bench all_gather: 2 ranks, backend host, rank 0 on cpu`,
		`# iterations: 3, warm-up: 1, repetitions: 1, checks: 2`,
		`#`,
		`# +size +count +type +redop +root +time +algbw +busbw +#wrong`,
		`# +\(B\) +\(elements\) +\(us\) +\(GB/s\) +\(GB/s\) +`,
		` +1024 +256 +half +none +-1 +[0-9.]+ +[0-9.]+ +[0-9.]+ +0`,
		` +4096 +1024 +half +none +-1 +[0-9.]+ +[0-9.]+ +[0-9.]+ +0`,
		` +16384 +4096 +half +none +-1 +[0-9.]+ +[0-9.]+ +[0-9.]+ +0`,
		`# Out of bounds values : 0 OK`,
		`# Avg bus bandwidth    : [0-9.]+`,
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), strings.Join(lines, "\n"))
	}
	for i, line := range lines {
		if !regexp.MustCompile("^" + want[i] + "$").MatchString(line) {
			t.Errorf("line %d is %q, want %q", i, line, want[i])
		}
	}
}

func TestBenchJSON(t *testing.T) {
	lines := launch(t, "bench", "reduce", "-b", "1K", "-e", "2K", "-n", "3", "-c", "0", "-r", "1", "-o", "max", "--repeat", "3", "--private", "--json")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(lines[1]), &got); err != nil {
		t.Fatalf("%v in %q", err, lines[1])
	}
	for key, want := range map[string]any{
		"collective": "reduce", "ranks": 2.0, "backend": "host", "size": 2048.0, "count": 512.0, "type": "float", "redop": "max", "root": 1.0, "wrong": -1.0,
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	for _, key := range []string{"time_us", "algbw", "busbw"} {
		if v, ok := got[key].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v", key, got[key])
		}
	}
}

func TestBenchSaysThatElementsAreWrong(t *testing.T) {
	var out bytes.Buffer
	r := &benchReport{out: &out, benchOptions: &benchOptions{}}
	r.end(3, 1.5)
	if want := "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 1.5\n"; out.String() != want {
		t.Errorf("got %q, want %q", &out, want)
	}
}

// TestBenchAsksForRanks checks that ranks which cannot run what was asked for say so
// before anything else.
func TestBenchAsksForRanks(t *testing.T) {
	for _, test := range []struct {
		line string
		want string
	}{
		{"broadcast -r 5", "goddp bench: root 5: want a rank, 0 to 0\n"},
		{"sendrecv", "goddp bench: sendrecv needs at least 2 ranks, but the job has 1\n"},
	} {
		code, stdout, stderr := goddp(t, append([]string{"bench"}, strings.Fields(test.line)...)...)
		if code != 2 || stdout != "" || stderr != test.want {
			t.Errorf("%s: exit code %d, %q, %q; want 2 and %q", test.line, code, stdout, stderr, test.want)
		}
	}
}
