package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/launcher/internal/failure"
	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// process is one worker of one attempt.
type process struct {
	Worker                        // PID is 0 until the reaper has reported the start
	number int                    // the worker's number: see rendezvous.Survival
	order  *rendezvous.StartOrder // the order to start it in place of a lost worker; nil if it is a first worker
	// isUndecided says that the worker has ended, and the host of the rendezvous has not said yet whether the others
	// go on.
	isUndecided bool
	expelled    string // why the worker was killed by order of the host; "" if it was not
	streams     []*stream
	reports
	copying   sync.WaitGroup // the goroutines that copy its output and its numbers
	stderr    tail
	errorFile string
	stopFile  string           // the file into which the worker writes how it takes stop requests
	stopped   bool             // the ranks had agreed to stop when their requests were refused
	memory    *flight.Shared   // the memory of the flight recorder; nil if there is none
	record    *flight.Dump     // the record that was taken when the attempt failed; nil if there was none
	dying     bool             // the worker was exiting when the workers were told to stop
	end       *failure.Failure // how the worker ended; nil while it runs
}

// askedToStop returns the signal because of which the ranks agreed to stop, if the worker
// ended for that reason. Otherwise it returns 0.
func (p *process) askedToStop() syscall.Signal {
	sig := syscall.Signal(p.end.Status.Code - 128)
	if (sig == syscall.SIGINT || sig == syscall.SIGTERM) && (p.stopped || jobenv.ReadStopState(p.stopFile) == jobenv.StopDone) {
		return sig
	}
	return 0
}

// endSoon makes the goroutines that copy from the worker return when they have what it wrote, even if another process
// still holds the other ends.
func (p *process) endSoon() {
	for _, st := range p.streams {
		st.endSoon()
	}
	p.reports.endSoon()
}

// exit returns the core's event of the worker's end.
func (p *process) exit() workerExited {
	return workerExited{local: p.LocalRank, status: p.end.Status, asked: p.askedToStop()}
}

// spawner starts the workers of one attempt. It holds what they have in common.
type spawner struct {
	cfg      *Config
	reaper   *reaperClient
	console  *console
	hurry    <-chan struct{} // the field hurry of the workers' streams
	env      []string
	round    *rendezvous.Round
	observer observer // nil: nobody looks at the job
	dir      string   // the attempt's folder, attempt_<n>
	records  int      // number of entries of each worker's flight recorder
	dumps    string   // the folder into which the workers write their flight records
	chosen   bool     // the user chose dumps
}

