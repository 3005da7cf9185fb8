package launcher

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/goddp/goddp/comm/flight"
	"github.com/goddp/goddp/launcher/rendezvous"
)

// starter starts processes from one OS thread, because on Linux the death of
// the thread that forked a worker is what the worker's parent-death signal
// reports. It must be closed after its processes have ended.
type starter struct {
	requests chan func()
	done     sync.WaitGroup
}

func newStarter() *starter {
	s := &starter{requests: make(chan func())}
	s.done.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for f := range s.requests {
			f()
		}
	})
	return s
}

func (s *starter) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	s.requests <- func() { result <- cmd.Start() }
	return <-result
}

func (s *starter) close() {
	close(s.requests)
	s.done.Wait()
}

// process is one worker of one attempt.
type process struct {
	Worker
	cmd       *exec.Cmd
	pidfd     int // -1 where there are none
	streams   []*stream
	stderr    tail
	errorFile string
	memory    *flight.Shared // what it records into; nil if it records nothing
	record    *flight.Dump   // taken when the attempt failed; nil if there was nothing
	dying     bool           // it was exiting when the workers were told to stop
	end       *exit          // nil while it runs
}

// spawner holds what the workers of one attempt have in common.
type spawner struct {
	cfg     *Config
	starter *starter
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

// spawn starts worker local and the goroutines that copy its output.
func (s *spawner) spawn(local int) (_ *process, err error) {
	p := &process{
		Worker: Worker{Rank: s.round.FirstRank + local, LocalRank: local, Attempt: s.attempt},
		pidfd:  -1,
	}
	var theirs []io.Closer // the write ends, which the worker has once it runs
	defer func() {
		for _, w := range theirs {
			w.Close()
		}
		if err != nil {
			for _, st := range p.streams {
				st.pipe.Close()
				if st.file != nil {
					st.file.Close()
				}
			}
			p.closeRecord()
			err = &StartError{Rank: p.Rank, Program: s.cfg.Args[0], Err: err}
		}
	}()

	dir := filepath.Join(s.dir, strconv.Itoa(local))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p.errorFile = filepath.Join(dir, errorJSON)

	p.cmd = exec.Command(s.cfg.Args[0], s.cfg.Args[1:]...)
	p.cmd.Dir = s.cfg.Dir
	s.giveRecorder(p)
	p.cmd.Env = append(workerEnv(s.env, s.round, local, s.attempt, p.errorFile), s.recorderEnv(p)...)
	p.cmd.SysProcAttr = workerSysProcAttr(&p.pidfd)
	for _, which := range []Streams{Stdout, Stderr} {
		st, w, err := s.open(which, p, dir)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, w)
		p.streams = append(p.streams, st)
		if which == Stdout {
			p.cmd.Stdout = w
		} else {
			p.cmd.Stderr = w
		}
	}
	if err := s.starter.start(p.cmd); err != nil {
		return nil, err
	}
	p.PID = p.cmd.Process.Pid
	for _, st := range p.streams {
		s.copying.Go(st.copy)
	}
	return p, nil
}

// open makes one of a worker's streams, and the file that the worker writes into.
func (s *spawner) open(which Streams, p *process, dir string) (_ *stream, w *os.File, err error) {
	st := &stream{console: s.console, hidden: s.hidden, prefix: s.prefix(p)}
	name, shown := stdoutLog, s.console.stdout
	if which == Stderr {
		name, shown = stderrLog, s.console.stderr
		st.tail = &p.stderr
	}
	redirected := s.cfg.Redirects.Of(p.LocalRank)&which != 0
	filter := s.cfg.LocalRanksFilter
	if !redirected && (len(filter) == 0 || slices.Contains(filter, p.LocalRank)) {
		st.shown = shown
	}
	if redirected || s.cfg.Tee.Of(p.LocalRank)&which != 0 {
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

// signalGroup sends sig to a worker's process group and wakes those of its
// processes that are suspended, who would not act on it otherwise. The worker
// must not have been waited for, so that its group id cannot be another's.
func signalGroup(pid int, sig syscall.Signal) {
	_ = syscall.Kill(-pid, sig) // ESRCH: it has just ended
	if sig != syscall.SIGKILL {
		_ = syscall.Kill(-pid, syscall.SIGCONT)
	}
}
