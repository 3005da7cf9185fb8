package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/page"
	"github.com/goddp/goddp/launcher"
)

// options are the parsed command line.
type options struct {
	command []string    // the program and its arguments
	groups  []flagGroup // the flags, by heading of the help text

	nproc            int
	role             string
	module, noPython bool
	runPath          bool
	virtualLocalRank bool

	maxRestarts     int
	onFailure       launcher.OnFailure
	minWorkers      int
	silenceLimit    time.Duration
	shutdownTimeout time.Duration
	monitorInterval time.Duration
	signals         []os.Signal

	page, runDir     string // "" if there is none
	pageToken        string // the file with the page's token, or ""
	logDir           string
	redirects, tee   launcher.StreamMap
	stdin            int // the local rank that reads stdin, or -1
	jsonLines        bool
	localRanksFilter []int
	linePrefix       string
	errorFile        string

	hosts []hostSpec // the hosts to be reached by ssh
	ssh   string     // the ssh command
	given []string   // the flags that the user gave, for the hosts

	rendezvous rendezvousFlags
	slurm      *slurmStep // nil if srun did not start this process

	help, version bool
}

type flagSet = *pflag.FlagSet

// flagGroup is a group of flags with a heading in the help text.
type flagGroup struct {
	title string
	*pflag.FlagSet
}

// usageError is the error for a wrong command line or PET_ variable.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// parseFlags parses torchrun's command line. Flags end at the program. A flag's name may
// have dashes or underscores. A flag that is not given takes the value of its PET_
// variable, or else, in a Slurm step, the value that follows from the step.
func parseFlags(args []string, lookup func(string) (string, bool)) (*options, error) {
	o := &options{}
	all := o.define()
	if err := all.Parse(args); err != nil {
		var invalid *pflag.InvalidValueError
		if errors.As(err, &invalid) {
			return nil, usagef("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), errors.Unwrap(err))
		}
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
			return nil, usagef("%w%s", err, similar(all, unknown.GetSpecifiedName()))
		}
		return nil, &usageError{err}
	}
	if o.help || o.version {
		return o, nil
	}
	if err := o.readEnv(all, lookup); err != nil {
		return nil, err
	}
	if err := o.readStep(all, lookup); err != nil {
		return nil, err
	}
	if _, err := jobenv.ReadFlight(lookup); err != nil {
		return nil, &usageError{err}
	}
	o.command, o.given = all.Args(), givenFlags(all)
	switch {
	case len(o.command) == 0:
		return nil, usagef("no program to run")
	case o.page == loopback && isAddress(o.command[0]):
		return nil, usagef("--page %s: the address must follow an equals sign: write --page=%[1]s", o.command[0])
	case o.module && o.noPython:
		return nil, usagef("--module runs a Python module, so it cannot be combined with --no-python")
	case o.module && o.runPath:
		return nil, usagef("--module runs a Python module, so it cannot be combined with --run-path")
	case o.runPath && !filepath.IsAbs(o.command[0]):
		return nil, usagef("--run-path %s: want the absolute path of a script", o.command[0])
	}
	return o, o.check()
}

// loopback is the address of --page without a value.
const loopback = "127.0.0.1"

func parsePage(addr string) (string, error) {
	_, _, err := page.SplitAddr(addr)
	return addr, err
}

