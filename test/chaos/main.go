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
	"slices"
	"strings"
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

// perCell is the default number of scenarios for each cell.
const perCell = 8

func run(ctx context.Context) error {
	c := campaign{out: os.Stdout}
	n := flag.Int("n", perCell*len(cells), "how many scenarios to draw")
	only := flag.Int("only", -1, "run scenario `k` alone, and no mutants")
	faults := flag.String("faults", "", "run only the drawn scenarios with these `faults`, as in kill,stop")
	modes := flag.String("modes", "", "run only the drawn scenarios in these error `modes`, as in async,none")
	mutate := flag.Bool("mutants", true, "catch the mutants after the scenarios")
	toBuild := flag.String("build", "", "build all programs, for -bin, into this new `folder`, and end")
	built := flag.String("bin", "", "run the programs in this `folder`, which -build made, or which holds golaunch, goddp, worker and survivor alone (no mutants); \"\" builds them")
	flag.StringVar(&c.Device, "device", usual.Device, "the ranks' `device`: cpu, or cuda, where each rank has its own GPU")
	flag.IntVar(&c.Ranks, "ranks", 0, "the number of ranks of every job; 0 draws 2 to 4")
	flag.BoolVar(&c.Detail, "detail", false, "let the ranks compare their calls before the calls run: GODDP_DEBUG=DETAIL")
	flag.DurationVar(&c.Timeout, "timeout", usual.Timeout, "the timeout of the workers' calls")
	flag.BoolVar(&c.each, "each", false, "print a line for every scenario")
	flag.StringVar(&c.kept, "keep", "", "write the flight records and the output of every scenario, but not of the mutants', below this `folder`")
	flag.Uint64Var(&c.seed, "seed", 1, "the seed of the scenarios")
	flag.IntVar(&c.jobs, "j", 2, "how many scenarios run at a time")
	flag.DurationVar(&c.slack, "slack", 5*time.Second, "add this `time` to every promised time")
	flag.BoolVar(&c.verbose, "v", false, "print what all processes write")
	flag.Parse()
	*mutate = *mutate && *only < 0
	if *built != "" {
		_, err := os.Stat(mutantFolder(*built, 0))
		*mutate = *mutate && err == nil
	}
	if *toBuild != "" {
		root, err := moduleRoot(ctx)
		if err != nil {
			return err
		}
		return buildAll(ctx, root, *toBuild)
	}
	switch {
	case runtime.GOOS != "linux":
		return errors.New("it needs Linux: it reads /proc")
	case c.Device != cpu && c.Device != cuda:
		return fmt.Errorf("-device is %q, want cpu or cuda", c.Device)
	case c.Ranks < 0 || c.Ranks == 1:
		return fmt.Errorf("-ranks is %d, want at least 2", c.Ranks)
	case c.Device == cuda && c.Ranks == 0:
		return errors.New("-device cuda needs -ranks: every rank needs its own GPU")
	}
	scenarios, err := c.draw(*n, *only, *faults, *modes)
	if err != nil {
		return err
	}
	os.Setenv("GODDP_DEVICE", c.Device) // of the undisturbed runs of jobs that survive, which are in this process
	c.noDisk, c.noUser = canFill(), canIntrude()
	c.again = replay()

	dir, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	goddp := filepath.Join(dir, "goddp")
	var bin binaries
	newMutant := func(i int, dir string) (binaries, error) { return copyBinaries(mutantFolder(*built, i), dir) }
	if *built != "" {
		bin, err = copyBinaries(*built, goddp)
	} else {
		var root string
		if root, err = moduleRoot(ctx); err != nil {
			return err
		}
		for i := range mutants { // fail before the scenarios run
			if _, err := mutants[i].apply(root); err != nil {
				return err
			}
		}
		newMutant = func(i int, dir string) (binaries, error) { return build(ctx, root, dir, &mutants[i]) }
		bin, err = build(ctx, root, goddp, nil)
	}
	if err != nil {
		return err
	}
	if left, err := os.ReadDir(c.kept); c.kept != "" && err == nil && len(left) > 0 {
		return fmt.Errorf("-keep: %s is not empty", c.kept)
	}
	started := time.Now()
	results := c.run(ctx, scenarios, bin)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fmt.Printf("\n%d scenarios, seed %d, %d at a time, in %v:\n\n%s", len(results), c.seed, c.jobs, time.Since(started).Round(time.Second), table(results))
	if c.noDisk != nil {
		fmt.Printf("\nSkipped, with a full disk: %v\n", c.noDisk)
	}
	if c.noUser != nil {
		fmt.Printf("\nSkipped, with a stranger: %v\n", c.noUser)
	}
	survived := 0
	if *mutate {
		if survived, err = c.hunt(ctx, dir, bin, newMutant); err != nil {
			return err
		}
	}
	switch {
	case !allOK(results):
		return errors.New("scenarios failed")
	case survived > 0:
		return fmt.Errorf("%d mutants survived", survived)
	}
	return nil
}

// draw returns those of n scenarios that have one of the faults and one of the modes, or, if only is
// not negative, that one scenario.
func (c *campaign) draw(n, only int, faults, modes string) (scenarios []scenario, err error) {
	known := map[string]bool{"": true}
	for _, c := range cells {
		known[string(c.Fault)], known[string(c.Mode)] = true, true
	}
	for _, name := range strings.Split(faults+","+modes, ",") {
		if !known[name] {
			return nil, fmt.Errorf("there is no fault and no mode %q", name)
		}
	}
	isWanted := func(list, name string) bool { return list == "" || slices.Contains(strings.Split(list, ","), name) }
	first, end := 0, n
	if only >= 0 {
		first, end = only, only+1
	}
	for k := first; k < end; k++ {
		if s := draw(c.seed, k, c.terms); isWanted(faults, string(s.Fault)) && isWanted(modes, string(s.Mode)) {
			scenarios = append(scenarios, s)
		}
	}
	if len(scenarios) == 0 {
		return nil, errors.New("no scenario is left to run")
	}
	return scenarios, nil
}

// replay returns this command without the flags that choose scenarios and what is printed.
func replay() string {
	words := []string{"go run ./test/chaos"}
	flag.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "n", "only", "v", "each", "keep", "j", "mutants", "faults", "modes":
		default:
			words = append(words, fmt.Sprintf("-%s=%v", f.Name, f.Value))
		}
	})
	return strings.Join(words, " ")
}
