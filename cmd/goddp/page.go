package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/goddp/goddp/internal/page"
)

// showRuns implements "goddp page": it serves the page of runs that golaunch --run-dir has written to folders.
func showRuns(args []string) error {
	var addr string
	fs := newFlags("page")
	fs.StringVar(&addr, "addr", "127.0.0.1", "`address` of the page: HOST, PORT or HOST:PORT")
	if err := parse(fs, args, `Show runs in a browser, several of them in the same panels.

Usage:
  goddp page [flags] RUN...

A run is a folder that golaunch --run-dir has filled. goddp prints the URL of the page,
and serves it until it is interrupted.

Example:
  golaunch --run-dir runs/one --nproc-per-node 4 ./train
  goddp page runs/one runs/two

Flags:
%s
Exit codes: 0 interrupted; 1 a run cannot be read; 2 usage.
`); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return usagef("want at least one folder of a run, got none")
	}
	if _, _, err := page.SplitAddr(addr); err != nil {
		return usagef("--addr %q: %w", addr, err)
	}
	var runs []*page.Run
	for _, dir := range fs.Args() {
		r := page.NewRun(page.Info{})
		if err := r.Load(dir); err != nil {
			return err
		}
		r.Unfinished()
		r.Rename(dir)
		runs = append(runs, r)
	}
	s, err := page.Serve(addr, "", runs...)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "page: %s\n", s.URL())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	<-signals
	return s.Close()
}
