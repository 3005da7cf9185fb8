package launcher

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/page"
	"github.com/goddp/goddp/internal/wire"
)

// Config says what to run. Only Args is required; the zero value of every other
// field is its default.
type Config struct {
	// Args is the program, a path or a name to be found on PATH, and its
	// arguments.
	Args []string
	// Name is the program's name in reports. The default is the base name of Args[0].
	Name string
	// Dir is the workers' working directory. The default is the current directory.
	Dir string
	// Env is the workers' environment, to which Run adds RANK and the other variables of
	// a worker. The default is this process's environment.
	Env []string

	// Workers is the number of workers on this node; 0 means 1.
	Workers int
	// VirtualLocalRank makes each worker see only its own GPU: LOCAL_RANK is 0 for all workers, and a worker's
	// CUDA_VISIBLE_DEVICES holds one GPU: the entry of golaunch's CUDA_VISIBLE_DEVICES at the local rank or, if
	// golaunch has none, the local rank itself.
	VirtualLocalRank bool
	// Role names the workers in their environment and log prefix; the default is "default".
	Role string
	// RunID is the name of the job, in TORCHELASTIC_RUN_ID and in the name of the log
	// folder. The default is random.
	RunID string

	// MaxRestarts is the number of attempts that may follow the first one.
	MaxRestarts int
	// OnFailure says what happens when a worker fails.
	OnFailure OnFailure
	// MinWorkers is the number of workers with which an attempt goes on; 0 means 1. An attempt that has
	// fewer fails. SilenceLimit is the time after which a worker of which nothing is heard, because it is suspended
	// for example, is killed. 0 means 10 s. Both have no effect if OnFailure is Restart.
	MinWorkers   int
	SilenceLimit time.Duration
	// ShutdownTimeout is the time between the signal that asks workers to stop and
	// SIGKILL. 0 means 30 s.
	ShutdownTimeout time.Duration
	// PollInterval is the longest pause between two searches for processes that a worker left behind, whose
	// exits cause no event. 0 means 100 ms.
	PollInterval time.Duration

	// Stdin, if not nil, is the standard input of the worker whose local rank is StdinRank. All other workers
	// read /dev/null. After a restart, the worker continues to read Stdin where the previous attempt stopped. If
	// Stdin is a terminal and this process runs in the background, the worker reads /dev/null too.
	Stdin     *os.File
	StdinRank int
	// Stdout and Stderr receive the workers' lines. Stderr also receives the agent's own
	// lines. nil means this process's stdout or stderr. Each Write contains whole lines. Run
	// never calls Write concurrently, except to Stdout and Stderr if they are two different files.
	Stdout, Stderr io.Writer
	// LinePrefix is printed before each line. Run replaces these variables in it: ${role_name},
	// ${rank}, ${local_rank}, ${node} (the node's rank), ${host} (the node's name) and ${attempt}
	// (the attempt's number). "" means "[${role_name}${rank}]: ".
	LinePrefix string
	// JSONLines makes each line of Stdout and Stderr a JSON object, without a prefix. A line
	// of a worker is
	//
	//	{"time": "2006-01-02T15:04:05.000000000Z", "source": "worker", "host": "a", "node": 0, "rank": 3,
	//	 "local_rank": 3, "role": "default", "attempt": 0, "stream": "stdout", "line": "..."}
	//
	// on one line. A line of the agent itself has only "time", "host", "line" and the source "golaunch".
	// The agent's report of a failure also has the object "failure". A worker's line of more
	// than 64 KiB is divided: all parts but the last have "partial": true.
	JSONLines bool
	// BriefReport shortens the report of a failure to one line. Set it on all nodes but one if the output of
	// all nodes is collected in one place.
	BriefReport bool
	// LocalRanksFilter, if not empty, lists the local ranks whose lines are shown. Files
	// hold the lines of all ranks.
	LocalRanksFilter []int
	// LogDir is the folder in which each run makes a folder
	// <RunID>_<random>/attempt_<n>/<local rank>/, or <local rank>_worker_<number>/ for a worker that replaces
	// a failed one. This folder holds stdout.log,
	// stderr.log, error.json and stop. The worker writes into the file stop how it takes
	// stop requests. "" means a temporary folder, which Run removes unless Redirects or Tee
	// put files there. If the folder vanishes while the job runs, the next attempt makes it again.
	LogDir string
	// Redirects selects the streams that go to a file and are not shown. Tee selects the
	// streams that go to a file and are shown. A stream in both is not shown.
	Redirects, Tee StreamMap

	// Scratch, if not "", is a temporary folder that the reaper removes if this process
	// is killed. If this process is not killed, the caller must remove the folder.
	Scratch string
	// Dedicated says that this process has no children when Run is called and starts
	// none while Run runs. golaunch sets Dedicated. Run then makes this process a child
	// subreaper (Linux only). If the reaper is killed, Run kills all processes below this
	// process.
	Dedicated bool
	// ErrorFile, if not "", is the file into which Run writes the root cause of a failure
	// for the parent of this process, in the format of [ErrorFile] with errorCode added.
	ErrorFile string

	// MasterAddr and MasterPort are the workers' MASTER_ADDR and MASTER_PORT. In a job of one
	// node, the store listens there; the default is a free port of the loopback interface. In a job of several
	// nodes MasterAddr is not used: rank 0's node is the master, and MasterPort must be free there;
	// the default is a free port.
	MasterAddr string
	MasterPort int
	// Nodes says how the nodes of a job of several nodes find each other. nil means one node.
	Nodes *Nodes
	// Signals delivers the signals that this process received and that should
	// end the job.
	Signals <-chan os.Signal
	// Page is the address, HOST, PORT or HOST:PORT, at which Run serves a page for browsers that shows the job; "" means
	// none. An empty host is the loopback interface, and without a port any is taken. Run prints the page's URL. The page is
	// not encrypted, so another interface must be one of a trusted network. Of several nodes, the one that hosts the
	// rendezvous serves it.
	Page string
	// PageToken is the secret that the page's URL contains; "" means a random one.
	PageToken string
	// RunDir is the folder that keeps what the page shows, for goddp page; "" means none. The curves of a run that it holds
	// already go on.
	RunDir string
	// OnStart is called for each worker after its start, from the goroutine that called
	// Run.
	OnStart func(Worker)
}

