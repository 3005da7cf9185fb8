package launcher

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/goddp/goddp/internal/descriptors"
	"github.com/goddp/goddp/internal/rendezvous"
	"github.com/goddp/goddp/internal/stopfile"
)

// Config says what to run. Only Args is required; the zero value of every other
// field is its default.
type Config struct {
	// Args is the program, a path or a name to be found on PATH, and its
	// arguments.
	Args []string
	// Name is what reports call the program; the default is the base name of Args[0].
	Name string
	// Dir is where the workers run; the default is the current directory.
	Dir string
	// Env is the environment that the workers' own variables are added to; nil
	// means this process's.
	Env []string

	// Workers is the number of workers on this node; 0 means 1.
	Workers int
	// Role names the workers in their environment and log prefix; the default is "default".
	Role string
	// RunID identifies the job to its users: TORCHELASTIC_RUN_ID and the log
	// folder's name. The default is random.
	RunID string

	// MaxRestarts is how many more attempts follow a failed one.
	MaxRestarts int
	// ShutdownTimeout is the time between asking workers to stop and SIGKILL; 0 means 30 s.
	ShutdownTimeout time.Duration
	// PollInterval bounds the polling of what gives no event: processes that a
	// worker left behind. 0 means 100 ms.
	PollInterval time.Duration

	// Stdout and Stderr receive the workers' lines, and Stderr the agent's own;
	// nil means this process's. Writes are serialised, and are whole lines.
	Stdout, Stderr io.Writer
	// LinePrefix is put before each line, with ${role_name}, ${local_rank} and
	// ${rank} replaced; "" means "[${role_name}${rank}]: ".
	LinePrefix string
	// LocalRanksFilter, if not empty, names the only local ranks whose lines
	// are shown. Files hold all.
	LocalRanksFilter []int
	// LogDir is where each run makes a folder
	// <RunID>_<random>/attempt_<n>/<local rank>/ for stdout.log, stderr.log,
	// error.json and stop, where the worker tells of stop requests. "" means a temporary folder, which is removed unless it holds
	// what Redirects or Tee asked for.
	LogDir string
	// Redirects names the streams that go to a file and are not shown, Tee the
	// ones that go to a file and are shown. A stream in both is not shown.
	Redirects, Tee StreamMap

	// Scratch, if not "", is a temporary folder that the reaper removes should
	// this process be killed. Otherwise it is the caller's to remove.
	Scratch string
	// Dedicated says that this process has no children when Run is called and starts
	// none while it runs, as golaunch does not. Run then makes it a child subreaper
	// (Linux only): should the reaper be killed, Run kills everything below this process.
	Dedicated bool
	// ErrorFile, if not "", is where the root cause of a failure is written, in
	// the format of [ErrorFile] with errorCode added, for whoever started this
	// process.
	ErrorFile string

	// Rendezvous is how this node meets the others; Run closes it. nil means a
	// [rendezvous.Standalone].
	Rendezvous rendezvous.Handler
	// Signals delivers the signals that this process received and that should
	// end the job.
	Signals <-chan os.Signal
	// OnStart is called for each worker when it has started, from the goroutine
	// that called Run.
	OnStart func(Worker)
}

// keepsLogs reports whether a run's folder holds what the user asked for.
func (c *Config) keepsLogs() bool { return c.LogDir != "" || c.Redirects.any() || c.Tee.any() }

// Worker identifies one started process.
type Worker struct {
	Rank      int // in the world
	LocalRank int // on this node
	PID       int // also the id of its process group
	Attempt   int // 0 for the first
}

// Names of a run folder's files.
const (
	stdoutLog = "stdout.log"
	stderrLog = "stderr.log"
	errorJSON = "error.json"
	stopState = "stop"
)

const defaultLinePrefix = "[${role_name}${rank}]: "

// withDefaults returns a copy with every default filled in, or what is wrong
// with the configuration.
func (c *Config) withDefaults() (*Config, error) {
	if c == nil || len(c.Args) == 0 {
		return nil, errors.New("launcher: no program to run")
	}
	d := *c
	if d.Name == "" {
		d.Name = filepath.Base(d.Args[0])
	}
	if d.Env == nil {
		d.Env = os.Environ()
	}
	if d.Workers == 0 {
		d.Workers = 1
	}
	if d.Role == "" {
		d.Role = "default"
	}
	if d.RunID == "" {
		d.RunID = randomID()
	}
	if d.ShutdownTimeout == 0 {
		d.ShutdownTimeout = stopfile.DefaultTimeout
	}
	if d.PollInterval == 0 {
		d.PollInterval = 100 * time.Millisecond
	}
	if d.Stdout == nil {
		d.Stdout = os.Stdout
	}
	if d.Stderr == nil {
		d.Stderr = os.Stderr
	}
	if d.LinePrefix == "" {
		d.LinePrefix = defaultLinePrefix
	}
	if d.Rendezvous == nil {
		d.Rendezvous = &rendezvous.Standalone{}
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("launcher: %w", err)
	}
	return &d, nil
}

func (c *Config) check() error {
	if c.Workers < 0 {
		return fmt.Errorf("%d workers per node: want at least 1", c.Workers)
	}
	// What this process opens for itself, and for a worker: two pipes and a file for its output, and
	// its connections with the store and the coordinator. Without them a worker would wait in vain.
	const ownFiles, workerFiles = 24, 5
	if need, most := uint64(ownFiles+workerFiles*c.Workers), descriptors.Limit(); need > most {
		return fmt.Errorf("%d workers need %d open files, and this process may open %d: %s", c.Workers, need, most, descriptors.Remedy)
	}
	if c.MaxRestarts < 0 {
		return fmt.Errorf("%d restarts: want 0 or more", c.MaxRestarts)
	}
	if c.ShutdownTimeout < 0 || c.PollInterval < 0 {
		return fmt.Errorf("shutdown timeout %v, poll interval %v: want positive times", c.ShutdownTimeout, c.PollInterval)
	}
	for _, local := range c.LocalRanksFilter {
		if local < 0 || local >= c.Workers {
			return fmt.Errorf("the filter names local rank %d, but there are %d workers here", local, c.Workers)
		}
	}
	for _, m := range []StreamMap{c.Redirects, c.Tee} {
		if local := m.Highest(); local >= c.Workers {
			return fmt.Errorf("%q names local rank %d, but there are %d workers here", m, local, c.Workers)
		}
	}
	return nil
}
