package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/flight/analyze"
)

// exitCulprit is the exit code of "goddp analyze" if the records show a failure.
const exitCulprit = 1

// analyzeRecords implements "goddp analyze", which analyzes the flight records in a folder.
func analyzeRecords(args []string) error {
	var asJSON bool
	fs := newFlags("analyze")
	fs.BoolVar(&asJSON, "json", false, "print the report as a JSON object")
	if err := parse(fs, args, `Find out from all ranks' flight records which rank caused a failure.

Usage:
  goddp analyze [flags] DIR

DIR holds the files rank_*.json that golaunch, goddp dump and failed ranks write.
For a job on several nodes, copy the files of all nodes into one folder.

Flags:
%s
Exit codes: 0 if nothing is wrong; 1 if a rank caused a failure, or a record cannot
be read; 2 if the command line is wrong, or DIR holds no records.
`); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return usagef("want one folder, got %d", fs.NArg())
	}
	dumps, broken := flight.ReadDir(fs.Arg(0))
	if errors.Is(broken, flight.ErrNoDumps) {
		return &usageError{err: broken, known: true}
	}
	if len(dumps) == 0 {
		return broken
	}
	report := analyze.Analyze(dumps)
	if asJSON {
		if err := json.NewEncoder(stdout).Encode(report); err != nil {
			return err
		}
	} else {
		fmt.Fprint(stdout, report)
	}
	if broken == nil && len(report.Findings) > 0 {
		return exitCode(exitCulprit)
	}
	return broken
}
