package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/goddp/goddp/cmd/goddp/internal/collective"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/jobenv"
)

// bench implements "goddp bench", one rank of a benchmark.
func bench(args []string) error {
	o, err := parseBench(args)
	if err != nil {
		return err
	}
	// If the variables are invalid, comm.Init returns the error.
	if world, err := comm.WorldFromEnv(); err == nil {
		if err := o.CheckRanks(world.Size); err != nil {
			return &usageError{err: err, known: true}
		}
	}
	comm.Main(func(ctx context.Context) error { return runBench(ctx, o) })
	return nil
}

// benchOptions holds the parsed command line of "goddp bench".
type benchOptions struct {
	collective.Config
	json bool
}

// parseBench parses the command line.
func parseBench(args []string) (*benchOptions, error) {
	o := &benchOptions{}
	var minBytes, maxBytes, datatype, op string
	fs := newFlags("bench")
	fs.StringVarP(&minBytes, "minbytes", "b", "32M", "`size` to start with, in bytes; K, M and G are powers of 1024")
	fs.StringVarP(&maxBytes, "maxbytes", "e", "32M", "`size` to end at")
	fs.IntVarP(&o.StepFactor, "stepfactor", "f", 2, "ratio of each size to the one before")
	fs.StringVarP(&datatype, "datatype", "d", "float", "element `type`: uint8, int32, int64, half, bfloat16, float, double")
	fs.StringVarP(&op, "op", "o", "sum", "`reduction`: sum, prod, min, max, avg")
	fs.IntVarP(&o.Root, "root", "r", 0, "`rank` that is the root of broadcast and reduce")
	fs.IntVarP(&o.Iters, "iters", "n", 20, "calls in a measurement")
	fs.IntVarP(&o.Warmup, "warmup-iters", "w", 5, "calls before the first one, at each size")
	fs.IntVar(&o.Repeat, "repeat", 1, "measurements at each size, of which the median is shown")
	fs.IntVarP(&o.Checks, "check", "c", 1, "calls after the last one, whose results are checked")
	fs.IntVarP(&o.Graphs, "cudagraph", "G", 0, "capture the calls of a measurement in a CUDA graph, and launch it so many times; 0: no graph. Not for all_to_all and sendrecv")
	fs.BoolVar(&o.Private, "private", false, "take memory from the device instead of ProcessGroup.Alloc")
	fs.BoolVar(&o.json, "json", false, "print a JSON object for each size")
	if err := parse(fs, args, benchHelp, strings.Join(collective.Names(), ", "), jobenv.DeviceVar); err != nil {
		return nil, err
	}
	switch {
	case fs.NArg() == 0:
		return nil, usagef("want the name of a collective")
	case fs.NArg() > 1:
		return nil, usagef("want one collective, got %d: %s", fs.NArg(), strings.Join(fs.Args(), " "))
	}
	var errs [5]error
	o.Collective, errs[0] = collective.Find(fs.Arg(0))
	o.MinBytes, errs[1] = parseSize("minbytes", minBytes)
	o.MaxBytes, errs[2] = parseSize("maxbytes", maxBytes)
	o.DType, errs[3] = collective.FindType(datatype)
	o.Op, errs[4] = collective.FindOp(op)
	for _, err := range errs {
		if err != nil {
			return nil, &usageError{err: err}
		}
	}
	if o.MaxBytes < o.MinBytes {
		return nil, usagef("--maxbytes %s is less than --minbytes %s", maxBytes, minBytes)
	}
	for _, f := range []struct {
		name       string
		got, least int
	}{
		{"stepfactor", o.StepFactor, 2}, {"iters", o.Iters, 1}, {"repeat", o.Repeat, 1},
		{"warmup-iters", o.Warmup, 0}, {"check", o.Checks, 0}, {"cudagraph", o.Graphs, 0}, {"root", o.Root, 0},
	} {
		if f.got < f.least {
			return nil, usagef("--%s %d: want %d or more", f.name, f.got, f.least)
		}
	}
	return o, nil
}

