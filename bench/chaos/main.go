package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// perCell is how many scenarios of each cell the campaign has by default.
const perCell = 8

func run(ctx context.Context) error {
	c := campaign{out: os.Stdout}
	n := flag.Int("n", perCell*len(cells), "run so many scenarios")
	only := flag.Int("only", -1, "run scenario `k` alone, and no mutants")
	mutate := flag.Bool("mutants", true, "then let it catch mutants")
	flag.Uint64Var(&c.seed, "seed", 1, "of the scenarios")
	flag.IntVar(&c.jobs, "j", 2, "run so many at a time")
	flag.DurationVar(&c.slack, "slack", 5*time.Second, "add this `time` to what is promised")
	flag.BoolVar(&c.verbose, "v", false, "show what all processes write")
	flag.Parse()
	*mutate = *mutate && *only < 0
	if runtime.GOOS != "linux" {
		return errors.New("it needs Linux: it reads /proc")
	}
	c.noDisk = canFill()

	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	if *mutate {
		for i := range mutants {
			if _, err := mutants[i].apply(root); err != nil {
				return err
			}
		}
	}
	dir, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin, err := build(ctx, root, filepath.Join(dir, "product"), nil)
	if err != nil {
		return err
	}
	scenarios := make([]scenario, *n)
	for k := range scenarios {
		scenarios[k] = draw(c.seed, k)
	}
	if *only >= 0 {
		scenarios = []scenario{draw(c.seed, *only)}
	}
	begun := time.Now()
	results := c.run(ctx, scenarios, bin)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fmt.Printf("\n%d scenarios, seed %d, %d at a time, in %v:\n\n%s", len(results), c.seed, c.jobs, time.Since(begun).Round(time.Second), table(results))
	if c.noDisk != nil {
		fmt.Printf("\nSkipped, with a full disk: %v\n", c.noDisk)
	}
	survived := 0
	if *mutate {
		if survived, err = c.hunt(ctx, root, dir, bin); err != nil {
			return err
		}
	}
	switch {
	case !clean(results):
		return errors.New("scenarios failed")
	case survived > 0:
		return fmt.Errorf("%d mutants survived", survived)
	}
	return nil
}
