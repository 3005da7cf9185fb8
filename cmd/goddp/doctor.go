package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/collective"
	"github.com/goddp/goddp/internal/doctor"
	"github.com/goddp/goddp/internal/nccllog"
)

// These are the sizes of the measurements. They take less than a second on good hardware.
const (
	hostPairBytes = 4 << 20
	gpuPairBytes  = 64 << 20
	allReduceSize = 64 << 20
	productSize   = 8192 // rows and columns
)

// examine implements "goddp doctor", on one rank.
func examine(args []string) error {
	o := doctorOptions{}
	fs := newFlags("doctor")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	fs.StringVarP(&o.output, "output", "o", "", "write rank 0's report to this `file`, without the launcher's prefixes")
	fs.DurationVar(&o.timeout, "timeout", time.Minute, "`time` in which the ranks must meet, and each call end")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		doctorHelp(os.Stdout, fs)
		return nil
	case err != nil:
		return &usageError{err: err}
	case fs.NArg() > 0:
		return usagef("want no arguments, got %s", strings.Join(fs.Args(), " "))
	case o.timeout <= 0:
		return usagef("--timeout %v: want more than 0", o.timeout)
	}
	world, err := comm.WorldFromEnv()
	if err != nil {
		return &usageError{err: err, known: true}
	}
	out, err := createOutput(world.Rank, o.output)
	if err != nil {
		return err
	}
	d := &examination{doctorOptions: o, world: world}
	ranks := d.facts(context.Background())
	// The other ranks end well, so that the launcher does not stop rank 0 before it has written the report.
	// Without a group each rank knows something else.
	if world.Rank != 0 && len(ranks) == world.Size {
		return nil
	}
	report := doctor.Judge(ranks)
	if err := errors.Join(o.write(out, report), out.Close()); err != nil {
		return err
	}
	if report.Verdict != doctor.Good && world.AgentStore {
		fmt.Fprintln(os.Stderr, "goddp doctor: this report has findings") // golaunch quotes it where it says why the job failed
	}
	os.Exit(int(report.Verdict))
	return nil
}

// doctorOptions are the flags of "goddp doctor".
type doctorOptions struct {
	json    bool
	output  string
	timeout time.Duration
}

// write prints a report.
func (o doctorOptions) write(w io.Writer, report doctor.Report) error {
	if o.json {
		return json.NewEncoder(w).Encode(report)
	}
	return report.WriteText(w)
}

// examination is one rank's part in the examination of a job.
type examination struct {
	doctorOptions
	world comm.World
}

// facts returns the facts of all ranks or, if the ranks cannot make a group, those of this rank.
func (d *examination) facts(ctx context.Context) []doctor.Facts {
	f := doctor.Probe(doctor.Options{Rank: d.world.Rank, LocalRank: d.world.LocalRank, HostsStore: d.world.Rank == 0 && !d.world.AgentStore})
	ranks := []doctor.Facts{f}
	if d.world.Size > 1 {
		all, err := d.onHosts(ctx, f)
		if err != nil {
			f.GroupError = err.Error()
			return []doctor.Facts{f}
		}
		ranks = all
	}
	for _, r := range ranks {
		if r.GPU == "" { // ranks on CPUs alone have no more to measure, and a mixed job cannot use NCCL
			return ranks
		}
	}
	if doctor.Judge(ranks).Verdict == doctor.Broken {
		return ranks // NCCL would fail for a reason that is known
	}
	mine := &ranks[slices.IndexFunc(ranks, func(r doctor.Facts) bool { return r.Rank == d.world.Rank })]
	all, err := d.onGPUs(ctx, *mine)
	if err != nil {
		mine.GroupError = err.Error()
		return ranks
	}
	return all
}

