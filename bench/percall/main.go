package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
	"unsafe"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// options are the values of the command line's flags.
type options struct {
	minBytes, maxBytes, stepFactor int
	iters, turns, warmup           int
	timeout                        time.Duration
}

// parse parses the command line. If it asks for help, parse prints it and returns pflag.ErrHelp.
func parse(args []string) (options, error) {
	var o options
	fs := pflag.NewFlagSet("percall", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.IntVar(&o.minBytes, "min-bytes", 1<<10, "size to start with")
	fs.IntVar(&o.maxBytes, "max-bytes", 1<<20, "size to end at")
	fs.IntVar(&o.stepFactor, "step-factor", 4, "factor from each size to the next")
	fs.IntVar(&o.iters, "iters", 100, "calls in a turn")
	fs.IntVar(&o.turns, "turns", 41, "turns of each side")
	fs.IntVar(&o.warmup, "warmup", 20, "calls of each side before the first turn, at each size")
	fs.DurationVar(&o.timeout, "timeout", time.Minute, "time limit of every wait")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("want only flags, got the arguments %q", fs.Args())
	}
	for _, f := range []struct {
		name       string
		got, least int
	}{
		{"min-bytes", o.minBytes, 4}, {"max-bytes", o.maxBytes, o.minBytes}, {"step-factor", o.stepFactor, 2},
		{"iters", o.iters, 1}, {"turns", o.turns, 1}, {"warmup", o.warmup, 1}, {"timeout", int(o.timeout), 1},
	} {
		if f.got < f.least {
			return o, fmt.Errorf("--%s %d: want %d or more", f.name, f.got, f.least)
		}
	}
	return o, nil
}

// gpu is a device that NCCL can use.
type gpu interface {
	device.Device
	Context() uintptr
	Lookup(symbol string) (unsafe.Pointer, error) // of libcuda
}

// openGPU opens the GPU of the local rank.
func openGPU() (gpu, error) {
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		return nil, err
	}
	g, ok := dev.(gpu)
	if !ok {
		return nil, errors.Join(fmt.Errorf("NCCL needs a GPU for each rank, but the device of this rank is %v", dev), dev.Close())
	}
	return g, nil
}

// run is one rank's part. The caller closes dev. Rank 0 writes the table, and returns an error if a
// limit was missed.
func run(ctx context.Context, dev gpu, o options, out io.Writer) (err error) {
	pg, err := comm.Init(ctx, &comm.Options{Device: dev, Timeout: o.timeout})
	if err != nil {
		return err
	}
	defer pg.Close()
	plain, evented, leave, err := openRaw(ctx, pg, dev, o.timeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	buf, err := pg.Alloc(o.maxBytes)
	if err != nil {
		return err
	}
	b := &bench{o, pg, [sides]side{plain, evented, goddp(pg)}}
	if pg.Rank() == 0 {
		fmt.Fprintf(out, "%d ranks, rank 0 on %v, %s: %d turns of %d calls each\n%s\n", pg.Size(), dev, plain.name, o.turns, o.iters, header)
	}
	var garbage []byte
	for range 16 << 10 { // grows Go's heap to its size in a program that has run for a while
		garbage = make([]byte, 1<<10)
	}
	runtime.KeepAlive(garbage)
	var rows []row // used by rank 0
	for bytes := o.minBytes; bytes <= o.maxBytes; bytes *= o.stepFactor {
		t := device.NewTensor(buf, device.Float32, bytes/device.Float32.Size())
		mine, err := b.measure(ctx, t)
		if err != nil {
			return fmt.Errorf("rank %d, %d bytes: %w", pg.Rank(), t.Bytes(), err)
		}
		ranks, err := comm.AllGatherObject(ctx, pg, mine) // all ranks must call it, so none leaves while another is in a call
		if err != nil {
			return err
		}
		if pg.Rank() > 0 {
			continue
		}
		rows = append(rows, newRow(t.Bytes(), ranks))
		fmt.Fprintln(out, rows[len(rows)-1])
	}
	return verdict(rows)
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	var dev gpu
	if err == nil {
		dev, err = openGPU()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "percall:", err)
		os.Exit(2)
	}
	comm.Main(func(ctx context.Context) error {
		defer dev.Close()
		return run(ctx, dev, o, os.Stdout)
	})
}
