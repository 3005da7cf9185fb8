package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/launcher/internal/failure"
)

// reaperClient is the agent's connection to its reaper.
//
// The reaper takes the end of the connection as the death of the agent. So an agent whose
// job is over kills the reaper before it closes the connection.
type reaperClient struct {
	conn    *messageConn
	cmd     *exec.Cmd // nil if the reaper is a goroutine of this process
	reports chan report
	closing chan struct{}
	running sync.WaitGroup
	fault   atomic.Pointer[string] // why giveUp killed the reaper; nil if it did not
}

// startReaper starts the reaper. It returns as soon as the process exists, in less than a
// millisecond. The reaper reads the agent's requests once it has initialised itself. If
// the program has not called ReaperMain, the reaper is a goroutine.
func startReaper() (*reaperClient, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	r := &reaperClient{reports: make(chan report), closing: make(chan struct{})}
	if r.conn, err = newMessageConn(ours); err != nil {
		theirs.Close()
		return nil, err
	}
	if canReap.Load() {
		err = r.startProcess(theirs)
	} else {
		err = r.startGoroutine(theirs)
	}
	if err != nil {
		r.conn.Close()
		return nil, err
	}
	r.running.Go(r.receive)
	return r, nil
}

func (r *reaperClient) startProcess(socket *os.File) error {
	defer socket.Close()
	r.cmd = exec.Command(ownExecutable())
	r.cmd.Args[0] = "golaunch-reaper"
	// The reaper inherits no outputs of the job: a process that reads them to their end
	// would wait for the reaper. The reaper inherits no environment: each start request
	// holds the worker's environment.
	r.cmd.Env = []string{jobenv.ReaperVar + "=1"}
	r.cmd.Stdin = socket
	r.cmd.SysProcAttr = reaperSysProcAttr()
	return r.cmd.Start()
}

func (r *reaperClient) startGoroutine(socket *os.File) error {
	conn, err := newMessageConn(socket)
	if err != nil {
		return err
	}
	served := newReaper(conn, false)
	r.running.Go(func() {
		served.serve()
		served.watcher.close()
		conn.Close()
	})
	return nil
}

// receive reads the reaper's reports until the connection ends. It does not wait for the agent to take
// them. Otherwise agent and reaper could wait for each other: the agent takes no reports while it sends a
// request, and the reaper reads no requests while it cannot send a report.
func (r *reaperClient) receive() {
	received := make(chan report)
	r.running.Go(func() { r.deliver(received) })
	defer close(received)
	for {
		var m report
		files, err := r.conn.receive(&m)
		if err != nil {
			return
		}
		closeAll(files)
		select {
		case received <- m:
		case <-r.closing:
			return
		}
	}
}

// deliver queues the reports, in order, until the agent receives them from r.reports. It closes
// r.reports after the last one. There are at most a few reports for each request, so kept stays small.
func (r *reaperClient) deliver(received <-chan report) {
	defer close(r.reports)
	var kept []report
	for received != nil || len(kept) > 0 {
		var next report
		var to chan<- report // nil if there is no report
		if len(kept) > 0 {
			next, to = kept[0], r.reports
		}
		select {
		case m, ok := <-received:
			if ok {
				kept = append(kept, m)
			} else {
				received = nil
			}
		case to <- next:
			kept = kept[1:]
		case <-r.closing:
			return
		}
	}
}

// requestTimeout is how long the reaper may leave a request unread.
const requestTimeout = 30 * time.Second

// request sends q to the reaper. It returns nil if the reaper is dead or does not read:
// the agent learns of that because r.reports is closed.
func (r *reaperClient) request(q request, files ...*os.File) error {
	if r.cmd != nil {
		_ = r.cmd.Process.Signal(syscall.SIGCONT) // the user may have suspended the whole job
	}
	if err := r.conn.SetWriteDeadline(time.Now().Add(requestTimeout)); err != nil {
		return nil // the connection is closed
	}
	err := r.conn.send(q, files...)
	if errors.Is(err, os.ErrDeadlineExceeded) { // a part of the message may be written
		r.giveUp(fmt.Sprintf("read no request for %v", requestTimeout))
		r.conn.Close()
		return nil
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

// discard asks the reaper to remove a folder if this process dies.
func (r *reaperClient) discard(folder string) error {
	return r.request(request{Discard: []byte(folder)})
}

// kill kills the reaper if it is a process.
func (r *reaperClient) kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill()
	}
}

// giveUp kills a reaper that misbehaves. fault describes what it did, for messages.
func (r *reaperClient) giveUp(fault string) {
	r.fault.CompareAndSwap(nil, &fault)
	r.kill()
}

// lost returns an error that says how the reaper ended. It must be called after r.reports
// was closed.
func (r *reaperClient) lost() error {
	if r.cmd == nil {
		return errors.New("the connection to the reaper ended")
	}
	r.kill() // a reaper that closed the connection may still run
	state, err := r.cmd.Process.Wait()
	if err != nil {
		return fmt.Errorf("waiting for the reaper (pid %d): %w", r.cmd.Process.Pid, err)
	}
	if fault := r.fault.Load(); fault != nil {
		return fmt.Errorf("the reaper (pid %d), the parent of the workers, %s and was ended", r.cmd.Process.Pid, *fault)
	}
	return fmt.Errorf("the reaper (pid %d), the parent of the workers, %s", r.cmd.Process.Pid, failure.StatusOf(state))
}

// close kills the reaper and closes the connection. It must be called when no process of
// the job is left.
func (r *reaperClient) close() {
	if r == nil {
		return
	}
	if r.cmd != nil {
		r.kill()
		_, _ = r.cmd.Process.Wait()
	}
	close(r.closing)
	r.conn.Close()
	r.running.Wait()
}
