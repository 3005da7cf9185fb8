// Package examples tests the example programs as a user runs them: it builds them, and golaunch starts
// them.
package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var bin string // the folder of the built programs

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "goddp-examples-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(bin)
		temporary := filepath.Join(bin, "tmp") // golaunch leaves records of failed jobs there
		if err := errors.Join(os.Mkdir(temporary, 0o700), os.Setenv("TMPDIR", temporary)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		build := exec.Command("go", "build", "-o", bin, "../cmd/golaunch", "./toy", "./mlp", "./fashion", "./custom", "./gpt", "./resnet", "./recover", "./gorgonia", "./gorgonia/single")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v: %v\n%s", build, err, out)
			return 1
		}
		return m.Run()
	}())
}

// TestCacheDependsOnSources calls os.Stat on every source file of the programs. The test cache then runs
// the tests again when a file changes; it does not notice which files a build reads.
func TestCacheDependsOnSources(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !strings.Contains(path, "/.") {
			_, err = os.Stat(path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// run runs a program in the folder dir and returns its output. The test fails if the program fails.
func run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// launch runs a program under golaunch, on so many ranks, and returns the output of the job.
func launch(t *testing.T, dir string, ranks int, program string, args ...string) string {
	t.Helper()
	return run(t, dir, "golaunch", append([]string{"--nproc-per-node", strconv.Itoa(ranks), filepath.Join(bin, program)}, args...)...)
}

// TestToyAveragesGradients checks that every rank prints the average of 7·rank over the ranks.
func TestToyAveragesGradients(t *testing.T) {
	for ranks, want := range map[int]string{2: "3.5", 4: "10.5"} {
		t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) {
			dir := t.TempDir()
			out := launch(t, dir, ranks, "toy", "--trace", "trace.json")
			for r := range ranks {
				for _, line := range []string{
					fmt.Sprintf("rank %d: y=w*7*x: %d=5*7*%d", r, 35*r, r),
					fmt.Sprintf("rank %d: dy/dw=7*x: %d", r, 7*r),
					fmt.Sprintf("rank %d: reduced dy/dw: %s", r, want),
				} {
					if n := strings.Count(out, line+"\n"); n != 1 {
						t.Errorf("the output contains %q %d times, want once:\n%s", line, n, out)
					}
				}
			}
			checkTrace(t, filepath.Join(dir, "trace.json"), 1)
		})
	}
	t.Run("without golaunch", func(t *testing.T) {
		dir := t.TempDir()
		if out := run(t, dir, "toy"); !strings.Contains(out, "rank 0: reduced dy/dw: 0\n") {
			t.Errorf("got\n%s", out)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Errorf("without --trace the program has written %v: %v", files, err)
		}
	})
}

// checkTrace checks that a Chrome trace holds forward and backward passes and the given number of
// reductions, each with its bucket and bytes. It returns the number of spans by name.
func checkTrace(t *testing.T, path string, reductions int) map[string]int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Name, Ph, Cat string
			Dur           float64
			Args          map[string]any
		}
	}
	if err := json.Unmarshal(data, &trace); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range trace.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		if e.Cat == "communication" {
			if e.Args["bucket"] == nil || e.Args["bytes"] == nil {
				t.Errorf("%s has the arguments %v", e.Name, e.Args)
			}
			count["reductions"]++
			continue
		}
		count[e.Name]++
	}
	if count["reductions"] != reductions || count["forward"] == 0 || count["backward"] == 0 {
		t.Errorf("the trace holds %v, want %d reductions", count, reductions)
	}
	return count
}

var (
	lossLine = regexp.MustCompile(`(?m)step \d+ loss ([0-9.e+-]+)$`)
	hashLine = regexp.MustCompile(`(?m)rank (\d+): params sha256 ([0-9a-f]{64})$`)
)

func losses(t *testing.T, out string) []float64 {
	t.Helper()
	var ls []float64
	for _, m := range lossLine.FindAllStringSubmatch(out, -1) {
		l, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		ls = append(ls, l)
	}
	return ls
}

// TestMLPOnFourRanksEqualsOne compares four ranks with a batch of 32 each with one process with a batch
// of 128.
func TestMLPOnFourRanksEqualsOne(t *testing.T) {
	const steps = 10
	dir := t.TempDir()
	args := func(batch int) []string {
		return []string{"--size", "256", "--batch", strconv.Itoa(batch), "--steps", strconv.Itoa(steps), "--lr", "0.1", "--bucket-cap-mb", "0.1", "--trace", "trace.json"}
	}
	four := launch(t, dir, 4, "mlp", args(32)...)
	if n := checkTrace(t, filepath.Join(dir, "trace.json"), 3*steps)["optimizer"]; n != steps {
		t.Errorf("%d optimizer spans, want %d", n, steps)
	}
	if !strings.Contains(four, "hidden behind computation") {
		t.Errorf("no overlap line in\n%s", four)
	}
	hashes := map[string]string{}
	for _, m := range hashLine.FindAllStringSubmatch(four, -1) {
		hashes[m[1]] = m[2]
	}
	for _, r := range []string{"0", "1", "2", "3"} {
		if hashes[r] == "" || hashes[r] != hashes["0"] {
			t.Errorf("rank %s's parameters are %q, rank 0's %q", r, hashes[r], hashes["0"])
		}
	}
	got, want := losses(t, four), losses(t, run(t, dir, "mlp", args(128)...))
	if len(got) != steps || len(want) != steps || want[steps-1] >= want[0] {
		t.Fatalf("losses %v with 4 ranks, %v with 1", got, want)
	}
	for i := range want {
		if d := math.Abs(got[i]-want[i]) / want[i]; d > 1e-5 {
			t.Errorf("step %d: loss %.9g with 4 ranks, %.9g with 1", i, got[i], want[i])
		}
	}
}

