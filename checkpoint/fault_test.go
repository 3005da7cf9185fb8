package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

var errFault = errors.New("injected fault")

// faultyDisk is a disk of all ranks. One of its calls fails, or that call and all later ones. It
// records which data is not durable yet, so that a test can simulate a power failure.
type faultyDisk struct {
	disk
	mu        sync.Mutex
	calls     int                // the number of calls so far
	failAt    int                // the number of the call that fails, from 1; 0: none
	permanent bool               // all later calls fail too, as if the machine were off
	unsynced  map[string]bool    // files whose content is not durable
	names     map[string][]named // names that are not durable, in order, by folder
}

// named is a name that a call gave to a file or a folder.
type named struct {
	name string
	undo func(path string)
}

func newFaultyDisk(failAt int, permanent bool) *faultyDisk {
	return &faultyDisk{failAt: failAt, permanent: permanent, unsynced: map[string]bool{}, names: map[string][]named{}}
}

// do counts a call, and makes it unless it has to fail.
func (d *faultyDisk) do(op, path string, call func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.failAt > 0 && (d.calls == d.failAt || d.permanent && d.calls > d.failAt) {
		return &os.PathError{Op: op, Path: path, Err: errFault}
	}
	return call()
}

// add records a name that is not durable until its folder is synced.
func (d *faultyDisk) add(path string, undo func(path string)) {
	dir := filepath.Dir(path)
	d.names[dir] = append(d.names[dir], named{filepath.Base(path), undo})
}

func (d *faultyDisk) Mkdir(path string) error {
	return d.do("mkdir", path, func() error {
		if _, err := os.Stat(path); err != nil {
			d.add(path, func(path string) { os.RemoveAll(path) })
		}
		return d.disk.Mkdir(path)
	})
}

func (d *faultyDisk) Create(path string) (f file, err error) {
	err = d.do("create", path, func() error {
		if f, err = d.disk.Create(path); err != nil {
			return err
		}
		d.add(path, func(path string) { os.Remove(path) })
		d.unsynced[path] = true
		f = &faultyFile{f, d, path}
		return nil
	})
	return f, err
}

func (d *faultyDisk) Rename(from, to string) error {
	return d.do("rename", from, func() error {
		before, gone := os.ReadFile(to) // the replaced file is small, or there is none
		if err := d.disk.Rename(from, to); err != nil {
			return err
		}
		d.add(to, func(to string) {
			os.Rename(to, from)
			if gone == nil {
				os.WriteFile(to, before, 0o666)
			}
		})
		move(d.unsynced, from, to)
		move(d.names, from, to)
		return nil
	})
}

// move replaces from by to in the paths of all, which are from or below it.
func move[V any](all map[string]V, from, to string) {
	for path, v := range maps.Clone(all) {
		if below, ok := strings.CutPrefix(path, from); ok && (below == "" || below[0] == filepath.Separator) {
			delete(all, path)
			all[to+below] = v
		}
	}
}

func (d *faultyDisk) SyncFolder(path string) error {
	return d.do("fsync", path, func() error {
		delete(d.names, path)
		return nil
	})
}

func (d *faultyDisk) RemoveAll(path string) error {
	return d.do("remove", path, func() error { return d.disk.RemoveAll(path) })
}

