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

// perCell is how many scenarios of each cell the campaign has by default.
const perCell = 8

func run(ctx context.Context) error {
	c := campaign{out: os.Stdout}
	n := flag.Int("n", perCell*len(cells), "draw so many scenarios")
	only := flag.Int("only", -1, "run scenario `k` alone, and no mutants")
	faults := flag.String("faults", "", "of those drawn, run only scenarios with these `faults`, as in kill,stop")
	modes := flag.String("modes", "", "and in these error `modes`")
	mutate := flag.Bool("mutants", true, "then let it catch mutants")
	toBuild := flag.String("build", "", "build all that is run into this new `folder`, for -bin, and end")
	built := flag.String("bin", "", "run what -build made in this `folder`, or golaunch, goddp and worker alone; else build it")
	flag.StringVar(&c.Device, "device", usual.Device, "run the ranks on the `cpu`, or on cuda: a GPU each")
	flag.IntVar(&c.Ranks, "ranks", 0, "start so many in every job; 0: 2 to 4")
	flag.BoolVar(&c.Detail, "detail", false, "have the ranks compare their calls before these run: GODDP_DEBUG=DETAIL")
	flag.DurationVar(&c.Timeout, "timeout", usual.Timeout, "of the workers' calls")
	flag.BoolVar(&c.each, "each", false, "print a line for every scenario")
	flag.StringVar(&c.kept, "keep", "", "leave the flight records and the output of every scenario, but for the mutants', below this `folder`")
	flag.Uint64Var(&c.seed, "seed", 1, "of the scenarios")
	flag.IntVar(&c.jobs, "j", 2, "run so many at a time")
	flag.DurationVar(&c.slack, "slack", 5*time.Second, "add this `time` to what is promised")
	flag.BoolVar(&c.verbose, "v", false, "show what all processes write")
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
		return errors.New("-device cuda needs -ranks: every rank needs a GPU of its own")
	}
	scenarios, err := c.draw(*n, *only, *faults, *modes)
	if err != nil {
		return err
	}
	c.noDisk, c.noUser = canFill(), canIntrude()
	c.again = replay()

	dir, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	product := filepath.Join(dir, "product")
	var bin binaries
	mutant := func(i int, dir string) (binaries, error) { return adopt(mutantFolder(*built, i), dir) }
	if *built != "" {
		bin, err = adopt(*built, product)
	} else {
		var root string
		if root, err = moduleRoot(ctx); err != nil {
			return err
		}
		for i := range mutants {
			if _, err := mutants[i].apply(root); err != nil {
				return err
			}
		}
		mutant = func(i int, dir string) (binaries, error) { return build(ctx, root, dir, &mutants[i]) }
		bin, err = build(ctx, root, product, nil)
	}
	if err != nil {
		return err
	}
	if left, err := os.ReadDir(c.kept); c.kept != "" && err == nil && len(left) > 0 {
		return fmt.Errorf("-keep: there is something in %s already", c.kept)
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
	if c.noUser != nil {
		fmt.Printf("\nSkipped, with a stranger: %v\n", c.noUser)
	}
	survived := 0
	if *mutate {
		if survived, err = c.hunt(ctx, dir, bin, mutant); err != nil {
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

// draw draws n scenarios, or the only one, and leaves out what is not asked for.
func (c *campaign) draw(n, only int, faults, modes string) (scenarios []scenario, err error) {
	known := map[string]bool{"": true}
	for _, c := range cells {
		known[string(c.Fault)], known[string(c.Mode)] = true, true
	}
	for _, word := range strings.Split(faults+","+modes, ",") {
		if !known[word] {
			return nil, fmt.Errorf("there is no fault and no mode %q", word)
		}
	}
	wanted := func(list, word string) bool { return list == "" || slices.Contains(strings.Split(list, ","), word) }
	first, end := 0, n
	if only >= 0 {
		first, end = only, only+1
	}
	for k := first; k < end; k++ {
		if s := draw(c.seed, k, c.terms); wanted(faults, string(s.Fault)) && wanted(modes, string(s.Mode)) {
			scenarios = append(scenarios, s)
		}
	}
	if len(scenarios) == 0 {
		return nil, errors.New("no scenario is left to run")
	}
	return scenarios, nil
}

// replay is this command, without what chooses scenarios.
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
