package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/nn"
)

// misbehaving is a disk on which a test changes some calls.
type misbehaving struct {
	disk
	before func(op, path string) error // is called before Create, Rename and SyncFolder
}

func (d misbehaving) Create(path string) (file, error) {
	if err := d.before("create", path); err != nil {
		return nil, err
	}
	return d.disk.Create(path)
}

func (d misbehaving) Rename(from, to string) error {
	return errors.Join(d.before("rename", to), d.disk.Rename(from, to))
}

func (d misbehaving) SyncFolder(path string) error {
	return errors.Join(d.before("fsync", path), d.disk.SyncFolder(path))
}

// If two ranks cannot save, all ranks get an error of one line that says why, and the checkpoint before remains. It also
// remains if the new one turns out not to be readable.
func TestSaveFails(t *testing.T) {
	for want, before := range map[string]func(dir, op, path string) error{
		"another job saves in this folder": func(_, op, path string) error {
			if op == "rename" && filepath.Base(path) == "step-00000003" { // the other job is a moment faster
				return os.MkdirAll(filepath.Join(path, "other"), 0o777)
			}
			return nil
		},
		"no such file or directory": func(dir, op, _ string) error {
			if op == "fsync" {
				_ = os.Rename(dir, dir+"-away") // the first of the calls moves it
			}
			return nil
		},
		"no space left on device": func(_, op, path string) error {
			if op == "create" {
				return &os.PathError{Op: op, Path: path, Err: syscall.ENOSPC}
			}
			return nil
		},
		"": func(dir, op, path string) error {
			if op == "fsync" && path != dir { // the folder of the new files; the last to sync it is rank 0, when all are there
				f, err := os.OpenFile(filepath.Join(path, shareName(0, 2)), os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteAt([]byte("damage"), 1000)
					f.Close()
				}
				if !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
			return nil
		},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
			r, err := saved(t.Context(), pg, dir, plain, 2)
			if err != nil {
				return err
			}
			m, err := Open(t.Context(), pg, dir, &Options{Keep: 1})
			if err != nil {
				return err
			}
			if err := pg.Barrier().Wait(t.Context()); err != nil {
				return err
			}
			m.fs = misbehaving{before: func(op, path string) error { return before(dir, op, path) }}
			if _, err = r.train(2, 3); err != nil {
				return err
			}
			err = m.Save(t.Context(), 3, r.state())
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("rank %d: %v, want one line with %q", pg.Rank(), err, want)
			}
			return m.Close()
		})
		_ = os.Rename(dir+"-away", dir)
		commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
			_, err := resumed(t.Context(), pg, dir, plain, 2)
			return err
		})
	}
}

// Open takes no empty name for the working directory, in which it would delete files.
func TestOpenWithoutAFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		if m, err := Open(t.Context(), pg, "", nil); err == nil || !strings.Contains(err.Error(), `the folder is ""`) {
			t.Errorf("rank %d: Open returned %v, %v, want an error about the folder", pg.Rank(), m, err)
		}
		return nil
	})
}

// Open finds that a rank does not see the folder, and names the rank.
func TestOpenNamesTheRankThatSeesAnotherFolder(t *testing.T) {
	shared, other := t.TempDir(), t.TempDir()
	commtest.OnGoroutines(t, 3, nil, func(pg *comm.ProcessGroup) error {
		dir := shared
		if pg.Rank() == 1 {
			dir = other
		}
		_, err := Open(t.Context(), pg, dir, nil)
		if err == nil || !strings.Contains(err.Error(), "rank 1: the folder on ") || !strings.Contains(err.Error(), "is not the folder of rank 0") {
			t.Errorf("rank %d: %v", pg.Rank(), err)
		}
		return nil
	})
}

// Loading a checkpoint that does not fit the state returns an error that says what does not fit,
// and changes neither the state nor the checkpoint.
func TestLoadRefusesAnotherState(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "step-00000002")
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		_, err := saved(t.Context(), pg, dir, plain, 2)
		return err
	})
	refused := func(what string, state func(r *run) State, check func(err error) bool) {
		t.Helper()
		commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
			r, m, err := begin(pg, dir, plain, 2, Options{})
			if err != nil {
				return err
			}
			before := bits(r)
			step, err := m.Resume(t.Context(), state(r))
			if err == nil || !check(err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: step %d, %v", what, step, err)
			}
			for name, want := range before {
				if string(bits(r)[name]) != string(want) {
					t.Errorf("%s: %s has changed", what, name)
				}
			}
			if _, err := r.train(0, 1); err != nil { // the optimizer's state is consistent
				return err
			}
			return m.Close()
		})
		if err := Verify(path); err != nil && what != "a newer format" {
			t.Error(err)
		}
	}
	misfit := func(err error) bool { return strings.Contains(err.Error(), "was saved from another model") }
	refused("another model", func(r *run) State {
		other := nn.Sequential(nn.Linear(7, 13, nil), nn.Linear(13, 4, nil))
		if err := nn.Place(other, r.pg.Device(), 1); err != nil {
			t.Error(err)
		}
		s := r.state()
		s.Model = other
		return s
	}, misfit)
	refused("no optimizer", func(r *run) State { return State{Model: r.model} }, func(err error) bool {
		return strings.Contains(err.Error(), "has the state of 1 optimizers, but the program has 0")
	})
	refused("a value that is not there", func(r *run) State {
		s := r.state()
		s.Values["more"] = new(int)
		return s
	}, func(err error) bool { return strings.Contains(err.Error(), `lacks the values ["more"]`) })
	manifest := filepath.Join(path, manifestName)
	data, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(data[strings.Index(string(data), `"manifest":`)+11:len(data)-2]), `"version":1`, `"version":2`, 1)
	if err := os.WriteFile(manifest, seal([]byte(newer)), 0o666); err != nil {
		t.Fatal(err)
	}
	refused("a newer format", (*run).state, func(err error) bool { return strings.Contains(err.Error(), "format version 2") })
}

// Ranks whose shares contradict each other get an error that names the rank and both values.
func TestSharesThatContradict(t *testing.T) {
	for want, change := range map[string]func(s *share){
		"rank 1 saves step 4, rank 0 step 3":                                      func(s *share) { s.Step = 4 },
		"the tensors of rank 1 have other names, types or shapes":                 func(s *share) { s.Layout = 1 },
		"the optimizers of rank 1 have made [5] steps, those of rank 0 [3] steps": func(s *share) { s.Optimizers = []int{5} },
		"some ranks save the state of a communication hook and others do not":     func(s *share) { s.Hook = true },
	} {
		shares := []share{{Step: 3, Optimizers: []int{3}}, {Step: 3, Optimizers: []int{3}}}
		change(&shares[1])
		if _, err := merge(shares); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
