//go:build cgo && linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(){"percall": func() { comm.Main(worker) }})
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

// Two ranks on fake libraries print a row for each size. Their speed means nothing: a row may meet its limit or not.
func TestEmulatedTableHasARowForEachSize(t *testing.T) {
	testkit.Emulated(t)
	dir := t.TempDir()
	for _, name := range fakegpu.Variables {
		t.Setenv(name, "") // restored at the end of the test
	}
	if err := fakegpu.Libraries(dir); err != nil {
		t.Skip("no fake GPU libraries: ", err)
	}
	ranks := testkit.World(t, 2, func(int) *exec.Cmd {
		return testkit.Self(t, "percall", "--max-bytes=16384", "--iters=3", "--turns=5", "--warmup=2")
	})
	code, lines := ranks[0].Wait(), strings.Split(strings.TrimSpace(ranks[0].Stdout()), "\n")
	if len(lines) != 5 || lines[0] != "2 ranks, rank 0 on fakegpu:0, NCCL 2.28.3 from C: 5 turns of 3 calls each" || lines[1] != header {
		t.Fatalf("want a header and three rows, got %q", lines)
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
	if (code != 0) != (missed > 0) {
		t.Errorf("%d limits missed, and the exit code is %d", missed, code)
	}
}
