package election

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goddp/goddp/internal/wire"
)

// Program is the command that Start runs. Its main function calls Serve.
const Program = "golaunch-etcd"

// closeTime bounds how long Program may take to resign and end.
const closeTime = 5 * time.Second

// Process is an [Election] that a child process carries out. The child runs Program.
type Process struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	responses chan response // closed when the process has ended
	ended     chan struct{} // closed when the process has ended
	abandoned chan struct{} // closed when responses are no longer awaited
	abandon   func()        // kills the process
	running   sync.WaitGroup
	received  atomic.Bool // a message was received since the last heartbeat

	asking sync.Mutex // held from a request until its response

	mu   sync.Mutex
	term *processTerm // nil if this agent is not elected
}

// Start starts Program, which opens the election. The program is searched in the folder of this process's
// executable, and then on PATH.
func Start(ctx context.Context, o Options) (*Process, error) {
	path, err := find()
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.Command(path), responses: make(chan response), ended: make(chan struct{}), abandoned: make(chan struct{})}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.abandon = sync.OnceFunc(func() {
		close(p.abandoned)
		_ = p.cmd.Process.Kill() // it may have ended
	})
	p.running.Go(func() { p.read(out) })
	if _, err := p.ask(ctx, request{Open: &o}); err != nil {
		p.Close()
		return nil, err
	}
	p.running.Go(func() { p.beat(silenceLimit(&o)) })
	return p, nil
}

// beat sends heartbeats until golaunch-etcd has ended. Without heartbeats golaunch-etcd resigns, so that a golaunch
// that is stopped does not remain the host. beat kills a golaunch-etcd that does not return the heartbeats. Such a
// golaunch-etcd may be stopped, so its lease may have expired, and another agent may be elected.
func (p *Process) beat(limit time.Duration) {
	ticker := time.NewTicker(limit / beatsPerLimit)
	defer ticker.Stop()
	message := wire.Encode(request{Beat: true})
	for silence := 0; ; { // silence counts ticks, which excludes time in which this process is stopped
		if _, err := p.in.Write(message); err != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-p.ended:
			return
		}
		if silence++; p.received.Swap(false) {
			silence = 0
		}
		if silence >= beatsPerLimit {
			p.abandon()
			return
		}
	}
}

// find returns the path of Program.
func find() (string, error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), Program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	path, err := exec.LookPath(Program)
	if err != nil {
		return "", fmt.Errorf("the backend etcd needs the program %s in golaunch's folder or on PATH: run go install github.com/goddp/goddp/cmd/%s@latest", Program, Program)
	}
	return path, nil
}

// read passes on the responses until the process ends.
func (p *Process) read(out io.Reader) {
	defer close(p.responses)
	defer close(p.ended)
	defer p.expire()
	in := bufio.NewReader(out)
	for {
		var r response
		if err := wire.Decode(in, maxMessage, &r); err != nil {
			return
		}
		p.received.Store(true)
		switch {
		case r.Beat:
			continue
		case r.Expired:
			p.expire()
			continue
		case r.Elected:
			p.mu.Lock()
			p.term = &processTerm{process: p, state: r.State, expired: make(chan struct{})}
			p.mu.Unlock()
		}
		select {
		case p.responses <- r:
		case <-p.abandoned:
			return
		}
	}
}

// expire ends the current term.
func (p *Process) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.term != nil {
		close(p.term.expired)
		p.term = nil
	}
}

// ask sends a request and waits for the response. If ctx ends first, the process is killed.
func (p *Process) ask(ctx context.Context, r request) (response, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	if _, err := p.in.Write(wire.Encode(r)); err != nil {
		return response{}, ErrEnded
	}
	select {
	case answer, ok := <-p.responses:
		switch {
		case !ok:
			return answer, ErrEnded
		case answer.IsOver:
			return answer, ErrOver
		case answer.JobEnded:
			return answer, ErrJobEnded
		case answer.Error != "":
			return answer, errors.New(answer.Error)
		}
		return answer, nil
	case <-ctx.Done():
		p.abandon()
		return response{}, context.Cause(ctx)
	}
}

// ErrEnded reports that the election's process has ended, for example because it was killed. Another one can be
// started.
var ErrEnded = errors.New(Program + " has ended")

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Elect implements [Election].
func (p *Process) Elect(ctx context.Context, addr, dead string) (host string, term Term, err error) {
	answer, err := p.ask(ctx, request{Elect: &electRequest{addr, dead}})
	if err != nil || !answer.Elected {
		return answer.Host, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.term == nil {
		return "", nil, ErrOver
	}
	return "", p.term, nil
}

// Close makes the process end, and waits for its end.
func (p *Process) Close() error {
	p.in.Close()
	timer := time.AfterFunc(closeTime, p.abandon)
	defer timer.Stop()
	go func() { // receives a late response
		for range p.responses {
		}
	}()
	p.running.Wait()
	_ = p.cmd.Wait() // how it ended does not matter
	return nil
}

// processTerm is the term of this agent in an election that a process makes.
type processTerm struct {
	process *Process
	state   State
	expired chan struct{}
}

func (t *processTerm) State() State          { return t.state }
func (t *processTerm) Over() <-chan struct{} { return t.expired }

func (t *processTerm) Save(ctx context.Context, s State) error {
	_, err := t.process.ask(ctx, request{Save: &s})
	return err
}

func (t *processTerm) Resign(ctx context.Context, ended bool) error {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	_, err := t.process.ask(ctx, request{Resign: &resignRequest{ended}})
	return err
}
