package testkit

import (
	"os"
	"syscall"
	"testing"
)

// UnreadPipe returns the write end of a pipe that nobody reads, for a process's output, and a function that fills it.
func UnreadPipe(t testing.TB) (w *os.File, fill func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return w, func() {
		t.Helper()
		fd := int(w.Fd())
		err := syscall.SetNonblock(fd, true)
		for err == nil {
			_, err = syscall.Write(fd, make([]byte, 4<<10))
		}
		if err != syscall.EAGAIN {
			t.Fatal(err)
		}
		if err := syscall.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
	}
}
