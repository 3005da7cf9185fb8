package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/testkit/daemon"
	survival "github.com/goddp/goddp/test/survive/job"
)

// fault is the kind of harm that the campaign does to a job; doc.go describes each.
type fault string

const (
	kill     fault = "kill"
	stop     fault = "stop"
	delay    fault = "delay"
	hiccup   fault = "hiccup"
	skip     fault = "skip"
	resize   fault = "resize"
	overlap  fault = "overlap"
	exit     fault = "exit"
	socket   fault = "socket"
	fullDisk fault = "full disk"
	store    fault = "store"
	garbage  fault = "garbage"
	launcher fault = "launcher"
	stale    fault = "stale graph"
	reaper   fault = "reaper"
	daemons  fault = "daemon kinds"
	suspend  fault = "suspend all"
	stranger fault = "stranger"
	twoJobs  fault = "two jobs"

	shrink          fault = "shrink"
	replace         fault = "replace"
	doubleFault     fault = "double fault"
	sourceDies      fault = "source dies"
	stopAndContinue fault = "stopped and continued"
)

// mode is an error mode of comm.
type mode string

const (
	async    mode = "async"
	cleanUp  mode = "clean-up"
	blocking mode = "blocking"
	none     mode = "none"
)

// setup says which program starts the ranks, and where their store is.
type setup string

const (
	golaunch      setup = "golaunch"
	alone         setup = "alone"          // the campaign starts the ranks; the store is in rank 0
	separateStore setup = "separate store" // the campaign starts the ranks, and the store in a separate process
)

// cell is a row of the campaign's table.
type cell struct {
	Fault  fault
	Mode   mode
	setups []setup // draw chooses one
}

// cells are all rows, in the order of the table.
var cells = func() (cells []cell) {
	add := func(f fault, modes []mode, setups ...setup) {
		for _, m := range modes {
			cells = append(cells, cell{f, m, setups})
		}
	}
	all := []mode{async, cleanUp, blocking, none}
	failing := all[:3] // for faults that break the job in any mode: mode none promises nothing about them
	add(kill, failing, golaunch, alone)
	add(stop, all, golaunch, alone)
	add(delay, all, golaunch, alone)
	add(hiccup, all, golaunch, alone)
	add(skip, failing, golaunch, alone)
	add(resize, failing, golaunch, alone)
	add(overlap, failing, golaunch, alone)
	add(exit, failing, golaunch, alone)
	add(socket, failing, golaunch, alone)
	add(fullDisk, failing, golaunch, alone)
	add(store, all, separateStore)
	add(garbage, all, golaunch, alone, separateStore)
	add(launcher, all, golaunch)
	add(stale, failing, golaunch, alone)
	add(reaper, all, golaunch)
	add(daemons, failing, golaunch)
	add(suspend, all, golaunch, alone, separateStore)
	add(stranger, all, golaunch, alone, separateStore)
	add(twoJobs, all, alone)
	for _, f := range []fault{shrink, replace, doubleFault, sourceDies, stopAndContinue} {
		add(f, all[:1], golaunch)
	}
	return cells
}()

// maxRound is the last round in which a fault comes.
const maxRound = 12

// The devices of ranks.
const (
	cpu  = "cpu"
	cuda = "cuda" // each rank has its own GPU
)

// terms hold for all scenarios of a campaign.
type terms struct {
	Device  string        // of the ranks
	Ranks   int           // in every job; 0 draws 2 to 4
	Detail  bool          // the ranks compare their calls before the calls run
	Timeout time.Duration // of the workers' calls
}

// usual are the terms unless flags say otherwise.
var usual = terms{Device: cpu, Timeout: time.Second}