// isAddress reports whether a text is a port or HOST:PORT, rather than a program.
func isAddress(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		port = text
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// similar returns a hint with the flags that start with an unknown flag's name, or "". torchrun accepts such
// abbreviations.
func similar(all *pflag.FlagSet, unknown string) (hint string) {
	plain := func(name string) string { return strings.NewReplacer("-", "", "_", "").Replace(name) }
	all.VisitAll(func(f *pflag.Flag) {
		switch {
		case !strings.HasPrefix(plain(f.Name), plain(unknown)):
		case hint == "":
			hint = "; is it --" + f.Name + "?"
		default:
			hint += " --" + f.Name + "?"
		}
	})
	return hint
}

// readEnv sets the flags that the command line does not give, from their PET_ variables. It
// also reads the other variables that torchrun reads.
func (o *options) readEnv(all *pflag.FlagSet, lookup func(string) (string, bool)) (err error) {
	set := func(variable string, f *pflag.Flag) {
		value, ok := lookup(variable)
		if !ok || f.Changed || err != nil {
			return
		}
		if f.Value.Type() == "bool" {
			on, e := jobenv.ParseBool(variable, value)
			if e != nil {
				err = &usageError{e}
				return
			}
			value = strconv.FormatBool(on)
		}
		if e := f.Value.Set(value); e != nil {
			err = usagef("%s=%q: %w", variable, value, e)
		}
		f.Changed = true
	}
	all.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "version" {
			set("PET_"+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")), f)
		}
	})
	set("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", all.Lookup("shutdown-timeout"))
	o.linePrefix, _ = lookup("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
	o.errorFile, _ = lookup(jobenv.ErrorFileVar)
	return err
}

// readStep sets the flags that the user does not set from the variables of a Slurm step. With --standalone
// or --nnodes 1, every task is a separate job.
func (o *options) readStep(all *pflag.FlagSet, lookup func(string) (string, bool)) (err error) {
	if o.slurm, err = readSlurm(lookup); o.slurm == nil || err != nil {
		return err
	}
	isOneNode := o.rendezvous.standalone || all.Changed("nnodes") && o.rendezvous.nodes.most == 1
	for name, value := range o.slurm.flags {
		f := all.Lookup(name)
		isOpen := !f.Changed
		if name == "nproc-per-node" {
			isOpen = isOpen || f.Value.String() == "gpu" || f.Value.String() == "auto"
		} else {
			isOpen = isOpen && !isOneNode
		}
		if isOpen {
			if err := f.Value.Set(value); err != nil {
				return usagef("Slurm's --%s %q: %w", name, value, err)
			}
		}
	}
	return nil
}

// define declares the flags, in the groups of the help text.
func (o *options) define() *pflag.FlagSet {
	all := pflag.NewFlagSet("golaunch", pflag.ContinueOnError)
	all.SetInterspersed(false)
	all.SetOutput(io.Discard)
	group := func(title string) flagSet {
		fs := pflag.NewFlagSet(title, pflag.ContinueOnError)
		fs.SortFlags = false
		o.groups = append(o.groups, flagGroup{title, fs})
		return fs
	}

	fs := group("Workers")
	addFlag(fs, &o.nproc, "nproc-per-node", "1", "workers", parseNproc,
		"workers on this node: a number, cpu, gpu, or auto: the GPUs if there are any, else the CPUs")
	fs.StringVar(&o.role, "role", "default", "the workers' role, part of their log prefix")
	fs.BoolVarP(&o.module, "module", "m", false, "PROGRAM is a Python module")
	fs.BoolVar(&o.noPython, "no-python", false, "execute PROGRAM as it is, whatever its name ends with")
	fs.BoolVar(&o.runPath, "run-path", false, "Python runs PROGRAM, an absolute path, whatever its name ends with")
	addFlag(fs, &o.stdin, "stdin", "0", "rank", parseStdin,
		"local rank that reads golaunch's standard input, or none; the others read /dev/null")
	fs.BoolVar(&o.virtualLocalRank, "virtual-local-rank", false, "each worker sees its own GPU alone, and LOCAL_RANK is 0 for all")

	fs = group("Failures")
	addFlag(fs, &o.maxRestarts, "max-restarts", "0", "n", parseCount,
		"how often the workers of all nodes are started again after a failure of one")
	addFlag(fs, &o.onFailure, "on-failure", "restart", "what", parseOnFailure,
		"what happens to the other workers. restart: they are stopped, and all start again as --max-restarts says; shrink: they go on without the failed one; "+
			"replace: they go on, and a new worker joins them. The loss of a node is the loss of its workers; with replace, a node that joins takes its place. "+
			"Programs that do not use train.Run or elastic.Run restart in any case")
	addFlag(fs, &o.minWorkers, "min-workers", "1", "n", parseMinWorkers,
		"of shrink and replace: with fewer workers of all nodes left or on their way, the attempt fails")
	addFlag(fs, &o.silenceLimit, "silence-limit", "10", "seconds", parseSilence,
		"of shrink and replace: a worker that was silent for so long, because it is suspended for example, is killed")
	addFlag(fs, &o.shutdownTimeout, "shutdown-timeout", "30", "seconds", parseSeconds,
		"time between asking workers to stop and killing them; also TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
	addFlag(fs, &o.signals, "signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "names", parseSignals,
		"signals that end the job, forwarded to the workers")
	addFlag(fs, &o.monitorInterval, "monitor-interval", "0.1", "seconds", parseInterval,
		"longest pause between searches for processes that workers left behind")

	fs = group("Output")
	addFlag(fs, &o.page, "page", "", "address", parsePage, "show the job on a page for browsers at this address, =PORT or =HOST:PORT (default: a free port of 127.0.0.1); golaunch prints the page's URL")
	fs.Lookup("page").NoOptDefVal = loopback
	fs.StringVar(&o.pageToken, "page-token", "", "`file` with the secret in the page's URL, for scrapers (default: a random secret)")
	fs.StringVar(&o.runDir, "run-dir", "", "folder that keeps what the page shows, for goddp page; a run that it holds goes on")
	fs.StringVar(&o.logDir, "log-dir", "", "folder for the files of --redirects and --tee (default: a temporary one)")
	addFlagP(fs, &o.redirects, "redirects", "r", "0", "streams", launcher.ParseStreamMap,
		"to files only: 0 nothing, 1 stdout, 2 stderr, 3 both, or by local rank as in 0:3,1:1")
	addFlagP(fs, &o.tee, "tee", "t", "0", "streams", launcher.ParseStreamMap,
		"to files and the console, in the same notation")
	addFlag(fs, &o.jsonLines, "log-format", "text", "format", parseLogFormat,
		"of the console: text, or json: one object per line; files hold the workers' bytes")
	addFlag(fs, &o.localRanksFilter, "local-ranks-filter", "", "ranks", parseRanks,
		"show only these local ranks, as in 0,3; files hold all")

	o.rendezvous.define(group)

	fs = group("Hosts")
	addFlag(fs, &o.hosts, "hosts", "", "a:4,b:4", parseHosts, "start the job on these hosts by ssh, with so many workers each (default: --nproc-per-node)")
	fs.StringVar(&o.ssh, "ssh", "ssh", "the command of --hosts, with its options")

	var ignored string
	fs = group("Torchrun's flags without effect")
	fs.StringVar(&ignored, "start-method", "", "workers are always started as processes of PROGRAM")
	fs.StringVar(&ignored, "event-log-handler", "", "golaunch logs no events")
	fs.StringVar(&ignored, "logs-specs", "", "use the flags under Output instead")

	fs = group("Other")
	fs.BoolVarP(&o.help, "help", "h", false, "show this text")
	fs.BoolVar(&o.version, "version", false, "show the version")

	for _, g := range o.groups {
		all.AddFlagSet(g.FlagSet)
	}
	refuse(all, "print-completion", "shell", "golaunch --help lists the flags")
	refuse(all, "numa-binding", "mode", "a worker may bind itself, by LOCAL_RANK")
	refuse(all, "duplicate-stdout-filters", "words", "--tee 1 keeps all lines in files, --local-ranks-filter shows those of some ranks")
	refuse(all, "duplicate-stderr-filters", "words", "--tee 2 keeps all lines in files, --local-ranks-filter shows those of some ranks")
	refuse(all, "use-env", "", "every worker has LOCAL_RANK in its environment; leave the flag out")
	all.Lookup("use-env").NoOptDefVal = "true" // it takes no value
	all.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	return all
}

// check returns an error if the values of several flags contradict each other.
func (o *options) check() error {
	if o.hosts != nil {
		return nil // the golaunch of each host checks the flags
	}
	if err := o.countWorkers(); err != nil {
		return err
	}
	if o.stdin >= o.nproc {
		return usagef("--stdin: local rank %d: want less than --nproc-per-node, %d", o.stdin, o.nproc)
	}
	for _, local := range o.localRanksFilter {
		if local >= o.nproc {
			return usagef("--local-ranks-filter: local rank %d: want less than --nproc-per-node, %d", local, o.nproc)
		}
	}
	for name, m := range map[string]launcher.StreamMap{"redirects": o.redirects, "tee": o.tee} {
		if highest := m.Highest(); highest >= o.nproc {
			return usagef("--%s %s: local rank %d: want less than --nproc-per-node, %d", name, m, highest, o.nproc)
		}
	}
	if o.rendezvous.nodes.most == 1 && o.minWorkers > o.nproc {
		return usagef("--min-workers %d: want at most --nproc-per-node, %d", o.minWorkers, o.nproc)
	}
	return o.rendezvous.check()
}

// env returns the workers' environment, without the launcher's additions.
func (o *options) env() []string {
	env := slices.Concat(os.Environ(), o.rendezvous.env())
	if s := o.slurm; s != nil {
		if s.gpus != "" {
			env = append(env, jobenv.GPUsVar+"="+s.gpus)
		}
		if _, isSet := os.LookupEnv("OMP_NUM_THREADS"); !isSet && s.cores > 0 {
			env = append(env, fmt.Sprintf("OMP_NUM_THREADS=%d", max(1, s.cores/o.nproc)))
		}
	}
	return env
}

// config returns the launcher's configuration, without the program.
func (o *options) config() (*launcher.Config, error) {
	nodes, err := o.rendezvous.config()
	if err != nil {
		return nil, err
	}
	token, err := handshake.ReadSecret(jobenv.Security{TokenFile: o.pageToken})
	if invalid := (*handshake.InvalidSecretError)(nil); errors.As(err, &invalid) {
		return nil, usagef("--page-token %q: %w", o.pageToken, invalid.Err)
	}
	cfg := &launcher.Config{
		Workers:          o.nproc,
		VirtualLocalRank: o.virtualLocalRank,
		Role:             o.role,
		RunID:            o.rendezvous.runID,
		Env:              o.env(),
		MaxRestarts:      o.maxRestarts,
		OnFailure:        o.onFailure,
		MinWorkers:       o.minWorkers,
		SilenceLimit:     o.silenceLimit,
		ShutdownTimeout:  max(o.shutdownTimeout, time.Nanosecond), // 0 is the launcher's default
		PollInterval:     o.monitorInterval,
		LinePrefix:       o.linePrefix,
		LocalRanksFilter: o.localRanksFilter,
		LogDir:           o.logDir,
		Page:             o.page,
		PageToken:        string(token),
		RunDir:           o.runDir,
		Redirects:        o.redirects,
		Tee:              o.tee,
		JSONLines:        o.jsonLines,
		ErrorFile:        o.errorFile,
		MasterAddr:       o.rendezvous.masterAddr,
		MasterPort:       o.rendezvous.masterPort,
		Nodes:            nodes,
	}
	if o.stdin >= 0 {
		cfg.Stdin, cfg.StdinRank = os.Stdin, o.stdin
	}
	return cfg, err
}

// help returns the text of --help.
func help(o *options) string {
	var b strings.Builder
	b.WriteString(`Start the workers of a distributed job, watch them, and name the one that failed first.
Run it once on each node of the job.

Usage:
  golaunch [flags] PROGRAM [arguments]

PROGRAM is an executable, a Go package (a folder, an import path or a .go file),
which golaunch builds first, or a .py file, which python3 or $PYTHON_EXEC runs.
All arguments after PROGRAM are passed to it.

Examples:
  golaunch --nproc-per-node 4 ./train --epochs 3
  golaunch --nproc-per-node gpu --max-restarts 2 ./cmd/train
  golaunch --nproc-per-node gpu --on-failure replace ./cmd/train
  golaunch --nproc-per-node 2 --tee 3 --log-dir logs train.py
  golaunch --nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint node0 --token-file job.token ./train
  golaunch --hosts a:4,b:4 ./train
`)
	for _, g := range o.groups {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.FlagUsagesWrapped(100))
	}
	b.WriteString(`
Every flag may also be given as a variable: --max-restarts is PET_MAX_RESTARTS.
The command line takes precedence. A flag's name may have underscores for dashes.
Under Slurm's srun, all tasks of a step form one job without any flag.
TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE is the prefix of a worker's lines; ${role_name},
${rank}, ${local_rank}, ${node}, ${host} and ${attempt} in it are replaced.

Exit codes, equal on all nodes: 0 if all workers succeeded; else the code of the
worker that failed first, or 128+n if signal n killed it; 1 if a node was lost.
Of one node: 128+n if signal n stopped golaunch; 1 if PROGRAM cannot be built, the
nodes do not meet or output is lost; 2 if the command line is wrong.
`)
	return b.String()
}

// parseSignals parses names such as "SIGTERM,SIGINT".
func parseSignals(text string) ([]os.Signal, error) {
	var signals []os.Signal
	for name := range strings.SplitSeq(text, ",") {
		sig, err := launcher.ParseSignal(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		if sig == syscall.SIGKILL || sig == syscall.SIGSTOP {
			return nil, fmt.Errorf("%s cannot be handled", name)
		}
		signals = append(signals, sig)
	}
	return signals, nil
}
