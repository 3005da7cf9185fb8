package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/cmd/internal/version"
)

// exitUsage is the exit code for a wrong command line.
const exitUsage = 2

// command is a command of goddp.
type command struct {
	name, about string
	// run runs the command with the arguments after its name. It may end the process. It returns pflag.ErrHelp if it has
	// printed its help.
	run func(args []string) error
}

// commands holds all commands, in the order of the help text.
var commands = []command{
	{"bench", "measure a collective, with nccl-tests' flags and columns", bench},
	{"tune", "compare NCCL's settings with its defaults", tuneSettings},
	{"doctor", "check what would make a job fail or slow", examine},
	{"dump", "write the flight records of a running job", dump},
	{"analyze", "say from flight records which rank is the culprit", analyzeRecords},
	{"trace", "say from the ranks' traces where the time of a step went", trace},
	{"plot", "draw the curves of training runs", plotRuns},
	{"page", "show training runs that golaunch has kept, in a browser", showRuns},
	{"tokens", "make token shards of text, by GPT-2's encoding or a model's tokenizer", makeTokens},
	{"generate", "answer a prompt with a model, or chat with it", generateText},
	{"merge", "merge adapters of low rank into their base model", mergeAdapters},
	{"gguf", "write a model as a GGUF file, for llama.cpp", writeGGUF},
	{"memory", "say whether training a model fits on a GPU, and what takes the memory", estimateMemory},
	{"checkpoint", "list, verify, compare and convert checkpoints", checkpoints},
}

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	*stdout = output{}
	called, err := dispatch(args)
	var code exitCode
	if hasSpoken := errors.As(err, &code); stdout.err != nil && (err == nil || hasSpoken) {
		err, code = stdout.err, 0
	}
	switch {
	case err == nil:
		return 0
	case code != 0:
		return int(code)
	}
	// Errors of package checkpoint start with its name, which is also the command's.
	fmt.Fprintf(os.Stderr, "%s: %s\n", called, strings.TrimPrefix(err.Error(), strings.TrimPrefix(called, "goddp ")+": "))
	var usage *usageError
	if !errors.As(err, &usage) {
		return 1
	}
	if !usage.known {
		fmt.Fprintf(os.Stderr, "Run '%s --help' for how to call it.\n", called)
	}
	return exitUsage
}

// stdout is the standard output. It keeps the first error of a write, for example of a full disk, for the function run.
var stdout = &output{}

type output struct{ err error }

func (o *output) Write(text []byte) (int, error) {
	n, err := os.Stdout.Write(text)
	o.err = cmp.Or(o.err, err)
	return n, err
}

// dispatch runs the command that args names. called is "goddp", with the command's name if there is such a command.
func dispatch(args []string) (called string, err error) {
	called = "goddp"
	if len(args) == 0 {
		return called, usagef("no command")
	}
	name, rest := args[0], args[1:]
	switch name {
	case "help", "-h", "--help":
		if len(rest) == 0 || rest[0] == "help" || rest[0] == "-h" || rest[0] == "--help" {
			help(stdout)
			return called, nil
		}
		name, rest = rest[0], []string{"--help"}
	case "--version":
		fmt.Fprintln(stdout, version.Of("goddp"))
		return called, nil
	}
	for _, c := range commands {
		if c.name == name {
			err := c.run(rest)
			if errors.Is(err, pflag.ErrHelp) {
				err = nil
			}
			return called + " " + name, err
		}
	}
	return called, usagef("unknown command %q", name)
}

// exitCode is the error of a command that has already printed its findings.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// usageError is the error for a wrong command line.
type usageError struct {
	known bool // the command line has the right form, so the help would not explain the error
	err   error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// newFlags returns an empty set of flags for a command. Flag names may use underscores instead of dashes.
func newFlags(name string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(io.Discard)
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	return fs
}

// parse parses the arguments of a command. If they ask for help, parse prints it and returns [pflag.ErrHelp]. help is its
// format, for values and then the flags.
func parse(fs *pflag.FlagSet, args []string, help string, values ...any) error {
	err := fs.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(stdout, help, append(values, fs.FlagUsagesWrapped(100))...)
		return err
	case err != nil:
		return &usageError{err: err}
	}
	return nil
}

// createOutput returns where a rank writes its report: on rank 0 a new file, unless path is empty; else the standard output.
func createOutput(rank int, path string) (*os.File, error) {
	if rank != 0 || path == "" {
		return os.Stdout, nil
	}
	return os.Create(path)
}

// help prints the text of goddp --help.
func help(w io.Writer) {
	fmt.Fprint(w, `The tools of goddp.

Usage:
  goddp COMMAND [flags]
  goddp --version

Commands:
`)
	for _, c := range commands {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.about)
	}
	fmt.Fprint(w, `
Run 'goddp COMMAND --help' for what a command takes.
`)
}
