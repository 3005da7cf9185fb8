//go:build cgo && linux

package cuda

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/kernels"
)

// cache stores compiled kernels on disk, in a folder that only its user can write. The permissions
// matter, because programs of the user run the code in it. An entry is a file: the SHA-256 of the
// content, followed by the content.
//
// One process at a time fills the cache, holding a lock on the folder. The other processes of the
// host wait for the lock and then find all entries. Entries are written to a temporary file and
// renamed, so a reader sees a complete entry or none.
type cache struct {
	dir string // if empty, nothing is cached
}

// lockWait is the maximum wait for another process's compilation, which takes minutes on one core.
const lockWait = 10 * time.Minute

// openCache prepares the cache's folder. An empty dir means the default folder. If the folder cannot
// be created or trusted, openCache logs why and nothing is cached, so every start compiles the
// kernels.
func openCache(dir string, log *slog.Logger) cache {
	dir, err := cacheDir(dir)
	if err != nil {
		log.Warn("cuda: compiled kernels are not cached", "cause", err)
		return cache{}
	}
	return cache{dir}
}

func cacheDir(dir string) (string, error) {
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "goddp", "kernels")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "", fmt.Errorf("%s is not a folder", dir)
	case int(st.Uid) != os.Geteuid():
		return "", fmt.Errorf("%s belongs to user %d, want this process's user, %d", dir, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return "", fmt.Errorf("%s has mode %#o, want 0700", dir, st.Mode&0o777)
	}
	return dir, nil
}

// entry is a key of the cache, with the function that makes its content.
type entry struct {
	key  string // the name of the file
	make func() ([]byte, error)
}

// get returns the contents of entries. It reads cached entries and builds missing ones.
func (c cache) get(ctx context.Context, entries []entry) ([][]byte, error) {
	got := make([][]byte, len(entries))
	if c.dir == "" {
		return got, c.build(entries, got)
	}
	if c.read(entries, got) {
		return got, nil
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c.read(entries, got) {
		return got, nil
	}
	return got, c.build(entries, got)
}

// read sets the elements of got for which the cache has an entry, and reports whether it has all entries.
func (c cache) read(entries []entry, got [][]byte) bool {
	all := true
	for i, e := range entries {
		if got[i] == nil {
			got[i] = c.load(e.key)
		}
		all = all && got[i] != nil
	}
	return all
}

// maxEntry is the maximum size of an entry in bytes. All kernels together take less than a hundredth
// of that.
const maxEntry = 1 << 30

// load reads an entry. It returns nil if the entry is missing or damaged.
func (c cache) load(key string) []byte {
	file, err := files.Read(filepath.Join(c.dir, key), maxEntry)
	if err != nil || len(file) <= sha256.Size {
		return nil
	}
	sum, content := file[:sha256.Size], file[sha256.Size:]
	if got := sha256.Sum256(content); !bytes.Equal(got[:], sum) {
		return nil
	}
	return content
}

// build builds and stores the entries that are missing in got, in order, one per core at a time.
func (c cache) build(entries []entry, got [][]byte) error {
	errs := make([]error, len(entries))
	missing := make(chan int, len(entries))
	for i := range entries {
		if got[i] == nil {
			missing <- i
		}
	}
	close(missing)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(missing)) {
		wg.Go(func() {
			for i := range missing {
				if got[i], errs[i] = entries[i].make(); errs[i] == nil && c.dir != "" {
					errs[i] = c.store(entries[i].key, got[i])
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// store writes an entry to the cache.
func (c cache) store(key string, content []byte) error {
	sum := sha256.Sum256(content)
	return files.WriteBytes(filepath.Join(c.dir, key), 0o600, append(sum[:], content...))
}

// lock waits for the folder's lock. The operating system releases the lock of a process that dies.
func (c cache) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	err = kernels.Poll(ctx, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("waiting for another process, which compiles kernels and holds %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}
