//go:build cgo && linux

package cuda

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
)

// privateDir returns a new folder that only the user can read and write, as the cache requires.
func privateDir(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "kernels")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// counted returns an entry that counts how often it is made.
func counted(key string, made *int) entry {
	return entry{key, func() ([]byte, error) { *made++; return []byte("code of " + key), nil }}
}

func TestCache(t *testing.T) {
	dir := privateDir(t)
	c := openCache(dir, quiet())
	var made int
	get := func() {
		t.Helper()
		got, err := c.get(t.Context(), []entry{counted("a", &made)})
		if err != nil || string(got[0]) != "code of a" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	get()
	get()
	if made != 1 {
		t.Errorf("made %d times, want once", made)
	}
	file := filepath.Join(dir, "a")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, damaged := range [][]byte{
		nil, whole[:10], whole[:len(whole)-1], append(bytes.Clone(whole), 0), append([]byte{whole[0] ^ 1}, whole[1:]...),
		append(bytes.Clone(whole[:len(whole)-1]), whole[len(whole)-1]^1),
	} {
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		get()
		if made != i+2 {
			t.Errorf("a spoilt entry (%d bytes of %d) was taken for whole", len(damaged), len(whole))
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*.*")); len(left) > 0 {
		t.Errorf("temporary files are left: %q", left)
	}
}

func TestCacheErrors(t *testing.T) {
	c := openCache(privateDir(t), quiet())
	var made int
	failing := entry{"bad", func() ([]byte, error) { return nil, fmt.Errorf("does not compile") }}
	if _, err := c.get(t.Context(), []entry{counted("good", &made), failing}); err == nil || !strings.Contains(err.Error(), "does not compile") {
		t.Errorf("got %v", err)
	}
	var another int
	if _, err := c.get(t.Context(), []entry{counted("another", &another), counted("good", &made)}); err != nil || made != 1 || another != 1 {
		t.Errorf("made %d times, and another entry %d times, %v", made, another, err)
	}
}

// The cache does not use a folder that other users can write.
func TestCacheIsPrivate(t *testing.T) {
	for _, mode := range []os.FileMode{0o755, 0o720, 0o777} {
		dir := privateDir(t)
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		c := openCache(dir, quiet())
		var made int
		for range 2 {
			if _, err := c.get(t.Context(), []entry{counted("a", &made)}); err != nil {
				t.Fatal(err)
			}
		}
		if files, _ := os.ReadDir(dir); made != 2 || len(files) != 0 {
			t.Errorf("mode %o: made %d times, %d files", mode, made, len(files))
		}
	}
	symlink := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(privateDir(t), symlink); err != nil {
		t.Fatal(err)
	}
	if c := openCache(symlink, quiet()); c.dir != "" {
		t.Error("a symbolic link was taken for a folder")
	}
}

// Processes that start at the same time with an empty cache make each entry once. Here they are goroutines: each has opened the
// lock by itself, as a process does.
func TestCacheIsFilledOnce(t *testing.T) {
	dir := privateDir(t)
	var made atomic.Int32
	var entries []entry
	for _, key := range []string{"a", "b", "c"} {
		entries = append(entries, entry{key, func() ([]byte, error) {
			made.Add(1)
			time.Sleep(5 * time.Millisecond) // in place of a compilation
			return []byte(key), nil
		}})
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got, err := openCache(dir, quiet()).get(t.Context(), entries); err != nil || len(got) != 3 || string(got[2]) != "c" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := made.Load(); n != 3 {
		t.Errorf("three entries were made %d times by four processes", n)
	}
}

// The wait for another process's lock ends with its context.
func TestLockDeadline(t *testing.T) {
	c := openCache(privateDir(t), quiet())
	unlock, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var made int
	if _, err := c.get(ctx, []entry{counted("a", &made)}); err == nil || made != 0 {
		t.Errorf("got past a lock that is held: %v", err)
	}
	unlock()
	if _, err := c.get(t.Context(), []entry{counted("a", &made)}); err != nil || made != 1 {
		t.Errorf("behind the lock: made %d times, %v", made, err)
	}
}

// A device opens and works although the entries of the cache are damaged.
func TestDamagedKernelsAreCompiledAgain(t *testing.T) {
	dir := privateDir(t)
	ok(t, openGPU(t, &Options{CacheDir: dir}).Close())
	files, err := filepath.Glob(filepath.Join(dir, "*.cubin"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the cache holds %q, %v", files, err)
	}
	for i, f := range files {
		if i%2 == 0 {
			ok(t, os.Truncate(f, 1000))
		}
	}
	d := gpu(t, &Options{CacheDir: dir})
	x := upload(t, d, []float32{1, 2, 3}, 3)
	ok(t, d.Kernels().Axpby(d.Compute(), x, device.Accum{Alpha: 2}, x))
	if got := download(t, d, x); got[2] != 6 {
		t.Errorf("twice [1 2 3] is %v", got)
	}
}
