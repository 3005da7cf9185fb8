package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/internal/timeline"
)

// trace implements "goddp trace", which says what traces of package profile show.
func trace(args []string) error {
	var asJSON, kernels bool
	fs := newFlags("trace")
	fs.BoolVar(&asJSON, "json", false, "print the report as a JSON object, with times in nanoseconds")
	fs.BoolVar(&kernels, "kernels", false, "also print what each kernel took, by its name")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			fmt.Fprintf(stdout, `Say what the GPUs did in a trace of package profile, and why they were idle.

Usage:
  goddp trace [flags] FILE...

The files are traces of one job: one file for each rank, or one with several ranks.

For each rank:
  compute        time in which a kernel computed
  communication  time in which a kernel communicated (NCCL's, or goddp's own)
  exposed        the part of it in which no kernel computed
  copies         time in which memory was copied or set
  idle           time in which the GPU did nothing of this
  hidden         the part of the communication that is not exposed; "by spans": the same
                 by the events on the streams, as profile.Recorder's Overlap returns it

Flags:
%s
Exit codes: 0 it is printed; 1 a file cannot be read; 2 usage.
`, fs.FlagUsages())
			return nil
		}
		return &usageError{err: err}
	}
	if fs.NArg() == 0 {
		return usagef("want at least one file, got none")
	}
	report, err := timeline.Analyze(fs.Args()...)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(stdout).Encode(report)
	}
	fmt.Fprint(stdout, report)
	if kernels {
		fmt.Fprint(stdout, report.KernelTable())
	}
	return nil
}
