package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/cmd/goddp/internal/collective"
	"github.com/goddp/goddp/cmd/goddp/internal/tune"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/wire"
)

// tuneSettings implements "goddp tune", on one rank.
func tuneSettings(args []string) error {
	o, err := parseTune(args)
	if err != nil {
		return err
	}
	comm.Main(func(ctx context.Context) error { return runTune(ctx, o) })
	return nil
}

// tuneOptions are the parsed command line of "goddp tune".
type tuneOptions struct {
	collective string
	bench      []string // the command line of a run of "goddp bench"
	pairs      int
	settings   []tune.Setting
	timeout    time.Duration
	json       bool
	output     string
}

// parseTune parses the command line.
func parseTune(args []string) (*tuneOptions, error) {
	o := &tuneOptions{collective: "all_reduce"}
	var try []string
	fs := newFlags("tune")
	fs.StringP("minbytes", "b", "16K", "`size` to start with, in bytes; K, M and G are powers of 1024")
	fs.StringP("maxbytes", "e", "64M", "`size` to end at")
	fs.IntP("stepfactor", "f", 16, "ratio of each size to the one before")
	fs.StringP("datatype", "d", "float", "element `type`, as in goddp bench")
	fs.IntP("iters", "n", 20, "calls in a measurement")
	fs.IntP("warmup-iters", "w", 5, "calls before the first one, at each size")
	fs.Int("repeat", 3, "measurements of each run, of which the median counts")
	fs.IntVar(&o.pairs, "pairs", 5, "how often each setting runs beside the default")
	fs.StringArrayVar(&try, "try", nil, "compare this `setting`, NAME=VALUE or 'NAME=VALUE NAME=VALUE', instead of NCCL's; may be repeated")
	fs.DurationVar(&o.timeout, "timeout", time.Minute, "`time` that a run may take")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	fs.StringVarP(&o.output, "output", "o", "", "write the result to this `file`, without the launcher's prefixes")
	if err := parse(fs, args, tuneHelp, jobenv.NoSmallAllReduceVar); err != nil {
		return nil, err
	}
	switch {
	case fs.NArg() > 1:
		return nil, usagef("want one collective, got %d: %s", fs.NArg(), strings.Join(fs.Args(), " "))
	case fs.NArg() == 1:
		o.collective = fs.Arg(0)
	}
	switch {
	case o.pairs < 3:
		return nil, usagef("--pairs %d: want 3 or more, to tell differences from noise", o.pairs)
	case o.timeout <= 0:
		return nil, usagef("--timeout %v: want more than 0", o.timeout)
	}
	for _, text := range try {
		s, err := tune.Parse(text)
		if err != nil {
			return nil, usagef("--try: %w", err)
		}
		o.settings = append(o.settings, s)
	}
	o.bench = []string{"bench", o.collective, "--check=0", "--json"}
	for _, name := range []string{"minbytes", "maxbytes", "stepfactor", "datatype", "iters", "warmup-iters", "repeat"} {
		o.bench = append(o.bench, "--"+name+"="+fs.Lookup(name).Value.String())
	}
	parsed, err := parseBench(o.bench[1:])
	if err != nil {
		return nil, err
	}
	o.collective = parsed.Collective.Name
	return o, nil
}

// runTune compares settings on one rank. Rank 0 prints the result.
func runTune(ctx context.Context, o *tuneOptions) error {
	world, err := comm.WorldFromEnv()
	if err != nil {
		return err
	}
	out, err := createOutput(world.Rank, o.output) // before the runs, because a wrong path found afterwards would waste them
	if err != nil {
		return err
	}
	pg, err := comm.Init(ctx, &comm.Options{Device: cpu.New(nil), Timeout: 2 * o.timeout, ErrorMode: comm.CleanUpOnly})
	if err != nil {
		return err
	}
	defer pg.Close()
	t := &tuner{tuneOptions: o, world: world, pg: pg}
	start := time.Now()
	if _, err := t.measure(ctx, tune.Setting{}); err != nil { // it also fills the caches of compiled kernels
		return fmt.Errorf("the benchmark with NCCL's default settings failed: %w", err)
	}
	if o.settings == nil && t.backend == "nccl" {
		o.settings = tune.NCCL(o.collective)
	}
	if o.settings == nil {
		return fmt.Errorf("the %s backend has no settings to compare: name some with --try", t.backend)
	}
	if runs := 2 * o.pairs * (1 + len(o.settings)); pg.Rank() == 0 {
		fmt.Fprintf(os.Stderr, "goddp tune: %d runs, about %v\n", runs, (time.Duration(runs) * time.Since(start)).Round(time.Second))
	}
	result, err := tune.Run(ctx, o.settings, o.pairs, t.measure)
	if err != nil || pg.Rank() != 0 {
		return err
	}
	report := tune.Report{Collective: o.collective, Ranks: pg.Size(), Backend: t.backend, Pairs: o.pairs, Sizes: t.sizes, Result: result}
	write := report.WriteText
	if o.json {
		write = report.WriteJSON
	}
	return errors.Join(write(out), out.Close())
}

