package checkpoint

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// server is a folder that hosts share, with the guarantees of NFS.
type server struct {
	mu    sync.Mutex
	count int             // the number of names that hosts have made
	made  map[string]name // the names that exist, by path
}

type name struct {
	number int // the position among all names, from 1
	by     *host
}

// host is a client of a server, with one rank. It sees a name that another host made only after it
// has opened the folder again. Its first read of a file fails with a stale handle. Its first
// removal of a folder leaves a file, as if a process had it open.
type host struct {
	disk
	*server
	known map[string]int  // by folder: the number of names at the time when the host last opened it
	once  map[string]bool // the calls, with their paths, that have failed once
}

func (s *server) host() *host {
	return &host{server: s, known: map[string]int{}, once: map[string]bool{}}
}

// add records that the host has made a name. The caller holds mu.
func (h *host) add(path string) {
	h.count++
	h.made[path] = name{h.count, h}
}

// first returns true at the first call for a path. The caller holds mu.
func (h *host) first(op, path string) bool {
	was := h.once[op+path]
	h.once[op+path] = true
	return !was
}

func (h *host) Open(path string) (source, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := path; p != filepath.Dir(p); p = filepath.Dir(p) {
		if n := h.made[p]; n.by != nil && n.by != h && n.number > h.known[filepath.Dir(p)] {
			return nil, &os.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	h.known[path] = h.count
	return &handle{f, h}, nil
}

type handle struct {
	*os.File
	h *host
}

func (f *handle) ReadAt(data []byte, offset int64) (int, error) {
	f.h.mu.Lock()
	stale := f.h.first("read", f.Name())
	f.h.mu.Unlock()
	if stale {
		return 0, &os.PathError{Op: "read", Path: f.Name(), Err: syscall.ESTALE}
	}
	return f.File.ReadAt(data, offset)
}

func (h *host) Mkdir(path string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n, there := h.made[path]; there { // after Open the host knows the file
		h.known[filepath.Dir(path)] = max(h.known[filepath.Dir(path)], n.number)
		return nil
	}
	h.add(path)
	return h.disk.Mkdir(path)
}

func (h *host) Create(path string) (file, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(path)
	return h.disk.Create(path)
}

func (h *host) Rename(from, to string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(to)
	for p, n := range h.made {
		if below, ok := strings.CutPrefix(p, from+"/"); ok {
			h.made[filepath.Join(to, below)] = n
		}
	}
	return h.disk.Rename(from, to)
}

func (h *host) RemoveAll(path string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first("remove", path) {
		return &os.PathError{Op: "unlinkat", Path: path, Err: syscall.ENOTEMPTY}
	}
	return h.disk.RemoveAll(path)
}

// A run saves in a folder on a network file system, and a run on other hosts resumes from it.
func TestNetworkFolder(t *testing.T) {
	dir := t.TempDir()
	shared := &server{made: map[string]name{}}
	for _, from := range []int{0, 3} {
		hosts := []*host{shared.host(), shared.host()}
		quiet := &comm.Options{Log: slog.New(slog.DiscardHandler)} // discards the warnings about folders that cannot be removed
		commtest.OnGoroutines(t, 2, quiet, func(pg *comm.ProcessGroup) error {
			r, m, err := begin(pg, dir, plain, 1, Options{Keep: 1, Async: true, fs: hosts[pg.Rank()]})
			if err != nil {
				return err
			}
			step, err := m.Resume(t.Context(), r.state())
			if step != from || r.seen != from {
				t.Errorf("resumed at step %d, with the value %d, want %d", step, r.seen, from)
			}
			for n := from; n < from+3 && err == nil; n++ {
				if _, err = r.train(n, n+1); err == nil {
					err = m.Save(t.Context(), n+1, r.state())
				}
			}
			return errors.Join(err, m.Close())
		})
	}
	if err := Verify(filepath.Join(dir, "step-00000006")); err != nil {
		t.Error(err)
	}
}
