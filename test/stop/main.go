// Command stop is the campaign of stop requests: it starts a training on several ranks
// again and again, sends SIGTERM or SIGINT at a random time, and checks that all ranks
// save the same step, that golaunch counts the end as asked for, and how long it takes.
//
//	go run ./test/stop                  100 jobs of 4 ranks on the CPU
//	go run ./test/stop -n 10 -v         with the output of each
//
// The jobs take turns: package ddp and package ddp/zero; even inputs, uneven ones within
// Join, and two passes to a step; the signal to golaunch, and to one rank alone, with
// restarts allowed. The exit code is 1 if a job ended otherwise than it should.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	n := flag.Int("n", 100, "jobs")
	ranks := flag.Int("ranks", 4, "ranks of each job")
	within := flag.Duration("within", 300*time.Millisecond, "signal at a random `time` from all ranks' first step on")
	seed := flag.Uint64("seed", 1, "of those times")
	verbose := flag.Bool("v", false, "show the output of each job")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	bin, err := os.MkdirTemp("", "stop-")
	if err == nil {
		defer os.RemoveAll(bin)
		err = build(ctx, bin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stop:", err)
		os.Exit(1)
	}
	failed := campaign(ctx, bin, *n, *ranks, *within, *seed, *verbose)
	os.RemoveAll(bin)
	if failed > 0 {
		os.Exit(1)
	}
}

// build builds golaunch and the worker into dir.
func build(ctx context.Context, dir string) error {
	out, err := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator),
		"github.com/goddp/goddp/cmd/golaunch", "github.com/goddp/goddp/test/stop/worker").CombinedOutput()
	if err != nil {
		return fmt.Errorf("building: %w\n%s", err, out)
	}
	return nil
}

// campaign runs jobs and returns how many ended otherwise than they should.
func campaign(ctx context.Context, bin string, n, ranks int, within time.Duration, seed uint64, verbose bool) (failed int) {
	r := rand.New(rand.NewPCG(seed, 0))
	var times []time.Duration
	steps := map[int]bool{}
	for k := 0; k < n && ctx.Err() == nil; k++ {
		j := draw(k, ranks, r)
		e, err := j.run(ctx, bin, time.Duration(r.Int64N(int64(within))))
		if verbose {
			fmt.Printf("job %d: %v\n%s", k, j, e.output)
		}
		if err == nil {
			var step int
			step, err = j.judge(e)
			steps[step] = true
		}
		if err != nil {
			failed++
			fmt.Printf("job %d: %v: %v\n%s", k, j, err, e.output)
			continue
		}
		times = append(times, e.took)
	}
	if len(times) > 0 {
		slices.Sort(times)
		at := func(q float64) time.Duration {
			return times[min(len(times)-1, int(q*float64(len(times))))].Round(time.Millisecond)
		}
		fmt.Printf("%d jobs of %d ranks: all ranks saved the same step in %d, at %d different steps; from signal to exit p50 %v, p99 %v, at most %v\n",
			n, ranks, len(times), len(steps), at(0.5), at(0.99), at(1))
	}
	return failed
}

// job is a training that is asked to stop.
type job struct {
	ranks    int
	args     []string       // of the worker
	launcher []string       // of golaunch
	signal   syscall.Signal // that it is sent
	alone    int            // the rank that gets it alone; -1: golaunch does
}

func (j job) String() string {
	to := "golaunch"
	if j.alone >= 0 {
		to = fmt.Sprintf("rank %d alone", j.alone)
	}
	return fmt.Sprintf("%v to %s %v, worker %v", j.signal, to, j.launcher, j.args)
}

// draw makes job k. Each half, third and quarter of the jobs has a trait of its own.
func draw(k, ranks int, r *rand.Rand) job {
	j := job{ranks: ranks, signal: syscall.SIGTERM, alone: -1}
	if k%2 == 1 {
		j.args = append(j.args, "-zero")
	}
	switch k % 3 {
	case 1:
		j.args = append(j.args, "-join")
	case 2:
		j.args = append(j.args, "-every", "2")
	}
	if k%4 >= 2 {
		j.launcher = append(j.launcher, "--max-restarts", "2")
		j.alone = r.IntN(ranks)
	}
	if k%5 == 4 {
		j.signal = syscall.SIGINT
	}
	return j
}

// end is how a job ended.
type end struct {
	output string // of golaunch and all ranks
	code   int
	took   time.Duration // from the signal on
}

// jobTimeout bounds a job.
const jobTimeout = 2 * time.Minute

// run starts the job, has it train for a while, signals it and waits for its end.
func (j job) run(ctx context.Context, bin string, wait time.Duration) (e end, err error) {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	args := append([]string{"--nproc-per-node", fmt.Sprint(j.ranks)}, j.launcher...)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "golaunch"), append(append(args, filepath.Join(bin, "worker")), j.args...)...)
	cmd.Env = append(os.Environ(), "GODDP_DEVICE=cpu")
	cmd.WaitDelay = 10 * time.Second
	out := newOutput()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return e, err
	}
	err = func() error {
		pids, err := out.pids(ctx, j.ranks)
		if err != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		to := cmd.Process.Pid
		if j.alone >= 0 {
			to = pids[j.alone]
		}
		return syscall.Kill(to, j.signal)
	}()
	signalled := time.Now()
	if err != nil {
		cancel()
	}
	cmd.Wait()
	return end{out.String(), cmd.ProcessState.ExitCode(), time.Since(signalled)}, err
}

// judge returns the step that all ranks saved.
func (j job) judge(e end) (step int, err error) {
	if want := 128 + int(j.signal); e.code != want {
		return 0, fmt.Errorf("exit code %d, want %d", e.code, want)
	}
	for _, text := range []string{"failed", "error:", "restart "} {
		if strings.Contains(e.output, text) {
			return 0, fmt.Errorf("it says %q", text)
		}
	}
	if n := strings.Count(e.output, "to finish the step"); j.alone < 0 && n != 1 {
		return 0, fmt.Errorf("it says %d times what it waits for", n)
	}
	saves := map[int]string{}
	for line := range strings.Lines(e.output) {
		if _, said, ok := strings.Cut(line, "]: rank "); ok && strings.Contains(said, " saves ") {
			var rank int
			if _, err := fmt.Sscanf(said, "%d saves step %d whole true", &rank, &step); err != nil {
				return 0, fmt.Errorf("%q: %w", said, err)
			}
			if _, again := saves[rank]; again {
				return 0, fmt.Errorf("rank %d saves twice", rank)
			}
			_, saves[rank], _ = strings.Cut(said, " saves ")
		}
	}
	for rank := range j.ranks {
		if saves[rank] == "" || saves[rank] != saves[0] {
			return 0, fmt.Errorf("rank %d saves %q, rank 0 %q", rank, saves[rank], saves[0])
		}
	}
	return step, nil
}
