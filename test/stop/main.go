// Command stop is the campaign of stop requests. It starts many training jobs on several ranks, sends
// each SIGTERM or SIGINT at a random time, and checks that all ranks save the same step and that
// golaunch does not report the end as a failure. It also measures the time from signal to exit.
//
//	go run ./test/stop                  100 jobs of 4 ranks on the CPU
//	go run ./test/stop -n 10 -v         10 jobs, with the output of each
//
// The jobs differ: in the package (ddp or ddp/zero), in the inputs (even, uneven in Join, or two
// passes to a step), and in the target of the signal (golaunch, or one rank under a golaunch that may
// restart). The exit code is 1 if a job did not end as it must.
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
	n := flag.Int("n", 100, "number of jobs")
	ranks := flag.Int("ranks", 4, "number of ranks of each job")
	latest := flag.Duration("latest", 300*time.Millisecond, "the latest `time` of the signal, after the first step of all ranks")
	seed := flag.Uint64("seed", 1, "seed of the random times")
	verbose := flag.Bool("v", false, "print the output of each job")
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
	failed := campaign(ctx, bin, *n, *ranks, *latest, *seed, *verbose)
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

// campaign runs n jobs and returns how many did not end as they must. Each gets its signal at a random
// time, at most latest after the first step of all ranks.
func campaign(ctx context.Context, bin string, n, ranks int, latest time.Duration, seed uint64, verbose bool) (failed int) {
	r := rand.New(rand.NewPCG(seed, 0))
	var times []time.Duration
	steps := map[int]bool{}
	for k := 0; k < n && ctx.Err() == nil; k++ {
		j := draw(k, ranks, r)
		e, err := j.run(ctx, bin, time.Duration(r.Int64N(int64(latest))))
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

// job is a training job that gets a signal.
type job struct {
	ranks        int
	workerArgs   []string
	launcherArgs []string
	signal       syscall.Signal
	target       int // the rank that gets the signal; -1 for golaunch
}

func (j job) String() string {
	to := "golaunch"
	if j.target >= 0 {
		to = fmt.Sprintf("rank %d alone", j.target)
	}
	return fmt.Sprintf("%v to %s %v, worker %v", j.signal, to, j.launcherArgs, j.workerArgs)
}

// draw makes job k: a half of the jobs uses ddp/zero, a third each Join and accumulation, a half
// signals one rank, and a fifth sends SIGINT.
func draw(k, ranks int, r *rand.Rand) job {
	j := job{ranks: ranks, signal: syscall.SIGTERM, target: -1}
	if k%2 == 1 {
		j.workerArgs = append(j.workerArgs, "-zero")
	}
	switch k % 3 {
	case 1:
		j.workerArgs = append(j.workerArgs, "-join")
	case 2:
		j.workerArgs = append(j.workerArgs, "-every", "2")
	}
	if k%4 >= 2 {
		j.launcherArgs = append(j.launcherArgs, "--max-restarts", "2")
		j.target = r.IntN(ranks)
	}
	if k%5 == 4 {
		j.signal = syscall.SIGINT
	}
	return j
}

// end describes the end of a job.
type end struct {
	output string        // of golaunch and all ranks
	code   int           // golaunch's exit code
	took   time.Duration // from the signal to golaunch's exit
}

// jobTimeout is the longest time that a job may take.
const jobTimeout = 2 * time.Minute

// run starts the job, waits until all ranks train and then for the given time, sends the signal, and
// waits for the job's end.
func (j job) run(ctx context.Context, bin string, wait time.Duration) (e end, err error) {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	args := append([]string{"--nproc-per-node", fmt.Sprint(j.ranks)}, j.launcherArgs...)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "golaunch"), append(append(args, filepath.Join(bin, "worker")), j.workerArgs...)...)
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
		if j.target >= 0 {
			to = pids[j.target]
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

// judge returns the step that all ranks saved, or an error if the job did not end as it must.
func (j job) judge(e end) (step int, err error) {
	if want := 128 + int(j.signal); e.code != want {
		return 0, fmt.Errorf("exit code %d, want %d", e.code, want)
	}
	for _, text := range []string{"failed", "error:", "restart "} {
		if strings.Contains(e.output, text) {
			return 0, fmt.Errorf("the output contains %q", text)
		}
	}
	if n := strings.Count(e.output, "to finish the step"); j.target < 0 && n != 1 {
		return 0, fmt.Errorf("golaunch says %d times, not once, that it waits for a step", n)
	}
	saves := map[int]string{}
	for line := range strings.Lines(e.output) {
		if _, said, ok := strings.Cut(line, "]: rank "); ok && strings.Contains(said, " saves ") {
			var rank int
			if _, err := fmt.Sscanf(said, "%d saves step %d consistent true", &rank, &step); err != nil {
				return 0, fmt.Errorf("%q: %w", said, err)
			}
			if _, isSaved := saves[rank]; isSaved {
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
