// Package examples tests the example programs as a user runs them: built, and
// started by golaunch.
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

var bin string // where the programs were built

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "goddp-examples-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(bin)
		temporary := filepath.Join(bin, "tmp") // golaunch keeps the records of jobs that fail there
		if err := errors.Join(os.Mkdir(temporary, 0o700), os.Setenv("TMPDIR", temporary)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		build := exec.Command("go", "build", "-o", bin, "../cmd/golaunch", "./toy", "./mlp", "./fashion", "./custom", "./gpt", "./recover", "./gorgonia", "./gorgonia/single")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v: %v\n%s", build, err, out)
			return 1
		}
		return m.Run()
	}())
}

// TestSources looks at all that the programs are built of: the test cache does
// not see what a build reads, and would keep results of older programs.
func TestSources(t *testing.T) {
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

// run runs one of the programs in a folder of its own and returns what it
// printed.
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

func launch(t *testing.T, dir string, ranks int, program string, args ...string) string {
	t.Helper()
	return run(t, dir, "golaunch", append([]string{"--nproc-per-node", strconv.Itoa(ranks), filepath.Join(bin, program)}, args...)...)
}

// The lecture's ddp_simple: the average of 7·rank over the ranks.
func TestToy(t *testing.T) {
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
						t.Errorf("%q is there %d times in\n%s", line, n, out)
					}
				}
			}
			checkTrace(t, filepath.Join(dir, "trace.json"), 1)
		})
	}
	t.Run("alone", func(t *testing.T) {
		dir := t.TempDir()
		if out := run(t, dir, "toy"); !strings.Contains(out, "rank 0: reduced dy/dw: 0\n") {
			t.Errorf("got\n%s", out)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Errorf("without --trace the program has written %v: %v", files, err)
		}
	})
}

// checkTrace wants a Chrome trace with forward and backward passes and so many
// reductions, each with its bucket and bytes. It returns the spans by name.
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

// Four ranks with a batch of 32 train as one process with a batch of 128.
func TestMLP(t *testing.T) {
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

// Communication hooks lose little of the training, and leave the ranks alike.
func TestMLPHooks(t *testing.T) {
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
			t.Fatalf("%v: %d losses, and %d kinds of parameters in\n%s", args, len(ls), len(hashes), out)
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

func TestMLPAsJSON(t *testing.T) {
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

// A worker that is killed in mid-training: golaunch names it, and within
// seconds nothing of the job is left.
func TestAKilledWorkerIsNamed(t *testing.T) {
	cmd := exec.Command(filepath.Join(bin, "golaunch"), "--nproc-per-node", "4", filepath.Join(bin, "mlp"), "--size", "64", "--batch", "8", "--steps", "100000000")
	var out bytes.Buffer
	steps := &untilLine{want: "step 3 ", seen: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = steps, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() }) // the job ends with golaunch, however the test does
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-steps.seen:
	case err := <-ended:
		t.Fatalf("the job ended: %v\n%s", err, &out)
	case <-time.After(time.Minute):
		t.Fatal("the job does not get going")
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
	case <-time.After(20 * time.Second): // and not after the shutdown timeout, which is longer
		t.Fatal("golaunch is still there after 20 s")
	}
	for rank, pid := range workers {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("rank %d (pid %d) is still there: %v", rank, pid, err)
		}
	}
	root := regexp.MustCompile(`(?s)Root Cause.*`).FindString(out.String())
	for _, want := range []string{"rank      : 2 ", fmt.Sprintf("pid: %d", workers[victim]), "SIGKILL"} {
		if !strings.Contains(root, want) {
			t.Errorf("the report's root cause lacks %q:\n%s", want, &out)
		}
	}
}

// untilLine tells when something was printed.
type untilLine struct {
	want  string
	text  []byte
	found bool
	seen  chan struct{} // closed then
}

func (u *untilLine) Write(p []byte) (int, error) {
	if u.found {
		return len(p), nil
	}
	u.text = append(u.text, p...)
	if u.found = bytes.Contains(u.text, []byte(u.want)); u.found {
		close(u.seen)
	}
	return len(p), nil
}

// workersOf finds a launcher's workers by their parent and their RANK.
func workersOf(t *testing.T, launcher int) map[int]int {
	t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(environs) == 0 {
		t.Skip("no /proc to find the workers in")
	}
	workers := map[int]int{}
	for _, path := range environs {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		env, err := os.ReadFile(path)
		if err != nil || parentOf(parentOf(pid)) != launcher { // golaunch's child is the workers' parent
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

// parentOf is the parent of a process, 0 if the process has ended.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	parent, _ := strconv.Atoi(fields[1])
	return parent
}
