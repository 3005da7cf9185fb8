package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/flight/analyze"
)

// exitCulprit is the exit code of "goddp analyze" when something is wrong.
const exitCulprit = 1

// analyzeRecords is "goddp analyze": it judges the flight records in a folder.
func analyzeRecords(args []string) error {
	var asJSON bool
	fs := newFlags("analyze")
	fs.BoolVar(&asJSON, "json", false, "print the report as a JSON object")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			fmt.Printf(`Say from all ranks' flight records which rank is the culprit.

Usage:
  goddp analyze [flags] DIR

DIR holds rank_*.json, as golaunch, goddp dump and failed ranks write them. Of a
job on several nodes, bring the files of all into one folder.

Flags:
%s
Exit codes: 0 nothing is wrong; 1 there is a culprit, or a record that cannot be
read; 2 usage, or no records in DIR.
`, fs.FlagUsages())
			return nil
		}
		return &usageError{err: err}
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
		if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
			return err
		}
	} else {
		fmt.Print(report)
	}
	if broken == nil && len(report.Findings) > 0 {
		os.Exit(exitCulprit)
	}
	return broken
}
