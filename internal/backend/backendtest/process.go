package backendtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/backend"
)

// Workers are the processes of a group: the test binary, started once for each rank.
type Workers struct {
	Cmds  []*exec.Cmd
	lines []chan string // the lines that each worker printed
}

// StartWorkers starts n workers. env returns the environment by which TestMain runs a rank. The
// workers are killed at the end of the test.
func StartWorkers(t *testing.T, n int, env func(rank int) []string) *Workers {
	t.Helper()
	w := &Workers{}
	for r := range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = env(r)
		lines := make(chan string, 10_000)
		cmd.Stdout, cmd.Stderr = &lineWriter{to: lines}, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Cmds, w.lines = append(w.Cmds, cmd), append(w.lines, lines)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			cmd.Wait()
			close(lines)
		}()
		t.Cleanup(func() {
			cmd.Process.Kill()
			<-ended
		})
	}
	return w
}

// Wait returns the rest of a rank's next line that begins with prefix.
func (w *Workers) Wait(t *testing.T, rank int, prefix string) string {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		select {
		case line, ok := <-w.lines[rank]:
			if !ok {
				t.Fatalf("rank %d ended without printing %q", rank, prefix)
			}
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return rest
			}
			if line != roundLine {
				t.Logf("rank %d: %s", rank, line)
			}
		case <-deadline:
			t.Fatalf("rank %d does not print %q", rank, prefix)
		}
	}
}

// WaitForRounds waits until every worker has run a call of ReduceRounds.
func (w *Workers) WaitForRounds(t *testing.T) {
	t.Helper()
	for r := range w.Cmds {
		w.Wait(t, r, roundLine)
	}
}

// lineWriter sends each complete line to a channel.
type lineWriter struct {
	to   chan<- string
	rest string
}

func (w *lineWriter) Write(p []byte) (int, error) {
	lines := strings.Split(w.rest+string(p), "\n")
	w.rest = lines[len(lines)-1]
	for _, l := range lines[:len(lines)-1] {
		w.to <- l
	}
	return len(p), nil
}

const roundLine = "round"

// ReduceRounds runs an AllReduce of count ones, again and again. It prints a line after every
// hundredth.
func ReduceRounds(m *Rank, count, rounds int, timeout time.Duration) error {
	c, err := m.Ones(count)
	if err != nil {
		return err
	}
	for i := range rounds {
		again := *c
		again.Timeout = timeout
		if err := m.Run(&again); err != nil {
			return err
		}
		if i%100 == 0 {
			fmt.Println(roundLine)
		}
	}
	return nil
}

// Describe returns a short text of how a worker ended.
func Describe(err error) string {
	var lost *backend.PeerLostError
	var timeout *backend.TimeoutError
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &lost):
		return fmt.Sprint("lost ", lost.Peer, " ", lost.Left)
	case errors.As(err, &timeout):
		return fmt.Sprint("timeout ", timeout.Waiting)
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
