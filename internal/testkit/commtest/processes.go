package commtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/launcher"
)

// JobVar is an environment variable that is set in the processes of a job.
const JobVar = "GODDP_TEST_JOB"

const (
	// jobTimeout bounds all tests of a job.
	jobTimeout = 10 * time.Minute
	// callTimeout is the timeout of collectives in a job if the test gives none. It is short, so
	// that ranks that make different calls fail long before the test's own timeout.
	callTimeout = time.Minute
)

// ran is what a rank prints when it has run its part of a test.
const ran = "ran on a process of its own"

// InJob reports whether this process belongs to a job.
func InJob() bool { return os.Getenv(JobVar) != "" }

// Sizes returns the numbers of ranks on which a test should run: the given ones or, in a job, the
// job's.
func Sizes(t testing.TB, n ...int) []int {
	t.Helper()
	if !InJob() {
		return n
	}
	return []int{world(t).Size}
}

// Here returns how many of n ranks are in this process.
func Here(n int) int {
	if InJob() {
		return 1
	}
	return n
}

// Processes runs the tests of the calling package in a job of n processes, with vars in their
// environment. Only the parts of tests within OnRanks run on the processes. Processes fails if a test
// fails, or if no such part runs.
func Processes(t *testing.T, n int, vars ...string) {
	t.Helper()
	testkit.Long(t)
	processes(t, n, nil, vars...)
}

// processes is Processes with flags for the test binary.
func processes(t *testing.T, n int, flags []string, vars ...string) {
	t.Helper()
	OutsideJobs(t)
	ctx, cancel := context.WithTimeout(t.Context(), jobTimeout)
	defer cancel()
	runs(ctx, t, n, flags, vars)
}

// runs is Processes with flags for the test binary.
func runs(ctx context.Context, t *testing.T, n int, flags, vars []string) {
	t.Helper()
	parts, out, err := job(ctx, n, flags, append(vars, "GODDP_FLIGHT_DIR="+t.TempDir()))
	if err != nil {
		t.Errorf("on %d processes: %v\n%s", n, err, out)
		return
	}
	t.Logf("%d parts of tests, on %d processes\n%s", parts, n, out)
}

// job runs this binary's tests, or those that flags select, on n processes. It returns how many parts
// of tests ran on each process, and their output.
func job(ctx context.Context, n int, flags, vars []string) (parts int, said string, err error) {
	args := append([]string{os.Args[0], "-test.v", "-test.timeout", jobTimeout.String()}, flags...)
	if os.Getenv(ShareVar) != "" {
		args = append(slices.Clone(ownHost), args...)
	}
	var out bytes.Buffer
	_, err = launcher.Run(ctx, &launcher.Config{
		Args: args, Workers: n, ShutdownTimeout: time.Second, LinePrefix: "rank ${rank}: ", Stdout: &out, Stderr: &out,
		Env: append(append(os.Environ(), JobVar+"=1"), vars...),
	})
	tests := map[string]int{} // how often they ran, by rank
	for line := range strings.Lines(out.String()) {
		if rank, _, _ := strings.Cut(line, ":"); strings.Contains(line, ran) {
			tests[rank]++
		}
	}
	for rank := range n {
		if got := tests[fmt.Sprint("rank ", rank)]; err == nil && (got == 0 || got != tests["rank 0"]) {
			err = fmt.Errorf("rank %d took part %d times, rank 0 %d times", rank, got, tests["rank 0"])
		}
	}
	return tests["rank 0"], relevantLines(out.String()), err
}

// relevantLines returns the lines of a job's output other than those that only list tests.
func relevantLines(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "=== RUN") && !strings.Contains(line, "--- PASS") && !strings.Contains(line, "--- SKIP") && !strings.Contains(line, ran) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// OutsideJobs skips a test in a job. It is for tests that start processes themselves, or that hold
// resources that are not released when OnGoroutines skips the test.
func OutsideJobs(t testing.TB) {
	t.Helper()
	if InJob() {
		t.Skip("not in a job of processes")
	}
}

func world(t testing.TB) comm.World {
	t.Helper()
	w, err := comm.WorldFromEnv()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// onProcess is OnRanks on this process's rank.
func onProcess(t testing.TB, n int, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	if size := world(t).Size; size != n {
		t.Skipf("%d ranks, the job has %d processes", n, size)
	}
	o := surviving(opts)
	if o.Timeout == 0 {
		o.Timeout = callTimeout
	}
	pg, err := comm.Init(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	run(t, []*comm.ProcessGroup{pg}, f)
	t.Logf("%s, on %v", ran, pg.Device())
}
