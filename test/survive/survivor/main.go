// Command survivor is a worker of the campaigns test/survive and test/chaos whose job survives the loss of workers.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/elastic"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/test/survive/job"
)

func main() { comm.Main(run) }

func run(ctx context.Context) error {
	var jobOptions job.Options
	jobOptions.Define()
	steps := flag.Int("steps", math.MaxInt, "`number` of steps")
	finish := flag.String("finish", "", "do not make the last steps before this `file` exists")
	repeat := flag.Int("repeat", -1, "only be this `rank` of an undisturbed run of the job in the folder")
	addr, port := flag.String("addr", "", "`address` of the undisturbed run's store"), flag.Int("port", 0, "`port` of its first epoch")
	flag.Parse()
	dir := flag.Arg(0)
	if *repeat >= 0 {
		return jobOptions.Repeat(dir, *addr, *port, *repeat)
	}
	board, err := job.OpenBoard(filepath.Join(dir, "board"))
	if err != nil {
		return err
	}
	agent := jobenv.ReadAgent(os.LookupEnv)
	slot := &board[agent.Worker]
	slot.PID.Store(int64(os.Getpid()))
	log, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("log.%d", agent.Worker)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(log, "start %d\n", time.Now().UnixMicro())

	o := &comm.Options{Timeout: time.Minute}
	if !jobOptions.Captured { // an observed backend captures no calls
		backend.Wrap(o, func(b backend.Backend) backend.Backend { return &observed{Backend: b, phase: slot.Enter} })
	}
	pg, err := comm.Init(ctx, o)
	if err != nil {
		return err
	}
	j, err := job.New(pg, jobOptions)
	if err != nil {
		return err
	}
	epoch := uint32(0)
	j.Phase = slot.Enter
	j.Committed = func(step int, loss float32) {
		fmt.Fprintf(log, "commit %d %08x %d\n", step, math.Float32bits(loss), time.Now().UnixMicro())
		if slot.Epoch.Load() != epoch {
			slot.Time.Store(time.Now().UnixNano())
			slot.Epoch.Store(epoch)
		}
		for *finish != "" && step > *steps-lastSteps && !pg.Failed() {
			if _, err := os.Stat(*finish); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	slot.Enter(job.Join)
	// logState begins what the log says about an epoch.
	logState := func() error {
		hash, err := j.Hash(ctx)
		step, _ := j.Opt.Committed()
		fmt.Fprintf(log, "epoch %d rank %d of %d step %d hash %s %s\n", epoch, pg.Rank(), pg.Size(), step, hash, resources())
		return err
	}
	err = elastic.Run(ctx, pg, &elastic.Config{State: j.State(), Data: j.Loader}, func(ctx context.Context) error {
		defer slot.Enter(job.Regroup)
		epoch = uint32(pg.Epoch())
		if err := logState(); err != nil {
			return err
		}
		return j.Loop(ctx, filepath.Join(dir, "checkpoints"), *steps)
	})
	if err != nil {
		return err
	}
	epoch++
	return logState()
}

// lastSteps is the number of steps that are left when a worker waits for the end. Each change of the members then
// takes one.
const lastSteps = 10

// resources returns the process's descriptors, goroutines, and memory in KiB.
func resources() string {
	fds, _ := os.ReadDir("/proc/self/fd")
	status, _ := os.ReadFile("/proc/self/status")
	rss := ""
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			rss = strings.Fields(rest)[0]
		}
	}
	return fmt.Sprintf("fds %d goroutines %d rss %s", len(fds), runtime.NumGoroutine(), rss)
}

// observed tells which phase the calls of a backend belong to.
type observed struct {
	backend.Backend
	phase func(job.Phase)
	last  int // the highest index of a bucket seen so far
}

func (b *observed) Start(c *backend.Call) (backend.Task, error) {
	switch name, number, _ := strings.Cut(c.Name, " "); {
	case name == "state" && len(c.Calls) > 0 && c.Calls[0].Kind == backend.Send:
		b.phase(job.Send)
	case name == "state":
		b.phase(job.Transfer)
	case name == "bucket":
		i, _ := strconv.Atoi(number)
		b.last = max(b.last, i)
		if i == 0 {
			b.phase(job.FirstBucket)
		} else if i == b.last {
			b.phase(job.LastBucket)
		}
	}
	return b.Backend.Start(c)
}
