package testkit

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Soon bounds every wait for a process. It is generous: a busy machine must not fail a test.
const Soon = time.Minute

// Process is a process of a test. The end of the test kills it, and logs its output if the test failed.
type Process struct {
	Cmd   *exec.Cmd
	t     testing.TB
	ended chan struct{} // closed when the process has ended and its output is read

	mu      sync.Mutex
	lines   []Line
	changed chan struct{} // closed and replaced when lines grows
}

// Line is a line that a process wrote.
type Line struct {
	Text   string // without its end
	At     time.Time
	Stderr bool
}

// Start starts a process and reads its output line by line.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	return StartBy(t, cmd, cmd.Start)
}

// StartBy is Start for a process that start starts, for example on another host.
func StartBy(t testing.TB, cmd *exec.Cmd, start func() error) *Process {
	t.Helper()
	oneProcess(t)
	p := &Process{Cmd: cmd, t: t, ended: make(chan struct{}), changed: make(chan struct{})}
	outs := [2]*os.File{}
	ins := [2]*os.File{}
	for i := range outs {
		var err error
		if outs[i], ins[i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Stdout, cmd.Stderr = ins[0], ins[1]
	err := start()
	ins[0].Close()
	ins[1].Close()
	if err != nil {
		outs[0].Close()
		outs[1].Close()
		t.Fatalf("%v: %v", cmd, err)
	}
	var readers sync.WaitGroup
	for i, out := range outs {
		readers.Go(func() {
			defer out.Close()
			p.read(out, i == 1)
		})
	}
	go func() {
		defer close(p.ended)
		readers.Wait()
		cmd.Wait() // Wait and Run return how it ended
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		select {
		case <-p.ended:
		case <-time.After(Soon):
			t.Errorf("%v: killed, but after %v another process still holds its output", cmd, Soon)
		}
		if t.Failed() {
			t.Logf("%v wrote:\n%s", cmd, p.timed())
		}
	})
	return p
}

func (p *Process) read(r io.Reader, stderr bool) {
	for in := bufio.NewReader(r); ; {
		text, err := in.ReadString('\n') // without a limit: a process whose output nobody reads would hang
		if text != "" {
			p.mu.Lock()
			p.lines = append(p.lines, Line{strings.TrimSuffix(text, "\n"), time.Now(), stderr})
			close(p.changed)
			p.changed = make(chan struct{})
			p.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// written returns the lines so far, and a channel that is closed when there are more.
func (p *Process) written() ([]Line, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines[:len(p.lines):len(p.lines)], p.changed
}

// text returns what the process has written so far to the streams that keep selects.
func (p *Process) text(keep func(Line) bool) string {
	lines, _ := p.written()
	var b strings.Builder
	for _, l := range lines {
		if keep(l) {
			b.WriteString(l.Text + "\n")
		}
	}
	return b.String()
}

// Stdout returns what the process has written to its standard output so far.
func (p *Process) Stdout() string { return p.text(func(l Line) bool { return !l.Stderr }) }

// Stderr returns what the process has written to its standard error so far.
func (p *Process) Stderr() string { return p.text(func(l Line) bool { return l.Stderr }) }

func (p *Process) timed() string {
	lines, _ := p.written()
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.At.Format("05.000 ") + l.Text + "\n")
	}
	return b.String()
}

// Matches returns the lines that match a regular expression so far.
func (p *Process) Matches(pattern string) (found []Line) {
	re := regexp.MustCompile(pattern)
	lines, _ := p.written()
	for _, l := range lines {
		if re.MatchString(l.Text) {
			found = append(found, l)
		}
	}
	return found
}

// Await waits until n lines match a regular expression, and returns the last of them. It fails the test if the
// process ends before, or after [Soon].
func (p *Process) Await(pattern string, n int) Line {
	p.t.Helper()
	return p.AwaitAfter(time.Time{}, pattern, n)
}

// AwaitAfter is Await for lines that were written after a time.
func (p *Process) AwaitAfter(after time.Time, pattern string, n int) Line {
	p.t.Helper()
	deadline := time.After(Soon)
	for hasEnded := false; ; {
		_, changed := p.written()
		found := p.Matches(pattern)
		for len(found) > 0 && !found[0].At.After(after) {
			found = found[1:]
		}
		switch {
		case len(found) >= n:
			return found[n-1]
		case hasEnded:
			p.t.Fatalf("%v ended, %v, before %d lines matched %q", p.Cmd, p.Cmd.ProcessState, n, pattern)
		}
		select {
		case <-changed:
		case <-p.ended:
			hasEnded = true // the last lines may match
		case <-deadline:
			p.t.Fatalf("%v: in %v no %d lines matched %q", p.Cmd, Soon, n, pattern)
		}
	}
}

// Expect checks that n lines match a regular expression.
func (p *Process) Expect(pattern string, n int) {
	p.t.Helper()
	if got := p.Matches(pattern); len(got) != n {
		p.t.Errorf("%v: %d lines match %q, want %d", p.Cmd, len(got), pattern, n)
	}
}

// Signal sends the process a signal.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("%v: %v", p.Cmd, err)
	}
}

// AwaitStop waits until SIGSTOP has suspended the process.
func (p *Process) AwaitStop() {
	p.t.Helper()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(p.Cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		p.t.Fatalf("%v is not suspended: status %#x, %v", p.Cmd, status, err)
	}
}

// Ended returns a channel that is closed when the process has ended and its output is read.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end of the process and returns its exit code, as a shell would: 128 and the signal's number if a
// signal ended it. It fails the test if the process does not end within [Soon].
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(Soon):
		p.Cmd.Process.Signal(syscall.SIGQUIT) // a Go program shows its goroutines
		p.t.Fatalf("%v has not ended in %v", p.Cmd, Soon)
	}
	if status, ok := p.Cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.Cmd.ProcessState.ExitCode()
}

// Result is how a process ended and what it wrote.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs a process to its end.
func Run(t testing.TB, cmd *exec.Cmd) Result {
	t.Helper()
	p := Start(t, cmd)
	code := p.Wait()
	return Result{code, p.Stdout(), p.Stderr()}
}

// Output runs a process that must succeed and returns its standard output.
func Output(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	r := Run(t, cmd)
	if r.Code != 0 {
		t.Fatalf("%v: exit code %d\n%s", cmd, r.Code, r.Stderr)
	}
	return r.Stdout
}

// World starts the ranks of a job as a scheduler does, without golaunch. command returns the command of each rank; World
// adds RANK, WORLD_SIZE and where to meet.
func World(t testing.TB, size int, command func(rank int) *exec.Cmd) []*Process {
	t.Helper()
	port, _ := Port(t)
	ranks := make([]*Process, size)
	for rank := range ranks {
		cmd := command(rank)
		if cmd.Env == nil {
			cmd.Env = os.Environ()
		}
		cmd.Env = append(cmd.Env, fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", size), fmt.Sprint("LOCAL_RANK=", rank),
			fmt.Sprint("LOCAL_WORLD_SIZE=", size), "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port))
		ranks[rank] = Start(t, cmd)
	}
	return ranks
}
