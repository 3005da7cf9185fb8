package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// reaperClient is the agent's end of its reaper.
//
// The end of the connection always means to the reaper that the agent is dead: an
// agent that ends its job kills the reaper before it closes the connection.
type reaperClient struct {
	conn    *messageConn
	cmd     *exec.Cmd // nil if the reaper is a goroutine of this process
	reports chan report
	closing chan struct{}
	running sync.WaitGroup
}

// startReaper returns as soon as the process exists, which takes less than a
// millisecond; it initialises itself while the agent goes on, and then reads what it
// was told. Where there can be no such process the reaper is a goroutine.
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
	// It inherits neither the job's outputs, which somebody may be reading to the end,
	// nor an environment: each start request holds the worker's.
	r.cmd.Env = []string{reaperVar + "=1"}
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

// receive passes the reaper's reports on, in their order. It closes reports when the
// connection ends.
func (r *reaperClient) receive() {
	defer close(r.reports)
	for {
		var m report
		files, err := r.conn.receive(&m)
		if err != nil {
			return
		}
		closeAll(files)
		select {
		case r.reports <- m:
		case <-r.closing:
			return
		}
	}
}

// requestTimeout bounds how long the reaper may leave a request unread.
const requestTimeout = 30 * time.Second

// request sends q to the reaper. If the reaper is dead, or does not read, request returns
// nil: the agent learns of that when reports is closed.
func (r *reaperClient) request(q request, files ...*os.File) error {
	if r.cmd != nil {
		_ = r.cmd.Process.Signal(syscall.SIGCONT) // it may be suspended, as part of the job
	}
	if err := r.conn.SetWriteDeadline(time.Now().Add(requestTimeout)); err != nil {
		return nil // the connection is closed
	}
	err := r.conn.send(q, files...)
	if errors.Is(err, os.ErrDeadlineExceeded) { // perhaps in mid-message
		r.kill()
		r.conn.Close()
		return nil
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

// discard makes the reaper remove a folder if this process dies.
func (r *reaperClient) discard(folder string) error {
	return r.request(request{Discard: []byte(folder)})
}

// kill ends a reaper that does not answer.
func (r *reaperClient) kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill()
	}
}

// lost returns how the reaper ended, after reports was closed.
func (r *reaperClient) lost() error {
	if r.cmd == nil {
		return errors.New("the connection to the reaper ended")
	}
	r.kill() // it has closed the connection
	state, err := r.cmd.Process.Wait()
	if err != nil {
		return fmt.Errorf("waiting for the reaper (pid %d): %w", r.cmd.Process.Pid, err)
	}
	return fmt.Errorf("the reaper (pid %d), the parent of the workers, %s", r.cmd.Process.Pid, statusOf(state))
}

// close ends the reaper, without letting it act, when nothing of the job is left.
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
