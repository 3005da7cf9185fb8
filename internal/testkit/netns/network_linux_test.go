package netns

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// A process that begins to run a program has no arguments yet. It counts as a process all the same.
func TestProcessThatBeginsAProgram(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cmdline", "stat"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { // each write waits until awaitArgs opens the file
		for _, w := range [][2]string{{"cmdline", ""}, {"stat", "7 (a) b) R 1 7 7"}, {"cmdline", "sleep\x001000\x00"}} {
			if err := os.WriteFile(filepath.Join(dir, w[0]), []byte(w[1]), 0); err != nil {
				t.Error(err)
			}
		}
	})
	if got := awaitArgs(dir); !slices.Equal(got, []string{"sleep", "1000"}) {
		t.Fatalf("the arguments are %q", got)
	}
	wg.Wait()
}

// A process that has ended has no arguments and gets none.
func TestZombieHasNoArguments(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"cmdline": "", "stat": "7 (a) b) Z 1 7 7"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := awaitArgs(dir); got != nil {
		t.Errorf("the arguments are %q", got)
	}
}
