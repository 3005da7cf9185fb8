package launcher

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// blockedConsole is a console that takes nothing until open is closed.
type blockedConsole struct {
	strings.Builder
	open chan struct{}
}

func (g *blockedConsole) Write(p []byte) (int, error) {
	<-g.open
	return g.Builder.Write(p)
}

// An attempt ends although the console is blocked, and files get all that the worker wrote. The console gets the output
// later.
func TestDrainOfABlockedConsole(t *testing.T) {
	g := &blockedConsole{open: make(chan struct{})}
	a := &agent{cfg: &Config{}, console: newConsole(g, g)}
	a.begin(nil)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), stdoutLog))
	if err != nil {
		t.Fatal(err)
	}
	st := &stream{pipe: r, console: a.console, shown: a.console.Stdout, hurry: a.hurrying, file: file}
	a.procs = []*process{{streams: []*stream{st}}}
	a.procs[0].copying.Go(st.copy)
	text := strings.Repeat(strings.Repeat("x", 1<<10-1)+"\n", 8<<10) // more than the console keeps
	a.hurry()                                                        // as drain does after a while
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	a.drain(soon) // although w is open
	w.Close()
	if got, err := os.ReadFile(file.Name()); err != nil || string(got) != text {
		t.Errorf("the file has %d bytes, %v, want %d", len(got), err, len(text))
	}
	close(g.open)
	if err := a.console.Close(soon, nil); err != nil || !strings.HasPrefix(text, g.String()[:len(text)/8]) || !strings.HasSuffix(g.String(), " lines are not shown: nobody read stdout\n") {
		t.Errorf("the console has %d bytes, ending in %.80q; %v", g.Len(), g.String()[max(0, g.Len()-80):], err)
	}
}

// A log record becomes one of golaunch's own lines, which begins with the message.
func TestRecordIsALine(t *testing.T) {
	var out bytes.Buffer
	c := newConsole(&out, &out)
	c.logger().Warn("rendezvous: node refused", "host", "a", "reason", "it is late")
	if err := c.Close(soon, nil); err != nil || out.String() != "golaunch: rendezvous: node refused host=a reason=\"it is late\"\n" {
		t.Errorf("%q, %v", &out, err)
	}
}
