package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/goddp/goddp/cmd/goddp/internal/stepplot"
	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/timeline"
)

// trace implements "goddp trace", which says what traces of package profile show.
func trace(args []string) error {
	var asJSON, kernels bool
	var before []string
	var merged, picture string
	fs := newFlags("trace")
	fs.StringSliceVar(&before, "before", nil, "compare with these `files` or patterns: the traces before a change")
	fs.StringVar(&picture, "svg", "", "draw the step of median length into this `file`, .svg, .png or .pdf, instead")
	fs.StringVar(&merged, "merge", "", "write the traces of all ranks, on one clock, into this `file` for Perfetto, instead")
	fs.BoolVar(&kernels, "kernels", false, "print all kernels, not only those that take the most")
	fs.BoolVar(&asJSON, "json", false, "print the report, or the comparison, as a JSON object with times in nanoseconds")
	if err := parse(fs, args, `Say where the time of a training step went: on each rank, and for the job.

Usage:
  goddp trace [flags] FILE...

The files are traces of one job that package profile has written: a file for each rank, or
one with several ranks. Ranks on different hosts are put on one clock.

The time of a step is the sum of four parts:
  compute  a kernel computes
  exposed  a kernel communicates, and none computes
  copies   memory is copied or set, and no kernel runs
  idle     nothing of this
Beside them:
  communication  a kernel communicates
  hidden         the part of the communication during which a kernel computes
  waiting        the part of the communication before the last rank takes part in it

Examples:
  goddp trace trace.json trace.rank*.json
  goddp trace new*.json --before 'old*.json'
  goddp trace trace*.json --svg step.svg

Flags:
%s
Exit codes: 0 it is printed; 1 a file cannot be read or written; 2 usage.
`); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return usagef("want at least one file, got none")
	}
	if (picture != "" || merged != "") && (asJSON || len(before) > 0) {
		return usagef("--svg and --merge write files instead of a report: want them without --json and --before")
	}
	job, err := timeline.Read(fs.Args()...)
	if err != nil {
		return err
	}
	if picture != "" || merged != "" {
		return draw(job, picture, merged)
	}
	var report interface{ Text(allKernels bool) string } = job.Report()
	if len(before) > 0 {
		old, err := timeline.Read(expand(before)...)
		if err != nil {
			return err
		}
		if report, err = timeline.Compare(old.Report(), job.Report()); err != nil {
			return err
		}
	}
	if asJSON {
		return json.NewEncoder(stdout).Encode(report)
	}
	_, err = fmt.Fprint(stdout, report.Text(kernels))
	return err
}

// draw writes a picture of a job's step and its merged traces, each if it has a path.
func draw(job *timeline.Job, picture, merged string) error {
	if merged != "" {
		if err := files.Write(merged, 0o644, job.Merge); err != nil {
			return err
		}
	}
	if picture == "" {
		return nil
	}
	rows, err := job.MedianStep()
	if err != nil {
		return err
	}
	return stepplot.Save(picture, rows, job.Report().Straggler)
}

// expand replaces patterns by the names that match them. It keeps a pattern without a match, as shells do.
func expand(patterns []string) (paths []string) {
	for _, p := range patterns {
		if found, err := filepath.Glob(p); err == nil && len(found) > 0 {
			paths = append(paths, found...)
			continue
		}
		paths = append(paths, p)
	}
	return paths
}
