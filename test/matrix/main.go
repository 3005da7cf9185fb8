package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"

	"github.com/goddp/goddp/comm"
)

var only = flag.String("run", ".", "train only the ways whose columns \"WAY TYPE\" match this `REGEXP`")

func matrix(ctx context.Context) error {
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	if pg.Rank() == 0 {
		fmt.Printf("ranks: %d, device: %v, backend: %s\n%s\n", pg.Size(), pg.Device(), pg.Backend(), header)
	}
	count, missed, j := 0, 0, newJob(pg)
	for _, c := range trials(pg.Device()) {
		verdicts, err := c.run(ctx, j, pattern)
		if err != nil {
			return err
		}
		count += len(verdicts)
		for _, v := range verdicts {
			fmt.Println(v)
			if !v.ok() {
				missed++
			}
		}
	}
	if count == 0 && pg.Rank() == 0 {
		return fmt.Errorf("-run %s matches nothing", *only)
	}
	if missed > 0 {
		return fmt.Errorf("ways that missed a limit: %d", missed)
	}
	return nil
}

// run trains the trial in the ways that the pattern matches, and compares each with a single process. It
// returns the verdicts on rank 0, and none on the other ranks.
func (c trial) run(ctx context.Context, j *job, pattern *regexp.Regexp) (verdicts []verdict, err error) {
	var want *reference
	for _, w := range c.ways {
		if !pattern.MatchString(w.name + " " + c.types()) {
			continue
		}
		if want == nil {
			if want, err = c.trainReference(ctx, j); err != nil {
				return nil, fmt.Errorf("%s %s in a single process: %w", w.name, c.types(), err)
			}
		}
		got, err := w.train(ctx, j, c.recipe)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", w.name, c.types(), err)
		}
		ranks, err := comm.GatherObject(ctx, j.ProcessGroup, got.shared, 0)
		if err != nil {
			return nil, err
		}
		if j.Rank() == 0 {
			verdicts = append(verdicts, c.judge(w, want, got, ranks))
		}
	}
	return verdicts, nil
}

func main() {
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "matrix: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	comm.Main(matrix)
}
