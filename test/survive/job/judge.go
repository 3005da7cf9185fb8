package job

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/internal/jobenv"
)

// epoch is what the workers' logs say about an epoch.
type epoch struct {
	number, step, size int
	hashes             map[int]string         // by rank: the hash of the state at its beginning, unless the rank was killed before it logged it
	losses             map[int]map[int]string // by step and rank: the losses of the steps that the rank has committed
}

// hash returns the hash of the lowest rank that logged it.
func (e *epoch) hash() string { return e.hashes[slices.Min(slices.Collect(maps.Keys(e.hashes)))] }

// Report is what Judge has found in the logs of a job.
type Report struct {
	Changes int    // of the members
	Steps   int    // that were compared with an undisturbed run
	Members int    // the workers that logged the state of the last epoch, which is the job's end if all steps are made
	Leaks   string // what a worker used in its first epochs and in its last ones
	Times   string // how long replacements took to join
}

// Judge checks the logs in the folder dir of the workers of a job. All replicas must be equal after each change of the
// members, and all losses and states those of an undisturbed run with the same members at each step. For that run,
// Judge needs the path of the program survivor, the port, and the ports after it, one for each change of the members.
func Judge(dir, survivor, addr string, port int, o Options) (r Report, err error) {
	epochs, err := read(dir)
	if err != nil {
		return r, err
	}
	if len(epochs) == 0 {
		return r, errors.New("no worker has logged a state")
	}
	var errs []error
	for _, e := range epochs {
		for r, h := range e.hashes {
			if h != e.hash() {
				errs = append(errs, fmt.Errorf("epoch %d, step %d: the state of rank %d is %s, another rank's is %s", e.number, e.step, r, h, e.hash()))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return r, err
	}
	last := epochs[len(epochs)-1]
	r = Report{Changes: len(epochs) - 1, Steps: last.step, Members: len(last.hashes), Leaks: leaks(filepath.Join(dir, "log.0"))}
	if r.Times, err = joins(dir); err != nil {
		return r, err
	}
	if err := o.repeat(survivor, dir, addr, port, epochs); err != nil {
		return r, fmt.Errorf("the undisturbed run: %w", err)
	}
	return r, nil
}

// read reads the logs. In the result, an epoch has only steps that count: the next epoch began after them.
func read(dir string) ([]*epoch, error) {
	files, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil {
		return nil, err
	}
	by := map[int]*epoch{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		var now *epoch
		rank := 0
		for lines := bufio.NewScanner(f); lines.Scan(); {
			e := epoch{hashes: map[int]string{}, losses: map[int]map[int]string{}}
			var hash, loss string
			var step int
			if _, err := fmt.Sscanf(lines.Text(), "epoch %d rank %d of %d step %d hash %s", &e.number, &rank, &e.size, &e.step, &hash); err == nil {
				if by[e.number] == nil {
					by[e.number] = &e
				}
				now = by[e.number]
				now.hashes[rank] = hash
				if now.size != e.size || now.step != e.step {
					return nil, fmt.Errorf("%s: %q: another rank has size %d, step %d", name, lines.Text(), now.size, now.step)
				}
			} else if _, err := fmt.Sscanf(lines.Text(), "commit %d %s", &step, &loss); err == nil && now != nil {
				if now.losses[step] == nil {
					now.losses[step] = map[int]string{}
				}
				now.losses[step][rank] = loss
			}
		}
		f.Close()
	}
	var all []*epoch
	for _, e := range by {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *epoch) int { return a.number - b.number })
	for i, e := range all[:max(0, len(all)-1)] {
		for step := range e.losses {
			if step > all[i+1].step {
				delete(e.losses, step)
			}
		}
	}
	return all, nil
}

// repeat trains as the epochs did, but without a failure: each epoch with its number of ranks, from its first step to
// the next epoch's. Between two epochs the state goes through a checkpoint. The ranks compare the losses and the states.
// Each rank is a process of the program survivor, as in the job: ranks in one process may add up in another order.
func (o Options) repeat(survivor, dir, addr string, port int, epochs []*epoch) error {
	ranks := 0
	for _, e := range epochs {
		ranks = max(ranks, e.size)
	}
	errs := make([]error, ranks)
	var wg sync.WaitGroup
	for r := range errs {
		wg.Go(func() {
			cmd := exec.Command(survivor, append(o.Args(), "-repeat", fmt.Sprint(r), "-addr", addr, "-port", fmt.Sprint(port), dir)...)
			cmd.Env = append(os.Environ(), jobenv.JobIDVar+"=repeated") // their arguments differ
			if out, err := cmd.CombinedOutput(); err != nil {
				errs[r] = fmt.Errorf("rank %d: %w\n%s", r, err, out)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Repeat is one rank's part of an undisturbed run of the job whose workers' logs are in the folder dir. The store of
// epoch i is at addr and port+i.
func (o Options) Repeat(dir, addr string, port, rank int) error {
	epochs, err := read(dir)
	if err != nil {
		return err
	}
	p := repetition{Options: o, folder: filepath.Join(dir, "repeated")}
	for i, e := range epochs {
		isLast, until := i == len(epochs)-1, e.step
		if !isLast {
			until = epochs[i+1].step
		}
		if until == e.step && !isLast || rank >= e.size {
			continue
		}
		w := &comm.World{Rank: rank, Size: e.size, LocalRank: rank, LocalSize: e.size, MasterAddr: addr, MasterPort: port + i}
		pg, err := comm.Init(context.Background(), &comm.Options{World: w, ErrorMode: comm.CleanUpOnly})
		if err != nil {
			return fmt.Errorf("epoch %d: %w", e.number, err)
		}
		if err = p.rank(pg, e, until); err != nil {
			pg.Abort(err)
		}
		if err = errors.Join(err, pg.Close()); err != nil {
			return fmt.Errorf("epoch %d: %w", e.number, err)
		}
	}
	return nil
}

// repetition is an undisturbed run.
type repetition struct {
	Options
	folder string // for checkpoints
}

func (p *repetition) rank(pg *comm.ProcessGroup, e *epoch, until int) error {
	ctx := context.Background()
	j, err := New(pg, p.Options)
	if err != nil {
		return err
	}
	saver, err := checkpoint.Open(ctx, pg, filepath.Join(p.folder, "whole"), &checkpoint.Options{Keep: 1})
	if err != nil {
		return err
	}
	defer saver.Close()
	var at data.Position
	state := j.State()
	state.Values = map[string]any{"position": &at, "generator": autograd.Generator(pg.Device())}
	if _, err := saver.Resume(ctx, state); err != nil {
		return err
	}
	if err := j.Loader.Resume(at); err != nil {
		return err
	}
	if hash, err := j.Hash(ctx); err != nil || hash != e.hash() {
		return fmt.Errorf("step %d: the state is %s, %v, want %s", e.step, hash, err, e.hash())
	}
	var differ error
	j.Committed = func(step int, loss float32) {
		at = j.Loader.Position()
		got := fmt.Sprintf("%08x", math.Float32bits(loss))
		if want, isKnown := e.losses[step][pg.Rank()]; isKnown && got != want && differ == nil {
			differ = fmt.Errorf("step %d: rank %d has the loss %s, want %s", step, pg.Rank(), got, want)
		}
	}
	if err := errors.Join(j.Loop(ctx, filepath.Join(p.folder, "saves"), until), differ); err != nil {
		return err
	}
	return saver.Save(ctx, until, state)
}

// leaks compares what a worker that lived through many epochs used in its first ones and in its last ones.
func leaks(log string) string {
	content, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(content)) {
		if _, resources, ok := strings.Cut(strings.TrimSpace(line), " fds "); ok {
			lines = append(lines, "fds "+resources)
		}
	}
	if len(lines) < 20 {
		return fmt.Sprintf("worker 0 lived through %d epochs only", len(lines))
	}
	return fmt.Sprintf("worker 0 in epoch %d: %s; in epoch %d: %s", 10, lines[9], len(lines), lines[len(lines)-1])
}
