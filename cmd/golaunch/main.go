// Golaunch starts the workers of a distributed job, monitors them, and reports which one failed
// first. It runs once on each node of the job. It accepts torchrun's flags and PET_ variables, and
// sets torchrun's environment. The program may be a Go package, a Python script or any executable:
//
//	golaunch --nproc-per-node 4 ./train --epochs 3
//	golaunch --nproc-per-node gpu ./cmd/train      # a Go package: built, then run
//	golaunch --nnodes=1 --nproc_per_node=2 train.py
//	golaunch --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node0 --token-file=job.token ./train
//	golaunch --hosts a:4,b:4 ./train               # by ssh
//
// "golaunch --help" lists the flags, and docs/golaunch.md compares them with torchrun's. The exit
// code is 0 if every worker succeeded. If a worker failed, on any node, it is the code of the
// worker that failed first, or 128+n if signal n killed that worker. It is 128+n if signal n
// stopped golaunch. It is 1 if the program cannot be built, a node was lost, the rendezvous failed or
// output was lost on a full disk. It is 2 if the command line is wrong or the program does not exist.
//
// If SIGHUP is ignored when golaunch starts, as under nohup, golaunch ignores it too.
//
// Package [github.com/goddp/goddp/launcher] documents what happens to workers.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/goddp/goddp/cmd/internal/version"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/printer"
	"github.com/goddp/goddp/launcher"
)

// The exit codes for errors before any worker runs.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	launcher.ReaperMain()
	switch {
	case slices.Equal(os.Args[1:], []string{nodeFlag}):
		os.Exit(runForHost())
	case slices.Equal(os.Args[1:], []string{countFlag}):
		os.Exit(printGPUs())
	}
	os.Exit(run(os.Args[1:], make(chan os.Signal, 4), nil)) // buffered: more signals may arrive while one is handled
}

// memoryGoal is the memory limit of golaunch's garbage collector. It is more than golaunch
// and its store usually need.
const memoryGoal = 128 << 20

// run runs a command line and returns the exit code. signals also delivers signals from elsewhere.
// node is set if golaunch --hosts started this process.
func run(args []string, signals chan os.Signal, node *hostNode) int {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryGoal)
	}
	opts, err := parseFlags(args, os.LookupEnv)
	if err != nil {
		return complain(err)
	}
	switch {
	case opts.help:
		return show(help(opts))
	case opts.version:
		return show(version.Of("golaunch") + "\n")
	}

	if hint := slurmHint(opts, os.LookupEnv); hint != "" {
		say(hint)
	}

	// If the reader of the output ends, a write must fail instead of ending golaunch. So
	// SIGPIPE is caught. It is not ignored, because the workers would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx := context.Background() // never ends, because signals end the job in steps
	building, stop := context.WithCancel(ctx)
	if handled := notIgnored(opts.signals); len(handled) > 0 { // Notify without signals would catch all
		signal.Notify(signals, handled...)
		building, stop = signal.NotifyContext(building, handled...)
	}
	if opts.hosts != nil {
		stop()
		return runHosts(ctx, opts, signals)
	}
	prog, err := findProgram(building, opts)
	stop()
	if err != nil {
		select {
		case sig := <-signals:
			return 128 + int(sig.(syscall.Signal))
		default:
			return complain(err)
		}
	}
	defer prog.remove()

	cfg, err := opts.config()
	if err != nil {
		return complain(err)
	}
	cfg.Dedicated = true
	// In a Slurm step the output of all tasks is combined, so one full report is enough.
	if opts.slurm != nil && opts.rendezvous.nodes.most > 1 && opts.rendezvous.nodeRank > 0 {
		cfg.BriefReport = true
	}
	cfg.Args, cfg.Name, cfg.Scratch, cfg.Signals = prog.args, prog.name, prog.temp, signals
	if cfg.Nodes != nil { // a Python interpreter, or the folder of a script, may differ
		cfg.Nodes.Command = append([]string{prog.name}, opts.command[1:]...)
	}
	if node != nil {
		cfg.BriefReport, cfg.Scratch = node.isBrief, cmp.Or(cfg.Scratch, node.scratch)
		cfg.Stdin = nil // used for the requests of golaunch --hosts
	}
	result, err := launcher.Run(ctx, cfg)
	if result == nil { // the job did not start, so Run has reported nothing
		if opts.slurm != nil && errors.Is(err, launcher.ErrNoToken) {
			err = fmt.Errorf("%w. In a batch script, create a secret for all tasks with this line before srun: %s", err, slurmTokenLine)
		}
		return complain(opts.rendezvous.nameTokenFile(err))
	}
	return launcher.ExitCode(err)
}

// notIgnored returns signals without SIGHUP if SIGHUP is ignored, as under nohup: Notify
// would undo that. SIGINT is kept: a shell that starts golaunch in the background ignores
// SIGINT, but the user may still send it.
func notIgnored(signals []os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), func(s os.Signal) bool { return s == syscall.SIGHUP && signal.Ignored(s) })
}

// complain prints the error that kept the job from starting, and returns the exit code.
func complain(err error) int {
	var usage *usageError
	if !errors.As(err, &usage) && !errors.Is(err, launcher.ErrNoToken) && !errors.As(err, new(*handshake.InvalidSecretError)) {
		say(err.Error())
		return exitFailure
	}
	say(err.Error() + "\nRun 'golaunch --help' for how to call it.")
	return exitUsage
}

// say prints a text to stderr. It waits at most a second, so that a blocked stderr cannot keep
// golaunch from exiting.
func say(text string) {
	p := printer.New(os.Stdout, os.Stderr, nil)
	p.Stderr.Put([]byte("golaunch: " + text + "\n"))
	_ = p.Close(time.Second, nil) // the error cannot be reported
}

// show prints a text to stdout, and returns the exit code.
func show(text string) int {
	if _, err := os.Stdout.WriteString(text); err != nil {
		return complain(err)
	}
	return 0
}