// OnFailure says what happens when a worker fails. Shrink and Replace have an effect in programs that have declared
// that they go on without a worker, by package elastic. The attempts of other programs fail, as with Restart.
type OnFailure int

const (
	Restart OnFailure = iota // the attempt fails: the other workers are stopped
	Shrink                   // the other workers go on
	Replace                  // the other workers go on, and a new worker takes the place of the one that failed
)

// String returns the value's name in lower case, as golaunch's --on-failure has it.
func (f OnFailure) String() string { return [...]string{"restart", "shrink", "replace"}[f] }

// LeastSilence is the least value of SilenceLimit. A worker sends four messages in this time.
const LeastSilence = time.Second

const defaultSilence = 10 * time.Second

// keepsLogs reports whether the user asked for files in the run's folder.
func (c *Config) keepsLogs() bool { return c.LogDir != "" || c.Redirects.any() || c.Tee.any() }

// Worker identifies one worker process.
type Worker struct {
	Rank      int // rank in the world
	LocalRank int // rank on this node
	PID       int // process id, and id of the process group
	Attempt   int // number of the attempt, from 0
}

// The names of a worker's files.
const (
	stdoutLog = "stdout.log"
	stderrLog = "stderr.log"
	errorJSON = "error.json"
	stopState = "stop"
)

const defaultLinePrefix = "[${role_name}${rank}]: "

