package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/launcher"
)

const (
	// childVar is an environment variable. If it is set, the test binary is a rank of a training
	// run in the folder that it names.
	childVar = "GODDP_CHECKPOINT_CHILD"
	// killsVar is the environment variable with the number of runs that TestKill kills. The default
	// is small.
	killsVar = "GODDP_CHECKPOINT_KILLS"
	// killSteps is the number of steps of a run.
	killSteps = 60
	// exitWrong is the exit code of a rank that has found an error.
	exitWrong = 9
)

var phases = []string{"snapshot", "write", "commit", "clean-up"}

func TestMain(m *testing.M) {
	launcher.ReaperMain()
	if dir := os.Getenv(childVar); dir != "" {
		if err := child(dir); err != nil {
			fmt.Println("wrong:", err)
			os.Exit(exitWrong)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// kill says at which moment a rank kills itself, or all ranks.
type kill struct {
	rank, ranks int
	all         bool
	phase       string
	count       int // the phase's occurrence, from 1
	delay       time.Duration
}

func (k kill) String() string {
	return fmt.Sprintf("%d,%d,%v,%s,%d,%d", k.rank, k.ranks, k.all, k.phase, k.count, k.delay)
}

func parseKill(s string) (k kill) {
	f := strings.Split(s, ",")
	if len(f) != 6 {
		return k
	}
	k.rank, _ = strconv.Atoi(f[0])
	k.ranks, _ = strconv.Atoi(f[1])
	k.all, k.phase = f[2] == "true", f[3]
	k.count, _ = strconv.Atoi(f[4])
	ns, _ := strconv.Atoi(f[5])
	k.delay = time.Duration(ns)
	return k
}

// status returns the path of the file in which a rank writes its current phase. The file survives
// the rank.
func status(dir string, rank int) string { return filepath.Join(dir, fmt.Sprint("status-", rank)) }

// child is one rank of a run that saves after each step. It compares each loss with that of an
// uninterrupted run.
func child(dir string) error {
	kind := os.Getenv("GODDP_CHECKPOINT_KIND")
	pg, err := comm.Init(context.Background(), nil)
	if err != nil {
		return nil // because another rank was killed
	}
	want, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("losses-", pg.Rank())))
	if err != nil {
		return err
	}
	f, err := os.Create(status(dir, pg.Rank()))
	if err != nil {
		return err
	}
	k := parseKill(os.Getenv("GODDP_CHECKPOINT_KILL"))
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("pid-", pg.Rank())), []byte(fmt.Sprint(os.Getpid())), 0o600); err != nil {
		return err
	}
	if err := pg.Barrier().Wait(context.Background()); err != nil {
		return nil
	}
	seen := map[string]int{}
	var mu sync.Mutex
	phase := func(p string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(atStart{f}, "%-12s", p)
		if seen[p]++; k.rank == pg.Rank() && k.phase == p && k.count == seen[p] {
			go k.strike(dir)
		}
	}
	r, err := newRun(pg, kind, 2)
	if err != nil {
		return gone(err)
	}
	m, err := Open(pg, filepath.Join(dir, "run"), &Options{Keep: 2, Async: true, phase: phase})
	if err != nil {
		return gone(err)
	}
	step, err := m.Resume(context.Background(), r.state())
	if err != nil {
		return gone(err)
	}
	durable, _ := os.ReadFile(filepath.Join(dir, "durable"))
	if n, _ := strconv.Atoi(string(durable)); step < n || r.seen != step {
		return fmt.Errorf("resumed at step %d with the value %d, but step %d was complete", step, r.seen, n)
	}
	if step == 0 { // the run begins as the uninterrupted run does
		if r, err = newRun(pg, kind, 1); err != nil {
			return gone(err)
		}
	}
	for n := step; n < killSteps; n++ {
		loss, err := r.step(n)
		if err != nil {
			return gone(err)
		}
		if w := math.Float64frombits(binary.LittleEndian.Uint64(want[8*n:])); loss != w {
			return fmt.Errorf("the loss of step %d is %v, want %v", n, loss, w)
		}
		if err := m.Save(context.Background(), n+1, r.state()); err != nil {
			return gone(err)
		}
		if pg.Rank() == 0 { // the save of the step before is complete
			if err := replace(disk{}, filepath.Join(dir, "durable"), filepath.Join(dir, "durable-temp"+fmt.Sprint(os.Getpid(), n)), content([]byte(fmt.Sprint(n)))); err != nil {
				return err
			}
		}
	}
	return gone(errors.Join(m.Close(), pg.Close()))
}

