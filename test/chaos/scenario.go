package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/daemon"
)

// fault is what is done to a job.
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
)

// mode is an error mode of the product's.
type mode string

const (
	async    mode = "async"
	cleanUp  mode = "clean-up"
	blocking mode = "blocking"
	none     mode = "none"
)

// setup is who starts the ranks, and where their store is.
type setup string

const (
	golaunch setup = "golaunch"
	alone    setup = "alone"
	apart    setup = "apart"
)

// cell is a row of the campaign's table.
type cell struct {
	Fault  fault
	Mode   mode
	setups []setup
}

// cells are all rows, in the order of the table.
var cells = func() (cells []cell) {
	add := func(f fault, modes []mode, setups ...setup) {
		for _, m := range modes {
			cells = append(cells, cell{f, m, setups})
		}
	}
	all := []mode{async, cleanUp, blocking, none}
	failing := all[:3] // where what happens is an error in any mode, none promises nothing
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
	add(store, all, apart)
	add(garbage, all, golaunch, alone, apart)
	add(launcher, all, golaunch)
	add(stale, failing, golaunch, alone)
	add(reaper, all, golaunch)
	add(daemons, failing, golaunch)
	add(suspend, all, golaunch, alone, apart)
	add(stranger, all, golaunch, alone, apart)
	add(twoJobs, all, alone)
	return cells
}()

// maxRound bounds when faults come.
const maxRound = 12

// The devices of ranks.
const (
	cpu  = "cpu"
	cuda = "cuda" // a GPU each
)

// terms are what all scenarios of a campaign have in common.
type terms struct {
	Device  string        // of the ranks
	Ranks   int           // in every job; 0: 2 to 4
	Detail  bool          // the ranks compare their calls before these run
	Timeout time.Duration // of the workers' calls
}

// usual are the terms unless flags say otherwise.
var usual = terms{Device: cpu, Timeout: time.Second}

// scenario is one job and what is done to it.
type scenario struct {
	terms
	Seed uint64
	K    int
	cell
	Then   fault // what follows a full disk, a lost store or daemons, or ""
	Setup  setup
	World  int
	TCP    bool // the ranks take each other for other hosts'
	Victim int
	Round  int
	Call   int
	Jitter time.Duration // between the victim's word that it is there, and a signal
	Pick   int           // which socket, or which overlap
	Deaf   bool          // the program is stuck after an error
	Name   int           // by which of its names the mode is set
	Noise  uint64        // seeds the garbage
	Hang   bool          // the store is stopped, not killed
	Daemon string        // the kind of daemon that every rank starts, or ""
}

// draw is scenario k of a seed.
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
		Deaf:   c.Mode == async && r.IntN(2) == 0,
		Name:   r.IntN(2),
		Noise:  r.Uint64(),
	}
	if t.Ranks > 0 {
		s.World = t.Ranks
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
	if s.blind() {
		s.Call %= 2 // which are small
	}
	return s
}

// blind tells whether the ranks differ, and nobody compares: NCCL runs what it
// is given, some of which ends with data that mean nothing, until a rank waits
// for what no other sends. That a large reduction does is not certain.
func (s *scenario) blind() bool {
	return s.Device == cuda && !s.Detail && (s.Fault == skip || s.Fault == resize)
}

// byDeadline tells whether it takes a call's deadline to notice the fault.
func (s *scenario) byDeadline() bool {
	return s.trouble() == stop || s.trouble() == delay || s.blind()
}

// trouble is what the ranks notice: what follows a fault that they do not.
func (s *scenario) trouble() fault {
	if s.Then != "" {
		return s.Then
	}
	return s.Fault
}

// dies tells whether the victim is dead afterwards.
func (s *scenario) dies() bool { return s.trouble() == kill || s.trouble() == exit }

// callTimeout is that of the workers' calls. A broken connection gets longer: a
// rank that reads its end waits for two seconds to be told why.
func (s *scenario) callTimeout() time.Duration {
	if s.Fault == socket {
		return s.Timeout + 3*time.Second
	}
	return s.Timeout
}

// suspension is for how long a job is suspended as a whole.
func (s *scenario) suspension() time.Duration { return 2 * s.callTimeout() }

// resumeInterval is the time between the SIGCONTs to the processes of a suspended
// job: the last rank must go on well within the timeout of the first.
func (s *scenario) resumeInterval() time.Duration { return 10 * s.Jitter }

// rejoinTime is the limit of a worker's second group.
func (s *scenario) rejoinTime() time.Duration {
	if s.Device == cuda { // which has to be opened again
		return 8 * time.Second
	}
	return 3 * time.Second
}

// String says what the scenario is.
func (s *scenario) String() string {
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
	fmt.Fprintf(&b, ", mode %s, %s, %d ranks", s.Mode, s.Setup, s.World)
	if s.Device != cpu {
		fmt.Fprintf(&b, " on %s", s.Device)
	}
	if s.TCP {
		b.WriteString(" over TCP")
	}
	if s.Detail {
		b.WriteString(", calls compared")
	}
	if s.Deaf {
		b.WriteString(", stuck after an error")
	}
	fmt.Fprintf(&b, ": rank %d, call %d of round %d", s.Victim, s.Call, s.Round)
	return b.String()
}

// name is a folder's.
func (s *scenario) name() string {
	detail := ""
	if s.Detail {
		detail = "-compared"
	}
	return strings.ReplaceAll(fmt.Sprintf("%03d-%s-%s%s", s.K, s.Fault, s.Mode, detail), " ", "-")
}

// modeEnv sets the error mode, as a user would.
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

// manner is how the workers deal with an error.
func (s *scenario) manner() string {
	switch {
	case s.Deaf:
		return "deaf"
	case s.Mode == cleanUp:
		return "linger"
	case s.Mode == blocking:
		return "recover"
	}
	return "leave"
}

// share is the worker's part of the fault, and for how long it delays.
func (s *scenario) share() (string, time.Duration) {
	switch s.Fault {
	case delay:
		return "delay", s.callTimeout() + 1500*time.Millisecond
	case hiccup:
		return "delay", s.callTimeout() / 3
	case stale: // once the others are in their backward passes: their records show which
		return string(stale), 50 * time.Millisecond
	case skip, resize, overlap, exit, socket:
		return string(s.Fault), 0
	}
	return "reach", 0
}
