// Command survive is the survival campaign. It starts one job of golaunch --on-failure replace, kills its
// workers hundreds of times, each time in a chosen phase after a random number of microseconds, and checks
//
//   - that the other workers go on, and commit the next step in time;
//   - that after each change of the members all replicas are equal, bit for bit;
//   - that the losses equal, bit for bit, those of an undisturbed run with the same members at each step;
//   - that a worker which lives long uses no more descriptors, goroutines and memory than at first, and that
//     nothing is left over.
//
// Usage:
//
//	go run ./test/survive -kills 500
//	go run ./test/survive -kills 100 -zero
//
// It prints a histogram of the phases and the times from a kill to the next committed step. The exit code is
// 1 if something is wrong.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/test/survive/job"
)

var (
	kills = flag.Int("kills", 500, "`number` of workers to kill")
	ranks = flag.Int("ranks", 4, "`number` of workers of the job")
	seed  = flag.Uint64("seed", 1, "`seed` of the choices of victims and times")
	spare = flag.Int("spare", 100, "never kill worker 0 in the first `number` of kills, to see whether it leaks")
	worst = flag.Duration("worst", 2*time.Second, "the longest `time` allowed from a kill to the next committed step")
	dir   = flag.String("dir", "", "new `folder` for logs and checkpoints; default a temporary one")
	again = flag.Bool("judge", false, "only judge the logs in the folder -dir again")
	stops = flag.Int("stops", 0, "`number` of workers to suspend, after the kills")
	limit = flag.Float64("silence-limit", 10, "golaunch's --silence-limit in `seconds`")
	dev   = flag.String("device", "cpu", "cpu or cuda")
	port  = flag.Int("port", 29655, "the undisturbed run uses this `port`, and the one after it for each change of the members")
	how   job.Options
	bin   = flag.String("bin", "", "`folder` with golaunch and survivor; default: build them")
)

func main() {
	how.Define()
	flag.Parse()
	os.Setenv("GODDP_DEVICE", *dev)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "survive:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	if *dir == "" {
		if *dir, err = os.MkdirTemp("", "survive"); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				os.RemoveAll(*dir)
			}
		}()
	}
	if *bin == "" {
		*bin = *dir
		build := exec.Command("go", "build", "-o", *bin+"/", "./cmd/golaunch", "./test/survive/survivor")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building: %w\n%s", err, out)
		}
	}
	if *again {
		return judge()
	}
	if err := os.MkdirAll(*dir, 0o700); err != nil {
		return err
	}
	c := &campaign{random: rand.New(rand.NewPCG(*seed, 1))}
	if c.board, err = job.OpenBoard(filepath.Join(*dir, "board")); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	err = c.killAll()
	end := c.stop()
	fmt.Print(c.table())
	if err = errors.Join(err, end); err == nil {
		err = judge()
	}
	if err != nil {
		return fmt.Errorf("%w (logs are in %s)", err, *dir)
	}
	return nil
}

func judge() error {
	r, err := job.Judge(*dir, filepath.Join(*bin, "survivor"), "127.0.0.1", *port, how)
	if err == nil {
		fmt.Printf("%d changes of the members: replicas equal; %d steps: losses equal to those of an undisturbed run\n%s\n%s\n", r.Changes, r.Steps, r.Leaks, r.Times)
	}
	return err
}

// campaign is the job and what was done to it.
type campaign struct {
	board      *job.Board
	random     *rand.Rand
	launch     *exec.Cmd
	ended      chan error
	dead       []int // workers that were killed
	hits       [job.Phases]int
	times      []time.Duration // from a kill to the first step committed by the members that are left
	isStopping bool            // workers are suspended now, and not killed
	struck     time.Time       // when a member was killed; zero once the others have gone on
}

func (c *campaign) start() error {
	c.launch = exec.Command(filepath.Join(*bin, "golaunch"), "--nproc-per-node", fmt.Sprint(*ranks), "--on-failure", "replace", "--max-restarts", "0",
		"--silence-limit", fmt.Sprint(*limit), filepath.Join(*bin, "survivor"))
	c.launch.Args = append(append(c.launch.Args, how.Args()...), *dir)
	c.launch.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "GOMAXPROCS=2")
	output, err := os.Create(filepath.Join(*dir, "output"))
	if err != nil {
		return err
	}
	defer output.Close()
	c.launch.Stdout, c.launch.Stderr = output, output
	if err := c.launch.Start(); err != nil {
		return err
	}
	c.ended = make(chan error, 1)
	go func() { c.ended <- c.launch.Wait() }()
	return nil
}

// stop asks the ranks to stop, and waits for the end of the job.
func (c *campaign) stop() error {
	c.launch.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-c.ended:
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 128+int(syscall.SIGTERM) {
			return nil
		}
		return fmt.Errorf("golaunch ended with %v, want exit code 143", err)
	case <-time.After(30 * time.Second):
		c.launch.Process.Kill()
		return fmt.Errorf("golaunch did not end")
	}
}