// withDefaults returns a copy with every default filled in, or an error that says what is
// wrong with the configuration.
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
		if d.RunID = randomID(); d.Nodes != nil {
			d.RunID = "none" // equal on all nodes
		}
	}
	if d.MinWorkers == 0 {
		d.MinWorkers = 1
	}
	if d.SilenceLimit == 0 {
		d.SilenceLimit = defaultSilence
	}
	if d.ShutdownTimeout == 0 {
		d.ShutdownTimeout = jobenv.DefaultShutdownTimeout
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
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("launcher: %w", err)
	}
	return &d, nil
}

// leastAddressSpace is the address space in bytes that a Go program needs at startup, with its first threads.
// With less, most runs fail at startup with an error of Go's runtime.
const leastAddressSpace = 2 << 30

// addressSpace returns how much address space this process may reserve, in bytes.
func addressSpace() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &limit); err != nil {
		return math.MaxUint64
	}
	return uint64(limit.Cur)
}

func (c *Config) check() error {
	if c.Workers < 0 {
		return fmt.Errorf("%d workers per node: want at least 1", c.Workers)
	}
	// The files that this process opens for itself, and for each worker: two pipes, a file for output, and the
	// worker's connections to the store and the coordinator. If a connection cannot be opened, the worker
	// waits forever.
	ownFiles, workerFiles := 24, 5
	if c.Page != "" || c.RunDir != "" {
		ownFiles, workerFiles = ownFiles+page.MaxConns, workerFiles+1
	}
	if need, most := uint64(ownFiles+workerFiles*c.Workers), wire.FileLimit(); need > most {
		return fmt.Errorf("%d workers need %d open files, but the limit of this process is %d: %s", c.Workers, need, most, wire.FilesRemedy)
	}
	if most := addressSpace(); most < leastAddressSpace {
		return fmt.Errorf("this process and each worker may reserve %d MiB of address space, and Go needs up to %d MiB: raise the limit (ulimit -v), or limit memory by a cgroup", most>>20, leastAddressSpace>>20)
	}
	if c.Nodes != nil {
		if err := c.Nodes.check(); err != nil {
			return err
		}
	}
	if visible, ok := lookup(c.Env)(jobenv.GPUsVar); c.VirtualLocalRank && ok && visible != "" {
		if n := strings.Count(visible, ",") + 1; n < c.Workers {
			return fmt.Errorf("%s=%s names %d GPUs, but each of the %d workers needs its own", jobenv.GPUsVar, visible, n, c.Workers)
		}
	}
	if c.Stdin != nil && (c.StdinRank < 0 || c.StdinRank >= c.Workers) {
		return fmt.Errorf("StdinRank is %d, but this node has %d workers", c.StdinRank, c.Workers)
	}
	if c.MaxRestarts < 0 {
		return fmt.Errorf("%d restarts: want 0 or more", c.MaxRestarts)
	}
	if c.MinWorkers < 1 {
		return fmt.Errorf("at least %d workers: want 1 or more", c.MinWorkers)
	}
	if c.Nodes == nil && c.MinWorkers > c.Workers {
		return fmt.Errorf("at least %d workers: want 1 to %d, which the job has", c.MinWorkers, c.Workers)
	}
	if c.SilenceLimit < LeastSilence {
		return fmt.Errorf("silence limit %v: want at least %v", c.SilenceLimit, LeastSilence)
	}
	if c.ShutdownTimeout < 0 || c.PollInterval < 0 {
		return fmt.Errorf("shutdown timeout %v, poll interval %v: want positive times", c.ShutdownTimeout, c.PollInterval)
	}
	for _, local := range c.LocalRanksFilter {
		if local < 0 || local >= c.Workers {
			return fmt.Errorf("LocalRanksFilter names local rank %d, but this node has %d workers", local, c.Workers)
		}
	}
	for _, m := range []StreamMap{c.Redirects, c.Tee} {
		if local := m.Highest(); local >= c.Workers {
			return fmt.Errorf("%q names local rank %d, but this node has %d workers", m, local, c.Workers)
		}
	}
	return nil
}
