package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// campaign holds the options under which scenarios run.
type campaign struct {
	terms
	seed    uint64
	jobs    int           // how many run at a time
	slack   time.Duration // added to every promised time
	verbose bool          // print the output of every scenario
	each    bool          // report every scenario, not only those that failed
	kept    string        // the folder for records and outputs; "" if they are not kept
	again   string        // the command that runs a scenario again, without its number
	out     io.Writer
	noDisk  error // why this process cannot mount a full disk; nil if it can
	noUser  error // why this process cannot become another user; nil if it can
}

// try runs one scenario with the programs in bin. It writes records and output below the folder kept,
// unless kept is "".
func (c *campaign) try(ctx context.Context, s *scenario, bin binaries, kept string) (v verdict, output string) {
	if s.Fault == fullDisk && c.noDisk != nil {
		v.skipped = c.noDisk.Error()
		return v, ""
	}
	if s.Fault == stranger && c.noUser != nil {
		v.skipped = c.noUser.Error()
		return v, ""
	}
	if (s.Fault == doubleFault || s.Fault == sourceDies) && s.World < leastSurvivors {
		v.skipped = "two workers die, and one must be left"
		return v, ""
	}
	j, err := newJob(s, bin)
	if err != nil {
		v.wrongf("%v", err)
		return v, ""
	}
	defer j.remove()
	if s.Fault == fullDisk {
		if err := j.fill(); err != nil {
			v.wrongf("%v", err)
			return v, ""
		}
	}
	if err = j.start(ctx); err == nil {
		var at time.Time
		if at, err = j.inject(ctx); err == nil {
			j.awaitEnd(at, s.deadline()+c.slack, &v)
		}
	}
	if err != nil {
		v.isHung = true
		v.wrongf("%v", err)
	}
	if !v.isHung {
		j.judge(&v)
	}
	v.shorten(j.dir)
	if kept != "" {
		if err := j.keep(filepath.Join(kept, s.folder())); err != nil {
			v.wrongf("%v", err)
		}
	}
	return v, j.output()
}

// result is a scenario and its verdict.
type result struct {
	scenario
	verdict
}

// run runs c.jobs scenarios at a time and returns all results in order. It prints each failure when
// the scenario has ended.
func (c *campaign) run(ctx context.Context, scenarios []scenario, bin binaries) []result {
	results := make([]result, len(scenarios))
	var mu sync.Mutex // held while a result is printed to c.out
	parallel(c.jobs, len(scenarios), func(i int) {
		s := &scenarios[i]
		if ctx.Err() != nil {
			return
		}
		v, output := c.try(ctx, s, bin, c.kept)
		results[i] = result{*s, v}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case c.verbose:
			fmt.Fprintf(c.out, "%v\n%s", s, indent(output))
			fallthrough
		case c.each || !v.ok():
			state := "ok"
			if !v.ok() {
				state = fmt.Sprintf("FAILED: %v\n  again: %s -only %d -v", &v, c.again, s.K)
			}
			fmt.Fprintf(c.out, "%v: %s\n", s, state)
		}
	})
	return results
}

// parallel calls f(0) to f(n-1), jobs of them at a time, and returns when all have returned.
func parallel(jobs, n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range jobs {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

func indent(text string) string {
	return "  | " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  | ") + "\n"
}

// allOK reports whether no scenario failed.
func allOK(results []result) bool {
	return !slices.ContainsFunc(results, func(r result) bool { return !r.ok() })
}