// tuner runs settings on one rank. Its process never opens the GPU.
type tuner struct {
	*tuneOptions
	world comm.World
	pg    *comm.ProcessGroup
	// backend and sizes of the last run.
	backend string
	sizes   []int
}

// measure is a tune.Measure. It retries a failed run once, because another process may have taken its port.
func (t *tuner) measure(ctx context.Context, s tune.Setting) (times []float64, err error) {
	if times, err = t.run(ctx, s); err != nil {
		times, err = t.run(ctx, s)
	}
	return times, err
}

// run runs "goddp bench" with a setting in a new process on every rank, and returns the times on every rank.
func (t *tuner) run(ctx context.Context, s tune.Setting) (times []float64, err error) {
	var master string // where the processes of this run meet
	if t.pg.Rank() == 0 {
		if master, err = t.freeAddress(); err != nil {
			return nil, err
		}
	}
	if err := comm.BroadcastObject(ctx, t.pg, &master, 0); err != nil {
		return nil, err
	}
	type outcome struct{ Output, Error string }
	var mine outcome
	out, err := t.bench(ctx, master, s)
	if mine.Output = out; err != nil {
		mine.Error = err.Error()
	}
	ranks, err := comm.AllGatherObject(ctx, t.pg, mine)
	if err != nil {
		return nil, err
	}
	var failures []string
	for r, o := range ranks { // most failures are the same on all ranks
		if o.Error != "" && (r == 0 || o.Error != ranks[0].Error) {
			failures = append(failures, fmt.Sprintf("rank %d: %s", r, o.Error))
		}
	}
	if len(failures) > 0 {
		return nil, errors.New(strings.Join(failures, "; "))
	}
	t.sizes = nil
	for line := range strings.Lines(ranks[0].Output) {
		var row struct {
			Backend string `json:"backend"`
			collective.Row
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			return nil, fmt.Errorf("%w in the output of goddp bench: %q", err, line)
		}
		t.backend, t.sizes, times = row.Backend, append(t.sizes, row.Size), append(times, row.Time)
	}
	return times, nil
}

// freeAddress returns an address of this host, which is rank 0's, where nothing listens.
func (t *tuner) freeAddress() (string, error) {
	host := cmp.Or(os.Getenv(jobenv.NodeAddrVar), t.world.MasterAddr, wire.Loopback())
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return net.JoinHostPort(host, strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)), nil
}

// ownVariables are variables that the launcher has set for this process, and that its child must not have.
var ownVariables = []string{jobenv.AgentStoreVar, jobenv.ErrorFileVar, jobenv.MasterAddrVar, jobenv.MasterPortVar, jobenv.FlightFDVar, jobenv.DumpOnFailureVar}

// bench runs "goddp bench" in a child process with this rank, and returns what it prints.
func (t *tuner) bench(ctx context.Context, master string, s tune.Setting) (output string, err error) {
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(master)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, t.tuneOptions.bench...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(ownVariables, name)
	})
	cmd.Env = append(cmd.Env, jobenv.MasterAddrVar+"="+host, jobenv.MasterPortVar+"="+port, jobenv.DumpOnFailureVar+"=0")
	cmd.Env = append(cmd.Env, s.Variables...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() == context.DeadlineExceeded {
			err = fmt.Errorf("goddp bench ran for more than %v (--timeout)", t.timeout)
		}
		if errs.Len() == 0 {
			return "", err
		}
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		last := strings.TrimPrefix(lines[len(lines)-1], "error: ")
		return "", fmt.Errorf("%w: %s", err, strings.TrimPrefix(last, fmt.Sprintf("rank %d of %d: ", t.pg.Rank(), t.pg.Size())))
	}
	return out.String(), nil
}

// tuneHelp is the format of "goddp tune --help".
const tuneHelp = `Compare NCCL's settings with its defaults on this job's hosts, and say what to set.

Usage:
  golaunch --nproc-per-node gpu goddp tune [COLLECTIVE] [flags]
  golaunch --nnodes N ... goddp tune [COLLECTIVE] [flags]

COLLECTIVE is all_reduce, which data-parallel training calls, or another of
goddp bench's. Each setting runs beside the default several times, each time in new
processes. The table has the ratios of the times. Without --try the settings are
NCCL_ALGO, NCCL_PROTO, NCCL_MIN_CTAS, NCCL_MAX_CTAS, NCCL_BUFFSIZE and
%s. docs/tune.md says when not to set them.

Examples:
  golaunch --nproc-per-node gpu goddp tune -b 1M -e 256M
  golaunch --nproc-per-node gpu goddp tune --try 'NCCL_ALGO=allreduce:tree NCCL_PROTO=allreduce:ll'

Flags:
%s
Exit codes: 0 there is a report, also if a setting failed; 1 there is none; 2 the
command line is wrong.
`
