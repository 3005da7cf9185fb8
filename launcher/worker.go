package launcher

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/rendezvous"
	"github.com/goddp/goddp/internal/stopfile"
)

// process is one worker of one attempt.
type process struct {
	Worker    // whose PID is 0 until the reaper has reported its start
	streams   []*stream
	stderr    tail
	errorFile string
	stopFile  string         // where the worker tells of stop requests
	stopped   bool           // it told that it stops by one before it was to take none any more
	memory    *flight.Shared // what it records into; nil if it records nothing
	record    *flight.Dump   // taken when the attempt failed; nil if there was nothing
	dying     bool           // it was exiting when the workers were told to stop
	end       *exitReport    // nil while it runs
}

// askedToStop is the signal because of which the worker and all other ranks agreed to
// stop, if that is why it ended; else 0.
func (p *process) askedToStop() syscall.Signal {
	sig := syscall.Signal(p.end.Status.Code - 128)
	if (sig == syscall.SIGINT || sig == syscall.SIGTERM) && (p.stopped || stopfile.Read(p.stopFile) == stopfile.Done) {
		return sig
	}
	return 0
}

// refuseRequests has the worker take signals from now on for the order to end at once.
func (p *process) refuseRequests() {
	old := p.stopFile + ".refused"
	if os.Rename(p.stopFile, old) == nil { // as a rule there is no file
		p.stopped = stopfile.Read(old) == stopfile.Done
	}
}

// spawner holds what the workers of one attempt have in common.
type spawner struct {
	cfg     *Config
	reaper  *reaperClient
	console *console
	hidden  <-chan struct{} // of their streams
	env     []string
	round   *rendezvous.Round
	attempt int
	dir     string // attempt_<n> in the run folder
	records int    // entries of each worker's flight recorder
	dumps   string // where the workers write their records
	chosen  bool   // by the user
	copying *sync.WaitGroup
}

// spawn has the reaper start worker local, and starts the goroutines that copy its output.
func (s *spawner) spawn(local int) (_ *process, err error) {
	p := &process{Worker: Worker{Rank: s.round.FirstRank + local, LocalRank: local, Attempt: s.attempt}}
	var theirs []*os.File // the write ends, which the reaper has once it was asked
	defer func() {
		closeAll(theirs)
		if err != nil {
			for _, st := range p.streams {
				st.pipe.Close()
				if st.file != nil {
					st.file.Close()
				}
			}
			p.closeRecord()
			err = &startError{Rank: p.Rank, Program: s.cfg.Args[0], Err: err}
		}
	}()

	cmd := exec.Command(s.cfg.Args[0]) // finds the program
	if cmd.Err != nil {
		return nil, cmd.Err
	}
	dir := filepath.Join(s.dir, strconv.Itoa(local))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p.errorFile, p.stopFile = filepath.Join(dir, errorJSON), filepath.Join(dir, stopState)
	for _, which := range []streamSet{stdoutStream, stderrStream} {
		st, w, err := s.open(which, p, dir)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, w)
		p.streams = append(p.streams, st)
	}
	files := theirs
	if s.giveRecorder(p); p.memory != nil {
		files = append(slices.Clone(theirs), p.memory.File())
	}
	env := append(workerEnv(s.env, s.round, local, s.attempt, p.errorFile), s.recorderEnv(p)...)
	env = append(env, stopfile.Var+"="+p.stopFile)
	start := &startRequest{
		Local: local,
		Path:  []byte(cmd.Path), Dir: []byte(s.cfg.Dir),
		Args: bytesOf(s.cfg.Args), Env: bytesOf(env),
	}
	if err := s.reaper.request(request{Start: start}, files...); err != nil {
		return nil, err
	}
	for _, st := range p.streams {
		s.copying.Go(st.copy)
	}
	return p, nil
}

// open makes one of a worker's streams, and the file that the worker writes into.
func (s *spawner) open(which streamSet, p *process, dir string) (_ *stream, w *os.File, err error) {
	st := &stream{console: s.console, hidden: s.hidden, prefix: s.prefix(p)}
	name, shown := stdoutLog, s.console.stdout
	if which == stderrStream {
		name, shown = stderrLog, s.console.stderr
		st.tail, st.holder = &p.stderr, &stackHolder{}
	}
	redirected := s.cfg.Redirects.of(p.LocalRank)&which != 0
	filter := s.cfg.LocalRanksFilter
	if !redirected && (len(filter) == 0 || slices.Contains(filter, p.LocalRank)) {
		st.shown, st.redraws = shown, isTerminal(shown)
	}
	if redirected || s.cfg.Tee.of(p.LocalRank)&which != 0 {
		if st.file, err = os.Create(filepath.Join(dir, name)); err != nil {
			return nil, nil, err
		}
	}
	if st.pipe, w, err = os.Pipe(); err != nil {
		if st.file != nil {
			st.file.Close()
		}
		return nil, nil, err
	}
	return st, w, nil
}

func (s *spawner) prefix(p *process) string {
	return os.Expand(s.cfg.LinePrefix, func(name string) string {
		switch name {
		case "role_name":
			return s.cfg.Role
		case "local_rank":
			return strconv.Itoa(p.LocalRank)
		case "rank":
			return strconv.Itoa(p.Rank)
		}
		return "${" + name + "}"
	})
}
