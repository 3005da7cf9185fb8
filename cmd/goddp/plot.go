package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/cmd/goddp/internal/curve"
)

// plotRuns implements "goddp plot", which draws files of package progress.
func plotRuns(args []string) error {
	var out string
	var opts curve.Options
	fs := newFlags("plot")
	fs.StringVarP(&out, "output", "o", "curve.svg", "`file` to write, .svg, .png or .pdf")
	fs.StringSliceVarP(&opts.Names, "names", "y", nil, "numbers to draw, a row of panels for each (default all but what the process held)")
	fs.StringSliceVarP(&opts.Axes, "axes", "x", []string{"steps"}, "what to draw against, a panel for each: steps, seconds")
	fs.BoolVar(&opts.Log, "log", false, "draw on a logarithmic scale")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			fmt.Fprintf(stdout, `Draw the curves of one run, or of several in the same panels.

Usage:
  goddp plot [flags] RUN.jsonl...

The files are those of package progress: an object on each line. Of steps that a file
has twice, because the run was resumed, those written last are drawn.

Examples:
  goddp plot run.jsonl -o curve.svg
  goddp plot one.jsonl four.jsonl -y loss -x steps,seconds -o compare.png

Flags:
%s
Exit codes: 0 it is drawn; 1 a file cannot be read or written; 2 usage.
`, fs.FlagUsages())
			return nil
		}
		return &usageError{err: err}
	}
	if fs.NArg() == 0 {
		return usagef("want at least one file, got none")
	}
	var runs []*curve.Run
	for _, path := range fs.Args() {
		run, err := curve.Read(path)
		if err != nil {
			return err
		}
		runs = append(runs, run)
	}
	return curve.Save(out, runs, opts)
}
