//go:build cgo && linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/fakegpu"
	"github.com/goddp/goddp/launcher"
)

// workerMode is the environment variable that makes the test binary run the program on a fake GPU.
const workerMode = "PERCALL_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerMode) != "" {
		comm.Main(worker)
	}
	goleak.VerifyTestMain(m)
}

func worker(ctx context.Context) error {
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	rank, err := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if err != nil {
		return err
	}
	dev, err := fakegpu.Open(rank)
	if err != nil {
		return err
	}
	defer dev.Close()
	return run(ctx, dev, o, os.Stdout)
}

// launch runs two ranks of the program on fake GPUs with the given faults. It returns rank 0's
// lines and the ranks' error output.
func launch(t *testing.T, control []string, args ...string) (lines []string, complaints string, err error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range fakegpu.Variables {
		t.Setenv(name, "") // restored at the end of the test
	}
	t.Setenv("TMPDIR", dir)
	if err := fakegpu.Libraries(dir); err != nil {
		t.Skip("no fake GPU libraries: ", err)
	}
	release, err := fakegpu.Control(control...)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	var out, errs bytes.Buffer
	_, err = launcher.Run(t.Context(), &launcher.Config{
		Args: append([]string{os.Args[0]}, args...), Workers: 2, Env: append(os.Environ(), workerMode+"=1"), Stdout: &out, Stderr: &errs,
	})
	return strings.Split(strings.TrimSpace(strings.ReplaceAll(out.String(), "[default0]: ", "")), "\n"), errs.String(), err
}

// TestEmulatedTableHasARowForEachSize runs on fake libraries, whose speed means nothing: a row may meet its limit or
// not.
func TestEmulatedTableHasARowForEachSize(t *testing.T) {
	lines, complaints, err := launch(t, nil, "--max-bytes=16384", "--iters=3", "--turns=5", "--warmup=2")
	t.Logf("%v\n%s\n%s", err, strings.Join(lines, "\n"), complaints)
	if len(lines) != 5 || lines[0] != "2 ranks, rank 0 on fakegpu:0, NCCL 2.28.3 from C: 5 turns of 3 calls each" || lines[1] != header {
		t.Fatal("want a header and three rows")
	}
	missed := 0
	for i, line := range lines[2:] {
		var r row
		var said string
		_, err := fmt.Sscanf(line, "%d %f %f %f %f %f .. %f C + 2 us %s",
			&r.bytes, &r.times[plainC], &r.times[eventedC], &r.times[ofGoddp], &r.added[1], &r.added[0], &r.added[2], &said)
		if err != nil || r.bytes != 1024<<(2*i) || slices.Min(r.times[:]) <= 0 || !slices.IsSorted(r.added[:]) || said != "ok" && said != "MISSED" {
			t.Errorf("%q is not a row of %d bytes (%v)", line, 1024<<(2*i), err)
		}
		if said == "MISSED" {
			missed++
		}
	}
	if want := fmt.Sprintf("more than the limit: %d of 3", missed); (err != nil) != (missed > 0) || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestEmulatedErrorsNameTheSide makes the fake NCCL fail at a numbered call. It numbers a rank's calls for each
// communicator. On goddp's communicator the warm-up calls come after one checked call, and on C's after
// one for each of its two sides.
func TestEmulatedErrorsNameTheSide(t *testing.T) {
	for _, c := range []struct{ name, control, want string }{
		{"C's side is refused a call", "refuse 1 60", "rank 1, 1024 bytes: NCCL 2.28.3 from C: ncclAllReduce: internal error (3)"},
		{"goddp's side is refused a call", "refuse 1 20", "rank 1: AllReduce #20(sum, float32, 256 elements): ncclAllReduce: internal error (3)"},
		{"C's side hangs", "hang 1 60", "1024 bytes: NCCL 2.28.3 from C: 40 calls of ncclAllReduce were not done within 2s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, complaints, err := launch(t, []string{c.control}, "--max-bytes=1024", "--iters=3", "--turns=2", "--warmup=40", "--timeout=2s")
			t.Logf("%v\n%s", err, complaints)
			var failure *launcher.FailureError
			if !errors.As(err, &failure) || !strings.Contains(complaints, c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