// scenario is one job and the fault that the campaign commits.
type scenario struct {
	terms
	Seed uint64
	K    int // the scenario's number
	cell
	Then   fault // a second fault, after a full disk, a lost store or daemons; "" for none
	Setup  setup
	World  int           // the number of ranks
	TCP    bool          // the ranks connect by TCP, as if each were on its own host
	Victim int           // the rank to which the fault happens
	Round  int           // the round in which the fault comes
	Call   int           // the reduction of that round before which the fault comes
	Jitter time.Duration // the delay between the victim's "reached" and a signal
	Pick   int           // chooses a socket, the operands that overlap, or how two jobs differ
	Stuck  bool          // the program is stuck after an error
	Name   int           // index of the environment variable that sets the mode
	Noise  uint64        // the seed of the garbage
	Hang   bool          // the store is stopped, not killed
	Daemon string        // the kind of daemon that every rank starts; "" for none

	// In a job that survives:
	Phase survival.Phase // in which the fault comes
	Late  bool           // the second death of a double fault comes when the others regroup; SIGCONT comes when golaunch has killed the victim
}

// draw returns scenario k of a seed. It is a function of its arguments.
func draw(seed uint64, k int, t terms) scenario {
	r := rand.New(rand.NewPCG(seed, uint64(k)))
	c := cells[k%len(cells)]
	s := scenario{
		terms: t, Seed: seed, K: k, cell: c,
		Setup:  c.setups[r.IntN(len(c.setups))],
		World:  2 + r.IntN(3),
		TCP:    r.IntN(3) == 0,
		Round:  1 + r.IntN(maxRound),
		Call:   r.IntN(3),
		Jitter: time.Duration(r.Int64N(int64(5 * time.Millisecond))),
		Pick:   r.IntN(100),
		Stuck:  c.Mode == async && r.IntN(2) == 0,
		Name:   r.IntN(2),
		Noise:  r.Uint64(),
	}
	if t.Ranks > 0 {
		s.World = t.Ranks
	}
	if c.Fault == doubleFault || c.Fault == sourceDies {
		s.World = max(s.World, leastSurvivors)
	}
	s.Victim = r.IntN(s.World)
	switch {
	case c.Fault == fullDisk:
		s.Then = []fault{kill, stop}[r.IntN(2)]
	case c.Fault == daemons:
		s.Then = []fault{"", kill, launcher, reaper}[r.IntN(4)]
		s.Daemon = daemon.Kinds[r.IntN(len(daemon.Kinds))]
	case c.Fault == store && (c.Mode == async || c.Mode == cleanUp):
		s.Then = []fault{"", kill, stop}[r.IntN(3)]
	}
	s.Hang = c.Fault == store && r.IntN(2) == 0
	if s.survives() {
		s.TCP, s.Stuck = false, false
		s.Phase = survival.Forward + survival.Phase(r.IntN(int(survival.Regroup-survival.Forward)))
		s.Late = (s.Fault == doubleFault || s.Fault == stopAndContinue) && r.IntN(2) == 0
	}
	if s.isBlind() {
		s.Call %= 2 // the first two reductions are small
	}
	return s
}

// isBlind reports whether the ranks' calls differ although nothing compares them. NCCL runs such
// calls: small ones end with meaningless data, until a rank waits for data that no rank sends. Large
// ones may end or not.
func (s *scenario) isBlind() bool {
	return s.Device == cuda && !s.Detail && (s.Fault == skip || s.Fault == resize)
}

// needsDeadline reports whether the ranks notice the fault only when a call's deadline has passed.
func (s *scenario) needsDeadline() bool {
	return s.trouble() == stop || s.trouble() == delay || s.isBlind()
}

// trouble returns the fault that the ranks notice: the second one if there are two.
func (s *scenario) trouble() fault {
	if s.Then != "" {
		return s.Then
	}
	return s.Fault
}

// victimDies reports whether the victim's process ends by the fault.
func (s *scenario) victimDies() bool { return s.trouble() == kill || s.trouble() == exit }

// callTimeout returns the timeout of the workers' calls. It is longer if a connection breaks,
// because a rank that reads the connection's end waits two seconds for the cause.
func (s *scenario) callTimeout() time.Duration {
	if s.Fault == socket {
		return s.Timeout + 3*time.Second
	}
	return s.Timeout
}