// onHosts measures what needs no GPU, and returns the facts of all ranks.
func (d *examination) onHosts(ctx context.Context, f doctor.Facts) ([]doctor.Facts, error) {
	pg, err := comm.Init(ctx, &comm.Options{Device: cpu.New(nil), Timeout: d.timeout, ErrorMode: comm.CleanUpOnly})
	if err != nil {
		return nil, err
	}
	defer pg.Close()
	if err := doctor.MeasureClocks(ctx, pg, &f, time.Now); err != nil {
		return nil, err
	}
	first, err := doctor.FirstRanks(ctx, pg, &f)
	if err != nil {
		return nil, err
	}
	if err := doctor.MeasurePairs(ctx, pg, &f, first, hostPairBytes); err != nil {
		return nil, err
	}
	return comm.AllGatherObject(ctx, pg, f)
}

// onGPUs measures the GPUs and what NCCL does with them, and returns the facts of all ranks.
func (d *examination) onGPUs(ctx context.Context, f doctor.Facts) ([]doctor.Facts, error) {
	folder, err := os.MkdirTemp("", "goddp-doctor-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	logFile := filepath.Join(folder, "nccl.log")
	for name, value := range map[string]string{"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET,P2P,SHM,TUNING", "NCCL_DEBUG_FILE": logFile} {
		if err := os.Setenv(name, value); err != nil { // NCCL reads them when it is loaded
			return nil, err
		}
	}
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	bounded, cancel := context.WithTimeout(ctx, d.timeout)
	f.TFLOPS, err = doctor.MeasureProduct(bounded, dev, productSize)
	cancel()
	if err != nil {
		return nil, err
	}
	f.ReadClocks()
	if d.world.Size == 1 && !d.world.AgentStore { // no job: the host alone is examined
		return []doctor.Facts{f}, nil
	}
	pg, err := comm.Init(ctx, &comm.Options{Device: dev, Timeout: d.timeout, ErrorMode: comm.CleanUpOnly})
	if err != nil {
		return nil, err
	}
	defer pg.Close()
	if err := d.withNCCL(ctx, pg, &f); err != nil {
		return nil, err
	}
	if text, err := os.ReadFile(logFile); err == nil { // without a log, what NCCL chose stays unknown
		log := nccllog.Parse(string(text))
		f.NCCL = &log
	}
	return comm.AllGatherObject(ctx, pg, f)
}

// withNCCL measures an all-reduce of all ranks, and pairs of neighbours.
func (d *examination) withNCCL(ctx context.Context, pg *comm.ProcessGroup, f *doctor.Facts) error {
	allReduce, err := collective.Find("all_reduce")
	if err != nil {
		return err
	}
	err = collective.Run(ctx, pg, collective.Config{
		Collective: allReduce, MinBytes: allReduceSize, MaxBytes: allReduceSize, StepFactor: 2, DType: device.Float32, Op: comm.Sum,
		Iters: 20, Warmup: 5, Repeat: 1,
	}, func(row collective.Row) error {
		f.AllReduce = row.BusBW * 1e9
		return nil
	})
	if err != nil {
		return err
	}
	all := make([]int, pg.Size())
	for r := range all {
		all[r] = r
	}
	return doctor.MeasurePairs(ctx, pg, f, all, gpuPairBytes)
}

// doctorHelp prints the text of goddp doctor --help.
func doctorHelp(w io.Writer, fs *pflag.FlagSet) {
	fmt.Fprintf(w, `Find what makes a job fail or run slowly, and say how to correct it.

Usage:
  goddp doctor [flags]                                 # this host, and its first GPU
  golaunch --nproc-per-node gpu goddp doctor [flags]   # all its GPUs, and NCCL
  golaunch --nnodes N ... goddp doctor [flags]         # all hosts of a job

It reads libraries, limits, interfaces, clocks and the GPUs' states. With GPUs it
runs a matrix product on each rank's GPU. Under golaunch it also measures how fast
the ranks exchange data, and reads in NCCL's log what NCCL chose. Rank 0 reports for
all ranks. If the ranks cannot meet, each of them reports. docs/doctor.md explains
each finding.

Flags:
%s
Exit codes: 0 nothing is wrong; 1 a job would be slow; 2 a job would fail, or the
command line is wrong. golaunch returns the same code.
`, fs.FlagUsagesWrapped(100))
}