// killAll kills workers until there were enough. It returns an error if the job does not go on.
func (c *campaign) killAll() error {
	for len(c.dead) < *kills+*stops {
		if err := c.await("all workers train", time.Minute, func() bool { _, n := c.board.Training(); return n == *ranks }); err != nil {
			return err
		}
		c.isStopping = len(c.dead) >= *kills
		target := c.target()
		first, _ := c.board.Training()
		c.struck = time.Time{}
		switch target {
		case job.Join, job.Regroup, job.Send, job.Transfer: // they follow another death
			c.kill(c.any())
			if c.isStopping { // nobody waits for a worker that is suspended before it joins
				target = job.Forward
			}
		}
		c.killIn(target)
		if err := c.recover(first); err != nil {
			return err
		}
	}
	return nil
}

// recover waits until a step is committed in an epoch later than first, and notes the time since the first kill.
func (c *campaign) recover(first int) error {
	if c.struck.IsZero() { // noted before, or nobody was killed
		return nil
	}
	if err := c.await("the next step", time.Until(c.struck)+2**worst, func() bool { latest, _ := c.board.Training(); return latest > first }); err != nil {
		return err
	}
	next := time.Now()
	for _, id := range c.board.Running() {
		if s := &c.board[id]; int(s.Epoch.Load()) > first && s.Time.Load() < next.UnixNano() {
			next = time.Unix(0, s.Time.Load())
		}
	}
	c.times = append(c.times, next.Sub(c.struck))
	c.struck = time.Time{}
	return nil
}

// await polls until the condition holds.
func (c *campaign) await(what string, limit time.Duration, holds func() bool) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(200 * time.Microsecond) {
		select {
		case err := <-c.ended:
			c.ended <- err
			return fmt.Errorf("after %d kills golaunch ended with %v", len(c.dead), err)
		default:
		}
		if holds() {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %d kills, the last one of worker %v, waited %v for: %s", len(c.dead), c.dead[max(0, len(c.dead)-1):], limit, what)
		}
	}
}

// enough is the number of kills that each phase gets.
const enough = 20

// target returns a phase in which too few workers were killed so far, or a random one.
func (c *campaign) target() job.Phase {
	first, n := job.Join, job.Phases
	if *ranks == 2 || how.Zero { // a second death could take the last state
		first, n = job.Forward, job.Regroup-job.Forward
	}
	p := job.Phase(c.random.IntN(int(n)))
	for i := range n {
		if q := first + (p+i)%n; c.hits[q] < enough {
			return q
		}
	}
	return first + p
}

// victims returns the workers that may be killed.
func (c *campaign) victims() []int {
	all := c.board.Running()
	if len(c.dead) < *spare {
		all = slices.DeleteFunc(all, func(id int) bool { return id == 0 })
	}
	return all
}

func (c *campaign) any() int {
	all := c.victims()
	return all[c.random.IntN(len(all))]
}

// killIn waits until a worker is in a phase, for a second, and kills it after a random time. If no worker enters the
// phase, it kills none.
func (c *campaign) killIn(p job.Phase) {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		all := c.victims()
		c.random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		for _, id := range all {
			if c.board[id].In(p) {
				for until := time.Now().Add(time.Duration(c.random.IntN(200)) * time.Microsecond); time.Now().Before(until); {
				}
				c.kill(id)
				return
			}
		}
	}
}

// kill kills a worker, and notes its phase and the time.
func (c *campaign) kill(id int) {
	slot := &c.board[id]
	p := job.Phase(slot.Phase.Load())
	now := time.Now()
	sig := syscall.SIGKILL
	if c.isStopping {
		sig, now = syscall.SIGSTOP, now.Add(time.Duration(*limit*float64(time.Second)))
	}
	if slot.Signal(sig) != nil {
		return
	}
	slot.Lost.Store(true)
	c.hits[p]++
	c.dead = append(c.dead, id)
	if c.struck.IsZero() && p != job.Join { // a replacement that has not joined is no member
		c.struck = now
	}
}

// table returns what was done, and how long it took the job to go on.
func (c *campaign) table() string {
	var b strings.Builder
	for p, n := range c.hits {
		fmt.Fprintf(&b, "%-14s%4d  %s\n", job.Phase(p), n, strings.Repeat("#", n/2))
	}
	slices.Sort(c.times)
	if n := len(c.times); n > 0 {
		fmt.Fprintf(&b, "%d workers killed; from a kill to the next committed step: median %v, 90th percentile %v, worst %v\n",
			len(c.dead), c.times[n/2].Round(time.Millisecond), c.times[n*9/10].Round(time.Millisecond), c.times[n-1].Round(time.Millisecond))
	}
	return b.String()
}
