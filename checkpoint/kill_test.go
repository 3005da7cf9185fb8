package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/launcher"
)

func TestMain(m *testing.M) {
	launcher.ReaperMain() // for TestOnProcesses
	testkit.Main(m, map[string]func(){"train": func() {
		var k kill
		err := json.Unmarshal([]byte(os.Args[3]), &k)
		if err == nil {
			err = k.train(os.Args[1], os.Args[2])
		}
		if err != nil {
			fmt.Println("ended:", err)
		}
	}})
}

// kill says at which moment a rank kills itself, or all ranks.
type kill struct {
	Rank  int
	All   bool
	Phase string
	Count int // the phase's occurrence, from 1
	Delay time.Duration
}

// strike kills this rank, or all ranks, after the delay.
func (k kill) strike(pids []int) {
	for start := time.Now(); time.Since(start) < k.Delay; { // a loop, because a sleep is too coarse
	}
	for rank, pid := range pids {
		if k.All && rank != k.Rank {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// killSteps is the number of steps of a run that is killed.
const killSteps = 60

// train is one rank of a run in dir that saves after each step. It prints the step at which it resumes, each loss, and
// each step whose checkpoint is complete.
func (k kill) train(dir, kind string) error {
	ctx := context.Background()
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	pids, err := comm.AllGatherObject(ctx, pg, os.Getpid())
	if err != nil {
		return err
	}
	seen := map[string]int{}
	var mu sync.Mutex
	phase := func(p string) {
		mu.Lock()
		defer mu.Unlock()
		if seen[p]++; k.Rank == pg.Rank() && k.Phase == p && k.Count == seen[p] {
			go k.strike(pids)
		}
	}
	r, m, err := begin(pg, dir, kind, 2, Options{Keep: 2, Async: true, phase: phase})
	if err != nil {
		return err
	}
	step, err := m.Resume(ctx, r.state())
	if err != nil {
		return err
	}
	fmt.Println("resumed", step, r.seen)
	if step == 0 { // the run begins as the uninterrupted run does
		if r, err = newRun(pg, kind, 1); err != nil {
			return err
		}
	}
	for n := step; n < killSteps; n++ {
		loss, err := r.step(n)
		if err != nil {
			return err
		}
		fmt.Println("loss", n, loss)
		if err := m.Save(ctx, n+1, r.state()); err != nil {
			return err
		}
		fmt.Println("complete", n) // the save before
	}
	return errors.Join(m.Close(), pg.Close())
}

// Runs that save after every step are killed at random moments. Each resumes at the last checkpoint
// that was complete, or at a later one, and has the losses of an uninterrupted run.
func TestKill(t *testing.T) {
	testkit.Long(t)
	commtest.OutsideJobs(t)
	const ranks, kills = 2, 12
	random := rand.New(rand.NewPCG(3, 4))
	var dir, kind string
	var durable int
	var want [ranks][]float64
	fresh := func(i int) {
		dir, kind, durable = filepath.Join(t.TempDir(), "run"), []string{plain, zeros}[i%2], 0
		commtest.OnGoroutines(t, ranks, nil, func(pg *comm.ProcessGroup) error {
			r, err := newRun(pg, kind, 1)
			if err == nil {
				want[pg.Rank()], err = r.train(0, killSteps)
			}
			return err
		})
	}
	fresh(0)
	for killed, runs := 0, 0; killed < kills && !t.Failed(); runs++ {
		phases := []string{"snapshot", "write", "commit", "clean-up"}
		k := kill{Rank: random.IntN(ranks), All: random.IntN(2) == 0, Phase: phases[killed%len(phases)],
			Count: 1 + random.IntN(6), Delay: time.Duration(random.IntN(300)) * time.Microsecond}
		switch k.Phase {
		case "commit", "clean-up": // only rank 0 has these phases
			k.Rank = 0
			k.Delay *= 3
		case "snapshot":
			k.Delay /= 10
		}
		plan, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		job := testkit.World(t, ranks, func(int) *exec.Cmd {
			cmd := testkit.Self(t, "train", dir, kind, string(plan))
			cmd.Env = append(cmd.Env, "GODDP_DEVICE=cpu", "GODDP_FLIGHT_DIR="+t.TempDir())
			return cmd
		})
		code := job[k.Rank].Wait()
		for _, p := range job { // those that wait for the killed rank
			select {
			case <-p.Ended():
			case <-time.After(200 * time.Millisecond):
				_ = p.Cmd.Process.Kill()
			}
			p.Wait()
		}
		before := durable
		for rank, p := range job {
			for line := range strings.Lines(p.Stdout()) {
				var step, value int
				var loss float64
				if n, _ := fmt.Sscanf(line, "resumed %d %d", &step, &value); n == 2 && (step < before || value != step) {
					t.Errorf("rank %d resumed at step %d with the value %d, but step %d was complete", rank, step, value, before)
				}
				if n, _ := fmt.Sscanf(line, "loss %d %g", &step, &loss); n == 2 && loss != want[rank][step] {
					t.Errorf("rank %d: the loss of step %d is %v, want %v", rank, step, loss, want[rank][step])
				}
				if n, _ := fmt.Sscanf(line, "complete %d", &step); n == 1 {
					durable = max(durable, step)
				}
			}
		}
		if code == 0 { // the run ended before the kill
			if !slices.ContainsFunc(job, func(p *testkit.Process) bool { return len(p.Matches("^loss 59 ")) == 1 }) {
				t.Errorf("%+v: the run ended early", k)
			}
			fresh(runs)
			continue
		}
		if killed++; code != 128+int(syscall.SIGKILL) {
			t.Errorf("%+v: exit code %d", k, code)
		}
	}
}
