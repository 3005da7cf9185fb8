package hosts

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/netns"
)

// soon is a generous limit for what must not take long.
const soon = time.Minute

// line is a line that a program wrote.
type line struct {
	text string
	at   time.Time
}

// program is a program that a test has started on a host.
type program struct {
	t     *testing.T
	host  *netns.Host
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended and its output is read

	mu      sync.Mutex
	lines   []line
	changed chan struct{} // closed and replaced when lines grows
}

// start starts a program on a host. The end of the test ends the program.
func start(t *testing.T, h *netns.Host, env []string, name string, args ...string) *program {
	t.Helper()
	p := &program{t: t, host: h, ended: make(chan struct{}), changed: make(chan struct{})}
	p.cmd = exec.Command(name, args...)
	p.cmd.Env = append(os.Environ(), "GODDP_DEVICE=cpu", "TMPDIR="+t.TempDir())
	p.cmd.Env = append(p.cmd.Env, env...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	err = h.Start(p.cmd)
	w.Close()
	if err != nil {
		r.Close()
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		defer r.Close()
		p.read(r)
		p.cmd.Wait() // the tests check the exit code
	}()
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			p.cmd.Process.Kill()
			<-p.ended
		}
		if t.Failed() || os.Getenv("HOSTS_V") != "" {
			t.Logf("%s wrote:\n%s", h.Name(), p.text())
		}
	})
	return p
}

func (p *program) read(r io.Reader) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, line{in.Text(), time.Now()})
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
}

// written returns the lines so far, and a channel that is closed when there are more.
func (p *program) written() ([]line, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines[:len(p.lines):len(p.lines)], p.changed
}

func (p *program) text() string {
	lines, _ := p.written()
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.at.Format("05.000 ") + l.text + "\n")
	}
	return b.String()
}

// matches returns the lines that match a pattern.
func (p *program) matches(pattern string) (found []line) {
	re := regexp.MustCompile(pattern)
	lines, _ := p.written()
	for _, l := range lines {
		if re.MatchString(l.text) {
			found = append(found, l)
		}
	}
	return found
}

// await waits until n lines match a pattern, and returns the last of them.
func (p *program) await(pattern string, n int) line {
	p.t.Helper()
	return p.awaitAfter(time.Time{}, pattern, n)
}

// awaitAfter does so for lines that were written after a time.
func (p *program) awaitAfter(after time.Time, pattern string, n int) line {
	p.t.Helper()
	deadline := time.After(soon)
	for hasEnded := false; ; {
		_, changed := p.written()
		found := p.matches(pattern)
		for len(found) > 0 && !found[0].at.After(after) {
			found = found[1:]
		}
		switch {
		case len(found) >= n:
			return found[n-1]
		case hasEnded:
			p.t.Fatalf("%s ended, with code %d, before %d lines matched %q", p.host.Name(), p.cmd.ProcessState.ExitCode(), n, pattern)
		}
		select {
		case <-changed:
		case <-p.ended:
			hasEnded = true // the last lines may match
		case <-deadline:
			p.t.Fatalf("%s: no %d lines matched %q in %v", p.host.Name(), n, pattern, soon)
		}
	}
}

// wait waits for the end of the program and checks its exit code.
func (p *program) wait(code int) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(soon):
		p.t.Fatalf("%s has not ended in %v", p.host.Name(), soon)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("%s: exit code %d, want %d", p.host.Name(), got, code)
	}
}

// expect checks that n lines match a pattern.
func (p *program) expect(pattern string, n int) {
	p.t.Helper()
	if got := p.matches(pattern); len(got) != n {
		p.t.Errorf("%s: %d lines match %q, want %d", p.host.Name(), len(got), pattern, n)
	}
}