// parseSize parses a number of bytes in the notation of nccl-tests: "8", "1.5K", "64M".
func parseSize(flag, text string) (int, error) {
	number, unit := text, 1.0
	if n := len(text); n > 0 {
		if at := strings.IndexByte("KMG", text[n-1]&^0x20); at >= 0 {
			number, unit = text[:n-1], float64(int(1)<<(10*(at+1)))
		}
	}
	bytes, err := strconv.ParseFloat(number, 64)
	if bytes *= unit; err != nil || !(bytes >= 1 && bytes < math.MaxInt64) {
		return 0, fmt.Errorf("--%s %q: want a number of bytes, 1 or more, such as 8, 64K or 1G", flag, text)
	}
	return int(bytes), nil
}

// runBench runs the benchmark on one rank. Rank 0 prints the results.
func runBench(ctx context.Context, o *benchOptions) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	out := io.Writer(stdout)
	if pg.Rank() != 0 {
		out = io.Discard
	}
	r := benchReport{out, o, pg}
	wrong, busBW, rows := 0, 0.0, 0
	r.begin()
	err = collective.Run(ctx, pg, o.Config, func(row collective.Row) error {
		wrong, busBW, rows = wrong+max(0, row.Wrong), busBW+row.BusBW, rows+1
		return r.row(row)
	})
	if err != nil {
		return err
	}
	r.end(wrong, busBW/float64(rows))
	if wrong > 0 {
		return fmt.Errorf("%s: %d elements of the result were wrong", o.Collective.Name, wrong)
	}
	return stdout.err
}

// benchReport prints the results, as nccl-tests' table or as JSON lines.
type benchReport struct {
	out io.Writer
	*benchOptions
	pg *comm.ProcessGroup
}

func (r *benchReport) begin() {
	if r.json {
		return
	}
	fmt.Fprintf(r.out, "# goddp bench %s: %d ranks, backend %s, rank 0 on %v\n", r.Collective.Name, r.pg.Size(), r.pg.Backend(), r.pg.Device())
	fmt.Fprintf(r.out, "# iterations: %d, warm-up: %d, repetitions: %d, checks: %d\n#\n", r.Iters, r.Warmup, r.Repeat, r.Checks)
	const columns = "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s\n"
	fmt.Fprintf(r.out, columns, "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
	fmt.Fprintf(r.out, columns, "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
}

func (r *benchReport) row(row collective.Row) error {
	if r.json {
		return json.NewEncoder(r.out).Encode(struct {
			Collective string `json:"collective"`
			Ranks      int    `json:"ranks"`
			Backend    string `json:"backend"`
			collective.Row
		}{r.Collective.Name, r.pg.Size(), r.pg.Backend(), row})
	}
	digits := 2
	switch {
	case row.Time >= 10000:
		digits = 0
	case row.Time >= 100:
		digits = 1
	}
	wrong := "N/A"
	if row.Wrong >= 0 {
		wrong = strconv.Itoa(row.Wrong)
	}
	_, err := fmt.Fprintf(r.out, "%12d  %12d  %8s  %6s  %6d  %7.*f  %6.2f  %6.2f  %6s\n",
		row.Size, row.Count, row.Type, row.Op, row.Root, digits, row.Time, row.AlgBW, row.BusBW, wrong)
	return err
}

func (r *benchReport) end(wrong int, busBW float64) {
	if r.json {
		return
	}
	verdict := "OK"
	if wrong > 0 {
		verdict = "FAILED"
	}
	fmt.Fprintf(r.out, "# Out of bounds values : %d %s\n# Avg bus bandwidth    : %.4g\n", wrong, verdict, busBW)
}

// benchHelp is the format of "goddp bench --help".
const benchHelp = `Measure a collective at several sizes, and check its results.

Usage:
  golaunch --nproc-per-node N goddp bench COLLECTIVE [flags]

COLLECTIVE is one of
  %s
or spelled otherwise: AllReduce, alltoall_perf. It runs on GPUs through NCCL
where the host has them, else on the CPU; %s=cpu chooses that.

Examples:
  golaunch --nproc-per-node 4 goddp bench all_reduce -b 1K -e 1G -f 4
  golaunch --nproc-per-node 2 goddp bench sendrecv -b 8 -e 64M --json

Flags:
%s
The flags, the columns and the bandwidths are nccl-tests'. There is one time
instead of two: all_reduce, broadcast and reduce work in place, the others out
of place. A time is the mean over the calls, the largest of the ranks'.

Exit codes: 0 all went well; 1 an element was wrong, or the group failed;
2 usage.
`