// gone returns nil if the death of another rank explains err, and err otherwise.
func gone(err error) error {
	if errors.Is(err, comm.ErrPeerLost) || errors.Is(err, comm.ErrAborted) || err != nil && strings.Contains(err.Error(), "store") {
		return nil
	}
	return err
}

// atStart overwrites the beginning of a file at each Write.
type atStart struct{ f *os.File }

func (w atStart) Write(b []byte) (int, error) { return w.f.WriteAt(b, 0) }

// strike kills the rank, or all ranks, after the delay.
func (k kill) strike(dir string) {
	for start := time.Now(); time.Since(start) < k.delay; { // a loop, because a sleep is too coarse
	}
	if k.all {
		for rank := range k.ranks {
			data, _ := os.ReadFile(filepath.Join(dir, fmt.Sprint("pid-", rank)))
			if pid, _ := strconv.Atoi(string(data)); pid > 0 && pid != os.Getpid() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// Runs that save after every step are killed at random moments. Each resumes at the last checkpoint
// that was complete, or at a later one, and has the losses of an uninterrupted run.
//
//	GODDP_CHECKPOINT_KILLS=300 go test ./checkpoint -run TestKill -v
func TestKill(t *testing.T) {
	commtest.OutsideJobs(t)
	kills := 12
	if s := os.Getenv(killsVar); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	const ranks = 2
	hit, phaseOf := map[string]int{}, map[string]int{}
	random := rand.New(rand.NewPCG(3, 4))
	var dir, kind string
	fresh := func(i int) {
		dir, kind = t.TempDir(), []string{plain, zeros}[i%2]
		commtest.OnGoroutines(t, ranks, nil, func(pg *comm.ProcessGroup) error {
			r, err := newRun(pg, kind, 1)
			if err != nil {
				return err
			}
			losses, err := r.train(0, killSteps)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, fmt.Sprint("losses-", pg.Rank())), device.HostTensor(losses, device.Float64).Buf.Host(), 0o600)
		})
	}
	fresh(0)
	for killed, runs := 0, 0; killed < kills && !t.Failed(); runs++ {
		k := kill{
			rank: random.IntN(ranks), ranks: ranks, all: random.IntN(2) == 0, phase: phases[killed%len(phases)],
			count: 1 + random.IntN(6), delay: time.Duration(random.IntN(300)) * time.Microsecond,
		}
		switch k.phase {
		case "commit", "clean-up": // only rank 0 has these phases
			k.rank = 0
			k.delay *= 3
		case "snapshot":
			k.delay /= 10
		}
		for rank := range ranks {
			os.Remove(status(dir, rank))
		}
		var out bytes.Buffer
		_, err := launcher.Run(t.Context(), &launcher.Config{
			Args: []string{os.Args[0]}, Workers: ranks, ShutdownTimeout: time.Second, Stdout: &out, Stderr: &out,
			Env: append(os.Environ(), childVar+"="+dir, "GODDP_CHECKPOINT_KIND="+kind, "GODDP_CHECKPOINT_KILL="+k.String(),
				"GODDP_DEVICE=cpu", "GODDP_FLIGHT_DIR="+t.TempDir()),
		})
		if strings.Contains(out.String(), "wrong:") {
			t.Fatalf("after %d kills, at %v: %v\n%s", killed, k, err, out.String())
		}
		if err == nil { // the run ended before the kill
			fresh(runs)
			continue
		}
		killed++
		data, _ := os.ReadFile(status(dir, k.rank))
		hit[strings.TrimSpace(string(data))]++
		phaseOf[k.phase]++
	}
	t.Logf("%d kills; phases that the killed rank was in: %v; phases that kills were aimed at: %v", kills, hit, phaseOf)
	for _, p := range phases {
		if kills >= 300 && hit[p] < 20 {
			t.Errorf("%d kills in phase %s, want at least 20", hit[p], p)
		}
	}
}