// suspension returns how long the campaign suspends all processes of a job.
func (s *scenario) suspension() time.Duration { return 2 * s.callTimeout() }

// resumeInterval returns the time between the SIGCONTs to the processes of a suspended job. It is
// short enough that the last rank goes on well before the first rank's timeout.
func (s *scenario) resumeInterval() time.Duration { return 10 * s.Jitter }

// rejoinTime returns how long a worker may take to make its second group.
func (s *scenario) rejoinTime() time.Duration {
	if s.Device == cuda { // the worker opens the GPU again
		return 8 * time.Second
	}
	return 3 * time.Second
}

// summary returns the scenario's number, fault, mode, setup and number of ranks.
func (s *scenario) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "#%d %s", s.K, s.Fault)
	if s.Hang {
		b.WriteString(" hangs")
	}
	if s.Daemon != "" {
		fmt.Fprintf(&b, " (%s)", s.Daemon)
	}
	if s.Then != "" {
		fmt.Fprintf(&b, ", then %s", s.Then)
	}
	if s.Late {
		b.WriteString(", late")
	}
	if s.survives() {
		fmt.Fprintf(&b, ", --on-failure %s", s.onFailure())
	}
	fmt.Fprintf(&b, ", %s, %s, %d ranks", s.Mode, s.Setup, s.World)
	return b.String()
}

// String returns the summary and the rest of the scenario.
func (s *scenario) String() string {
	var b strings.Builder
	b.WriteString(s.summary())
	if s.Device != cpu {
		fmt.Fprintf(&b, " on %s", s.Device)
	}
	if s.TCP {
		b.WriteString(" over TCP")
	}
	if s.Detail {
		b.WriteString(", calls compared")
	}
	if s.Stuck {
		b.WriteString(", stuck after an error")
	}
	if s.survives() {
		fmt.Fprintf(&b, ": rank %d, %v", s.Victim, s.Phase)
	} else {
		fmt.Fprintf(&b, ": rank %d, call %d of round %d", s.Victim, s.Call, s.Round)
	}
	return b.String()
}

// folder returns the name of the scenario's folder below the one of -keep.
func (s *scenario) folder() string {
	detail := ""
	if s.Detail {
		detail = "-compared"
	}
	return strings.ReplaceAll(fmt.Sprintf("%03d-%s-%s%s", s.K, s.Fault, s.Mode, detail), " ", "-")
}

// modeEnv returns the environment variable that sets the error mode.
func (s *scenario) modeEnv() string {
	prefix := []string{"GODDP_", "TORCH_NCCL_"}[s.Name]
	switch s.Mode {
	case async:
		return prefix + "ASYNC_ERROR_HANDLING=" + []string{"1", "3"}[s.Name]
	case cleanUp:
		return prefix + "ASYNC_ERROR_HANDLING=2"
	case none:
		return prefix + "ASYNC_ERROR_HANDLING=0"
	}
	return prefix + "BLOCKING_WAIT=1"
}

// onError returns what the workers do after an error: the value of their flag -on-error.
func (s *scenario) onError() string {
	switch {
	case s.Stuck:
		return "hang"
	case s.Mode == cleanUp:
		return "linger"
	case s.Mode == blocking:
		return "recover"
	}
	return "leave"
}

// workerFault returns the fault that the worker itself commits, and for how long it delays.
// "reach" means that the worker only says when it is at the victim's call.
func (s *scenario) workerFault() (string, time.Duration) {
	switch s.Fault {
	case delay:
		return "delay", s.callTimeout() + 1500*time.Millisecond
	case hiccup:
		return "delay", s.callTimeout() / 3
	case stale: // the delay lets the other ranks begin their backward passes, so that their records show them
		return string(stale), 50 * time.Millisecond
	case skip, resize, overlap, exit, socket:
		return string(s.Fault), 0
	}
	return "reach", 0
}
