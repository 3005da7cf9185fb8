package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/goddp/goddp/cmd/goddp/internal/curve"
)

// plotRuns implements "goddp plot", which draws files of package progress.
func plotRuns(args []string) error {
	var out string
	var opts curve.Options
	fs := newFlags("plot")
	fs.StringVarP(&out, "output", "o", "curve.svg", "`file` to write, .svg, .png or .pdf")
	fs.StringSliceVarP(&opts.Names, "names", "y", nil, "numbers to draw (default all but the epoch and what the process held)")
	fs.StringSliceVarP(&opts.Axes, "axes", "x", []string{curve.Steps}, "what to draw against, a column of panels for each: steps, seconds")
	fs.BoolVar(&opts.Beside, "beside", false, "draw the runs beside each other, not in the same panels")
	fs.BoolVar(&opts.Log, "log", false, "draw on a logarithmic scale")
	if err := parse(fs, args, `Draw the curves of one run, or of several in the same panels. The panel of the loss is the
first. What is measured in validation, such as validation_loss, eval_loss or test_loss, is in
the panel of the same number in training.

Usage:
  goddp plot [flags] RUN.jsonl...

The files are those of package progress: an object on each line. Of steps that a file
has twice, because the run was resumed, those written last are drawn.

Examples:
  goddp plot run.jsonl -o curve.svg
  goddp plot one.jsonl four.jsonl -y loss -x steps,seconds -o compare.png
  goddp plot one/run.jsonl two/run.jsonl --beside

Flags:
%s
Exit codes: 0 it is drawn; 1 a file cannot be read or written; 2 usage.
`); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return usagef("want at least one file, got none")
	}
	for _, axis := range opts.Axes {
		if axis != curve.Steps && axis != curve.Seconds {
			return usagef("--axes %q: want %s or %s", axis, curve.Steps, curve.Seconds)
		}
	}
	var runs []*curve.Run
	isNamed := map[string]bool{}
	for _, path := range fs.Args() {
		run, err := curve.Read(path)
		if err != nil {
			return err
		}
		isNamed[run.Name] = true
		runs = append(runs, run)
	}
	if len(isNamed) < len(runs) { // files of the same name in different folders
		for i, name := range differences(fs.Args()) {
			runs[i].Name = name
		}
	}
	return curve.Save(out, runs, opts)
}

// differences returns paths without their extensions, and without the elements that all have at the begin or at the end.
func differences(paths []string) (names []string) {
	var all [][]string
	for _, p := range paths {
		all = append(all, strings.Split(filepath.ToSlash(strings.TrimSuffix(p, filepath.Ext(p))), "/"))
	}
	// drop removes an element of each, if it is the same in all and not the only one.
	drop := func(at func(elements []string) int) (isDropped bool) {
		for _, e := range all {
			if len(e) == 1 || e[at(e)] != all[0][at(all[0])] {
				return false
			}
		}
		for i, e := range all {
			all[i] = slices.Delete(e, at(e), at(e)+1)
		}
		return true
	}
	for drop(func([]string) int { return 0 }) {
	}
	for drop(func(elements []string) int { return len(elements) - 1 }) {
	}
	for _, e := range all {
		names = append(names, strings.Join(e, "/"))
	}
	return names
}
