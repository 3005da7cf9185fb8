package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/jobenv"
)

// dump implements "goddp dump", which writes the flight records of a running job.
func dump(args []string) error {
	var dir string
	fs := newFlags("dump")
	fs.StringVarP(&dir, "dir", "d", "", "`folder` to write into (default: a new temporary one)")
	if err := parse(fs, args, `Write the flight records of a running job's ranks on this host, and go on.

Usage:
  goddp dump [flags] JOB

JOB is the process id of golaunch, or of one rank; or the job's name: what
golaunch was given as --rdzv-id, or %s of its workers. The ranks are
not asked: they may be stuck, or suspended. They have to be of the same user, and
started by golaunch, on Linux.

Flags:
%s
Exit codes: 0 they are written; 1 there are none, or one cannot be written; 2 usage.
`, jobenv.JobIDVar); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return usagef("want one job, got %d", fs.NArg())
	}
	job := fs.Arg(0)
	dumps, err := flight.Find(job)
	if err != nil {
		return err
	}
	if len(dumps) == 0 {
		return fmt.Errorf("no flight record of job %q exists on this host for this user", job)
	}
	if dir == "" || files.IsShared(dir) {
		dir, err = os.MkdirTemp(dir, "goddp_flight_")
	} else {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range dumps {
		path, err := d.Write(dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintln(stdout, path)
	}
	if len(errs) < len(dumps) {
		fmt.Fprintf(os.Stderr, "What they mean: goddp analyze %s\n", dir)
	}
	return errors.Join(errs...)
}
