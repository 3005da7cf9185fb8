package main

import (
	"cmp"
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

	"github.com/goddp/goddp/cmd/goddp/internal/collective"
	"github.com/goddp/goddp/cmd/goddp/internal/doctor"
	"github.com/goddp/goddp/cmd/goddp/internal/nccllog"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// These are the sizes of the measurements. They take less than a second on good hardware. Tests on fake GPUs reduce them.
var (
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
	if err := parse(fs, args, doctorHelp); err != nil {
		return err
	}
	switch {
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
	ranks := d.facts(context.Background()) // --timeout bounds each wait
	// The other ranks exit with 0, so that the launcher does not stop rank 0 before it has written the report.
	// Without a group, each rank has its own findings.
	if world.Rank != 0 && len(ranks) == world.Size {
		return nil
	}
	report := doctor.Judge(ranks)
	if err := errors.Join(o.write(out, report), out.Close()); err != nil {
		return err
	}
	if report.Verdict != doctor.Good && world.AgentStore {
		fmt.Fprintln(os.Stderr, "goddp doctor: this report has findings") // golaunch quotes this line as the reason why the job failed
	}
	if report.Verdict != doctor.Good {
		return exitCode(report.Verdict)
	}
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
	mine  doctor.Facts // this rank's facts

	dev       device.Device // the rank's GPU; nil if it was not opened
	logFolder string        // the folder of NCCL's log
}

// facts returns the facts of all ranks or, if the ranks cannot exchange them, of this rank.
func (d *examination) facts(ctx context.Context) []doctor.Facts {
	d.mine = doctor.Probe(doctor.Options{Rank: d.world.Rank, LocalRank: d.world.LocalRank, HostsStore: d.world.Rank == 0 && !d.world.AgentStore})
	defer d.release()
	ranks, err := d.withoutNCCL(ctx)
	isJob := d.world.Size > 1 || d.world.AgentStore
	if err == nil && isJob && canUseNCCL(ranks) {
		if err := d.withNCCL(ctx); err != nil {
			d.mine.Failure = err.Error()
		}
		ranks, err = d.afterNCCL(ctx)
	}
	if err != nil {
		d.mine.Failure = cmp.Or(d.mine.Failure, err.Error())
		return d.mine.Alone()
	}
	return ranks
}

// canUseNCCL reports whether each rank has a GPU, and no finding says that NCCL would fail.
func canUseNCCL(ranks []doctor.Facts) bool {
	isOnCPU := func(f doctor.Facts) bool { return f.GPU == "" }
	return !slices.ContainsFunc(ranks, isOnCPU) && doctor.Judge(ranks).Verdict != doctor.Broken
}

// withoutNCCL makes the measurements that do not need NCCL: the hosts and, if possible, each GPU separately.
func (d *examination) withoutNCCL(ctx context.Context) ([]doctor.Facts, error) {
	pg, err := comm.Init(ctx, &comm.Options{Device: cpu.New(nil), Timeout: d.timeout, ErrorMode: comm.CleanUpOnly})
	if err != nil {
		return nil, err
	}
	defer pg.Close()
	if err := doctor.MeasureClocks(ctx, pg, &d.mine, time.Now); err != nil {
		return nil, err
	}
	first, err := doctor.FirstRanks(ctx, pg, &d.mine)
	if err != nil {
		return nil, err
	}
	if err := doctor.MeasurePairs(ctx, pg, &d.mine, first, hostPairBytes); err != nil {
		return nil, err
	}
	ranks, err := d.exchange(ctx, pg)
	if err != nil || !canUseNCCL(ranks) {
		return ranks, err
	}
	if err := d.onGPU(ctx); err != nil {
		d.mine.Failure = err.Error()
	}
	return d.exchange(ctx, pg)
}

// exchange returns the facts of all ranks. A failed rank may call it earlier than the others, which first wait for
// their calls to end.
func (d *examination) exchange(ctx context.Context, pg *comm.ProcessGroup) ([]doctor.Facts, error) {
	return comm.AllGatherObject(ctx, pg.With(&comm.CallOptions{Timeout: 2 * d.timeout}), d.mine)
}

// onGPU opens this rank's GPU, and measures it.
func (d *examination) onGPU(ctx context.Context) (err error) {
	if d.logFolder, err = os.MkdirTemp("", "goddp-doctor-"); err != nil {
		return err
	}
	for name, value := range map[string]string{"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET,P2P,SHM,TUNING", "NCCL_DEBUG_FILE": d.logFile()} {
		if err := os.Setenv(name, value); err != nil { // before the GPU's libraries have threads, which read the environment
			return err
		}
	}
	if d.dev, err = comm.OpenDevice(nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if d.mine.TFLOPS, err = doctor.MeasureProduct(ctx, d.dev, productSize); err != nil {
		return err
	}
	d.mine.ReadClocks()
	return nil
}

// logFile is where NCCL writes its log.
func (d *examination) logFile() string { return filepath.Join(d.logFolder, "nccl.log") }

// withNCCL measures an all-reduce of all ranks, and pairs of neighbours, and reads NCCL's log.
func (d *examination) withNCCL(ctx context.Context) error {
	allReduce, err := collective.Find("all_reduce")
	if err != nil {
		return err
	}
	pg, err := comm.Init(ctx, &comm.Options{Device: d.dev, Timeout: d.timeout, ErrorMode: comm.CleanUpOnly})
	if err != nil {
		return err
	}
	defer pg.Close()
	err = collective.Run(ctx, pg, collective.Config{
		Collective: allReduce, MinBytes: allReduceSize, MaxBytes: allReduceSize, StepFactor: 2, DType: device.Float32, Op: comm.Sum,
		Iters: 20, Warmup: 5, Repeat: 1,
	}, func(row collective.Row) error {
		d.mine.AllReduce = row.BusBW * 1e9
		return nil
	})
	if err != nil {
		return err
	}
	all := make([]int, pg.Size())
	for r := range all {
		all[r] = r
	}
	if err := doctor.MeasurePairs(ctx, pg, &d.mine, all, gpuPairBytes); err != nil {
		return err
	}
	if text, err := os.ReadFile(d.logFile()); err == nil { // without a log, what NCCL chose stays unknown
		log := nccllog.Parse(string(text))
		d.mine.NCCL = &log
	}
	return nil
}

// afterNCCL returns the facts of all ranks. They meet again on their CPUs, because NCCL may have failed on some.
func (d *examination) afterNCCL(ctx context.Context) ([]doctor.Facts, error) {
	pg, err := comm.Init(ctx, &comm.Options{Device: cpu.New(nil), Timeout: 2 * d.timeout, ErrorMode: comm.CleanUpOnly})
	if err != nil {
		return nil, err
	}
	defer pg.Close()
	return d.exchange(ctx, pg)
}

// release closes the GPU and removes NCCL's log.
func (d *examination) release() {
	if d.dev != nil {
		d.dev.Close()
	}
	os.RemoveAll(d.logFolder)
}

// doctorHelp is the format of "goddp doctor --help".
const doctorHelp = `Find what makes a job fail or run slowly, and say how to correct it.

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
Exit codes: 0 nothing is wrong; 1 a job would be slow, or the report cannot be
written; 2 a job would fail, or the command line is wrong. golaunch returns the same
code.
`
