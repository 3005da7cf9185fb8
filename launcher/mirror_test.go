package launcher

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/wire"
)

// startHostFirst starts a job of two nodes, the first of which hosts the rendezvous.
func startHostFirst(t *testing.T, jobs ...*job) (wait func() []nodeResult) {
	t.Helper()
	_, endpoint := testkit.Port(t)
	n := &Nodes{Min: 2, Max: 2, Endpoint: endpoint, ShowAllOutput: true}
	host := startNodes(t, n, jobs[0])
	for {
		if c, err := net.Dial("tcp", endpoint); err == nil {
			c.Close()
			break
		}
		time.Sleep(time.Millisecond)
	}
	other := startNodes(t, n, jobs[1])
	return func() []nodeResult { return append(host(), other()...) }
}

// The node that hosts the rendezvous shows the output of both attempts of all nodes; the
// other node shows its own.
func TestHostShowsAllOutput(t *testing.T) {
	jobs := []*job{
		shell(1, `[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 60; echo "of the host"`),
		shell(1, `echo "out of attempt $TORCHELASTIC_RESTART_COUNT"; echo "err" >&2; exit $((1 - TORCHELASTIC_RESTART_COUNT))`),
	}
	for _, j := range jobs {
		j.cfg.MaxRestarts = 1
	}
	for i, r := range startHostFirst(t, jobs...)() {
		if r.err != nil {
			t.Fatalf("node %d: %v\n%s", i, r.err, &r.job.err)
		}
		out, stderr := r.out.String(), r.job.err.String()
		for attempt := range 2 {
			if line := fmt.Sprintf("[node 1, default1]: out of attempt %d\n", attempt); strings.Count(out, line) != 1 {
				t.Errorf("node %d shows %q, want once %q", i, out, line)
			}
		}
		if strings.Count(stderr, "[node 1, default1]: err\n") != 2 {
			t.Errorf("node %d shows on stderr %q", i, stderr)
		}
		if isHost := i == 0; strings.Contains(out, "[node 0, default0]: of the host\n") != isHost {
			t.Errorf("node %d shows %q", i, out)
		}
		if line := "golaunch on " + hostname() + ": round 1: this is node 1 of 2"; !strings.Contains(stderr, line) {
			t.Errorf("node %d does not show %q:\n%s", i, line, stderr)
		}
	}
}

// The lines that are sent, and those that are said to be dropped, are all lines.
func TestMirrorCountsDroppedLines(t *testing.T) {
	m := newMirror((&console{}).line)
	m.queue = wire.NewOutbox(64 << 10)
	mine, theirs := net.Pipe()
	var out, notices buffer
	shown := newConsole(&out, &notices)
	go m.run(func() (net.Conn, error) { return mine, nil })
	const lines, width = 2000, 500
	text := []byte(strings.Repeat("x", width-1) + "\n")
	for range lines {
		m.send(false, text) // nobody reads yet
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		shown.showMirrored(theirs, nil)
	}()
	m.close()
	<-done
	if err := shown.Close(soon, nil); err != nil {
		t.Error(err)
	}
	dropped := 0
	for _, found := range regexp.MustCompile(`golaunch: (\d+) lines are not shown here`).FindAllStringSubmatch(notices.String(), -1) {
		n, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		dropped += n
	}
	if sent := strings.Count(out.String(), "\n"); sent+dropped != lines || dropped == 0 || sent == 0 {
		t.Errorf("%d lines sent, %d dropped, want %d", sent, dropped, lines)
	}
}
