package printer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func line(format string, args ...any) []byte { return fmt.Appendf(nil, format+"\n", args...) }

// reader is an output that takes a write when take returns.
type reader struct {
	bytes.Buffer
	take func()
}

func (r *reader) Write(p []byte) (int, error) {
	r.take()
	return r.Buffer.Write(p)
}

// blocked returns an output that takes nothing until open is called.
func blocked() (r *reader, open func()) {
	opened := make(chan struct{})
	return &reader{take: func() { <-opened }}, func() { close(opened) }
}

const width = 1 << 10

// fill writes lines of 1 KiB.
func fill(o *Output, lines int) {
	for range lines {
		o.Write([]byte(strings.Repeat("x", width-1)+"\n"), nil)
	}
}

// A reader that is slow gets all lines.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{take: func() { time.Sleep(Patience - time.Millisecond) }}
		p := New(r, io.Discard, line)
		const lines = 2 * maxQueued / width
		fill(p.Stdout, lines)
		if err := p.Close(Patience, nil); err != nil || r.String() != strings.Repeat(strings.Repeat("x", width-1)+"\n", lines) {
			t.Errorf("%d lines, want %d; %v", strings.Count(r.String(), "\n"), lines, err)
		}
	})
}

// Nobody waits for an output that is blocked, except once for Patience. The lines that are shown, and those that are said
// not to be, are all lines.
func TestBlockedReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, open := blocked()
		p := New(r, r, line)
		start := time.Now()
		const lines = 3 * maxQueued / width
		fill(p.Stdout, lines)
		if took := time.Since(start); took != Patience {
			t.Errorf("writing took %v, want %v", took, Patience)
		}
		p.Stderr.Put([]byte("the process's own\n"))
		open()
		synctest.Wait()
		p.Stdout.Write([]byte("after that\n"), nil)
		if err := p.Close(Patience, nil); err != nil {
			t.Error(err)
		}
		shown, rest, _ := strings.Cut(r.String(), "the process's own\n")
		n, said, _ := strings.Cut(rest, " lines")
		if dropped, err := strconv.Atoi(n); err != nil || dropped+strings.Count(shown, "\n") != lines || said != " are not shown: nobody read stdout\nafter that\n" {
			t.Errorf("%d lines shown of %d, then %q", strings.Count(shown, "\n"), lines, rest)
		}
	})
}

// Write waits no longer when its channel is closed. A reader that is slow gets the lines all the same, and those of the
// process itself.
func TestWriteGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{take: func() { time.Sleep(Patience - time.Millisecond) }}
		p := New(r, r, line)
		closed := make(chan struct{})
		close(closed)
		start := time.Now()
		lines := append(bytes.Repeat([]byte{'x'}, maxQueued/2-1), '\n')
		for range 2 * maxLeft / maxQueued {
			p.Stdout.Write(lines, closed)
		}
		p.Stderr.Put([]byte("the process's own\n"))
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v", took)
		}
		if err := p.Close(Patience, nil); err != nil || r.Len() != maxLeft+len("the process's own\n") {
			t.Errorf("%d bytes, want %d; %v", r.Len(), maxLeft, err)
		}
	})
}

// Close gives up when the output takes nothing for the grace period, or a signal comes. It ignores signals that came before,
// and a closed channel of signals.
func TestCloseOfABlockedOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed, earlier, later := make(chan os.Signal), make(chan os.Signal, 1), make(chan os.Signal, 1)
		close(closed)
		earlier <- syscall.SIGTERM
		for name, test := range map[string]struct {
			signals chan os.Signal
			took    time.Duration
		}{"time": {nil, time.Minute}, "closed": {closed, time.Minute}, "before": {earlier, time.Minute}, "signal": {later, time.Second}} {
			r, open := blocked()
			p := New(r, r, line)
			p.Stdout.Put([]byte("first\n"))
			p.Stdout.Put([]byte("second\n"))
			start := time.Now()
			if name == "signal" {
				time.AfterFunc(test.took, func() { later <- syscall.SIGTERM })
			}
			err := p.Close(time.Minute, test.signals)
			if took := time.Since(start); took != test.took || err != nil {
				t.Errorf("%s: close took %v, want %v; %v", name, took, test.took, err)
			}
			open()
			synctest.Wait()
			if !strings.HasPrefix(r.String(), "first\n") || strings.Contains(r.String(), "second") {
				t.Errorf("%s: got %q", name, r)
			}
		}
	})
}

// A file that is blocked does not delay another one, which tells of the lines that are lost.
func TestOneOfTwoFilesIsBlocked(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	p := New(w, stderr, line)
	p.Stdout.Put(make([]byte, 1<<20)) // more than the pipe holds
	p.Stdout.Put([]byte("lost\n"))
	p.Stderr.Put([]byte("a failure\n"))
	p.mu.Lock()
	p.flush(p.Stderr.queue, time.Now(), time.Minute, nil) // on a busy machine the writer of stderr may take longer than Close waits
	p.mu.Unlock()
	if err := p.Close(200*time.Millisecond, nil); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(stderr.Name()); err != nil || string(text) != "a failure\n1 lines are not shown: nobody read stdout\n" {
		t.Errorf("stderr is %q, %v", text, err)
	}
}

// A full disk is an error, the end of a reader is none.
func TestErrors(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err) // only Linux has it
	}
	defer full.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	var stderr bytes.Buffer
	p := New(full, &stderr, line)
	p.Stdout.Put([]byte("lost\n"))
	if err := p.Close(time.Minute, nil); !errors.Is(err, syscall.ENOSPC) || !regexp.MustCompile(`^write .*: no space left on device\n$`).MatchString(stderr.String()) {
		t.Errorf("a full disk: %v, stderr %q", err, &stderr)
	}
	p = New(w, w, line)
	p.Stdout.Put([]byte("unread\n"))
	if err := p.Close(time.Minute, nil); err != nil {
		t.Errorf("a reader that has ended: %v", err)
	}
}
