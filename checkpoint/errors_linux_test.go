package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// mounted mounts a new file system of kib KiB.
func mounted(t *testing.T, kib int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dk", kib)); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestDiskFull(t *testing.T) {
	dir := mounted(t, 80)
	filler := filepath.Join(dir, "filler")
	var once sync.Once
	failing(t, dir, "no space left on device", func(*Manager) (err error) {
		once.Do(func() {
			for n := 64 << 10; n > 0; n /= 2 { // fills all but less than a page
				f, failed := os.OpenFile(filler, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
				if failed != nil {
					err = failed
					return
				}
				f.Write(make([]byte, n))
				f.Close()
			}
		})
		return err
	}, func() { os.Remove(filler) })
}

func TestReadOnly(t *testing.T) {
	dir := mounted(t, 400)
	remount := func(flags uintptr) error {
		return syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, "")
	}
	failing(t, dir, "read-only file system", func(*Manager) error { return remount(syscall.MS_RDONLY) }, func() {
		if err := remount(0); err != nil {
			t.Fatal(err)
		}
	})
}