// cut simulates a power failure. It removes the contents of files, the names in folders, or both,
// as far as they are not durable.
func (d *faultyDisk) cut(contents, names bool) {
	if contents {
		for path := range d.unsynced {
			os.Truncate(path, 0)
		}
	}
	if !names {
		return
	}
	deepest := slices.SortedFunc(maps.Keys(d.names), func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, dir := range deepest {
		for _, n := range slices.Backward(d.names[dir]) {
			n.undo(filepath.Join(dir, n.name))
		}
	}
}

type faultyFile struct {
	file
	d    *faultyDisk
	path string
}

// Write writes half of the data if it has to fail.
func (f *faultyFile) Write(data []byte) (n int, err error) {
	err = f.d.do("write", f.path, func() error {
		n, err = f.file.Write(data)
		return err
	})
	if errors.Is(err, errFault) {
		n, _ = f.file.Write(data[:len(data)/2])
	}
	return n, err
}

func (f *faultyFile) Sync() error {
	return f.d.do("fsync", f.path, func() error {
		delete(f.d.unsynced, f.path)
		return nil
	})
}

func (f *faultyFile) Close() error {
	return errors.Join(f.d.do("close", f.path, func() error { return nil }), f.file.Close())
}

// Any call of the file system may fail, alone or with all later calls and the power. The ranks
// agree on whether the checkpoint is complete. If Save returned nil, that checkpoint loads;
// otherwise that one or the one before loads.
func TestEveryFault(t *testing.T) {
	base := t.TempDir()
	const ranks = 2
	commtest.OnGoroutines(t, ranks, nil, func(pg *comm.ProcessGroup) error {
		_, err := saved(t.Context(), pg, base, plain, 2)
		return err
	})
	save := func(t *testing.T, d *faultyDisk) (dir string, complete bool) {
		dir = filepath.Join(t.TempDir(), "run")
		if err := os.CopyFS(dir, os.DirFS(base)); err != nil {
			t.Fatal(err)
		}
		var results [ranks]error
		commtest.OnGoroutines(t, ranks, nil, func(pg *comm.ProcessGroup) error {
			r, m, err := begin(pg, dir, plain, 1, Options{Keep: 1, fs: newFaultyDisk(0, false)})
			if err != nil {
				return err
			}
			if _, err := r.train(0, 3); err != nil {
				return err
			}
			m.fs = d
			results[pg.Rank()] = m.Save(t.Context(), 3, r.state())
			return m.Close()
		})
		if (results[0] == nil) != (results[1] == nil) {
			t.Errorf("rank 0: %v, rank 1: %v", results[0], results[1])
		}
		return dir, results[0] == nil
	}
	d := newFaultyDisk(0, false)
	if _, complete := save(t, d); !complete {
		t.Fatal("a save without a fault failed")
	}
	count := d.calls
	if count < 20 {
		t.Fatalf("%d calls, want more", count)
	}
	outcomes := map[string]int{}
	for at := 1; at <= count+1; at++ { // at count+1 only the power fails
		powers := []string{"on", "both lost"}
		if testkit.IsLong() {
			powers = append(powers, "off", "contents lost", "names lost")
		}
		for _, power := range powers {
			d := newFaultyDisk(at, power != "on")
			dir, complete := save(t, d)
			d.cut(power == "contents lost" || power == "both lost", power == "names lost" || power == "both lost")
			commtest.OnGoroutines(t, ranks, nil, func(pg *comm.ProcessGroup) error {
				return resumesAt(t.Context(), pg, dir, complete, outcomes)
			})
			if t.Failed() {
				t.Fatalf("call %d of %d failed, power %s; complete: %v", at, count, power, complete)
			}
		}
	}
	if outcomes["step 2"] == 0 || outcomes["step 3"] == 0 {
		t.Errorf("%v, want some of each", outcomes)
	}
}

// resumesAt checks that a run resumes from dir at step 3, or at step 2 if the checkpoint of step 3
// is not complete, and then trains and saves.
func resumesAt(ctx context.Context, pg *comm.ProcessGroup, dir string, complete bool, outcomes map[string]int) error {
	r, m, err := begin(pg, dir, plain, 2, Options{Keep: 1, fs: newFaultyDisk(0, false)})
	if err != nil {
		return err
	}
	step, err := m.Resume(ctx, r.state())
	switch {
	case err != nil:
	case step != 3 && (complete || step != 2), r.seen != step:
		err = fmt.Errorf("resumed at step %d, with the value %d", step, r.seen)
	default:
		if _, err = r.train(step, 4); err == nil {
			err = m.Save(ctx, 4, r.state())
		}
	}
	if pg.Rank() == 0 {
		outcomes[fmt.Sprint("step ", step)]++
	}
	return errors.Join(err, m.Close())
}