// spawn asks the reaper to start the worker with local rank local, and starts the goroutines that copy the
// worker's output. order is the order to start it in place of a lost worker, or nil. The process that spawn returns
// with an error has no resources.
func (s *spawner) spawn(local int, order *rendezvous.StartOrder) (p *process, err error) {
	p = &process{Worker: Worker{Rank: s.round.FirstRank + local, LocalRank: local, Attempt: s.round.Number}, order: order}
	p.number = p.Rank
	if order != nil {
		p.number = order.Worker
	}
	var theirs []*os.File // the write ends of the pipes; the reaper receives copies of them
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
			if p.conn != nil {
				p.conn.Close()
			}
			p.streams = nil
			err = &startError{Rank: p.Rank, Program: s.cfg.Args[0], Err: err}
		}
	}()

	cmd := exec.Command(s.cfg.Args[0]) // only finds the program
	if cmd.Err != nil {
		return p, cmd.Err
	}
	dir := filepath.Join(s.dir, strconv.Itoa(local))
	if order != nil {
		dir += fmt.Sprintf("_worker_%d", p.number)
	}
	// An earlier round with the same number may have left files here: see attempt.number.
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return p, err
	}
	p.errorFile, p.stopFile = filepath.Join(dir, errorJSON), filepath.Join(dir, stopState)
	for _, which := range []streamSet{stdoutStream, stderrStream} {
		st, w, err := s.open(which, p, dir)
		if err != nil {
			return p, err
		}
		theirs = append(theirs, w)
		p.streams = append(p.streams, st)
	}
	files := slices.Clone(theirs)
	if s.giveRecorder(p); p.memory != nil {
		files = append(files, p.memory.File())
	}
	report := "" // overrides the value inherited from an outer golaunch, if this one is nested
	if s.observer != nil {
		theirs, err := s.giveReports(p)
		if err != nil {
			return p, err
		}
		defer theirs.Close()
		report = strconv.Itoa(firstExtraFD + len(files) - 2)
		files = append(files, theirs)
	}
	columns := "0" // a log file would have each state of a line
	if stderr := p.streams[1]; stderr.file == nil && stderr.columns() > 0 {
		columns = jobenv.Columns(stderr.columns(), theirs[1])
	}
	env := slices.Concat(s.env, s.job(local, p).Environ(), s.recorderEnv(p), []string{
		jobenv.ReportFDVar + "=" + report, jobenv.ColumnsVar + "=" + columns,
	})
	if s.cfg.VirtualLocalRank {
		env = append(env, virtualEnv(s.env, local)...)
	}
	start := &startRequest{
		Local: local, Replaces: order != nil,
		Path: []byte(cmd.Path), Dir: []byte(s.cfg.Dir),
		Args: bytesOf(s.cfg.Args), Env: bytesOf(env),
	}
	if s.cfg.Stdin != nil && s.cfg.StdinRank == local {
		foreground, err := unix.IoctlGetInt(int(s.cfg.Stdin.Fd()), unix.TIOCGPGRP)
		isTerminal := err == nil // the terminal of this process
		if !isTerminal || foreground == unix.Getpgrp() {
			// A worker that reads the terminal gets a new session, for two reasons. The terminal would suspend a reader in a
			// background process group, and a worker is in one. And only golaunch's group must get Ctrl-C, to stop the job.
			files, start.HasStdin, start.InSession = slices.Insert(files, 0, s.cfg.Stdin), true, isTerminal
		}
	}
	if err := s.reaper.request(request{Start: start}, files...); err != nil {
		return p, err
	}
	for _, st := range p.streams {
		p.copying.Go(st.copy)
	}
	if s.observer != nil {
		p.copying.Go(func() { p.copyReports(s.observer) })
	}
	return p, nil
}

// open makes one stream of a worker. It returns the stream, and the write end of its pipe
// for the worker.
func (s *spawner) open(which streamSet, p *process, dir string) (_ *stream, w *os.File, err error) {
	st := &stream{console: s.console, hurry: s.hurry, prefix: s.prefix(p)}
	if s.observer != nil {
		st.note = func(text []byte) { s.observer.Line(int(p.shownAs.Load()), string(text), which == stderrStream) }
	}
	name, shown, label := stdoutLog, s.console.Stdout, "stdout"
	if which == stderrStream {
		name, shown, label = stderrLog, s.console.Stderr, "stderr"
		st.tail, st.holder = &p.stderr, &stackHolder{}
	}
	redirected := s.cfg.Redirects.of(p.LocalRank)&which != 0
	filter := s.cfg.LocalRanksFilter
	if !redirected && (len(filter) == 0 || slices.Contains(filter, p.LocalRank)) {
		st.shown, st.redraws = shown, shown.Columns() > 0 && !s.cfg.JSONLines
	}
	if s.cfg.JSONLines {
		st.json = &jsonLine{Source: fromWorker, Host: hostname(), workerLabel: &workerLabel{
			Node: s.round.Node, Rank: p.Rank, LocalRank: p.LocalRank, Role: s.cfg.Role, Attempt: p.Attempt, Stream: label,
		}}
	}
	if redirected || s.cfg.Tee.of(p.LocalRank)&which != 0 {
		// O_APPEND lets logrotate truncate the file while the agent writes it.
		if st.file, err = os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o666); err != nil {
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

// prefix returns the prefix of a worker's lines.
func (s *spawner) prefix(p *process) string {
	return os.Expand(s.cfg.LinePrefix, func(name string) string {
		switch name {
		case "role_name":
			return s.cfg.Role
		case "local_rank":
			return strconv.Itoa(p.LocalRank)
		case "rank":
			return strconv.Itoa(p.Rank)
		case "node":
			return strconv.Itoa(s.round.Node)
		case "host":
			return hostname()
		case "attempt":
			return strconv.Itoa(p.Attempt)
		}
		return "${" + name + "}"
	})
}