// TestMLPHooksChangeLossesLittle trains with each communication hook. The ranks must end with equal
// parameters, and the last loss must be close to that without a hook.
func TestMLPHooksChangeLossesLittle(t *testing.T) {
	const steps, ranks = 8, 3
	train := func(args ...string) (dir string, ls []float64) {
		dir = t.TempDir()
		out := launch(t, dir, ranks, "mlp", append(args, "--size", "64", "--batch", "16", "--steps", strconv.Itoa(steps), "--lr", "5",
			"--bucket-cap-mb", "0.01", "--trace", "trace.json")...)
		hashes := map[string]bool{}
		for _, m := range hashLine.FindAllStringSubmatch(out, -1) {
			hashes[m[2]] = true
		}
		if ls = losses(t, out); len(hashes) != 1 || len(ls) != steps {
			t.Fatalf("%v: %d losses, and %d different digests of parameters in\n%s", args, len(ls), len(hashes), out)
		}
		return dir, ls
	}
	_, want := train()
	for hook, tolerance := range map[string]float64{"bf16": 1e-4, "fp16": 1e-4, "int8": 1e-3, "powersgd": 1e-2} {
		dir, got := train("--hook", hook)
		checkTrace(t, filepath.Join(dir, "trace.json"), 3*steps)
		if slices.Equal(got, want) || math.Abs(got[steps-1]/want[steps-1]-1) > tolerance {
			t.Errorf("%s: losses %v, want nearly %v", hook, got, want)
		}
	}
}

func TestMLPPrintsJSON(t *testing.T) {
	out := run(t, t.TempDir(), "mlp", "--size", "8", "--batch", "4", "--steps", "2", "--json")
	var kinds []string
	for line := range strings.Lines(out) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		switch {
		case m["loss"] != nil:
			kinds = append(kinds, "step")
		case m["params_sha256"] != nil:
			kinds = append(kinds, "params")
		}
	}
	if want := []string{"step", "step", "params"}; !slices.Equal(kinds, want) {
		t.Errorf("got %v, want %v in\n%s", kinds, want, out)
	}
}

// TestKilledWorkerIsNamed kills one worker of four while they train. golaunch must name that rank, and
// end all processes of the job within seconds.
func TestKilledWorkerIsNamed(t *testing.T) {
	cmd := exec.Command(filepath.Join(bin, "golaunch"), "--nproc-per-node", "4", filepath.Join(bin, "mlp"), "--size", "64", "--batch", "8", "--steps", "100000000")
	var out bytes.Buffer
	steps := &textWaiter{want: "step 3 ", seen: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = steps, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() }) // if the test fails early: the job ends with golaunch
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-steps.seen:
	case err := <-ended:
		t.Fatalf("the job ended: %v\n%s", err, &out)
	case <-time.After(time.Minute):
		t.Fatal("no rank has printed step 3 after a minute")
	}
	workers := workersOf(t, cmd.Process.Pid)
	if len(workers) != 4 {
		t.Fatalf("workers %v, want 4", workers)
	}
	const victim = 2
	if err := syscall.Kill(workers[victim], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 128+9 {
			t.Errorf("golaunch ended with %v, want code 137", err)
		}
	case <-time.After(20 * time.Second): // less than the shutdown timeout
		t.Fatal("golaunch still runs after 20 s")
	}
	for rank, pid := range workers {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("rank %d (pid %d) still runs: %v", rank, pid, err)
		}
	}
	root := regexp.MustCompile(`(?s)Root Cause.*`).FindString(out.String())
	for _, want := range []string{"rank      : 2 ", fmt.Sprintf("pid: %d", workers[victim]), "SIGKILL"} {
		if !strings.Contains(root, want) {
			t.Errorf("the report's root cause lacks %q:\n%s", want, &out)
		}
	}
}

// textWaiter is a writer that closes seen when the text want has been written.
type textWaiter struct {
	want   string
	text   []byte
	isSeen bool
	seen   chan struct{}
}

func (w *textWaiter) Write(p []byte) (int, error) {
	if w.isSeen {
		return len(p), nil
	}
	w.text = append(w.text, p...)
	if w.isSeen = bytes.Contains(w.text, []byte(w.want)); w.isSeen {
		close(w.seen)
	}
	return len(p), nil
}

// workersOf returns the process ids of a launcher's workers, by rank. It finds them in /proc by their
// parent and their variable RANK.
func workersOf(t *testing.T, launcher int) map[int]int {
	t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(environs) == 0 {
		t.Skip("there is no /proc in which to find the workers")
	}
	workers := map[int]int{}
	for _, path := range environs {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		env, err := os.ReadFile(path)
		if err != nil || parentOf(parentOf(pid)) != launcher { // golaunch's child, the reaper, is the workers' parent
			continue
		}
		for kv := range strings.SplitSeq(string(env), "\x00") {
			if v, ok := strings.CutPrefix(kv, "RANK="); ok {
				rank, _ := strconv.Atoi(v)
				workers[rank] = pid
			}
		}
	}
	return workers
}

// parentOf returns the parent of a process, or 0 if the process has ended.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	parent, _ := strconv.Atoi(fields[1])
	return parent
}
